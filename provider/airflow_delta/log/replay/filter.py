"""Choosing the files that a predicate may select, by partition values, then statistics, and row groups by their footers."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, repeated
from airflow_delta.log.checkpoint.file_columns import FILE_SCHEMA
from airflow_delta.log.expressions import ast
from airflow_delta.log.expressions.predicate import Predicate, partition_texts, partitions_mask
from airflow_delta.log.replay.row_groups import Range, may_hold
from airflow_delta.log.schema.partition_values import MAX_OFFSET
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DataType, DecimalType
from airflow_delta.log.statistics.credible import SECONDS
from airflow_delta.log.statistics.data_skipping import needed_stats, partition_columns, skipping_mask, statistics_columns

if TYPE_CHECKING:
    from airflow_delta.log.checkpoint.part import RowGroup
    from airflow_delta.log.checkpoint.reader import CheckpointReader

Evaluate = Callable[[pa.RecordBatch], pa.BooleanArray]
Step = tuple[Sequence[str], Evaluate]

# Upper bounds of timestamps are truncated to milliseconds (protocol, "Per-file Statistics").
_TRUNCATED = dt.timedelta(milliseconds=1)


class FileFilter:
    """A predicate on the rows of a table, as a filter on its files.

    :param predicate: the predicate, bound to the table's schema.
    """

    _undecided = False

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate
        self._steps: list[Step] = []

    # -- checkpoints ----------------------------------------------------------------------------------------------------------

    def prepare(self, reader: CheckpointReader) -> None:
        """Choose the columns of a checkpoint to read."""
        self._steps, self._undecided = [], False
        if self._predicate.partition_part is not None:
            self._steps.append((["partitionValues"], lambda rows: self._partition_mask(rows.column("partitionValues"))))
        if statistics_columns(self._predicate.data_part):
            self._steps.append(self._statistics_step(reader))
        self._steps = [(columns, self._of_any_type(evaluate)) for columns, evaluate in self._steps]

    def _of_any_type(self, evaluate: Evaluate) -> Evaluate:
        """Return the function for rows of files that may have left the table: columns have had other types then."""

        def possible(rows: pa.RecordBatch) -> pa.BooleanArray:
            try:
                return evaluate(rows)
            except DeltaAnalysisException:
                self._undecided = True
                return repeated(True, rows.num_rows)

        return possible

    @property
    def undecided(self) -> list[str]:
        """Fields of ``add`` that :meth:`decided` needs, once the steps have seen values of other types."""
        return ["partitionValues"] if self._undecided else []

    def decided(self, live: pa.RecordBatch) -> pa.RecordBatch:
        """Return the live files that the predicate selects by their partitions, of those that the steps have let pass."""
        if not self._undecided or self._predicate.partition_part is None:
            return live
        return kernels.filter(live, self._partition_mask(live.column("partitionValues")))

    def _statistics_step(self, reader: CheckpointReader) -> Step:
        paths = [("stats_parsed", *path) for path in needed_stats(self._predicate.data_part)]
        members = [".".join(path) for path in paths]  # Arrow reads every column whose path equals or starts with one of these
        typed = all(map(reader.has_column, paths)) or not reader.may_have_values(("add", "stats"))
        column = "stats_parsed" if typed else "stats"
        mixed = ["partitionValues"] if partition_columns(self._predicate.data_part) else []

        def evaluate(rows: pa.RecordBatch) -> pa.BooleanArray:
            if column not in rows.schema.names:
                return repeated(True, rows.num_rows)
            return self._statistics_mask(rows.column(column), rows.column("partitionValues") if mixed else None)

        return [*(members if typed else ["stats"]), *mixed], evaluate

    @property
    def steps(self) -> list[Step]:
        """Return the steps, cheapest first: fields of ``add`` to read, and a function from these to a mask."""
        return self._steps

    def keeps(self, group: RowGroup) -> bool:
        """Return whether a row group may have files that the predicate selects."""
        return may_hold(self._predicate.expression, lambda column: _range(group, column))

    # -- actions --------------------------------------------------------------------------------------------------------------

    def filter_actions(self, adds: list[AddFile]) -> list[AddFile]:
        """Return the files that the predicate may select."""
        if self._predicate.partition_part is not None:
            values = _column(adds, "partition_values")
            adds = _selected(adds, self._partition_mask(values))
        if adds and statistics_columns(self._predicate.data_part):
            values = _column(adds, "partition_values") if partition_columns(self._predicate.data_part) else None
            adds = _selected(adds, self._statistics_mask(_column(adds, "stats"), values))
        return adds

    def _statistics_mask(self, stats: pa.Array, values: pa.MapArray | None) -> pa.BooleanArray:
        texts = None if values is None else lambda name: partition_texts(values, name)
        return skipping_mask(self._predicate.data_part, stats, texts)

    def _partition_mask(self, values: pa.MapArray) -> pa.BooleanArray:
        return self._predicate.partition_mask(lambda name: partition_texts(values, name), len(values))


class PartitionsFilter(FileFilter):
    """Selects the files of the partitions in which one of several predicates may select rows.

    :param predicates: conditions that partition values decide, or may.
    """

    def __init__(self, predicates: Sequence[Predicate]) -> None:
        self._predicates = predicates
        self._steps: list[Step] = []

    def prepare(self, _reader: CheckpointReader) -> None:
        """Read partition values."""
        evaluate = self._of_any_type(lambda rows: self._partition_mask(rows.column("partitionValues")))
        self._steps, self._undecided = [(["partitionValues"], evaluate)], False

    def decided(self, live: pa.RecordBatch) -> pa.RecordBatch:
        """Return the live files of these partitions, of those that the step has let pass."""
        return kernels.filter(live, self._partition_mask(live.column("partitionValues"))) if self._undecided else live

    def keeps(self, group: RowGroup) -> bool:
        """Return whether a row group may have files of these partitions."""
        ranges = cache(partial(_range, group))
        return any(may_hold(predicate.expression, ranges) for predicate in self._predicates)

    def filter_actions(self, adds: list[AddFile]) -> list[AddFile]:
        """Return the files of these partitions."""
        return _selected(adds, self._partition_mask(_column(adds, "partition_values")))

    def _partition_mask(self, values: pa.MapArray) -> pa.BooleanArray:
        return partitions_mask(self._predicates, lambda name: partition_texts(values, name), len(values))


class PathFilter(FileFilter):
    """Selects the files with certain paths, as spelled in the log."""

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = sorted(paths)
        values = array(self._paths, pa.string())
        self._steps: list[Step] = [(["path"], lambda rows: kernels.is_in(rows.column("path"), value_set=values))]

    def prepare(self, reader: CheckpointReader) -> None:
        """Do nothing: every checkpoint has paths."""

    def keeps(self, group: RowGroup) -> bool:
        """Return whether one of the paths is within the bounds of a row group."""
        bounds = group.bounds(("add", "path"))
        if bounds is None:
            return True
        at = bisect_left(self._paths, bounds[0])
        return at < len(self._paths) and self._paths[at] <= bounds[1]

    def filter_actions(self, adds: list[AddFile]) -> list[AddFile]:
        """Return the files that have one of the paths."""
        paths = set(self._paths)
        return [add for add in adds if add.path in paths]


def _column(adds: list[AddFile], name: str) -> pa.Array:
    return array([getattr(add, name) for add in adds], FILE_SCHEMA.field(name).type)


def _selected(adds: list[AddFile], mask: pa.BooleanArray) -> list[AddFile]:
    return [add for add, kept in zip(adds, mask.to_pylist(), strict=True) if kept]


def _range(group: RowGroup, column: ast.ColumnReference) -> Range | None:
    if column.data_type.name in FLOATING:
        return None  # NaN is not in the footer's bounds
    if column.is_partition:
        return _partition_range(group, column)
    if isinstance(column.data_type, DecimalType):
        return None  # some writers round them
    if not group.part.has_consistent_statistics:
        return None  # bounds of a file that contradict each other may lie inside those of the row group
    ends = [("add", "stats_parsed", member, *column.physical_path) for member in ("minValues", "maxValues")]
    # A file without statistics may have any value, so every file must have them.
    missing = group.null_count(("add", "path"))
    if missing is None or any(group.null_count(end) != missing for end in ends):
        return None
    low, high = map(group.bounds, ends)
    within = None if low is None or high is None else _in_type(low[0], high[1], column)
    if within is None or not isinstance(within.high, dt.datetime):
        return within
    lost = SECONDS if column.data_type.name == "timestamp" else dt.timedelta(0)
    try:
        return Range(within.low - lost, within.high + lost + _TRUNCATED)
    except OverflowError:
        return None


def _partition_range(group: RowGroup, column: ast.ColumnReference) -> Range | None:
    bounds = group.bounds(("add", "partitionValues_parsed", *column.physical_path))
    within = None if bounds is None else _in_type(*bounds, column)
    if within is not None and column.data_type.name == "timestamp":
        return _whichever_zones(*within)  # strings without a zone were read in the zone of the writer of the checkpoint
    return within


def _whichever_zones(low: Any, high: Any) -> Range | None:
    try:
        return Range(low - 2 * MAX_OFFSET, high + 2 * MAX_OFFSET)
    except OverflowError:
        return None


_PYTHON: dict[str, type] = {
    **dict.fromkeys(INTEGRAL, int),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), dt.datetime),
    "binary": bytes,
    "boolean": bool,
    "date": dt.date,
    "string": str,
}


def _in_type(low: Any, high: Any, column: ast.ColumnReference) -> Range | None:
    """Return bounds as values of the column, which may have been widened after the checkpoint: a date becomes a timestamp.

    ``None`` if they are not: before the table was overwritten, the column was of another type.
    """
    within = Range(_widened(low, column), _widened(high, column))
    return within if all(_is_of(bound, column.data_type) for bound in within) else None


def _widened(bound: Any, column: ast.ColumnReference) -> Any:
    if column.data_type.name == "timestamp_ntz" and isinstance(bound, dt.date) and not isinstance(bound, dt.datetime):
        return dt.datetime(bound.year, bound.month, bound.day)
    return bound


def _is_of(bound: Any, data_type: DataType) -> bool:
    if isinstance(data_type, DecimalType):
        return type(bound) in (int, Decimal)
    if isinstance(bound, dt.datetime) and (bound.tzinfo is None) == (data_type.name == "timestamp"):
        return False
    return type(bound) is _PYTHON.get(data_type.name)
