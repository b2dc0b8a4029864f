"""A transaction and its commit, as the pages know them from Airflow's database, the table's log and its asset events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.ui.known import KnownTable
from airflow_delta.ui.tries import Run, TaskKey, Try

Task = tuple[str, str]
"""Dag and task."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a transaction ended.

    :param state: ``committed``, ``failed``, ``rejected``, ``skipped``, ``cleared``, ``open`` (it never ended), ``running`` or
        ``waiting`` (for somebody's answer).
    :param by: the task that ended it, or that it waits for.
    :param note: the error that this task left; it may be empty.
    :param reason: why, if not by an error.
    :param rejected_by: who rejected it.
    """

    state: str
    by: Try | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    rejected_by: str | None = None


class CommitRow(NamedTuple):
    """A commit, from the log or an event.

    :param at: its time, in milliseconds.
    :param keys: transaction keys that it holds.
    """

    version: int
    at: int
    transaction_id: str | None
    task: TaskKey | None
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Asked:
    """A table whose transactions are asked for.

    :param outlets: tasks with the table as outlet.
    :param seen: other tasks that have committed to it.
    :param since: from this time on, in milliseconds, ``commits`` are all that the table has; ``None`` if that is unknown.
    """

    table: KnownTable
    outlets: frozenset[Task]
    seen: frozenset[Task]
    commits: Sequence[CommitRow]
    since: int | None = None

    @property
    def tasks(self) -> frozenset[Task]:
        """Return the tasks that may commit."""
        return self.outlets | self.seen


@dataclass(slots=True)
class Transaction:
    """A transaction.

    :param tries: those of its start task, or of the task that commits by itself.
    :param until: when the next transaction of that task began; ``None`` for the last one.
    :param group: prefix of the ids of its tasks; empty if they are in no group.
    :param others: prefixes of the groups of other transactions in the Dag.
    :param is_own: one task begins and commits it.
    :param handle: what the start task returned; empty if Airflow no longer has that.
    :param is_kept_elsewhere: the handle is empty because an XCom backend keeps it, and only tasks can read that.
    :param commit: the commit that made it public, or made up for it.
    :param is_repair: that commit is another transaction's.
    """

    run: Run
    tries: list[Try]
    until: int | None = None
    group: str = ""
    others: tuple[str, ...] = ()
    is_own: bool = False
    handle: Mapping[str, Any] = field(default_factory=dict)
    is_kept_elsewhere: bool = False
    ending: Ending = field(default_factory=lambda: Ending("committed"))
    commit: CommitRow | None = None
    is_repair: bool = False

    @property
    def key(self) -> TaskKey:
        """Return the start task."""
        return self.tries[0].key

    @property
    def begun(self) -> int:
        """Return when it began, in milliseconds."""
        return self.tries[0].start or 0

    @property
    def at(self) -> int:
        """Return when it last changed, in milliseconds."""
        by = self.ending.by
        return (by.end if by is not None else None) or self.tries[-1].end or self.begun

    @property
    def transaction_id(self) -> str | None:
        """Return its id: the one in the handle, else the one that a failed task left."""
        said = self.handle.get("transactionId") or self.ending.note.get("transaction_id")
        return said if isinstance(said, str) else None

    def has(self, task: TaskKey) -> bool:
        """Return whether a task instance is part of it, at some time."""
        if self.is_own:
            return task == self.key
        if task[:2] != self.key[:2] or (self.key[3] >= 0 and task[3] != self.key[3]):
            return False
        return task[2].startswith(self.group) and not (not self.group and task[2].startswith(self.others))
