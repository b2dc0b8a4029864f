"""Rows of one data file as record batches: live ones, in the table's columns and types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaLogCorruptedException,
    ReadLimitException,
)
from airflow_delta.log.arrow.arrays import array
from airflow_delta.log.data_files.batches import (
    BATCH_ROWS,
    plain_field,
)
from airflow_delta.log.data_files.columns import FileFields, FileKind, from_file_type, has_ids
from airflow_delta.log.data_files.group_rows import DataRowGroup, GroupRows, RowPositions, RowSelection, counts
from airflow_delta.log.data_files.opened import OpenedFile, int96_columns, is_legacy, parquet_file
from airflow_delta.log.data_files.page_sizes import (
    Chunk,
    declared,
    problem_of,
)
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.storage.errors import StoreRefusedError, StoreUnavailableError
from airflow_delta.log.storage.table_paths import locate

if TYPE_CHECKING:
    from airflow_delta.log.data_files.columns import Convert
    from airflow_delta.log.data_files.group_rows import KnownFile
    from airflow_delta.log.schema.types import StructField
    from airflow_delta.log.storage.base import LogStore


_WHOLE_BYTES = 4 << 20  # of a remote file that is read at once


class FileReader:
    """Reads data files of one version of a table.

    :param fields: the columns to return, in order: the table's, without physical names unless files have these.
    :param target: their Arrow fields.
    :param partition_columns: logical names.
    :param by_id: columns are found by field id.
    :param most_rows: rows to decode at once; by default as many more as take little memory.
    :param by_spark: what the caller asks for to have Spark read the files, for messages.
    :param positions: name of one more column, the last, with the position of each row in its file; ``None`` for none.
    """

    def __init__(
        self,
        store: LogStore,
        version: int,
        fields: Sequence[StructField],
        target: pa.Schema,
        partition_columns: Sequence[str],
        *,
        by_id: bool,
        most_rows: int = BATCH_ROWS,
        by_spark: str = 'df_type="spark"',
        positions: str | None = None,
    ) -> None:
        partitions = {name.lower() for name in partition_columns}
        self._store = store
        self._version = version
        self._fields = fields
        self._target = target if positions is None else target.append(pa.field(positions, pa.int64()))
        self._positions = [] if positions is None else [RowPositions()]
        self._in_partition = [field.name.lower() in partitions for field in fields]
        self._by_id = by_id
        self._by_spark = by_spark
        self.most_rows = most_rows
        self._stores: dict[str, LogStore] = {}

    def read(self, file: KnownFile, marked: BitMap64 | None, *, deleted: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; parameters and errors as for :meth:`groups` and :meth:`rows`."""
        for group in self.groups(file, marked, deleted=deleted):
            yield from self.rows(group)

    def groups(
        self,
        file: KnownFile,
        marked: BitMap64 | None,
        *,
        deleted: bool = False,
        selection: RowSelection | None = None,
    ) -> Iterator[DataRowGroup]:
        """Yield the row groups of a file that may have wanted rows.

        :param marked: positions of the rows that its deletion vector marks.
        :param deleted: the marked rows instead of the others.
        :raises DeltaFileNotFoundException: if it is gone.
        :raises DeltaLogCorruptedException: if it is damaged.
        :raises DeltaAnalysisException: if it does not have the table's columns in a type that they can be read from.
        """
        with self._explained(file):
            opened = self._open(file)
            parquet = opened.footer
            if marked and marked.max() >= parquet.metadata.num_rows:
                raise self._store.error(
                    DeltaLogCorruptedException,
                    f"The deletion vector of {file.path} in table {self._store.root} version {self._version} marks row "
                    f"{marked.max()}, but the file has {parquet.metadata.num_rows} rows. Another writer's commit is damaged; "
                    "restore the table to an earlier version.",
                    version=self._version,
                )
            sources = self._sources(file, parquet)
            may_hold = self._groups_of(parquet.metadata, sources, selection)
            start = 0
            for number in range(parquet.metadata.num_row_groups):
                rows = parquet.metadata.row_group(number).num_rows
                if may_hold[number] and counts(marked, start, start + rows, deleted):
                    yield DataRowGroup(file, opened, number, start, rows, sources, marked, deleted)
                start += rows

    def _groups_of(self, footer: pq.FileMetaData, sources: Sequence[Any], selection: RowSelection | None) -> Sequence[bool]:
        """Return for each row group whether it may have rows of a selection, as far as the footer tells."""
        if selection is None or footer.num_row_groups < 2:  # what the log says of one is as good
            return [True] * footer.num_row_groups
        found = zip(self._target, sources, strict=True)
        # Dates and times of the Julian calendar are not what the footer says.
        names = {
            field.name: source[0]
            for field, source in found
            if isinstance(source, tuple) and not (pa.types.is_temporal(field.type) and is_legacy(footer.metadata or {}))
        }
        return selection.groups(footer, names)

    def rows(self, group: DataRowGroup, selection: RowSelection | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a row group.

        Also raises as :meth:`groups` does.
        """
        with self._explained(group.file):
            yield from GroupRows(group, self._target, self.most_rows, partial(self._declared, group)).rows(selection)

    @contextmanager
    def _explained(self, file: KnownFile) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._store.error(
                DeltaFileNotFoundException,
                f"Data file {file.path} of table {self._store.root} version {self._version} is gone. VACUUM deletes the files of "
                "versions older than its retention period. Read a newer version, or restore the file from a backup.",
                version=self._version,
            ) from error
        except DeltaAnalysisException as error:
            raise self._store.error(
                DeltaAnalysisException,
                f"Data file {file.path} of table {self._store.root} version {self._version} cannot be read without Spark: "
                f"{error.message}.",
                version=self._version,
            ) from error
        except (StoreUnavailableError, StoreRefusedError):  # of the store, which says nothing about the file
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._store.error(
                DeltaLogCorruptedException,
                f"Data file {file.path} of table {self._store.root} version {self._version} cannot be read "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). If Spark reads it, use "
                f"{self._by_spark}; if not, restore it from a backup.",
                version=self._version,
            ) from error

    def _declared(self, group: DataRowGroup, names: Sequence[str]) -> list[Chunk]:
        """Return what columns of a row group declare, and refuse those that take much more memory than their size lets expect.

        Headers of pages are read where that costs no requests; in other files only if the footer, which counts all pages of a
        column together, does not tell that they are small.
        """
        opened, file, number = group.opened, group.file, group.number
        try:
            chunks = declared(opened.footer, opened.content(), number, names, headers=not opened.remote)
            problem = problem_of(chunks)
            if problem is not None and opened.remote:
                chunks = declared(opened.footer, opened.content(), number, names, headers=True)
                problem = problem_of(chunks)
        except ValueError as error:
            raise OSError(str(error)) from error
        if problem is not None:
            raise self._store.error(
                ReadLimitException,
                f"Data file {file.path} of table {self._store.root} version {self._version} is not read: {problem}. Leave "
                f"columns out with columns=, or read it with Spark ({self._by_spark}) if you trust who wrote it.",
                version=self._version,
            )
        return chunks

    def _open(self, file: KnownFile) -> OpenedFile:
        store, key = locate(self._store, unquote(file.path), self._stores)
        content, remote = store.open_input(key, file.size), store.local_root is None
        if remote and file.size is not None and file.size <= _WHOLE_BYTES:
            content, remote = pa.BufferReader(content.read()), False
        return OpenedFile(
            partial(store.open_input, key, file.size) if remote else lambda: content, remote, parquet_file(content, remote)
        )

    def _sources(self, file: KnownFile, parquet: pq.ParquetFile) -> list[Any]:
        """Return where each column comes from (:attr:`~airflow_delta.log.data_files.group_rows.DataRowGroup.sources`)."""
        there = [plain_field(field) for field in parquet.schema_arrow]
        kind = FileKind(self._by_id, is_legacy(parquet.metadata.metadata or {}), int96_columns(parquet.metadata))
        if self._by_id and there and not has_ids(there) and not all(self._in_partition):
            raise DeltaAnalysisException("the table finds columns by field id, and it has no field ids")
        sources: list[Any] = []
        by_name = FileFields(there, kind)
        targets = list(self._target)[: len(self._fields)]
        for field, target, in_partition in zip(self._fields, targets, self._in_partition, strict=True):
            if in_partition:
                text = (file.partition_values or {}).get(field.physical_name)
                sources.append(array([parse_partition_value(text, field.data_type, field.name)], target.type)[0])
                continue
            at = by_name.find(field)
            found: tuple[str, Convert] | pa.Scalar
            found = pa.nulls(1, target.type)[0] if at is None else (there[at].name, from_file_type(field, there[at], kind))
            sources.append(found)
        return [*sources, *self._positions]
