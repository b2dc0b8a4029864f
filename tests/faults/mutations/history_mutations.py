"""The engine broken by hand, one rule at a time: what a judge of histories must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_delta.exceptions import ConcurrentAppendException
from airflow_delta.transaction.commit.committer import Committer
from airflow_delta.transaction.commit.loop import CommitLoop
from airflow_delta.transaction.conflicts import checker
from airflow_delta.transaction.conflicts.checker import ConflictChecker
from airflow_delta.transaction.conflicts.file_conflicts import FileConflicts
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.prepare.isolation import IsolationLevel
from airflow_delta.transaction.reads.read_set import ReadPredicate, ReadSet


@dataclass(frozen=True)
class Mutation:
    """A rule that is broken.

    :param patch: breaks it, in this process.
    :param kinds: operations that it matters to; none: all.
    :param level: isolation level at which it matters.
    """

    patch: Callable[[], None]
    kinds: tuple[str, ...] = ()
    level: str | None = None


def _set(target: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(target, name, value)


def _nothing(*_: Any, **__: Any) -> None:
    return None


_ADDED = FileConflicts.check_added
_LOOK = FileConflicts.look
_CHECKS = CommitLoop.check_for_conflicts


def _forgets_own_removes(self: FileConflicts, _removes: Any) -> None:
    _LOOK(self, {})


def _checks_the_last_only(self: CommitLoop, winners: Any) -> None:
    _CHECKS(self, winners[-1:])


def _gives_up_after_a_doubt(self: CommitLoop, version: int, error: Exception) -> bool:
    raise error


def _lets_blind_appends_pass(self: FileConflicts, winner: WinningCommit) -> None:
    if not winner.is_blind_append:
        _ADDED(self, winner)


def _says_added(self: FileConflicts, winner: WinningCommit) -> None:
    if winner.added:
        raise self._conflict(ConcurrentAppendException, winner, "Files were added", None, {})


def _loses_at_rebase(self: ConflictChecker, version: int) -> bool:
    return False


WRITERS = ("append", "insert_select", "replace", "delete", "move", "compact")

MUTATIONS = {
    "added files are not checked": Mutation(_set(FileConflicts, "check_added", _nothing), WRITERS),
    "removed files are not checked": Mutation(_set(FileConflicts, "check_removed", _nothing), WRITERS),
    "files that were read may be removed": Mutation(
        _set(FileConflicts, "_read_files_removed_by_batch", lambda _self: set()),
        ("insert_select", "delete", "replace", "summary"),
    ),
    "both may remove a file": Mutation(_set(FileConflicts, "look", _forgets_own_removes), ("drop", "replace_partitions")),
    "other partitions are all that matters": Mutation(_set(ReadPredicate, "covers", lambda _self, _values: False), WRITERS),
    "the whole table is not what was read": Mutation(_set(ReadSet, "read_whole_table", _nothing), ("summary", "append", "drop")),
    "applications are not checked": Mutation(_set(checker, "check_winner_app_ids", _nothing), ("count_up",)),
    "metadata is not checked": Mutation(
        _set(checker, "check_winner_metadata", _nothing), ("append", "set_property", "add_column")
    ),
    "only the newest winner is checked": Mutation(_set(CommitLoop, "check_for_conflicts", _checks_the_last_only), WRITERS),
    "every winner is a blind append": Mutation(_set(WinningCommit, "is_blind_append", True), WRITERS, "WriteSerializable"),
    "Serializable lets blind appends pass": Mutation(
        _set(FileConflicts, "check_added", _lets_blind_appends_pass), WRITERS, "Serializable"
    ),
    "it does not know its own commit": Mutation(_set(WinningCommit, "is_of", lambda _self, _txn: False), ("append",)),
    "a doubtful put has failed": Mutation(_set(CommitLoop, "_settle", _gives_up_after_a_doubt), ("append", "delete")),
    "a lost race changes nothing": Mutation(_set(ConflictChecker, "rebase", _loses_at_rebase), ("append",)),
    "any added file is a conflict": Mutation(_set(FileConflicts, "check_added", _says_added), WRITERS),
    "all is SnapshotIsolation": Mutation(_set(Committer, "_level", lambda *_: IsolationLevel.SNAPSHOT_ISOLATION), WRITERS),
}
