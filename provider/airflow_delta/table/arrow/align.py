"""Arrow columns in the types that a table stores: only casts that keep every value, and every row is checked.

Which types go into which is decided by :func:`airflow_delta.contract.schema.written_schema`, for Spark as for here.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.schema.types import INTEGRAL, ArrayType, DataType, MapType, StructType, arrow_type, as_nullable

Convert = Callable[["pa.Array"], "pa.Array"]

_AS_TEXT = ("string", "boolean", "date", *INTEGRAL)
"""Types whose values Arrow writes as Spark does when they are cast to strings."""


class Unstorable(Exception):
    """A column cannot be brought to the table's type here; the message is the end of a sentence."""


def to_table_type(found: pa.DataType, given: DataType, target: DataType) -> Convert:
    """Return the function from a given column to the table's, under its logical names.

    :param given: type that the data have for Delta.
    """
    if isinstance(found, pa.BaseExtensionType):
        inner = to_table_type(found.storage_type, given, target)
        return lambda values: inner(values.storage)
    if pa.types.is_dictionary(found):
        inner = to_table_type(found.value_type, given, target)
        # Arrow cannot take views, which Polars' categories are.
        return lambda values: inner(_viewless(values.dictionary).take(values.indices))
    if pa.types.is_run_end_encoded(found):
        inner = to_table_type(found.value_type, given, target)

        def decoded(values: pa.RunEndEncodedArray) -> pa.Array:
            runs = pa.RunEndEncodedArray.from_arrays(values.run_ends, _viewless(values.values))
            return inner(pc.run_end_decode(runs.slice(values.offset, len(values))))

        return decoded
    if given.name == "void":
        empty = arrow_type(as_nullable(target))
        return lambda values: pa.nulls(len(values), empty)
    match given, target:
        case StructType(), StructType():
            return _struct(found, given, target)
        case ArrayType(), ArrayType():
            return _list(found, given, target)
        case MapType(), MapType():
            return _map(found, given, target)
    return _leaf(found, given, target)


def _viewless(values: pa.Array) -> pa.Array:
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return values.cast(views[values.type]) if values.type in views else values


def _struct(found: pa.StructType, given: StructType, target: StructType) -> Convert:
    out = arrow_type(as_nullable(target))
    at = {field.name.lower(): number for number, field in enumerate(given)}
    parts: list[tuple[int, Convert] | None] = []
    for field in target:
        number = at.get(field.name.lower())
        if number is None:
            parts.append(None)
        else:
            parts.append((number, to_table_type(found.field(number).type, given.fields[number].data_type, field.data_type)))

    def convert(values: pa.StructArray) -> pa.Array:
        children = [
            pa.nulls(len(values), out.field(number).type) if part is None else part[1](values.field(part[0]))
            for number, part in enumerate(parts)
        ]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(out), mask=mask)

    return convert


def _list(found: pa.DataType, given: ArrayType, target: ArrayType) -> Convert:
    inner = to_table_type(found.value_type, given.element_type, target.element_type)
    out = arrow_type(as_nullable(target))

    def convert(values: pa.Array) -> pa.Array:
        if not pa.types.is_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        return pa.Array.from_buffers(
            out, len(values), values.buffers()[:2], offset=values.offset, children=[inner(values.values)]
        )

    return convert


def _map(found: pa.MapType, given: MapType, target: MapType) -> Convert:
    key = to_table_type(found.key_type, given.key_type, target.key_type)
    value = to_table_type(found.item_type, given.value_type, target.value_type)
    out = arrow_type(as_nullable(target))

    def convert(values: pa.MapArray) -> pa.Array:
        entries = [key(values.keys), value(values.items)]
        pairs = pa.StructArray.from_arrays(entries, fields=[out.key_field, out.item_field])
        return pa.Array.from_buffers(out, len(values), values.buffers()[:2], offset=values.offset, children=[pairs])

    return convert


def _leaf(found: pa.DataType, given: DataType, target: DataType) -> Convert:
    out, types = arrow_type(target), pa.types
    if target.name == "string" and given.name not in _AS_TEXT:
        raise Unstorable(f"{given} to string, which Spark spells in its own way: cast it in the frame")
    if found == out:
        return lambda values: values
    if types.is_timestamp(out):
        # A date is midnight in UTC; any other zone names the same instants.
        plain = pa.timestamp("us", found.tz if types.is_timestamp(found) else None)
        return lambda values: values.cast(plain).view(out)
    if types.is_date64(found):
        return lambda values: values.cast(pa.date32()).cast(out)
    if types.is_uint64(found):
        return lambda values: values.cast(pa.decimal128(20, 0)).cast(out)
    return lambda values: values.cast(out)


def aligned(batch: pa.RecordBatch, name: str, number: int, convert: Convert, *, where: str, first_row: int = 0) -> pa.Array:
    """Return a column of a batch in the type to store.

    :param where: table and version, for the message.
    :param first_row: number of rows before the batch.
    :raises SchemaMismatchException: if a value does not fit, or is not one of the type that it is given as.
    """

    def checked(column: pa.Array) -> pa.Array:
        column.validate()
        values = convert(column)
        check_values(values)
        return values

    column = batch.column(number)
    try:
        return checked(column)
    except pa.ArrowException as error:
        row, found = _first_refused(column, checked, error)
        raise SchemaMismatchException(
            f"Column {name} holds a value that does not fit into {where} without loss, in row {first_row + row} (the first is "
            f"0): {found}. Round or cast the column. Nothing was committed."
        ) from error


def check_values(values: pa.Array) -> None:
    """Check that values, at any depth, are those of their type, as a table stores it.

    Arrow takes any bytes for text, and more digits than a decimal has; readers of the file would differ about them, or crash.

    :raises pyarrow.ArrowInvalid: if one is not.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            check_values(values.field(number))
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        parts = (values.keys, values.items) if pa.types.is_map(kind) else (values.values,)
        # In a slice, Arrow would check the elements of all.
        lengths = pa.list_(pa.null()), len(values), values.buffers()[:2]
        pa.Array.from_buffers(*lengths, offset=values.offset, children=[pa.nulls(len(parts[0]))]).validate(full=True)
        if len(values):
            start, end = (values.offsets[place].as_py() for place in (0, len(values)))
            for part in parts:
                check_values(part.slice(start, end - start))
    else:
        values.validate(full=True)


def _first_refused(column: pa.Array, check: Convert, error: pa.ArrowException) -> tuple[int, pa.ArrowException]:
    """Return the first row of a column that a function refuses, and its error."""
    start, end = 0, len(column)
    while end - start > 1:
        middle = (start + end) // 2
        part = column.slice(start, middle - start)
        try:
            check(pa.concat_arrays([part, part.slice(0, 0)]))  # a copy: a slice has the elements of all
        except pa.ArrowException as found:
            end, error = middle, found
        else:
            start = middle
    return start, error


def empty_as_null(values: pa.Array) -> pa.Array:
    """Return the values of a partition column as the log has them: an empty string is null, for the checks as well."""
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return values
    return pc.if_else(pc.equal(pc.binary_length(values), scalar(0, pa.int32())), pa.nulls(1, values.type)[0], values)
