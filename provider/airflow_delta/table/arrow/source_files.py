"""The rows of Parquet, CSV and JSON files, read by Arrow in the worker, for a stage that loads them.

Files are read one after the other. Before the first one is, the columns of all are known: a column that only the last file has is
in no batch missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaUnsupportedOperationException, SchemaMismatchException
from airflow_delta.log.schema.types import ArrayType, MapType, StructType, arrow_type

if TYPE_CHECKING:
    from airflow_delta.table.stage.file_loads import LoadedFile
    from airflow_delta.table.stage.source_files import SourceFiles

_THREADS = 8
_JOINED_ROWS, _JOINED_BYTES = 65_536, 16 << 20
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_BLOCK = 16 << 20
"""Bytes that a row of CSV or a JSON document may have."""


class _Format(Protocol):
    def schema(self, file: LoadedFile) -> pa.Schema:
        """Return the columns of a file."""
        ...

    def batches(self, file: LoadedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield its rows.

        :param schema: its columns.
        """
        ...


def read_arrow_files(
    found: SourceFiles, table: StructType, *, file_format: str, options: Mapping[str, Any], columns: Sequence[str] = ()
) -> pa.RecordBatchReader:
    """Return the rows of the files that a transaction loads.

    :param table: the table's columns: what is of their name is read as their type.
    :param options: of the format, by Spark's names.
    :param columns: names of the columns of files without a header.
    :raises DeltaUnsupportedOperationException: if Arrow has no such format or option.
    :raises SchemaMismatchException: if a file is not of the format, a value not of its column's type, or if files have a column
        of the same name with types that do not go together.
    """
    reader = _reader(found, table, file_format, options, columns)

    def schema_of(file: LoadedFile) -> pa.Schema:
        return _read(found, file, file_format, partial(reader.schema, file)) if file.size else pa.schema([])

    with ThreadPoolExecutor(_THREADS) as pool:
        schemas = list(pool.map(schema_of, found.files))
    schema = _common(found, schemas, table)

    def batches() -> Iterator[pa.RecordBatch]:
        for file, columns in zip(found.files, schemas, strict=True):
            if not file.size:
                continue
            rows = reader.batches(file, columns)
            while (batch := _read(found, file, file_format, partial(next, rows, None))) is not None:
                yield _read(found, file, file_format, partial(_fitted, batch, schema))

    return pa.RecordBatchReader.from_batches(schema, _joined(batches()))


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of many small files together."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _JOINED_ROWS or size >= _JOINED_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _read(found: SourceFiles, file: LoadedFile, file_format: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            raise
        raise found.store.error(
            SchemaMismatchException,
            f"The file {file.path} of {found.source} cannot be read as {file_format}: {error}. Nothing was staged. Correct it "
            "under another name, or leave it out by the pattern.",
        ) from error


def _common(found: SourceFiles, schemas: Sequence[pa.Schema], table: StructType) -> pa.Schema:
    """Return the columns of all files, named as in the table, whatever their case."""
    fields: dict[str, pa.Field] = {}
    for file, schema in zip(found.files, schemas, strict=True):
        lower = [name.lower() for name in schema.names]
        if twice := sorted({name for name in lower if lower.count(name) > 1}):
            raise found.store.error(
                SchemaMismatchException,
                f"The file {file.path} of {found.source} has the column {twice[0]!r} twice (names have no case). Nothing was "
                "staged.",
            )
        for field in schema:
            own = table.find(field.name)
            name = own.name if own is not None else field.name
            known = fields.get(name.lower())
            given = pa.field(name if known is None else known.name, field.type)
            if known is None or known.type == given.type:
                fields[name.lower()] = given
                continue
            try:
                both = pa.unify_schemas([pa.schema([known]), pa.schema([given])], promote_options="permissive")
            except pa.ArrowException as error:
                raise found.store.error(
                    SchemaMismatchException,
                    f"The column {name!r} is {given.type} in the file {file.path} of {found.source}, and {known.type} in others. "
                    "Nothing was staged. Load these files apart from each other, by pattern.",
                ) from error
            fields[name.lower()] = both.field(0)
    return pa.schema(list(fields.values()))


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    given = {name.lower(): number for number, name in enumerate(batch.schema.names)}
    arrays = []
    for field in schema:
        number = given.get(field.name.lower())
        if number is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(number)
            arrays.append(column if column.type == field.type else pc.cast(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else pa.RecordBatch.from_pylist([], schema=schema)


def _reader(
    found: SourceFiles, table: StructType, file_format: str, options: Mapping[str, Any], columns: Sequence[str]
) -> _Format:
    if file_format == "parquet":
        _check_options(found, file_format, options, ())
        return _Parquet(found)
    if file_format == "csv":
        _check_options(found, file_format, options, _CSV_OPTIONS)
        return _Csv(found, table, {name.lower(): value for name, value in options.items()}, columns)
    if file_format == "json":
        _check_options(found, file_format, options, ())
        return _Json(found, table)
    raise found.store.error(
        DeltaUnsupportedOperationException, f'Files of the format {file_format!r} need Spark. Leave out engine="arrow".'
    )


def _check_options(found: SourceFiles, file_format: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        raise found.store.error(
            DeltaUnsupportedOperationException,
            f'The option {unknown[0]!r} of {file_format} needs Spark: with engine="arrow" there are '
            f"{', '.join(known) or 'no options of this format'}.",
        )


def _opened(found: SourceFiles, file: LoadedFile) -> Any:
    opened = found.store.open_input(file.path, file.size)
    kind = next((kind for end, kind in _COMPRESSED.items() if file.path.endswith(end)), None)
    return opened if kind is None else pa.CompressedInputStream(opened, kind)


class _Parquet:
    def __init__(self, found: SourceFiles) -> None:
        self._found = found

    def schema(self, file: LoadedFile) -> pa.Schema:
        with self._found.store.open_input(file.path, file.size) as opened:
            return pq.ParquetFile(opened).schema_arrow.remove_metadata()

    def batches(self, file: LoadedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as for CSV
        with self._found.store.open_input(file.path, file.size) as opened:
            yield from pq.ParquetFile(opened).iter_batches()


_CSV_OPTIONS = ("header", "sep", "delimiter", "quote", "escape", "encoding", "charset", "nullvalue", "multiline")


class _Csv:
    """Columns of the table are read as their types, others as text; a row with more or fewer values is an error."""

    def __init__(self, found: SourceFiles, table: StructType, options: Mapping[str, Any], columns: Sequence[str]) -> None:
        self._found = found
        self._table = table
        has_header = _flag(found, "header", options.get("header", False))
        names = list(columns) or list(table.names)
        self._read = pa_csv.ReadOptions(
            block_size=_BLOCK,
            column_names=None if has_header else names,
            encoding=options.get("encoding", options.get("charset", "utf8")),
        )
        quote = options.get("quote", '"')
        escape = options.get("escape", "\\")
        self._parse = pa_csv.ParseOptions(
            delimiter=_one(found, "delimiter", options.get("delimiter", options.get("sep", ","))),
            quote_char=_one(found, "quote", quote) if quote else False,
            double_quote=escape == quote or escape == "\\",
            escape_char=False if escape in (quote, "", None) else _one(found, "escape", escape),
            newlines_in_values=_flag(found, "multiLine", options.get("multiline", False)),
        )
        self._null = str(options.get("nullvalue", ""))

    def schema(self, file: LoadedFile) -> pa.Schema:
        with _opened(self._found, file) as opened:
            text = pa_csv.ConvertOptions(strings_can_be_null=True, column_types={})
            names = pa_csv.open_csv(opened, read_options=self._read, parse_options=self._parse, convert_options=text).schema.names
        return pa.schema([(name, self._type(name)) for name in names])

    def batches(self, file: LoadedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        convert = pa_csv.ConvertOptions(
            column_types=schema,
            null_values=list({self._null, ""}),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        with _opened(self._found, file) as opened:
            yield from pa_csv.open_csv(opened, read_options=self._read, parse_options=self._parse, convert_options=convert)

    def _type(self, name: str) -> pa.DataType:
        field = self._table.find(name)
        if field is None:
            return pa.string()
        if isinstance(field.data_type, StructType | ArrayType | MapType):
            raise self._found.store.error(
                DeltaUnsupportedOperationException, f"The column {name!r} is {field.data_type}: CSV has no such values."
            )
        return arrow_type(field.data_type)


def _flag(found: SourceFiles, name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise found.store.error(DeltaIllegalArgumentException, f"{name} of CSV must be true or false, got {value!r}.")
    return text == "true"


def _one(found: SourceFiles, name: str, value: Any) -> str:
    if isinstance(value, str) and len(value) == 1:
        return value
    raise found.store.error(
        DeltaUnsupportedOperationException, f'{name} of CSV must be one character with engine="arrow", got {value!r}. Use Spark.'
    )


class _Json:
    """Documents one after the other, each on a line. Fields that the table does not have keep the type that Arrow finds."""

    def __init__(self, found: SourceFiles, table: StructType) -> None:
        self._found = found
        types = [(field.name, arrow_type(field.data_type)) for field in table]
        # Arrow reads no dates from JSON, and takes the zone of a time from its text only if it looks for one.
        self._dates = {name.lower(): kind for name, kind in types if pa.types.is_date(kind)}
        given = pa.schema([(name, pa.string() if name.lower() in self._dates else kind) for name, kind in types])
        self._parse = pa_json.ParseOptions(explicit_schema=given, unexpected_field_behavior="infer")

    def schema(self, file: LoadedFile) -> pa.Schema:
        return self._rows(file).schema

    def batches(self, file: LoadedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as for CSV
        yield from self._rows(file).to_batches()

    def _rows(self, file: LoadedFile) -> pa.Table:
        with _opened(self._found, file) as opened:
            rows = pa_json.read_json(opened, read_options=pa_json.ReadOptions(block_size=_BLOCK), parse_options=self._parse)
        for number, name in enumerate(rows.schema.names):
            if (kind := self._dates.get(name.lower())) is not None:
                rows = rows.set_column(number, name, pc.cast(rows.column(number), kind))
        return rows
