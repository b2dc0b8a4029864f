"""MERGE in the worker, step by step as :mod:`airflow_delta.spark.merge`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.merge import INSERTED, MATCHED, NOT_MATCHED, NOT_MATCHED_BY_SOURCE, UPDATE, MergeArguments
from airflow_delta.contract.merge_columns import several_matches, takes_any_match
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.log.data_files.group_rows import RowSelection, positions_of
from airflow_delta.table.arrow.rewrite.attempt import WorkerRewrite
from airflow_delta.table.arrow.rewrite.history import merged_versions
from airflow_delta.table.arrow.rewrite.merge_clauses import SOURCE, RowClauses
from airflow_delta.table.arrow.rewrite.merge_pairs import MergePairs
from airflow_delta.table.arrow.rewrite.merge_source import SourceRows, reported_keys
from airflow_delta.table.arrow.rewrite.read_plan import ROW
from airflow_delta.table.arrow.row_checks import check_no_variants
from airflow_delta.table.files.row_words import bitmap_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyroaring import BitMap64

    from airflow_delta.contract.payloads import ScanFile
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.arrow.rewrite.attempt import Write
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound


def run(log: DeltaLog, request: StageRequest, memory: MemoryBound, source_rows: Any) -> StageReport:
    """Merge the rows of a source into the table.

    :param source_rows: a pyarrow Table or RecordBatchReader, a pandas or Polars frame, or another Arrow stream.
    """
    arguments = MergeArguments.of(request)
    check_no_variants(request)
    if arguments.history is not None:
        source_rows = merged_versions(log, request, arguments.history, source_rows, memory)
    source = SourceRows(source_rows, request, memory)
    work = WorkerRewrite(log, request, memory)
    clauses = RowClauses(work, source, arguments)
    pairs = MergePairs(work, source, clauses, arguments, memory)
    work.lap("materializeSourceTimeMs")
    return _Merge(work, source, clauses, pairs, arguments).run()


@dataclass(slots=True)
class _Touched:
    """Rows of a file that clauses apply to.

    :param rows: their positions, each once, in order.
    :param source: the rows of the source that they match; null for none.
    """

    file: ScanFile
    rows: pa.Array
    source: pa.Array
    clause: pa.Array
    updated: int

    @property
    def bitmap(self) -> BitMap64:
        return bitmap_of(self.rows)


class _Merge:
    def __init__(
        self, work: WorkerRewrite, source: SourceRows, clauses: RowClauses, pairs: MergePairs, arguments: MergeArguments
    ) -> None:
        self._work, self._source, self._clauses, self._pairs = work, source, clauses, pairs
        self._arguments = arguments
        self._updates = array(clauses.of(MATCHED, NOT_MATCHED_BY_SOURCE, action=UPDATE), pa.int8())

    def run(self) -> StageReport:
        work, clauses = self._work, self._clauses
        found = self._pairs.find()
        touched = list(self._touched(found))
        self._check_duplicates(found)
        self._note_rows(found)
        work.metrics["numSourceRows"] = self._source.rows.num_rows
        work.note({item.file.path: len(item.rows) for item in touched})
        work.lap("scanTimeMs")
        vectors = work.request.deletion_vectors
        if vectors and touched:
            work.write_vectors({item.file.path: item.bitmap for item in touched})
        with ExitStack() as stack:
            writes = _Writes(work, stack)
            for item in touched:
                self._rewrite(item, writes, copies=not vectors)
            if clauses.of(NOT_MATCHED):
                self._insert(found, writes)
        work.lap("rewriteTimeMs")
        by_source = clauses.of(NOT_MATCHED_BY_SOURCE)
        keys = [(key.field, key.given, key.key.null_safe, key.values) for key in self._pairs.keys]
        return work.report(
            identities=clauses.identities if clauses.of(NOT_MATCHED) else (), keys=None if by_source else reported_keys(keys)
        )

    # -- which rows -----------------------------------------------------------------------------------------------------------

    def _touched(self, pairs: pa.Table) -> Iterator[_Touched]:
        """Yield the rows that clauses apply to, file by file."""
        applied = pairs.filter(pc.is_valid(pairs.column("clause"))).combine_chunks()
        if not applied.num_rows:
            return
        (batch,) = applied.to_batches()
        runs = pc.run_end_encode(batch.column("file"))
        start = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            some = batch.slice(start, end - start)
            some = some.filter(_first_of_each(some, ("row",)))  # of several pairs of a row that is deleted, one will do
            clause = some.column("clause")
            updated = pc.is_in(clause, value_set=self._updates).true_count
            yield _Touched(self._work.plan.files[number], some.column("row"), some.column("source"), clause, updated)
            start = end

    def _check_duplicates(self, pairs: pa.Table) -> None:
        matched = pairs.filter(pc.is_valid(pairs.column("source"))).combine_chunks()
        rows = _first_of_each(matched, ("file", "row")).true_count
        if matched.num_rows > rows and not takes_any_match([self._clauses.all[i] for i in self._clauses.of(MATCHED)]):
            raise several_matches(self._work.request, matched.num_rows, rows, self._arguments.condition)

    def _note_rows(self, pairs: pa.Table) -> None:
        applied = pairs.filter(pc.is_valid(pairs.column("clause"))).combine_chunks()
        rows = applied.filter(_first_of_each(applied, ("file", "row")))
        updates = pc.is_in(rows.column("clause"), value_set=self._updates)
        alone = pc.is_null(rows.column("source"))

        def count(*masks: pa.ChunkedArray) -> int:
            found = masks[0]
            for mask in masks[1:]:
                found = pc.and_(found, mask)
            return int(pc.sum(found).as_py() or 0)

        deletes = pc.invert(updates)
        self._work.metrics.update(
            numTargetRowsUpdated=count(updates),
            numTargetRowsMatchedUpdated=count(updates, pc.invert(alone)),
            numTargetRowsNotMatchedBySourceUpdated=count(updates, alone),
            numTargetRowsDeleted=count(deletes),
            numTargetRowsMatchedDeleted=count(deletes, pc.invert(alone)),
            numTargetRowsNotMatchedBySourceDeleted=count(deletes, alone),
        )

    # -- new files ------------------------------------------------------------------------------------------------------------

    def _rewrite(self, item: _Touched, writes: _Writes, *, copies: bool) -> None:
        """Write the rows of a file that change, and the others if they leave their file."""
        clauses, work = self._clauses, self._work
        changes = work.request.rules.change_data
        gone = len(item.rows) == item.file.num_records
        if not item.updated and not changes and (not copies or gone):
            return
        selection = None if copies and not gone else _rows_at(item.bitmap)
        same = None if clauses.all_move else item.file
        for _, found in work.reader.rows([item.file], selection, positions=True):
            rows = found.select(range(found.num_columns - 1))
            at = pc.index_in(found.column(ROW), value_set=item.rows)
            clause = item.clause.take(at)
            if copies and clause.null_count:
                writes.to("copied")(same, clauses.copied(rows.filter(pc.is_null(clause))))
            for number in pc.unique(clause.drop_null()).to_pylist():
                mask = _is(clause, number)
                old = rows.filter(mask)
                deletes = clauses.all[number].action != UPDATE
                if changes:
                    kind = "delete" if deletes else "update_preimage"
                    writes.to("change", kind)(same, clauses.unchanged(old))
                if deletes:
                    continue
                named = old.select(range(len(clauses.table.fields)))
                both = self._pairs.both(named, item.source.take(at.filter(mask)))
                new = clauses.updated(old, both, number)
                place = item.file if clauses.stay else None
                writes.to("new")(place, new)
                if changes:
                    writes.to("change", "update_postimage")(place, new)

    def _insert(self, pairs: pa.Table, writes: _Writes) -> None:
        """Write what clauses make of the rows of the source that match no row."""
        every = array(range(self._source.rows.num_rows), pa.int64())
        alone = every.filter(pc.invert(pc.is_in(every, value_set=pc.drop_null(pairs.column("source")))))
        if not len(alone):
            return
        taken = self._source.rows.take(alone)
        both = pa.RecordBatch.from_arrays(taken.columns, names=[SOURCE + name for name in taken.schema.names])
        clause = self._clauses.decide(both, self._clauses.of(NOT_MATCHED))
        for number in self._clauses.of(NOT_MATCHED):
            some = both.filter(_is(clause, number))
            if some.num_rows:
                new = self._clauses.inserted(some, number)
                writes.to(INSERTED)(None, new)
                if self._work.request.rules.change_data:
                    writes.to("change", "insert")(None, new)


def _is(clause: pa.Array, number: int) -> pa.BooleanArray:
    return pc.fill_null(pc.equal(clause, scalar(number, clause.type)), scalar(False))


def _first_of_each(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> pa.BooleanArray:
    """Return where rows that are in order differ from the row before in some columns."""
    if not rows.num_rows:
        return pa.nulls(0, pa.bool_())
    differs = array([True] + [False] * (rows.num_rows - 1), pa.bool_())
    for name in names:
        column = rows.column(name)
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        changes = pc.not_equal(values.slice(1), values.slice(0, len(values) - 1))
        differs = pc.or_(differs, pa.concat_arrays([array([True], pa.bool_()), changes]))
    return differs


class _Writes:
    """Directories of an attempt, each begun with its first rows."""

    def __init__(self, work: WorkerRewrite, stack: ExitStack) -> None:
        self._work = work
        self._stack = stack
        self._open: dict[tuple[str, str | None], Write] = {}

    def to(self, kind: str, change_type: str | None = None) -> Write:
        """Return the function that takes rows of a kind."""
        key = kind, change_type
        if key not in self._open:
            self._open[key] = self._stack.enter_context(self._work.writing(kind, change_type=change_type))
        return self._open[key]


def _rows_at(positions: BitMap64) -> RowSelection:
    """Return the selection of rows by their positions."""
    known = positions_of(positions).view(pa.int64())

    def groups(footer: pq.FileMetaData, _names: object) -> list[bool]:
        found, start = [], 0
        for number in range(footer.num_row_groups):
            end = start + footer.row_group(number).num_rows
            found.append(positions.range_cardinality(start, end) > 0)
            start = end
        return found

    return RowSelection(frozenset({ROW}), lambda rows: pc.is_in(rows.column(ROW), value_set=known), groups)
