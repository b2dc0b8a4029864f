"""Which rows of the table and of the source of a MERGE match, and which clause applies to each row of the table.

A hash join by the columns that must be equal finds the pairs that may match; the whole condition then decides. Without such
columns, it is asked of every pair, if there are not too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.casts import DIGITS
from airflow_delta.contract.key_values import is_stored_plainly
from airflow_delta.contract.merge import MATCHED, NOT_MATCHED_BY_SOURCE, MergeArguments
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.schema import find_field
from airflow_delta.log.arrow.arrays import array, no_rows, repeated, scalar
from airflow_delta.log.data_files.group_rows import RowSelection
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.schema.types import DataType, DecimalType, arrow_type, as_nullable, parse_type, type_to_json
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.rewrite.hash_join import pairs_with, rows_by_key
from airflow_delta.table.arrow.rewrite.key_columns import parts_of_key, without_nulls
from airflow_delta.table.arrow.rewrite.merge_clauses import SOURCE, TARGET, RowClauses
from airflow_delta.table.arrow.rewrite.new_values import decided
from airflow_delta.table.arrow.rewrite.read_plan import ROW
from airflow_delta.table.arrow.row_checks import needs_spark
from airflow_delta.table.expressions.equality import is_compared_inside
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import row_expression

if TYPE_CHECKING:
    from airflow_delta.contract.merge import ComparedColumns
    from airflow_delta.contract.payloads import Json, ScanFile
    from airflow_delta.table.arrow.rewrite.attempt import WorkerRewrite
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound
    from airflow_delta.table.arrow.rewrite.merge_source import SourceRows

_FLOATING = ("float", "double")

_SAME = ("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", *_FLOATING)
"""Types that are joined by, beside whole numbers, decimals, structs and lists."""

MOST_PAIRS = 100_000_000
"""How many pairs of rows a condition is asked of, if no columns must be equal."""

_BLOCK_PAIRS = 1 << 18

_CHUNK_ROWS = 1 << 20

_TIMES_KEPT = 4
"""How many times the pairs are in memory while they are sorted, counted and taken apart by file."""

_CHUNK_PAIRS = 1 << 22
"""Pairs of equal keys that are looked at together."""

PAIRS = pa.schema([("file", pa.int32()), ("row", pa.int64()), ("source", pa.int64()), ("clause", pa.int8())])
"""A pair of rows that match, or a row of the table that none matches and a clause applies to: its file in the plan, its position
there, the row of the source, and the number of the clause."""


class JoinKey(NamedTuple):
    """A column of the table that must equal values of the source.

    :param field: of the table, in JSON form.
    :param given: of the source, in JSON form.
    :param values: of the rows of the source.
    :param joins: whether a hash join finds all rows in which they are equal.
    """

    key: ComparedColumns
    field: Json
    given: Json
    values: pa.Array
    joins: bool


class MergePairs:
    """Pairs the rows.

    :raises DeltaUnsupportedOperationException: if the condition compares no columns in a way that is joined by here, and there
        are too many pairs.
    """

    def __init__(
        self, work: WorkerRewrite, source: SourceRows, clauses: RowClauses, arguments: MergeArguments, memory: MemoryBound
    ) -> None:
        self._work, self._source, self._clauses, self._memory = work, source, clauses, memory
        why = f"is merged ON {arguments.condition}"
        self._condition = decided(arguments.condition, clauses.both, work.request, why)
        self._matched, self._by_source = clauses.of(MATCHED), clauses.of(NOT_MATCHED_BY_SOURCE)
        table = TableDefinition.of_rows(work.request.schema_string or "").struct
        self.keys = list(self._found_keys(arguments.keys, table))
        self._joined = [key for key in self.keys if key.joins]
        if self._joined:
            self._source_keys = self._key_table({key.field["name"]: key.values for key in self._joined}, "source")
            self._names = [name for name in self._source_keys.schema.names if name != "source"]
            self._alike = rows_by_key(self._source_keys, self._names)
        else:
            self._check_pairs(why)
        needed = {*self._condition.columns, *clauses.columns([*self._matched, *self._by_source])}
        self._of_target = [name.removeprefix(TARGET) for name in sorted(needed) if name.startswith(TARGET)]
        self._of_source = [name.removeprefix(SOURCE) for name in sorted(needed) if name.startswith(SOURCE)]
        self._read = sorted({*self._of_target, *(str(key.field["name"]) for key in self._joined)})

    def find(self) -> pa.Table:
        """Return the pairs (:data:`PAIRS`), in the order of files and rows.

        :raises DeltaUnsupportedOperationException: if they take more memory than they may.
        """
        files = list(self._work.plan.files) if self._by_source else self._possible_files()
        positions = {file.path: number for number, file in enumerate(self._work.plan.files)}
        found: list[pa.Table] = []
        size = self._source.rows.nbytes
        for chunk in self._chunks(files, positions):
            for pairs in chain.from_iterable(map(self._pairs, self._parts(chunk))):
                found.append(pairs)
                size += _TIMES_KEPT * pairs.nbytes
                count = sum(pairs.num_rows for pairs in found)
                what = f"A MERGE of {self._source.rows.num_rows:,} rows (with {count:,} rows of the table so far)"
                self._memory.check(size, what, known=False)
        pairs = pa.concat_tables(found) if found else no_rows(PAIRS)
        order = [(name, "ascending") for name in ("file", "row", "source")]
        return pairs.take(pc.sort_indices(pairs, sort_keys=order)).combine_chunks()

    def both(self, rows: pa.RecordBatch, source: pa.Array, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows of the table beside the rows of the source that they match.

        :param source: positions of these; null for none.
        :param columns: of the source; default: all.
        """
        taken = self._source.rows if columns is None else self._source.rows.select(list(columns))
        taken = taken.take(source)
        names = [*(TARGET + name for name in rows.schema.names), *(SOURCE + name for name in taken.schema.names)]
        return pa.RecordBatch.from_arrays([*rows.columns, *taken.columns], names=names)

    def _check_pairs(self, why: str) -> None:
        """Refuse to ask a condition of too many pairs."""
        counts = [file.num_records for file in self._work.plan.files]
        source = self._source.rows.num_rows
        rows = None if None in counts else sum(count or 0 for count in counts)
        if source and (rows is None or rows * source > MOST_PAIRS):
            told = "an unknown number of" if rows is None else f"{rows:,}"
            raise needs_spark(
                self._work.request,
                f"{why}, which asks for no equal columns that are joined by here, so {told} rows would be compared with each of "
                f"{source:,} ({MOST_PAIRS:,} pairs at most)",
            )

    # -- keys -----------------------------------------------------------------------------------------------------------------

    def _found_keys(self, compared: Sequence[ComparedColumns], table: Json) -> Iterator[JoinKey]:
        for key in compared:
            field = find_field(table, key.column)
            if field is None:
                continue
            try:
                given = row_expression(key.source, self._clauses.of_source)
            except NotDecided:
                continue
            names = [SOURCE + name for name in self._source.rows.schema.names]
            rows = pa.RecordBatch.from_arrays(self._source.rows.columns, names=names)
            mine = {"name": key.column, "type": type_to_json(given.data_type), "metadata": self._metadata(given.columns)}
            joins = is_stored_plainly(field) and is_stored_plainly(mine) and _are_joined(field["type"], given.data_type)
            yield JoinKey(key, field, mine, given.values(rows), joins)

    def _metadata(self, columns: Sequence[str]) -> Json:
        """Return the metadata of the only column that a key is made of."""
        field = find_field(self._source.schema, columns[0].removeprefix(SOURCE)) if len(columns) == 1 else None
        return {} if field is None else dict(field.get("metadata") or {})

    def _key_table(self, values: dict[str, pa.Array], row: str) -> pa.Table:
        """Return what is joined by: parts of keys under numbers, and the position of each row.

        Arrow joins no nulls: where nulls are equal, they are a value and a column that says so.
        """
        columns: dict[str, pa.Array] = {}
        length = 0
        for number, key in enumerate(self._joined):
            found = values[key.field["name"]]
            length = len(found)
            absent = found.is_null()
            if key.key.null_safe:
                columns[f"null{number}"] = absent
            elif pa.types.is_nested(found.type):
                columns[f"null{number}"] = pc.if_else(absent, scalar(None, pa.bool_()), absent)
            for place, part in enumerate(parts_of_key(found)):
                columns[f"key{number}.{place}"] = without_nulls(part) if key.key.null_safe else part
        return pa.table({**columns, row: array(range(length), pa.int64())})

    # -- pairs ----------------------------------------------------------------------------------------------------------------

    def _chunks(self, files: Sequence[ScanFile], positions: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Yield the columns of conditions, with file and position, of many rows at a time."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for file, batch in self._work.reader.columns(self._read, files, self._selection()):
            number = repeated(positions[file.path], batch.num_rows, pa.int32())
            waiting.append(pa.RecordBatch.from_arrays([*batch.columns, number], names=[*batch.schema.names, "file"]))
            rows += batch.num_rows
            if rows >= _CHUNK_ROWS:
                yield _joined(waiting)
                waiting, rows = [], 0
        if waiting:
            yield _joined(waiting)

    def _parts(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows in parts whose keys meet in few enough pairs: many equal keys on both sides would fill all memory."""
        most = (pc.max(self._alike.column("count")).as_py() or 0) if self._joined else 0
        if most * rows.num_rows <= _CHUNK_PAIRS:
            yield rows
            return
        met = pairs_with(self._target_keys(rows), self._alike, self._names, ("target", "count"))
        counts = met.take(pc.sort_indices(met, sort_keys=[("target", "ascending")]))
        total = pc.cumulative_sum(counts.column("count").combine_chunks())
        part = pc.divide(pc.subtract(total, scalar(1)), scalar(_CHUNK_PAIRS))
        first = pc.index_in(pc.unique(part), value_set=part)
        starts = [0, *counts.column("target").take(first).to_pylist()[1:], rows.num_rows]
        for start, end in pairwise(starts):
            yield rows.slice(start, end - start)

    def _target_keys(self, rows: pa.RecordBatch) -> pa.Table:
        return self._key_table({name: rows.column(name) for name in {str(key.field["name"]) for key in self._joined}}, "target")

    def _pairs(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        found = [self._matching(rows, target, source) for target, source in self._candidates(rows)]
        yield from (self._table(rows, target, source, clause) for target, source, clause in found)
        if self._by_source:
            matched = pa.chunked_array([target for target, _, _ in found], pa.int64())
            every = array(range(rows.num_rows), pa.int64())
            alone = every.filter(pc.invert(pc.is_in(every, value_set=matched)))
            left = rows.select(self._of_target).take(alone)
            named = pa.RecordBatch.from_arrays(left.columns, names=[TARGET + name for name in left.schema.names])
            clause = self._clauses.decide(_counted(named, len(alone)), self._by_source)
            applies = pc.is_valid(clause)
            yield self._table(rows, alone.filter(applies), pa.nulls(applies.true_count, pa.int64()), clause.filter(applies))

    def _candidates(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield rows of the table, and those of the source that they may match."""
        if self._joined:
            candidates = pairs_with(self._target_keys(rows), self._source_keys, self._names, ("target", "source"))
            yield _indices(candidates.column("target")), _indices(candidates.column("source"))
            return
        count = self._source.rows.num_rows
        if not count:
            return
        at_once = min(max(1, _BLOCK_PAIRS // count), rows.num_rows)
        pairs = array(range(at_once * count), pa.int64())
        target = pc.divide(pairs, scalar(count, pa.int64()))
        source = pc.subtract(pairs, pc.multiply(target, scalar(count, pa.int64())))
        for start in range(0, rows.num_rows, at_once):
            length = min(at_once, rows.num_rows - start) * count
            yield pc.add(target.slice(0, length), scalar(start, pa.int64())), source.slice(0, length)

    def _matching(self, rows: pa.RecordBatch, target: pa.Array, source: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return the pairs for which the condition is true, and their clauses."""
        both = _counted(self.both(rows.select(self._of_target).take(target), source, self._of_source), len(target))
        match = self._condition.true(both)
        target, source, both = target.filter(match), source.filter(match), both.filter(match)
        return target, source, self._clauses.decide(both, self._matched)

    def _table(self, rows: pa.RecordBatch, target: pa.Array, source: pa.Array, clause: pa.Array) -> pa.Table:
        columns = [rows.column("file").take(target), rows.column(ROW).take(target), source, clause]
        return pa.table(columns, schema=PAIRS)

    # -- what need not be read ------------------------------------------------------------------------------------------------

    def _selection(self) -> RowSelection | None:
        """The rows of the table that have a value of the source in the first column that is not nested; ``None`` for all."""
        key = next((key for key in self._joined if isinstance(key.field["type"], str)), None)
        if self._by_source or key is None or key.key.null_safe:
            return None
        name = str(key.field["name"])
        values = pc.unique(next(parts_of_key(key.values))).drop_null()

        def wanted(rows: pa.RecordBatch) -> pa.BooleanArray:
            return pc.is_in(next(parts_of_key(rows.column(name))), value_set=values)

        return RowSelection(frozenset({name}), wanted, lambda footer, _names: [True] * footer.num_row_groups)

    def _possible_files(self) -> list[ScanFile]:
        """Return the files whose partitions may match."""
        left = list(self._work.plan.files)
        schema = self._work.reader.schema
        in_path = {name.lower() for name in self._work.request.partition_columns}
        for key in self._joined:
            field = schema.find(str(key.field["name"]))
            if field is None or field.name.lower() not in in_path or field.data_type.name in ("timestamp", *_FLOATING):
                continue
            name = field.physical_name if self._work.plan.column_mapping != "none" else field.name
            try:
                wanted = set((key.values if key.key.null_safe else key.values.drop_null()).to_pylist())
            except (OverflowError, ValueError):  # a date that Python does not have: rows decide
                continue
            texts = {partition_text(file.partition_values, name) for file in left}
            kept = {text for text in texts if parse_partition_value(text, field.data_type, name) in wanted}
            left = [file for file in left if partition_text(file.partition_values, name) in kept]
        return left


def _are_joined(column: Any, given: DataType) -> bool:
    """Return whether rows in which a column of the table equals a value are found by a hash join.

    :param column: its type, in JSON form.
    """
    one = parse_type(column)
    if {one.name, given.name} <= DIGITS.keys():
        return True
    if arrow_type(as_nullable(one)) != arrow_type(as_nullable(given)):
        return False
    return one.name in _SAME or isinstance(one, DecimalType) or is_compared_inside(one)


def _counted(rows: pa.RecordBatch, length: int) -> pa.RecordBatch:
    """Return rows that know how many they are: a batch without columns does not, and conditions may be constant."""
    return rows if rows.num_columns else pa.RecordBatch.from_arrays([pa.nulls(length)], names=["nothing"])


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _indices(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, pa.int64())
