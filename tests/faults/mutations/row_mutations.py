"""The rules of the engine broken by hand, one at a time: what the histories must notice.

Each value makes a context manager in which a rule is broken. A name that the engine no longer has is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.moved_rows import RowSource
from airflow_delta.log.expressions import arrow_rows
from airflow_delta.transaction.commit.loop import CommitLoop
from airflow_delta.transaction.conflicts import carried_rows, marked_rows, moved_rows, rows_of_winners
from airflow_delta.transaction.conflicts.carried_rows import CarriedRows
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.dropped_bins import DroppedBins
from airflow_delta.transaction.conflicts.file_conflicts import FileConflicts
from airflow_delta.transaction.conflicts.marked_rows import MarkedRows
from airflow_delta.transaction.conflicts.rearranged_rows import RearrangedRows
from airflow_delta.transaction.conflicts.resolution import Resolution
from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.reads.key_set import KeySet
from airflow_delta.transaction.reads.read_set import ReadPredicate
from airflow_delta.transaction.reads.row_condition import RowCondition
from faults.rows.setting import Aim

Broken = Callable[[], AbstractContextManager[object]]


def _broken(target: Any, name: str, make: Callable[[Any], Any]) -> Broken:
    """Return a rule broken: an attribute replaced by what ``make`` makes of it."""
    return lambda: patch.object(target, name, make(_of(target, name)))


def _of(target: Any, name: str) -> Any:
    return vars(target)[name] if isinstance(target, type) else getattr(target, name)


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _rule: lambda *_arguments, **_named: value


def _without_others(rule: Any) -> Any:
    return lambda self, file, _others, marked: rule(self, file, BitMap64(), marked)


def _ignores_what_both_mark(rule: Any) -> Any:
    def unite(self: Any, file: Any, others: Any, marked: Any) -> Any:
        marks = self._of(file.path)
        own, marks.rows = marks.rows, marks.rows - marked
        both = rule(self, file, others, marked)
        marks.rows = own
        return both

    return unite


def _in_the_first_group(rule: Any) -> Any:
    return lambda mask, _start: rule(mask, 0)


def _forgets_the_winners(rule: Any) -> Any:
    return lambda self, winners: rule(self, winners[-1:])


def _whatever_it_got_back(_rule: Any) -> Any:
    def lost(self: Any, winner: Any, added: Any) -> Any:
        if added.path not in winner.replaced:
            return None
        before = next(file.deletion_vector for file in winner.removed_files if file.path == added.path)
        old, new = self.vector(before), self.vector(added.deletion_vector)
        return rows_of_winners.ReplacedVector(new - old, new)

    return lost


def _in_the_first_column(rule: Any) -> Any:
    return lambda *arguments: (row[:1] for row in rule(*arguments))


def _unfollowed(_rule: Any) -> Any:
    return lambda self, winner: self._carried.are_as_before(winner, self._reads, self._usable)


def _same_places(_rule: Any) -> Any:
    return lambda _reader, _metadata, _file, rows, added: [(added[0], rows, float("inf"))]


def _from_zero(rule: Any) -> Any:
    def row_ids(reader: Any, file: Any, column: Any, rows: Any) -> Any:
        return rule(reader, file if rows is None else msgspec.structs.replace(file, base_row_id=0), column, rows)

    return row_ids


def _without_the_last(rule: Any) -> Any:
    def among(self: Any, position: int, values: Any) -> Any:
        listed = self._listed
        self.__dict__["_listed"] = [known[:-1] for known in listed]
        try:
            return rule(self, position, values)
        finally:
            self.__dict__["_listed"] = listed

    return among


def _below_its_bound(rule: Any) -> Any:
    def of_column(self: Any, position: int) -> Any:
        high = [value - 1 if isinstance(value, int) else value for value in self.high]
        return rule(self if self.rows is not None else replace(self, high=tuple(high)), position)

    return of_column


def _as_if_exact(rule: Any) -> Any:
    return lambda values, data_type: values if data_type.name == "double" else rule(values, data_type)


@contextmanager
def _doubles_as_in_arrow() -> Iterator[None]:
    with (
        patch.object(arrow_rows, "is_compared_exactly", lambda _type: True),
        patch.object(arrow_rows, "comparable", _as_if_exact(arrow_rows.comparable)),
    ):
        yield


def _nothing_if_absent(rule: Any) -> Any:
    def values(self: Any, column: Any) -> Any:
        found = rule(self, column)
        if found is None or found.null_count < len(found) or column.data_type.name != "integer" or column.is_partition:
            return found
        return pa.array([10**6] * len(found), found.type)

    return values


def _of_no_partition(rule: Any) -> Any:
    def values(self: Any, column: Any, name: str) -> Any:
        found = rule(self, column, name)
        return found if found is None else pa.nulls(len(found), found.type)

    return values


def _one_further(rule: Any) -> Any:
    return lambda self, rows: BitMap64(row + 1 for row in rule(self, rows))


def _as_if_none_was_deleted(_rule: Any) -> Any:
    return lambda self, rows: BitMap64(row + self.first_row for row in rows)


def _the_next(rule: Any) -> Any:
    return lambda *arguments: BitMap64(row + 1 for row in rule(*arguments))


def _forgets_before(rule: Any) -> Any:
    def meet(self: Any, *arguments: Any) -> None:
        self._gone.clear()
        rule(self, *arguments)

    return meet


def _keeps_its_own(rule: Any) -> Any:
    def apply(self: Any) -> None:
        rule(self)
        self.current.files_of_others = set()

    return apply


def _only(kind: type[AddFile] | type[RemoveFile], names: str) -> Callable[[Any], Any]:
    return lambda _rule: lambda self, action: isinstance(action, kind) and action.path in getattr(self, names)


MUTATIONS: dict[str, Broken] = {
    # What winners added.
    "added files are not checked": _broken(FileConflicts, "check_added", _always(None)),
    "rows that were added are not looked at": _broken(WinnersRows, "any_was_read", _always(False)),
    "bounds rule every file out": _broken(RowCondition, "may_hold", lambda _rule: lambda _self, files: [False] * len(files)),
    "no row is ever selected": _broken(
        RowCondition, "may_select", lambda _rule: lambda _self, _values, length: arrow_rows._Rows(None, length)._all(False)
    ),
    "who removes files only moves rows": _broken(
        WinningCommit, "only_moves_rows", lambda _rule: property(lambda self: bool(self.removed_files))
    ),
    "every winner is a blind append": _broken(WinningCommit, "is_blind_append", lambda _rule: True),
    "other partitions are all that matters": _broken(ReadPredicate, "covers", _always(False)),
    "a file that got rows back has lost them": _broken(WinnersRows, "removed_from", _whatever_it_got_back),
    # What winners removed.
    "removed files are not checked": _broken(FileConflicts, "check_removed", _always(None)),
    "rows that are gone were not read": _broken(Resolution, "_was_not_read", _always(None)),
    "compacted files are not followed": _broken(Resolution, "_follow", _always(None)),
    "rows that a MERGE left alone do not count": _broken(FileConflicts, "_scanned", _always(frozenset())),
    "every row group is ruled out": _broken(rows_of_winners, "may_hold", _always(False)),
    # What winners wrote again.
    "rows that are written again are as before": _broken(CarriedRows, "are_as_before", _always(True)),
    "rows are compared in their first column": _broken(carried_rows, "_rows", _in_the_first_column),
    "rows that are written again are not followed": _broken(Resolution, "_reads_as_before", _unfollowed),
    # Keys.
    "null equals no key": _broken(KeySet, "_matches_null", _always(False)),
    "the last key is forgotten": _broken(KeySet, "_among", _without_the_last),
    "the greatest key is none": _broken(KeySet, "_of_column", _below_its_bound),
    # Values.
    "doubles compare as in Arrow": _doubles_as_in_arrow,
    "a column that a file lacks is not null": _broken(rows_of_winners._Values, "_values", _nothing_if_absent),
    "the partition of every file is null": _broken(rows_of_winners._Values, "_partition", _of_no_partition),
    "all rows are in the first row group": _broken(rows_of_winners, "positions", _in_the_first_group),
    # Deletion vectors.
    "both may mark a row": _broken(MarkedRows, "unite", _ignores_what_both_mark),
    "the winner's vector is lost": _broken(MarkedRows, "unite", _without_others),
    "vectors are as they were": _broken(MarkedRows, "applied", _always(None)),
    "statistics stay exact": _broken(marked_rows, "with_wide_bounds", lambda _rule: lambda stats, _before=None: stats),
    "rows that moved are where they were": _broken(moved_rows, "find_moved", _same_places),
    "row ids begin at 0 in every file": _broken(moved_rows, "_row_ids", _from_zero),
    # Rows that compactions moved.
    "moved rows are one row further": _broken(RowSource, "moved", _one_further),
    "deleted rows were moved too": _broken(RowSource, "moved", _as_if_none_was_deleted),
    "rows are alike to the next": _broken(moved_rows, "_like", _the_next),
    "a compaction forgets what winners deleted": _broken(RearrangedRows, "applied", _always(None)),
    "a compaction forgets vectors of earlier winners": _broken(RearrangedRows, "meet", _forgets_before),
    "new files of bins that were dropped stay": _broken(DroppedBins, "_is_dropped", _only(RemoveFile, "removes")),
    "old files of bins that were dropped go": _broken(DroppedBins, "_is_dropped", _only(AddFile, "adds")),
    "what was read beside a compaction does not count": _broken(Resolution, "_check_beside", _always(None)),
    "files of others get new row ids": _broken(Resolution, "apply", _keeps_its_own),
    # The loop around it all.
    "only the newest winner is checked": _broken(CommitLoop, "check_for_conflicts", _forgets_the_winners),
    "a lost race changes nothing": _broken(CurrentTransaction, "rebase", _always(False)),
}

_REWRITTEN = {"vectors": False, "tracked": False}
AIMS = {
    "a file that got rows back has lost them": Aim(("delete", "restore"), ("look", "merge", "delete"), "k", {"vectors": True}),
    "compacted files are not followed": Aim(("optimize", "delete"), ("look",), "k"),
    "rows that are gone were not read": Aim(("delete",), ("look", "merge"), "k"),
    "rows that are written again are as before": Aim(("update",), ("look",), "k", _REWRITTEN),
    "rows are compared in their first column": Aim(("update",), ("look",), "k", _REWRITTEN),
    "rows that are written again are not followed": Aim(("delete",), ("look",), "k", _REWRITTEN),
    "both may mark a row": Aim(("delete",), ("update",), "k", {"vectors": True}),
    "the winner's vector is lost": Aim(("delete",), ("delete", "update"), "k", {"vectors": True}),
    "vectors are as they were": Aim(("delete",), ("delete", "update"), "k", {"vectors": True}),
    "rows that a MERGE left alone do not count": Aim(("delete",), ("merge",), "k"),
    "null equals no key": Aim(("append", "update"), ("merge",), "n"),
    "the last key is forgotten": Aim(("append", "update"), ("merge",)),
    "the greatest key is none": Aim(("append", "update"), ("merge",), "k"),
    "doubles compare as in Arrow": Aim(("append", "update"), ("look", "delete"), "x"),
    "a column that a file lacks is not null": Aim(("append", "update"), ("look", "update"), "n", {"prunes": True}),
    "the partition of every file is null": Aim((), (), None, {"partitioned": True}),
    "all rows are in the first row group": Aim(("delete",), ("look", "merge"), "k", {"vectors": True, "fine": 1}),
    "statistics stay exact": Aim(("optimize", "delete"), ("delete", "update"), "k", {"vectors": True, "tracked": True}),
    "rows that moved are where they were": Aim(("optimize",), ("delete", "update"), "k", {"vectors": True, "tracked": True}),
    "row ids begin at 0 in every file": Aim(("optimize",), ("delete", "update"), "k", {"vectors": True, "tracked": True}),
    "moved rows are one row further": Aim(("optimize",), ("delete", "update"), "k", {"vectors": True, "tracked": False}),
    "new files of bins that were dropped stay": Aim(("optimize",), ("optimize",), None, {"partitioned": True}),
    "old files of bins that were dropped go": Aim(("optimize",), ("optimize",), None, {"partitioned": True}),
    "what was read beside a compaction does not count": Aim(("delete",), ("look",), "k", {"vectors": True}, optimizes=True),
    "deleted rows were moved too": Aim(("delete", "optimize"), ("delete", "update"), "k", {"vectors": True, "tracked": False}),
    "rows are alike to the next": Aim(("optimize",), ("delete", "update"), "k", {"vectors": True, "tracked": False}),
    "a compaction forgets what winners deleted": Aim(("delete", "update"), ("optimize",), "k", {"vectors": True}),
    "a compaction forgets vectors of earlier winners": Aim(("delete",), ("optimize",), "k", {"vectors": True}),
    "files of others get new row ids": Aim(("optimize",), ("delete", "update"), "k", {"vectors": True, "tracked": True}),
}
"""What the histories are to be about, for mutations that few others notice."""
