"""Columns, fields of structs, structs made of values, and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.schema.types import (
    BOOLEAN,
    INTEGER,
    STRING,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    arrow_type,
)
from airflow_delta.table.expressions.coercion import is_floating, is_integral
from airflow_delta.table.expressions.parts import PartRows, TypedPart, by_row, made, strict
from airflow_delta.table.expressions.problems import NotDecided


def column(name: str, path: Sequence[str], data_type: DataType) -> TypedPart:
    """Return the part that is a column, or a field inside it."""
    kind = arrow_type(data_type)

    def compute(rows: PartRows) -> pa.Array:
        values = rows.column(name)
        for inner in path:
            values = pc.struct_field(values, [values.type.get_field_index(inner)])
        return values if values.type == kind else values.cast(kind)

    return TypedPart(data_type, compute, frozenset({name}))


def field(base: TypedPart, name: str) -> TypedPart:
    """Return the part that is a field of a struct.

    :raises NotDecided: if it is not a struct with this field.
    """
    given = base.data_type
    found = given.find(name) if isinstance(given, StructType) else None
    if found is None or not isinstance(given, StructType):
        raise NotDecided(f"a {given} has no field {name!r} here")
    number = given.fields.index(found)
    return strict(found.data_type, lambda values: pc.struct_field(values, [number]), base)


def struct(operands: Sequence[TypedPart]) -> TypedPart:
    """Return the part ``named_struct(name, value, ...)``."""
    names, values = operands[::2], operands[1::2]
    if not values or len(names) != len(values):
        raise NotDecided("named_struct needs names and values")
    fields = []
    for name, value in zip(names, values, strict=True):
        if name.columns or name.data_type != STRING or name.constant is None:
            raise NotDecided("named_struct takes literal names")
        fields.append(StructField(str(name.constant), value.data_type))
    if len({f.name.lower() for f in fields}) != len(fields):
        raise NotDecided("named_struct takes each name once here")
    target = StructType(tuple(fields))
    kind: Any = arrow_type(target)

    def compute(rows: PartRows) -> pa.Array:
        return pa.StructArray.from_arrays([value.compute(rows) for value in values], fields=list(kind))

    return made(target, compute, values)


def size_of(operand: TypedPart) -> TypedPart:
    """Return the part ``size(operand)`` of a list or a map."""
    if not isinstance(operand.data_type, ArrayType | MapType):
        raise NotDecided(f"size of a {operand.data_type} is not computed here")
    return strict(INTEGER, pc.list_value_length, operand)


def list_contains(operand: TypedPart, value: TypedPart) -> TypedPart:
    """Return the part ``array_contains(operand, value)``: null if it is not found among values of which one is null."""
    given = operand.data_type
    if not isinstance(given, ArrayType) or given.element_type != value.data_type or is_floating(value.data_type):
        raise NotDecided(f"array_contains of {given} and {value.data_type} is not computed here")
    plain = value.data_type in (STRING, BOOLEAN) or is_integral(value.data_type)
    if not plain and not isinstance(value.data_type, DecimalType):
        raise NotDecided(f"array_contains of {value.data_type} is not computed here")
    return by_row(BOOLEAN, lambda listed, wanted: True if wanted in listed else None if None in listed else False, operand, value)
