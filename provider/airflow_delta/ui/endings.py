"""How a transaction ended that its log does not hold, or not at first: by which task, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.ui.transaction_values import Ending, Transaction
from airflow_delta.ui.tries import (
    ABORT,
    COMMIT,
    ENDED,
    Answer,
    TaskKey,
    Try,
)

_APPROVAL, _APPROVE, _REJECT = "ApprovalOperator", "Approve", "Reject"

_MARKED = "The task is marked as success, but no version of the table holds the transaction."

_CLEARED = "The start task was cleared before the transaction ended."

_LEFT = "No task of its run is left that could end it."

_NOT_RUN = "It was skipped before it ran: by a task before it, or by hand."

_NO_ANSWER = "Nobody answered in time."

_NEVER = 1 << 62

Place = tuple[str, str, int | None]
"""Dag, run, and the map index of tasks; ``None`` for all of them."""


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What Airflow knows of some runs.

    :param tries: of their tasks.
    :param failed: by run: those that failed for good.
    :param said: answers of people, by run.
    :param left: errors that failed tries left.
    """

    tries: Mapping[Place, Sequence[Try]]
    failed: Mapping[tuple[str, str], Sequence[Try]]
    said: Mapping[tuple[str, str], Sequence[Answer]]
    left: Mapping[tuple[TaskKey, int], Mapping[str, Any]]

    @classmethod
    def of(
        cls, tries: Iterable[Sequence[Try]], said: Iterable[Answer], left: Mapping[tuple[TaskKey, int], Mapping[str, Any]]
    ) -> RunEvidence:
        """Return it in order."""
        by_place: dict[Place, list[Try]] = {}
        failed: dict[tuple[str, str], list[Try]] = {}
        for several in tries:
            for found in several:
                for map_index in (found.map_index, None):
                    by_place.setdefault((found.dag_id, found.run_id, map_index), []).append(found)
                if found.final and found.state == "failed":
                    failed.setdefault((found.dag_id, found.run_id), []).append(found)
        answered: dict[tuple[str, str], list[Answer]] = {}
        for answer in said:
            answered.setdefault((answer.asked.dag_id, answer.asked.run_id), []).append(answer)
        return cls(by_place, failed, answered, left)

    def within(self, one: Transaction) -> list[Try]:
        """Return the tries of the tasks of a transaction."""
        if one.is_own:
            return list(one.tries)
        dag_id, run_id, _, map_index = one.key
        near = self.tries.get((dag_id, run_id, map_index if map_index >= 0 else None), ())
        return [found for found in near if _is_within(one, found)]


def ending_of(one: Transaction, evidence: RunEvidence, since: int | None) -> Ending:
    """Return how a transaction ended.

    :param since: time from which a transaction without a commit certainly has none.
    """
    mine, run = evidence.within(one), (one.run.dag_id, one.run.run_id)
    # What failed later, failed after the commit.
    before = one.commit.at if one.commit is not None else _NEVER
    failed = sorted((found for found in mine if found.final and found.state == "failed" and _end(found) <= before), key=_order)
    rejections = [answer for answer in evidence.said.get(run, ()) if _is_rejection(answer) and _is_within(one, answer.asked)]
    rejections.sort(key=lambda answer: _order(answer.asked))
    if rejections and (not failed or _order(rejections[0].asked) <= _order(failed[0])):
        by = rejections[0].by
        return Ending("rejected", rejections[0].asked, reason=None if by else _NO_ANSWER, rejected_by=by)
    if failed:
        return _failed(failed, evidence)
    if one.commit is not None or one.is_own:
        return Ending("committed") if one.commit is not None or one.tries[-1].final else Ending("running", one.tries[-1])
    return _unfinished(one, mine) or _without_failure(one, mine, evidence, since)


def _unfinished(one: Transaction, mine: Sequence[Try]) -> Ending | None:
    """Return the ending of an open transaction."""
    if one.until is not None or one.run.state not in ("running", "queued"):
        return None
    active = [found for found in mine if found.state not in ENDED and found.operator != ABORT]
    if not active:
        return None
    waiting = next((found for found in active if found.state == "awaiting_input"), None)
    now = waiting or next((found for found in active if not found.is_pending), None) or _first(active, "up_for_retry")
    return Ending("waiting" if waiting else "running", now)


def _without_failure(one: Transaction, mine: Sequence[Try], evidence: RunEvidence, since: int | None) -> Ending:
    commit = next((found for found in mine if found.operator == COMMIT), None)
    if commit is not None and commit.state == "success":
        # Without all commits at hand, what Airflow says counts.
        certain = since is not None and (one.begun if commit.end is None else commit.end) >= since
        return Ending("open", commit, reason=_MARKED) if certain else Ending("committed")
    upstream_failed = _first(mine, "upstream_failed")
    if upstream_failed is not None:  # by a task outside of the group
        failed = evidence.failed.get((one.run.dag_id, one.run.run_id), ())
        outside = [found for found in failed if not _is_other(one, found) and (one.until is None or _end(found) < one.until)]
        return _failed([min(outside, key=_order)], evidence) if outside else Ending("failed", upstream_failed)
    if (skipped := _first(mine, "skipped")) is not None:
        return Ending("skipped", skipped, reason=None if skipped.number else _NOT_RUN)
    if one.until is not None:
        return Ending("cleared", reason=_CLEARED)
    return Ending("open", reason=_LEFT)


def _failed(failed: Sequence[Try], evidence: RunEvidence) -> Ending:
    """Return the ending of the first of some tasks; of one that was stopped by hand, with its run, abort says why."""
    by = failed[0]
    told = (evidence.left.get((found.key, found.number)) for found in failed if found is by or found.operator == ABORT)
    return Ending("failed", by, next(filter(None, told), {}), reason=by.reason)


def _first(tries: Sequence[Try], state: str) -> Try | None:
    found = [each for each in tries if each.state == state and each.operator != ABORT]
    return min(found, key=_order, default=None)


def _order(found: Try) -> tuple[bool, int, int]:
    """Order tries by their end; the abort of a transaction did not end it."""
    return (found.operator == ABORT, _end(found), found.number)


def _end(found: Try) -> int:
    return found.end if found.end is not None else _NEVER


def _is_within(one: Transaction, found: Try) -> bool:
    """Return whether a try is part of a transaction."""
    if not one.has(found.key):
        return False
    if found.end is None or found.is_pending:
        return one.until is None
    return one.begun <= found.end and (one.until is None or found.end < one.until)


def _is_other(one: Transaction, found: Try) -> bool:
    """Return whether a task is part of another transaction of the run."""
    return bool(one.others) and found.task_id.startswith(one.others) and not one.has(found.key)


def _is_rejection(answer: Answer) -> bool:
    if answer.chosen == (_REJECT,):
        return True
    return answer.asked.operator == _APPROVAL and _APPROVE not in answer.chosen
