"""Whether a commit brings a key twice, or one that the table has already: by the values of the key's columns, without Spark.

Read are the key columns of the rows that the stages bring, and of those files of the table whose partitions and bounds may hold
one of these keys. As in SQL, a key with a null equals no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
    ReadLimitException,
)
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.arrow.arrays import no_rows, scalar
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.expressions import ast
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.replay.filter import FileFilter
from airflow_delta.log.schema.types import INTEGRAL, DecimalType, arrow_type
from airflow_delta.log.statistics.credible import column_has_bounds
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.audit.bounds import named_column, plain
from airflow_delta.table.read.read_table import worker_rows

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, Metadata
    from airflow_delta.log.expressions.ast import ColumnReference
    from airflow_delta.table.audit.audited_table import AuditedTable

_TYPES = frozenset({*INTEGRAL, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"})
_AT_ONCE = 1 << 20  # rows that are compared at once, or as many as the stages bring: each time costs a look at all of these
_LISTED = 16  # values that are looked for one by one; of more, those between the least and the greatest
_SHOWN = 3
_SORTED = 10_000


class UndecidedKeysError(Exception):
    """Keys are not compared; the message is a sentence that says why."""


class _KeyNumbers:
    """Numbers of keys, the same for the same key; Arrow's joins and groups would import pandas.

    :param keys: without nulls.
    """

    def __init__(self, keys: pa.Table) -> None:
        self._values = [pc.unique(column) for column in keys.columns]
        self._pairs: list[pa.Array] = []
        """For each column but the first, what is numbered: pairs of the number up to it and that of its value."""
        numbers = self._number(keys, 0)
        for at in range(1, keys.num_columns):
            pairs = self._paired(numbers, keys, at)
            self._pairs.append(pc.unique(pairs))
            numbers = pc.index_in(pairs, value_set=self._pairs[-1])

    def of(self, keys: pa.Table) -> pa.ChunkedArray:
        """Return the number of each key; null for one that is not among those of the beginning."""
        numbers = self._number(keys, 0)
        for at, known in enumerate(self._pairs, 1):
            numbers = pc.index_in(self._paired(numbers, keys, at), value_set=known)
        return numbers

    def _number(self, keys: pa.Table, at: int) -> pa.ChunkedArray:
        return pc.index_in(keys.column(at), value_set=self._values[at])

    def _paired(self, numbers: pa.ChunkedArray, keys: pa.Table, at: int) -> pa.ChunkedArray:
        rows = scalar(len(self._values[at]), pa.int64())
        return pc.add(pc.multiply(numbers.cast(pa.int64()), rows), self._number(keys, at).cast(pa.int64()))


class StagedKeys:
    """The keys of the rows that the stages of a transaction bring.

    :param columns: as an author names them.
    :param limit: rows to read of the stages, and of the table.
    :param version: for errors; default: the one that an audit sees, which is not looked for within the commit.
    :raises DeltaAnalysisException: if the table will not have a column.
    :raises DeltaIllegalArgumentException: if values of a column are not compared without Spark.
    """

    def __init__(self, table: AuditedTable, columns: Sequence[str], limit: int, *, version: int | None = None) -> None:
        self._table = table
        self._version = table.version if version is None else version
        self._limit = limit
        self._columns = [_key_column(table, name) for name in columns]
        self._names = [str(at) for at in range(len(columns))]
        self._label = f"({', '.join(columns)})" if len(columns) > 1 else columns[0]

    @cached_property
    def _keys(self) -> pa.Table:
        """The keys, one for each row without a null in it."""
        return pa.concat_tables([self._empty, *self._read(self._table.staged, "staged")])

    def repeated(self) -> pa.Table:
        """Return the keys that several rows have, each once."""
        if len(self._names) == 1 and pc.count_distinct(self._keys[0]).as_py() == self._keys.num_rows:
            return self._empty
        counted = pc.value_counts(self._numbers.of(self._keys))
        several = pc.greater(counted.field("counts"), scalar(1, pa.int64()))
        return self._first_rows(self._keys, counted.field("values").filter(several))

    def kept(self) -> pa.Table:
        """Return the keys that rows have which the commit leaves, each once."""
        table = self._table
        brought = {file.path for file in table.staged}
        files = [file for file in table.added if file.path not in brought]
        if table.handle.read_version >= 0:
            kept = table.snapshot.add_files(self._condition)
            files = [*(file for file in kept if file_key(file) not in table.removed), *files]
        return self.among(files)

    def among(self, files: Sequence[AddFile]) -> pa.Table:
        """Return the keys that live rows of some files have, too, each once."""
        if not self._keys.num_rows:
            return self._empty
        if self._condition is not None:
            files = FileFilter(self._condition).filter_actions(list(files))
        found, waiting, rows = [self._empty], [self._empty], 0
        for keys in self._read(files, "other"):
            waiting, rows = [*waiting, keys], rows + keys.num_rows
            if rows >= max(_AT_ONCE, self._keys.num_rows):
                found.append(self._matches(waiting))
                waiting, rows = [self._empty], 0
        found.append(self._matches(waiting))
        keys = pa.concat_tables(found)
        return self._first_rows(keys, pc.unique(self._numbers.of(keys)))

    def shown(self, keys: pa.Table) -> str:
        """Return how many keys these are, and the least of the first ones."""
        first = keys.slice(0, _SORTED)
        order = pc.sort_indices(first, sort_keys=[(name, "ascending") for name in self._names])
        first = first.take(order.slice(0, _SHOWN))
        values = [readable(column.combine_chunks()) for column in first.columns]
        rows = [", ".join(str(plain(value)) for value in row) for row in zip(*values, strict=True)]
        listed = ", ".join(rows if len(self._names) == 1 else (f"({row})" for row in rows))
        more = ", ..." if keys.num_rows > _SHOWN else ""
        return f"{keys.num_rows} key{'' if keys.num_rows == 1 else 's'} {self._label} ({listed}{more})"

    def _matches(self, parts: list[pa.Table]) -> pa.Table:
        other = pa.concat_tables(parts)
        return other.filter(pc.is_valid(self._numbers.of(other)))

    @cached_property
    def _numbers(self) -> _KeyNumbers:
        return _KeyNumbers(self._keys)

    def _first_rows(self, keys: pa.Table, numbers: pa.Array) -> pa.Table:
        """Return the first row of each of some keys."""
        return keys.take(pc.index_in(numbers, value_set=self._numbers.of(keys)))

    @cached_property
    def _empty(self) -> pa.Table:
        types = [arrow_type(column.data_type) for column in self._columns]
        return no_rows(pa.schema(list(zip(self._names, types, strict=True))))

    @property
    def _metadata(self) -> Metadata:
        target = self._table.target
        return target.metadata if target.is_known else self._table.snapshot.metadata

    @cached_property
    def _read_columns(self) -> list[str]:
        return list(dict.fromkeys(column.path[0] for column in self._columns))

    def _read(self, files: Sequence[AddFile], what: str) -> Iterator[pa.Table]:
        """Yield the keys of the live rows of files.

        :raises UndecidedKeysError: if these are more rows than the limit, or they cannot be read here.
        """
        too_many = UndecidedKeysError(
            f"more than {self._limit:,} {what} rows would have to be read, which is the limit; raise it "
            f"(unique={{'columns': ..., 'limit': ...}}), or use a check in SQL"
        )
        if sum(live_records(file) or 0 for file in files) > self._limit:
            raise too_many
        table, read = self._table, 0
        try:
            rows = worker_rows(table.log, files, metadata=self._metadata, version=self._version, columns=self._read_columns)
            rows.demand.everything = len(files) > 1  # then several threads read them
            for batch in rows:
                read += batch.num_rows
                if read > self._limit:
                    raise too_many
                yield self._of(batch)
        except (DeltaAnalysisException, DeltaUnsupportedOperationException, ReadLimitException) as error:
            raise UndecidedKeysError(error.message) from error

    def _of(self, batch: pa.RecordBatch) -> pa.Table:
        keys = pa.Table.from_arrays([_values(batch, column) for column in self._columns], names=self._names)
        return keys.filter(reduce(pc.and_, map(pc.is_valid, keys.columns)))

    @cached_property
    def _condition(self) -> Predicate | None:
        """What is true for every row with one of the keys; ``None`` if bounds say nothing about it."""
        parts = [part for at, column in enumerate(self._columns) for part in self._parts(self._keys.column(at), column)]
        return Predicate(ast.conjunction(parts)) if parts else None

    def _parts(self, keys: pa.ChunkedArray, column: ColumnReference) -> Iterator[ast.Expression]:
        if not len(keys) or not column_has_bounds(column):
            return
        values = pc.unique(keys) if len(keys) <= _AT_ONCE else keys
        try:
            if len(values) <= _LISTED:
                yield ast.In(column, tuple(ast.Literal(value, column.data_type) for value in values.to_pylist()))
                return
            ends = pc.min_max(keys)
            for operator, end in ((">=", "min"), ("<=", "max")):
                yield ast.Compare(operator, column, ast.Literal(ends[end].as_py(), column.data_type))
        except (OverflowError, ValueError):  # Python does not know the year
            return


def _key_column(table: AuditedTable, name: str) -> ColumnReference:
    column = named_column(table, name, what="unique")
    kind = column.data_type
    if not (isinstance(kind, DecimalType) or kind.name in _TYPES) or (column.is_partition and kind.name == "timestamp"):
        why = "whose values depend on the reader's time zone" if column.is_partition else "which has no exact equality"
        raise table.handle.error(
            DeltaIllegalArgumentException,
            f"unique: column {column} of table {table.handle.table} is a {'partition of ' if column.is_partition else ''}{kind}, "
            f"{why}. Use a check in SQL.",
        )
    return column


def _values(batch: pa.RecordBatch, column: ColumnReference) -> pa.Array:
    values = batch.column(column.path[0])
    for name in column.path[1:]:
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    return values if column.char_length is None else pc.utf8_rtrim(values, characters=" ")  # which Spark fills up
