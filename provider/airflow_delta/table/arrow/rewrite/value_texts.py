"""A value as text for messages, as Spark casts it to a string."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.exceptions import DeltaError
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.schema.types import FLOATING, STRING, ArrayType, DataType, StructType
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import row_expression

_VALUE = "value"
_PLAIN_FROM, _PLAIN_TO = Decimal("0.001"), Decimal(10_000_000)


def text_of_value(value: pa.Array, data_type: DataType) -> str | None:
    """Return the only value of an array as text; ``None`` if it is null."""
    if value.null_count:
        return None
    match data_type:
        case StructType(fields):
            inner = [text_of_value(part, field.data_type) for part, field in zip(value.flatten(), fields, strict=True)]
            return "{" + ", ".join(map(_in_others, inner)) + "}"
        case ArrayType(element):
            items = pc.list_flatten(value)
            inner = [text_of_value(items.slice(place, 1), element) for place in range(len(items))]
            return "[" + ", ".join(map(_in_others, inner)) + "]"
    if data_type.name in FLOATING:
        return _number(value.cast(pa.string())[0].as_py())
    try:
        cast = row_expression(f"CAST({_VALUE} AS {STRING})", lambda _name: (_VALUE, (), data_type))
        return str(cast.values(pa.RecordBatch.from_arrays([value], names=[_VALUE]))[0].as_py())
    except (NotDecided, DeltaError):
        return str(readable(value)[0])


def _in_others(text: str | None) -> str:
    return "null" if text is None else text


def _number(text: str) -> str:
    """Return a floating-point number as Java writes it.

    :param text: as Arrow writes it.
    """
    number = Decimal(text)
    if not number.is_finite():
        return "NaN" if number.is_nan() else f"{'-' if number < 0 else ''}Infinity"
    sign, digits, _ = number.normalize().as_tuple()
    minus = "-" if sign else ""
    if not number or _PLAIN_FROM <= abs(number) < _PLAIN_TO:
        plain = f"{abs(number.normalize()):f}"
        return minus + (plain if "." in plain else f"{plain}.0")
    first, *others = map(str, digits)
    return f"{minus}{first}.{''.join(others) or '0'}E{number.adjusted()}"
