"""Rewriting rows in the worker, as :class:`airflow_delta.spark.rewrite.RewriteAttempt` does it on Spark."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.contract.arguments import RewriteArguments
from airflow_delta.contract.delta_names import CHANGE_TYPE, HIVE_NULL
from airflow_delta.contract.merge import INSERTED
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import ScanFile, ScanPlan
from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport, StageRequest
from airflow_delta.contract.spark_paths import FILE, NUMBER, WORD, data_file_uri
from airflow_delta.contract.zones import zone_of_directories, zoneless_values
from airflow_delta.exceptions import DeltaAnalysisException, StagingException
from airflow_delta.log.arrow.arrays import repeated
from airflow_delta.log.data_files.group_rows import RowSelection
from airflow_delta.log.schema.partition_directories import partition_directory
from airflow_delta.log.schema.types import STRING, StructField, StructType, nullable_schema, to_json
from airflow_delta.log.statistics.row_groups import groups_that_may_hold
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.files import RowWriter
from airflow_delta.table.arrow.rewrite.copied_rows import Checked, copied_rows
from airflow_delta.table.arrow.rewrite.read_plan import ROW, PlanReader, RowsOfFile
from airflow_delta.table.arrow.row_checks import check_no_variants, decided_here, needs_spark
from airflow_delta.table.arrow.writer_options import writer_options
from airflow_delta.table.files.row_words import bitmap_of, word_chunks
from airflow_delta.table.files.written_here import WrittenHere
from airflow_delta.table.read.row_filter import selected

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound

Write = Callable[["ScanFile | None", "pa.RecordBatch"], None]
"""Takes rows, and the file in whose partition they stay, as the log spells it; without one, their values decide."""


class WorkerRewrite:
    """One attempt of an operation that rewrites rows; collects what it wrote.

    :ivar target: the table's schema, with columns that the operation adds.
    :ivar files: files with deleted or changed rows, and how many; the commit removes them or marks their rows.
    """

    def __init__(self, log: DeltaLog, request: StageRequest, memory: MemoryBound) -> None:
        if request.rewrite is None or request.schema_string is None:
            raise StagingException(f"{request.operation} of stage {request.stage} was planned without files to read")
        if not request.deletion_vectors:
            check_no_variants(request)
        self.log = log
        self.request = request
        self.plan: ScanPlan = request.rewrite
        self.reader = PlanReader(log, self.plan, RewriteArguments.of(request).row_ids, memory)
        self.target: StructType = self.reader.schema
        self.run = uuid.uuid4().hex[:8]
        self.files: dict[str, int] = {}
        self.metrics: dict[str, int] = {}
        self._compression, self._most_rows = writer_options(request)
        self._mapped = request.rules.column_mapping != "none"
        partitions = [field for name in request.partition_columns if (field := self.reader.schema.find(name)) is not None]
        self._partitions = [field.name for field in partitions]
        self._keys = [field.physical_name if self._mapped else field.name for field in partitions]
        self._directories: dict[str, list[str]] = {"new": [], INSERTED: [], "copied": [], "change": [], "vector": []}
        self._written: dict[str, dict[str, int]] = {}
        self._footers: dict[tuple[str, int], pq.FileMetaData] = {}
        self._started = self._mark = time.monotonic()
        self.condition: Predicate | None = None
        if request.predicate is not None:
            why = f"is changed by {request.operation} where {request.predicate}"
            self.condition = decided_here(request, request.predicate, self.reader.schema, request.partition_columns, why)
            names = {column.path[0] for column in self.condition.columns}
            for column in zoneless_values(self.plan).keys() & names:
                raise needs_spark(
                    request, f"{why}, and has partitions whose {column} lacks a time zone: it is in that of Spark's session"
                )

    # -- which rows -----------------------------------------------------------------------------------------------------------

    def touched(self) -> list[ScanFile]:
        """Return the files with rows that the condition selects, and record their number."""
        if self.condition is None and all(file.num_records is not None for file in self.plan.files):
            return self.note({file.path: file.num_records or 0 for file in self.plan.files})
        counts: dict[str, int] = {}
        for file, rows in self._found():
            counts[file.path] = counts.get(file.path, 0) + rows.num_rows
        return self.note(counts)

    def marked(self) -> list[ScanFile]:
        """Write the positions of the rows that the condition selects, record their number, and return their files."""
        found: dict[str, BitMap64] = {}
        for file, rows in self._found():
            found.setdefault(file.path, BitMap64()).update(bitmap_of(rows.column(ROW)))
        self.write_vectors(found)
        return self.note({path: len(rows) for path, rows in found.items()})

    def _found(self) -> Iterator[RowsOfFile]:
        """Yield the positions of the rows that the condition selects."""
        columns = [] if self.condition is None else [column.path[0] for column in self.condition.columns]
        return self.reader.columns(columns, self.plan.files, self.selection)

    def note(self, counts: dict[str, int]) -> list[ScanFile]:
        """Record the number of deleted or changed rows by file, and return the files."""
        self.files.update(counts)
        return [file for file in self.plan.files if file.path in counts]

    @property
    def num_rows(self) -> int:
        """Number of deleted or changed rows recorded so far."""
        return sum(self.files.values())

    def partly(self, files: Sequence[ScanFile]) -> list[ScanFile]:
        """Return the files that keep some rows."""
        return [file for file in files if file.num_records != self.files[file.path]]

    @property
    def selection(self) -> RowSelection | None:
        """The rows that the condition selects; ``None`` for all."""
        condition = self.condition
        if condition is None:
            return None
        return RowSelection(_columns(condition), partial(selected, condition), partial(groups_that_may_hold, condition))

    @property
    def others(self) -> RowSelection:
        """The rows that the condition does not select."""
        condition = self.condition
        if condition is None:
            raise AssertionError("without a condition, all rows are selected")
        return RowSelection(_columns(condition), lambda rows: pc.invert(selected(condition, rows)), _all_groups)

    def parted(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return those of some rows that the condition selects, and the others: to read them once takes less than twice."""
        if self.condition is None:
            return rows, rows.slice(0, 0)
        mask = selected(self.condition, rows)
        return rows.filter(mask), rows.filter(pc.invert(mask))

    # -- what is written ------------------------------------------------------------------------------------------------------

    @property
    def stored(self) -> StructType:
        """Schema of data files: the table's columns, and those of row ids."""
        return StructType((*self.target.fields, *self.reader.stored.fields[len(self.reader.schema.fields) :]))

    @contextmanager
    def writing(self, kind: str, *, change_type: str | None = None) -> Iterator[Write]:
        """Yield a function that takes rows with the columns of files, for a new directory.

        :param kind: ``new``, ``copied``, ``change``, or :data:`~airflow_delta.contract.merge.INSERTED`.
        :param change_type: of change data, in which columns of row ids are left out.
        """
        number = len(self._directories[kind])
        name = f"{self.run}{INSERTED}" if kind == INSERTED else f"{self.run}-{kind}-{number}"
        self._directories[kind].append(name)
        fields = self.stored.fields
        if change_type is not None:  # rows that leave the table may break its rules
            fields = (*nullable_schema(self.target).fields, StructField(CHANGE_TYPE, STRING))
        writer = RowWriter(
            self.log.store,
            f"{self.request.directory}/{name}",
            StructType(tuple(fields)),
            self._partitions,
            mapped=self._mapped,
            compression=self._compression,
            most_rows=self._most_rows,
        )

        def write(file: ScanFile | None, batch: pa.RecordBatch) -> None:
            writer.write(_as_change(batch, len(fields) - 1, change_type), None if file is None else self._directory(file))

        try:
            yield write
            writer.close()
        finally:
            writer.discard()
        self._written[name] = {NUM_FILES: writer.num_files, NUM_ROWS: writer.num_rows, NUM_BYTES: writer.num_bytes}
        self._footers |= {(f"{name}/{path}", size): footer for (path, size), footer in writer.footers.items()}

    @property
    def copied(self) -> Checked:
        """Return the function that checks rows that are written again as they are.

        :raises DeltaUnsupportedOperationException: if the table has a rule that only Spark can check.
        """
        return copied_rows(self.request, TableDefinition.of_rows(self.request.schema_string or "").struct)

    def copy(self, files: Sequence[ScanFile]) -> None:
        """Write the rows of files again that the condition does not select.

        :raises DeltaError: if one of them breaks a rule of the table.
        """
        checked = self.copied
        with self.writing("copied") as write:
            for file, rows in self.reader.rows(files, self.others):
                write(file, checked(rows))

    def _directory(self, file: ScanFile) -> str:
        """Return the directory of a file's partition: its values are spelled as in the log."""
        values = {key: partition_text(file.partition_values, key) for key in self._keys}
        if HIVE_NULL in values.values():
            raise self.request.error(
                DeltaAnalysisException,
                f"Rows of {file.path} cannot be written again: its partition has the value {HIVE_NULL!r}, with which the name of "
                "a directory spells null. Write another text, or null. Nothing was committed.",
            )
        return partition_directory(values, self._keys)

    def write_vectors(self, found: dict[str, BitMap64]) -> None:
        """Write the positions of rows, words by path of their file, into a new directory."""
        name = f"{self.run}-vector-{len(self._directories['vector'])}"
        schema = pa.schema([(FILE, pa.string()), (NUMBER, pa.int64()), (WORD, pa.int64())])
        file, num_rows = io.BytesIO(), 0
        with pq.ParquetWriter(file, schema, compression="snappy") as writer:
            for path, rows in found.items():
                uri = quote(data_file_uri(self.plan.table, path), safe="/:")
                for words in word_chunks(rows):
                    files = repeated(uri, words.num_rows)
                    writer.write_table(pa.table([files, *words.columns], schema=schema))
                    num_rows += words.num_rows
        data = file.getvalue()
        self.log.store.put(f"{self.request.directory}/{name}/part-00000-{uuid.uuid4()}.c000.snappy.parquet", data)
        self._written[name] = {NUM_FILES: 1, NUM_ROWS: num_rows, NUM_BYTES: len(data)}
        self._directories["vector"].append(name)

    def lap(self, metric: str) -> None:
        """Record the milliseconds since the last lap."""
        now = time.monotonic()
        self.metrics[metric] = self.metrics.get(metric, 0) + int((now - self._mark) * 1000)
        self._mark = now

    def report(self, **fields: Any) -> StageReport:
        """Return what was written.

        :param fields: others of the report.
        """
        self.metrics["executionTimeMs"] = int((time.monotonic() - self._started) * 1000)
        report = StageReport(
            transaction_id=self.request.transaction_id,
            stage=self.request.stage,
            attempt=self.request.attempt,
            directories=(*self._directories["new"], *self._directories[INSERTED]),
            copied_directories=tuple(self._directories["copied"]),
            change_directories=tuple(self._directories["change"]),
            vector_directories=tuple(self._directories["vector"]),
            path=self.request.path,
            written=dict(self._written),
            rewritten_files=tuple(self.files),
            metrics=self.metrics,
            schema_string=self.plan.schema_string if self.target is self.reader.schema else to_json(self.target),
            partition_columns=self.request.partition_columns,
            time_zone=zone_of_directories(self.plan),
            **fields,
        )
        return WrittenHere.of(report, self._footers)


def _columns(condition: Predicate) -> frozenset[str]:
    return frozenset(column.path[0] for column in condition.columns)


def _all_groups(footer: pq.FileMetaData, _names: object) -> list[bool]:
    return [True] * footer.num_row_groups


def _as_change(batch: pa.RecordBatch, width: int, change_type: str | None) -> pa.RecordBatch:
    """Return rows of a table as change data: without row ids, with the kind of change.

    :param width: number of columns of the table.
    """
    if change_type is None:
        return batch
    columns = [*batch.columns[:width], repeated(change_type, batch.num_rows)]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:width], CHANGE_TYPE])
