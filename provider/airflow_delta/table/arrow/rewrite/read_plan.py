"""Live rows of the files of a plan in the worker, file by file, with what they need to stay the rows that they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_delta.contract.payloads import WORD_BITS, ScanFile, ScanPlan
from airflow_delta.contract.spark_paths import NUMBER, WORD
from airflow_delta.exceptions import StagingException
from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.data_files.columns import arrow_field, fields_in_files
from airflow_delta.log.data_files.reader import FileReader
from airflow_delta.log.schema.types import LONG, StructField, StructType
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.row_words import rows_of_text, rows_of_words
from airflow_delta.table.read.read_ahead import Demand, in_turn

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from airflow_delta.contract.arguments import RowIds
    from airflow_delta.log.data_files.group_rows import DataRowGroup, RowSelection
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound

ROW = "__airflow_delta_row"
"""Column with the position of a row in its file."""

_BYTES_WAITING = 64 << 20
_GROUPS_WAITING = 16

_BYTES_PER_WORD = 64
"""Of a deletion vector, while its words are brought into place."""


class RowsOfFile(NamedTuple):
    """Some rows of a file."""

    file: ScanFile
    rows: pa.RecordBatch


class PlanReader:
    """Reads the files of a plan.

    :param ids: columns of row ids, to be read as well; ``None`` if the rows have none to keep.
    :raises DeltaUnsupportedOperationException: if the deletion vectors of the files take more memory than they may.
    """

    def __init__(self, log: DeltaLog, plan: ScanPlan, ids: RowIds | None, memory: MemoryBound) -> None:
        self._log = log
        self._plan = plan
        self._ids = ids
        table = TableDefinition.of_rows(plan.schema_string, plan.partition_columns)
        self.schema: StructType = table.schema
        own = () if ids is None else tuple(StructField(name, LONG) for name in ids.columns)
        self.stored = StructType((*self.schema, *own))
        first = () if ids is None else zip(ids.base, ids.version, strict=True)
        self._first = dict(zip((file.path for file in plan.files), first, strict=False))
        self._marked_elsewhere = {} if plan.deleted_rows is None else self._read_marked(plan.deleted_rows, memory)

    def columns(self, columns: Sequence[str], files: Sequence[ScanFile], selection: RowSelection | None) -> Iterator[RowsOfFile]:
        """Yield some columns of the rows of files, and :data:`ROW`.

        :param selection: of the rows; its columns are among the columns.
        """
        wanted = set(columns)
        return self._rows([field for field in self.schema if field.name in wanted], files, selection, positions=True)

    def rows(
        self, files: Sequence[ScanFile], selection: RowSelection | None = None, *, positions: bool = False
    ) -> Iterator[RowsOfFile]:
        """Yield the rows of files with the columns of :attr:`stored`: row ids come from the file, or by position in it.

        :param positions: with :data:`ROW` as the last column.
        """
        rows = self._rows(self.stored.fields, files, selection, positions=positions or self._ids is not None)
        return rows if self._ids is None else (self._with_row_ids(found, positions) for found in rows)

    def _with_row_ids(self, found: RowsOfFile, positions: bool) -> RowsOfFile:
        base, version = self._first[found.file.path]
        *columns, own_id, own_version, row = found.rows.columns
        columns += [pc.coalesce(own_id, pc.add(row, scalar(base))), pc.coalesce(own_version, scalar(version))]
        names = found.rows.schema.names
        if positions:
            return RowsOfFile(found.file, pa.RecordBatch.from_arrays([*columns, row], names=names))
        return RowsOfFile(found.file, pa.RecordBatch.from_arrays(columns, names=names[:-1]))

    def _rows(
        self, fields: Sequence[StructField], files: Sequence[ScanFile], selection: RowSelection | None, *, positions: bool
    ) -> Iterator[RowsOfFile]:
        plan = self._plan
        target = pa.schema([arrow_field(field) for field in fields])
        reader = FileReader(
            self._log.store,
            plan.read_version,
            fields_in_files(fields, plan.column_mapping),
            target,
            plan.partition_columns,
            by_id=plan.column_mapping == "id",
            by_spark='engine="spark"',
            positions=ROW if positions else None,
        )
        sizes = {file.path: file for file in files}

        def rows(group: DataRowGroup) -> Iterator[RowsOfFile]:
            for batch in reader.rows(group, selection):
                if batch.num_rows:
                    yield RowsOfFile(sizes[group.file.path], batch)

        workers, demand = max(2, pa.cpu_count()), Demand(everything=True)
        found = (
            reader.groups(file, self._marked(file), selection=selection)
            for file in tracked(files, f"Reading files of {self._log.uri}", len(files))
        )
        groups = in_turn(found, workers=workers, size=lambda _group: 1, most=_GROUPS_WAITING, demand=demand)
        return in_turn(map(rows, groups), workers=workers, size=_size, most=_BYTES_WAITING, demand=demand)

    def _marked(self, file: ScanFile) -> BitMap64 | None:
        """Return the rows that the deletion vector of a file marks.

        :raises StagingException: if the plan does not say which.
        """
        vector = file.deletion_vector
        if vector is None:
            return None
        rows = self._marked_elsewhere.get(vector.number) if vector.words is None else rows_of_text(vector.words)
        if rows is None or len(rows) != vector.cardinality:
            raise self._plan.error(
                StagingException,
                f"The scan plan of table {self._plan.table} says that {vector.cardinality} rows of {file.path} are deleted, and "
                f"names {0 if rows is None else len(rows)}. Clear the start task.",
            )
        return rows

    def _read_marked(self, path: str, memory: MemoryBound) -> dict[int, BitMap64]:
        """Return marked rows that do not fit into the plan, by number of the vector."""
        file = pq.ParquetFile(pa.BufferReader(self._log.store.read(path)))
        num_words = file.metadata.num_rows
        what = f"What is deleted of {self._plan.table} by deletion vectors ({num_words:,} words of 64 rows)"
        memory.check(num_words * _BYTES_PER_WORD, what)
        words = file.read()
        vector = pc.shift_right(words.column("key"), scalar(WORD_BITS))
        number = pc.bit_wise_and(words.column("key"), scalar((1 << WORD_BITS) - 1))
        by_vector = pa.table([vector, number, words.column("word")], names=["vector", NUMBER, WORD])
        return {
            at: rows_of_words(by_vector.filter(pc.equal(by_vector.column("vector"), scalar(at))))
            for at in pc.unique(vector).to_pylist()
        }


def _size(found: RowsOfFile) -> int:
    return int(found.rows.nbytes)
