"""Which commit made a transaction public, or made up for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_delta.ui.transaction_values import Asked, CommitRow, Transaction
from airflow_delta.ui.tries import (
    TaskKey,
)

Siblings = Mapping[TaskKey, Sequence[Transaction]]
"""Transactions by their start task, in their order."""


def siblings(found: Iterable[Transaction]) -> dict[TaskKey, list[Transaction]]:
    """Return transactions by their start task."""
    told: dict[TaskKey, list[Transaction]] = {}
    for one in found:
        told.setdefault(one.key, []).append(one)
    return told


def match(found: Sequence[Transaction], commits: Iterable[CommitRow]) -> None:
    """Give each transaction its commit."""
    by_id = {one.transaction_id: one for one in found if one.transaction_id is not None}
    by_instance: dict[tuple[str, str, int], list[Transaction]] = {}
    for one in found:
        by_instance.setdefault((one.key[0], one.key[1], one.key[3]), []).append(one)
    for commit in sorted(commits, key=lambda commit: (commit.at, commit.version)):
        its = by_id.get(commit.transaction_id or "")
        if its is None and commit.task is not None:
            dag_id, run_id, _, map_index = commit.task
            near = [one for index in {map_index, -1} for one in by_instance.get((dag_id, run_id, index), ())]
            several = [one for one in near if one.has(commit.task)]
            if len({one.key for one in several}) == 1:
                # The last one that had begun by then; clocks may differ.
                its = max((one for one in several if one.begun <= commit.at), key=lambda one: one.begun, default=several[0])
        if its is not None and its.commit is None:
            its.commit = commit


def must_have_commit(one: Transaction, asked: Asked, known: Siblings) -> bool:
    """Return whether a success of its commit task means a commit: one that emits events, and found no commit of its key."""
    if (one.key[0], f"{one.group}commit") not in asked.outlets or one.handle.get("committed"):
        return False
    return not any(each.commit is not None and each.begun < one.begun for each in known[one.key])


def find_repairs(found: Iterable[Transaction], commits: Iterable[CommitRow], known: Siblings) -> None:
    """Give each transaction without a commit the one that made up for it: of a later start in the same run, or of its key."""
    by_key: dict[str, list[CommitRow]] = {}
    for commit in commits:
        for key in commit.keys:
            by_key.setdefault(key, []).append(commit)
    for one in found:
        if one.commit is not None or one.ending.state == "committed":
            continue
        later = [each.commit for each in known[one.key] if each.begun > one.begun and each.commit is not None]
        app_id = one.handle.get("appId")
        if isinstance(app_id, str):
            later += [commit for commit in by_key.get(app_id, ()) if commit.at > one.begun]
        if later:
            one.commit, one.is_repair = min(later, key=lambda commit: (commit.at, commit.version)), True
