"""CSV files, read by Arrow as Spark reads them with the same options; what Arrow would read otherwise is refused.

Spark takes a quote or the escape character after an escape character for itself, and only inside quotes; a value that goes on
after its closing quote has its quotes in it. Arrow has no such rules, so what is read is looked through for quoted values that
have any use for them.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaUnsupportedOperationException
from airflow_delta.log.schema.types import ArrayType, MapType, StructType, arrow_type
from airflow_delta.table.arrow.source_streams import BLOCK, Watched, as_input, open_text

if TYPE_CHECKING:
    from airflow_delta.table.stage.file_loads import LoadedFile
    from airflow_delta.table.stage.source_files import SourceFiles

CSV_OPTIONS = ("header", "sep", "delimiter", "quote", "escape", "encoding", "charset", "nullvalue", "multiline")

_BOM = codecs.BOM_UTF8
_SHOWN = 40


class CsvFiles:
    """Columns of the table are read as their types, others as text; a row with more or fewer values is an error.

    :param options: by Spark's names in lower case.
    :param columns: names of the columns of files without a header.
    :raises DeltaIllegalArgumentException: if an option has no such value.
    :raises DeltaUnsupportedOperationException: if Arrow does not have this value of an option.
    """

    def __init__(self, found: SourceFiles, table: StructType, options: Mapping[str, Any], columns: Sequence[str]) -> None:
        self._found = found
        self._table = table
        self._encoding = _encoding(found, options.get("encoding", options.get("charset", "utf-8")))
        has_header = _flag(found, "header", options.get("header", False))
        names = list(columns) or list(table.names)
        self._read = pa_csv.ReadOptions(block_size=BLOCK, column_names=None if has_header else names)
        delimiter = _one(found, "delimiter", options.get("delimiter", options.get("sep", ",")))
        quote = _one(found, "quote", options.get("quote", '"') or None)
        escape = _one(found, "escape", options.get("escape", "\\") or None)
        if delimiter is None or delimiter in ("\r", "\n", quote):
            raise found.store.error(
                DeltaIllegalArgumentException,
                f"delimiter of CSV must be neither a line break nor the quote, got {delimiter!r}.",
            )
        multiline = _flag(found, "multiLine", options.get("multiline", False))
        self._parse = pa_csv.ParseOptions(
            delimiter=delimiter,
            quote_char=quote or False,
            double_quote=quote is not None and escape == quote,
            escape_char=False,
            newlines_in_values=multiline,
        )
        self._quoted = None if quote is None else _Quoted(delimiter, quote, escape, multiline=multiline)
        self._null = str(options.get("nullvalue", ""))

    def schema(self, file: LoadedFile) -> pa.Schema:
        """Return the columns of a file.

        :raises DeltaUnsupportedOperationException: if the table's column of this name has a type that CSV does not.
        """
        with self._text(file) as opened:
            text = pa_csv.ConvertOptions(strings_can_be_null=True, column_types={})
            names = pa_csv.open_csv(opened, read_options=self._read, parse_options=self._parse, convert_options=text).schema.names
        return pa.schema([(name, self._type(name)) for name in names])

    def batches(self, file: LoadedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file.

        :raises DeltaUnsupportedOperationException: if Spark reads a quoted value otherwise.
        """
        integers = [name for name, kind in zip(schema.names, schema.types, strict=True) if pa.types.is_integer(kind)]
        # Arrow takes hexadecimal digits for a number as well.
        as_read = pa.schema([(field.name, pa.string() if field.name in integers else field.type) for field in schema])
        convert = pa_csv.ConvertOptions(
            column_types=as_read,
            null_values=list({self._null, ""}),
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=not self._null,
        )
        with self._watched(file) as opened:
            for batch in pa_csv.open_csv(opened, read_options=self._read, parse_options=self._parse, convert_options=convert):
                columns = [self._converted(batch.column(number), field) for number, field in enumerate(schema)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _converted(self, values: pa.Array, field: pa.Field) -> pa.Array:
        if self._null and pa.types.is_string(values.type):  # in quotes, too; an empty string in quotes is none
            values = pc.if_else(pc.equal(values, self._null), pa.scalar(None, values.type), values)
        if values.type == field.type:
            return values
        for digit in "xX":
            found = pc.match_substring(values, digit)
            if pc.any(found).as_py():
                value = values.filter(found)[0].as_py()
                raise pa.ArrowInvalid(f"In CSV column {field.name!r}: invalid value {value!r} for {field.type}")
        try:
            return values.cast(field.type)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"In CSV column {field.name!r}: {error}") from error

    def _text(self, file: LoadedFile) -> Any:
        opened = open_text(self._found, file)
        return opened if self._encoding == "utf-8" else pa.transcoding_input_stream(opened, self._encoding, "utf-8")

    def _watched(self, file: LoadedFile) -> Any:
        opened = self._text(file)
        if self._quoted is None:
            return opened
        return as_input(Watched(opened, _Watch(self._found, file, self._quoted)))

    def _type(self, name: str) -> pa.DataType:
        field = self._table.find(name)
        if field is None:
            return pa.string()
        if isinstance(field.data_type, StructType | ArrayType | MapType):
            raise self._found.store.error(
                DeltaUnsupportedOperationException, f"The column {name!r} is {field.data_type}: CSV has no such values."
            )
        return arrow_type(field.data_type)


class _Quoted:
    """Finds quoted values that Arrow does not read as Spark does."""

    def __init__(self, delimiter: str, quote: str, escape: str | None, *, multiline: bool) -> None:
        self.escape = escape
        self.multiline = multiline
        self.quote = quote.encode()
        q, end = re.escape(quote), re.escape(delimiter) + r"\r\n"
        breaks = "" if multiline else r"\r\n"
        if escape is None:
            plain, more = rf"[^{q}{breaks}]++", ""  # two quotes without anything between them are one, to Spark
        elif escape == quote:
            plain = rf"[^{q}{breaks}]*+"
            more = rf"(?:{q}{q}{plain})*"
        else:
            e = re.escape(escape)
            plain = rf"[^{q}{e}{breaks}]*+"
            more = rf"(?:{e}(?![{q}{e}]){plain})*"
        inside = plain + more
        within = rf"(?<=[^{end}]{q})"  # a value that does not begin with a quote: there it means nothing
        most = rf"(?<![^{end}]{q}){plain}{q}(?=[{end}])"  # quick, and of no use but for that
        self._quotes = re.compile(rf"{q}(?:{most}|{within}|{inside}{q}(?=[{end}]|\Z)|(?<=({q})))".encode())
        self._begun = re.compile(rf"{q}{inside}".encode())

    def find(self, rows: bytes) -> int | None:
        """Return where the first one begins."""
        if self.quote not in rows or not any(self._quotes.findall(rows)):  # twice as fast as one by one
            return None
        return next(match.start() for match in self._quotes.finditer(rows) if match[1])

    def is_open(self, rows: bytes, start: int) -> bool:
        """Return whether a value is one of which the end is not there yet."""
        return self.multiline and self._begun.fullmatch(rows, start) is not None


class _Watch:
    """Refuses a file with a quoted value that Spark reads otherwise, when it is read."""

    def __init__(self, found: SourceFiles, file: LoadedFile, quoted: _Quoted) -> None:
        self._found = found
        self._file = file
        self._quoted = quoted
        self._rest: bytes | None = None

    def __call__(self, data: bytes, last: bool) -> None:
        """Look through the rows that are complete.

        :param last: whether nothing follows.
        """
        text = data.removeprefix(_BOM) if self._rest is None else self._rest + data
        end = len(text) if last else max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        rows, self._rest = text[:end], text[end:]
        start = self._quoted.find(rows)
        if start is None:
            return
        if not last and self._quoted.is_open(rows, start):
            self._rest = rows[start:] + self._rest
            return
        shown = rows[start : start + _SHOWN].decode(errors="replace")
        raise self._found.store.error(
            DeltaUnsupportedOperationException,
            f"The file {self._file.path} of {self._found.source} has a quoted value that only Spark reads with the options "
            f"escape={self._quoted.escape or ''!r} and multiLine={self._quoted.multiline}: {shown!r}. Nothing was staged. Use "
            'engine="spark"; or, if quotes inside values are doubled, escape=\'"\', and if line breaks are, multiLine=True.',
        )


def _flag(found: SourceFiles, name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise found.store.error(DeltaIllegalArgumentException, f"{name} of CSV must be true or false, got {value!r}.")
    return text == "true"


def _one(found: SourceFiles, name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and len(value) == 1 and value.isascii()):
        return value
    raise found.store.error(
        DeltaUnsupportedOperationException,
        f'{name} of CSV must be one ASCII character with engine="arrow", got {value!r}. Use Spark.',
    )


def _encoding(found: SourceFiles, name: Any) -> str:
    try:
        return codecs.lookup(name).name
    except (LookupError, TypeError, ValueError) as error:
        raise found.store.error(
            DeltaIllegalArgumentException, f"encoding of CSV must be the name of one, such as utf-8, got {name!r}."
        ) from error
