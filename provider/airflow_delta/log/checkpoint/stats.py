"""Converting statistics between their two forms in checkpoints: JSON text (``stats``) and typed columns (``stats_parsed``)."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.checkpoint.uniform_stats import NotUniform, parse_uniform

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
    present = kernels.drop_null(stats) if stats.null_count else stats
    lines = kernels.binary_join(pa.ListArray.from_arrays(array([0, len(present)], pa.int32()), present), scalar("\n"))
    text = lines[0].as_buffer().to_pybytes()
    lexical = _lexical(wanted)
    try:
        parsed = parse_uniform(text, _decoder.decode(present[0].as_py()), lexical, len(present))
    except (NotUniform, pa.ArrowInvalid):
        parsed = _parse_json(text, lexical, len(present))
    typed = _typed(parsed, wanted)
    if len(present) == len(stats):
        return typed
    places = kernels.subtract(kernels.cumulative_sum(kernels.cast(kernels.is_valid(stats), pa.int64())), scalar(1))
    return kernels.take(typed, kernels.if_else(kernels.is_valid(stats), places, scalar(None, pa.int64())))


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
        return pa.StructArray.from_arrays(
            children, fields=list(wanted), mask=kernels.is_null(values) if values.null_count else None
        )
    try:
        return values if values.type == wanted else kernels.cast(values, wanted)
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
