"""Converting statistics between their two forms in checkpoints: JSON text (``stats``) and typed columns (``stats_parsed``).

Parsing statistics that all have the same members in the same order, as one writer writes them.

Such documents are already rows of a table: with commas in place of colons and braces, Arrow's CSV reader parses them in about
half the time of its JSON reader. Nothing is assumed: keys and nesting of every row are compared with those of the first, and if
they are not exactly alike, the general parser takes over.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import array, readable, scalar

_COMMAS = bytes.maketrans(b"{}:", b",,,")
_COMMAS_FOR_BRACES = bytes.maketrans(b"{}", b",,")
_BLOCK = 1 << 20

Path = tuple[str, ...]


class NotUniform(ValueError):
    """The documents differ in shape, or contain characters that are ambiguous in CSV."""


@dataclass(slots=True)
class _Shape:
    """The CSV columns of a document.

    :ivar keys: position -> the key that every row has there.
    :ivar gaps: positions of braces, empty in every row.
    :ivar values: path -> position.
    """

    keys: dict[int, str] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)
    values: dict[Path, int] = field(default_factory=dict)
    width: int = 0
    colons: bool = False

    @classmethod
    def of(cls, document: Any) -> _Shape:
        shape = cls()
        if not isinstance(document, Mapping) or not document:
            raise NotUniform
        shape._object(document, ())
        return shape

    def _next(self) -> int:
        self.width += 1
        return self.width - 1

    def _object(self, document: Mapping[str, Any], path: Path) -> None:
        self.gaps.append(self._next())  # before the opening brace
        for number, (key, value) in enumerate(document.items()):
            if number and self._closed:
                self.gaps.append(self._next())  # between a closing brace and the comma
            self.keys[self._next()] = key
            if isinstance(value, Mapping):
                if not value:
                    raise NotUniform
                self._object(value, (*path, key))
            elif isinstance(value, list):
                raise NotUniform
            else:
                self.values[*path, key] = self._next()
                self.colons = self.colons or (isinstance(value, str) and ":" in value)
                self._closed = False
        if self._closed:
            self.gaps.append(self._next())  # between two closing braces
        self._closed = True

    _closed: bool = False


def parse_uniform(text: bytes, first: Any, wanted: pa.StructType, rows: int) -> pa.StructArray:
    """Return statistics with the types that they have in JSON.

    :param text: the documents, one per line.
    :param first: the first document, decoded.
    :param wanted: the members to return, and their types.
    :raises NotUniform: if they cannot be parsed as CSV.
    :raises pyarrow.ArrowInvalid: likewise.
    """
    import pyarrow.csv as csv

    if b"\\" in text:
        raise NotUniform
    shape = _Shape.of(first)
    if shape.colons:
        if b':":' in text:
            raise NotUniform
        text = text.replace(b'":', b'",').translate(_COMMAS_FOR_BRACES)
    else:
        text = text.translate(_COMMAS)
    shape.gaps.append(shape._next())  # after the last brace
    types: dict[str, pa.DataType] = {str(position): pa.string() for position in (*shape.keys, *shape.gaps)}
    for path, leaf in _leaves(wanted):
        if path in shape.values:
            types[str(shape.values[path])] = leaf
    for path, position in shape.values.items():
        if str(position) not in types and any(other[: len(path)] == path for other, _ in _leaves(wanted)):
            raise NotUniform  # a value where an object is expected
    table = csv.read_csv(
        pa.py_buffer(text),
        read_options=csv.ReadOptions(column_names=[str(n) for n in range(shape.width)], use_threads=False, block_size=_BLOCK),
        parse_options=csv.ParseOptions(double_quote=False),
        convert_options=csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=["null"],
            true_values=["true"],
            false_values=["false"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if table.num_rows != rows:
        raise NotUniform
    _check(table, shape, types)
    return _struct(table, wanted, shape.values, (), rows)


def _leaves(data_type: pa.DataType, path: Path = ()) -> Iterator[tuple[Path, pa.DataType]]:
    for member in data_type:
        if pa.types.is_struct(member.type):
            yield from _leaves(member.type, (*path, member.name))
        else:
            yield (*path, member.name), member.type


def _check(table: pa.Table, shape: _Shape, types: Mapping[str, pa.DataType]) -> None:
    expected = [*shape.keys.items(), *((gap, "") for gap in shape.gaps)]
    for position, text in expected:
        if not pc.all(pc.equal(table.column(str(position)), scalar(text)), skip_nulls=False).as_py():
            raise NotUniform
    for position in shape.values.values():
        if types.get(str(position)) == pa.string():
            values = table.column(str(position))
            # A comma may have been a brace or a colon of the string; a quote means that the line was split wrongly.
            for mark in (",", '"'):
                if pc.any(pc.match_substring(values, mark)).as_py():
                    raise NotUniform


def _struct(table: pa.Table, data_type: pa.DataType, values: Mapping[Path, int], path: Path, rows: int) -> pa.StructArray:
    children = []
    for member in data_type:
        here = (*path, member.name)
        if pa.types.is_struct(member.type):
            if any(other[: len(here)] == here for other in values):
                children.append(_struct(table, member.type, values, here, rows))
            else:
                children.append(pa.nulls(rows, member.type))
        elif here in values:
            column = table.column(str(values[here]))
            children.append(column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks))
        else:
            children.append(pa.nulls(rows, member.type))
    return pa.StructArray.from_arrays(children, fields=list(data_type))


_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder(float_hook=decimal.Decimal)  # decimals keep their digits
_WIDE = decimal.Context(prec=2 * 38)  # a decimal has up to 38 digits before its point, and as many behind it


def parse_stats(stats: pa.Array, wanted: pa.StructType) -> pa.StructArray:
    """Return statistics as typed columns; a value that does not fit its column's type becomes null.

    Decimals with more digits than their column become wider bounds: minima are rounded down, maxima up.

    :param stats: JSON texts, or nulls.
    :param wanted: type of the result.
    """
    if stats.null_count == len(stats):
        return pa.nulls(len(stats), wanted)
    try:
        return _parse_columns(stats, wanted)
    except (pa.ArrowException, msgspec.DecodeError, ValueError):
        # One odd value fails the whole column: convert row by row instead.
        return _parse_rows(stats, wanted)


def _parse_columns(stats: pa.Array, wanted: pa.StructType) -> pa.StructArray:
    present = stats.drop_null() if stats.null_count else stats
    lines = pc.binary_join(pa.ListArray.from_arrays(array([0, len(present)], pa.int32()), present), scalar("\n"))
    text = lines[0].as_buffer().to_pybytes()
    lexical = _lexical(wanted)
    try:
        parsed = parse_uniform(text, _decoder.decode(present[0].as_py()), lexical, len(present))
    except (NotUniform, pa.ArrowInvalid):
        parsed = _parse_json(text, lexical, len(present))
    typed = _typed(parsed, wanted)
    if len(present) == len(stats):
        return typed
    places = pc.subtract(pc.cumulative_sum(stats.is_valid().cast(pa.int64())), scalar(1))
    return typed.take(pc.if_else(stats.is_valid(), places, scalar(None, pa.int64())))


def _parse_json(text: bytes, lexical: pa.StructType, rows: int) -> pa.StructArray:
    import pyarrow.json as arrow_json

    block = max(1 << 20, 4 * (len(text) // rows + 1))
    table = arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(block_size=block, use_threads=False),
        parse_options=arrow_json.ParseOptions(explicit_schema=pa.schema(list(lexical)), unexpected_field_behavior="ignore"),
    )
    if table.num_rows != rows:
        raise ValueError("a document has several lines")
    return pa.StructArray.from_arrays([_single(table.column(f.name)) for f in lexical], fields=list(lexical))


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _lexical(wanted: pa.DataType) -> pa.DataType:
    """Return the type of a value in JSON: strings for dates and times."""
    if pa.types.is_struct(wanted):
        return pa.struct([pa.field(f.name, _lexical(f.type)) for f in wanted])
    if pa.types.is_date(wanted) or pa.types.is_timestamp(wanted):
        return pa.string()
    return wanted


def _typed(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_struct(wanted):
        children = [_typed(child, f.type) for child, f in zip(values.flatten(), wanted, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=values.is_null() if values.null_count else None)
    try:
        return values if values.type == wanted else values.cast(wanted)
    except pa.ArrowInvalid:  # not a date or time, or one that Python cannot hold
        return array([_convert(value, wanted) for value in values.to_pylist()], wanted)


def _parse_rows(stats: pa.Array, wanted: pa.StructType) -> pa.StructArray:
    rows = []
    for text in stats.to_pylist():
        try:
            value = None if text is None else _decoder.decode(text)
        except msgspec.DecodeError:
            value = None
        rows.append(_convert(value, wanted) if isinstance(value, dict) else None)
    return array(rows, wanted)


def _convert(value: Any, wanted: pa.DataType, rounding: str | None = None) -> Any:
    """Return a value of JSON in a type, ``None`` if it does not fit.

    :param rounding: of decimals; left out, the value is a whole document, and its greatest values are rounded up.
    """
    if pa.types.is_struct(wanted):
        if not isinstance(value, Mapping):
            return None
        inner = {f.name: rounding or (decimal.ROUND_CEILING if f.name == "maxValues" else decimal.ROUND_FLOOR) for f in wanted}
        return {f.name: _convert(value.get(f.name), f.type, inner[f.name]) for f in wanted}
    if value is None:
        return None
    try:
        if pa.types.is_date(wanted):
            value = dt.date.fromisoformat(value[:10])
        elif pa.types.is_timestamp(wanted):
            value = _moment(value, with_zone=wanted.tz is not None)
        elif pa.types.is_decimal(wanted):
            quantum = decimal.Decimal(1).scaleb(-wanted.scale)
            value = decimal.Decimal(str(value)).quantize(quantum, rounding, _WIDE)
        elif pa.types.is_floating(wanted):
            value = float(value)
        array([value], wanted)
    except (ValueError, TypeError, OverflowError, decimal.DecimalException):
        return None
    return value


def _moment(text: str, *, with_zone: bool) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    if with_zone:
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return moment.replace(tzinfo=None)


def format_stats(parsed: pa.StructArray) -> pa.Array:
    """Return typed statistics as JSON texts, for checkpoints that have only typed ones."""
    rows = readable(parsed)
    return array([None if row is None else _encoder.encode(_present(row)).decode() for row in rows], pa.string())


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    present: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            if any(isinstance(part, bytes) for part in value.values()):
                continue  # a bound of a shredded variant, which JSON spells in another way; no other statistics are binary
            present[name] = _present(value)
        elif value is not None and not (isinstance(value, float) and not math.isfinite(value)):
            present[name] = value
    return present
