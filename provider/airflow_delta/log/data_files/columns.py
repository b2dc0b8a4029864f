"""Columns of a data file as the table's: found by column mapping, in the table's type, null where the file has none.

The types of a file may be narrower than the table's (type widening), or another writer's spelling of the same type. Everything
else is refused: Spark would refuse it too, or read other values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from airflow_delta.contract.delta_names import PHYSICAL_NAME
from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow import kernels
from airflow_delta.log.features.column_mapping import field_id
from airflow_delta.log.features.type_widening import may_change_type
from airflow_delta.log.schema.types import (
    INTEGRAL,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    arrow_type,
    as_nullable,
)
from airflow_delta.log.schema.walk import transform_fields

Convert = Callable[["pa.Array"], "pa.Array"]

_FIELD_ID = b"PARQUET:field_id"
_FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15
_SAME_IN_BOTH_CALENDARS = -2_208_988_800_000_000  # 1900-01-01 in microseconds: from here on, time zones cannot matter either


class _Mismatch(Exception):
    """The file has a column in a type that the table's column cannot be read from; the message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What the footer says about all columns of a file.

    :param by_id: columns are found by field id, not by name.
    :param legacy_calendar: dates and times of before 1900 are in another calendar (Spark 2, or Spark's legacy mode).
    :param int96: names of top-level columns with timestamps in 96 bits.
    """

    by_id: bool
    legacy_calendar: bool
    int96: frozenset[str]


def arrow_field(field: StructField) -> pa.Field:
    """Return the Arrow field of a column; everything may be null.

    :raises DeltaUnsupportedOperationException: if its type has no Arrow equivalent.
    """
    try:
        return pa.field(field.name, arrow_type(as_nullable(field.data_type)))
    except DeltaAnalysisException as error:
        raise DeltaUnsupportedOperationException(
            f"Column {field.name} cannot be read without Spark: its type {field.data_type} has no Arrow equivalent. Leave it out "
            "with columns=, or read with Spark."
        ) from error


def fields_in_files(fields: Sequence[StructField], mode: str) -> list[StructField]:
    """Return columns as they are looked for in files: under physical names only if the table maps columns.

    :param mode: of column mapping. What an earlier mapping has left means nothing under ``none``.
    """
    if mode != "none":
        return list(fields)
    return list(transform_fields(StructType(tuple(fields)), lambda _path, field: field.without_metadata(PHYSICAL_NAME)))


class FileFields:
    """The columns of a file, or the fields of a struct in it, which are found without a search through all of them.

    :param fields: in the order of the file.
    """

    def __init__(self, fields: Sequence[pa.Field], kind: FileKind) -> None:
        self._fields = fields
        self._by_id = kind.by_id
        self._ids: dict[bytes, list[int]] = {}
        self._names: dict[str, list[int]] = {}
        self._folded: dict[str, list[int]] = {}
        for at, field in enumerate(fields):
            if kind.by_id and (identity := (field.metadata or {}).get(_FIELD_ID)) is not None:
                self._ids.setdefault(identity, []).append(at)
            self._names.setdefault(field.name, []).append(at)
            self._folded.setdefault(field.name.lower(), []).append(at)

    def find(self, wanted: StructField) -> int | None:
        """Return the position of a column, ``None`` if the file does not have it.

        As in Spark: by field id where the table maps by id and the column has one, else by physical name, whatever the case.

        :raises DeltaAnalysisException: if several columns fit.
        """
        identity = field_id(wanted) if self._by_id else None
        if identity is not None:
            found = self._ids.get(b"%d" % identity, [])
        else:
            name = wanted.physical_name
            found = self._names.get(name) or self._folded.get(name.lower(), [])
        if len(found) > 1:
            names = ", ".join(self._fields[i].name for i in found)
            raise DeltaAnalysisException(f"it has several columns for {wanted.name}: {names}")
        return found[0] if found else None


def has_ids(fields: Sequence[pa.Field]) -> bool:
    """Return whether some column of a file has a field id."""
    return any(_FIELD_ID in (f.metadata or {}) for f in fields)


def from_file_type(field: StructField, found: pa.Field, kind: FileKind) -> Convert:
    """Return the function from a file's column to the table's.

    :param found: the column as the file has it.
    :raises DeltaAnalysisException: if the table's type cannot be read from the file's. The function itself raises a
        :class:`pyarrow.ArrowException` if a value does not fit.
    """
    try:
        if field.data_type.name == "timestamp_ntz" and found.name in kind.int96:
            raise _Mismatch("a time in 96 bits, which is always a point in time")
        return _convert(field.data_type, found.type, kind)
    except _Mismatch as error:
        raise DeltaAnalysisException(
            f"its column {found.name} is {error}, and the table's {field.name} {field.data_type}"
        ) from None


def _convert(data_type: DataType, found: pa.DataType, kind: FileKind) -> Convert:
    if isinstance(found, pa.BaseExtensionType):
        inner = _convert(data_type, found.storage_type, kind)
        return lambda values: inner(values.storage)
    if pa.types.is_dictionary(found):
        inner = _convert(data_type, found.value_type, kind)
        return lambda values: inner(values.dictionary_decode())
    match data_type:
        case StructType():
            return _struct(data_type, found, kind)
        case ArrayType():
            return _list(data_type, found, kind)
        case MapType():
            return _map(data_type, found, kind)
    return _checked(data_type, _leaf(data_type, found), kind)


def _struct(data_type: StructType, found: pa.DataType, kind: FileKind) -> Convert:
    if not pa.types.is_struct(found):
        raise _Mismatch(str(found))
    target = arrow_type(as_nullable(data_type))
    there = [found.field(i) for i in range(found.num_fields)]
    by_name = FileFields(there, kind)
    parts = [
        (None, field) if (at := by_name.find(field)) is None else ((at, _convert(field.data_type, there[at].type, kind)), field)
        for field in data_type
    ]

    def convert(values: pa.StructArray) -> pa.Array:
        children = [
            pa.nulls(len(values), target.field(i).type) if part is None else part[1](values.field(part[0]))
            for i, (part, _) in enumerate(parts)
        ]
        if not children:
            return pa.nulls(len(values), target)
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)

    return convert


def _list(data_type: ArrayType, found: pa.DataType, kind: FileKind) -> Convert:
    types = pa.types
    if not (types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found)):
        raise _Mismatch(str(found))
    inner = _convert(data_type.element_type, found.value_type, kind)
    target = arrow_type(as_nullable(data_type))

    def convert(values: pa.Array) -> pa.Array:
        if not types.is_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        return pa.Array.from_buffers(
            target, len(values), values.buffers()[:2], offset=values.offset, children=[inner(values.values)]
        )

    return convert


def _map(data_type: MapType, found: pa.DataType, kind: FileKind) -> Convert:
    if not pa.types.is_map(found):
        raise _Mismatch(str(found))
    key = _convert(data_type.key_type, found.key_type, kind)
    value = _convert(data_type.value_type, found.item_type, kind)
    target = arrow_type(as_nullable(data_type))

    def convert(values: pa.MapArray) -> pa.Array:
        entries = [key(values.keys), value(values.items)]
        pairs = pa.StructArray.from_arrays(entries, fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(target, len(values), values.buffers()[:2], offset=values.offset, children=[pairs])

    return convert


def _leaf(data_type: DataType, found: pa.DataType) -> Convert:
    target, types = arrow_type(data_type), pa.types
    if found == target:
        return lambda values: values
    if types.is_null(target) or types.is_null(found):
        return lambda values: pa.nulls(len(values), target)
    if types.is_timestamp(target) and types.is_timestamp(found):
        if target.tz is None and found.tz is not None:
            raise _Mismatch(f"{found}, a point in time")
        plain = pa.timestamp("us", found.tz)
        return lambda values: values.cast(plain).view(target)
    known = _known(found)
    fits = (
        known == data_type
        or (known is not None and may_change_type(known, data_type))
        or (data_type.name in INTEGRAL and types.is_integer(found))
        or (data_type.name == "string" and (types.is_large_string(found) or _is_binary(found) or types.is_string_view(found)))
        or (data_type.name == "binary" and (_is_binary(found) or types.is_string(found) or types.is_large_string(found)))
        or (isinstance(data_type, DecimalType) and types.is_decimal(found) and found.scale <= data_type.scale)
    )
    if not fits:
        raise _Mismatch(str(found))
    return lambda values: values.cast(target)


def _is_binary(found: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(found) or types.is_large_binary(found) or types.is_fixed_size_binary(found) or types.is_binary_view(found)
    )


def _known(found: pa.DataType) -> DataType | None:
    """Return the table's type for a file's type."""
    if pa.types.is_decimal(found):
        return DecimalType(found.precision, found.scale)
    if pa.types.is_uint64(found):  # as Spark reads it
        return DecimalType(20, 0)
    names = {
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
    }
    return PrimitiveType(names[found]) if found in names else None


def _checked(data_type: DataType, convert: Convert, kind: FileKind) -> Convert:
    """Refuse dates and times of another calendar than the table's."""
    if not kind.legacy_calendar or data_type.name not in ("date", "timestamp", "timestamp_ntz"):
        return convert

    def checked(values: pa.Array) -> pa.Array:
        result = convert(values)
        days = pa.types.is_date32(result.type)
        least = kernels.min(result.view(pa.int32() if days else pa.int64())).as_py()
        if least is not None and least < (_FIRST_GREGORIAN_DAY if days else _SAME_IN_BOTH_CALENDARS):
            raise pa.ArrowInvalid(
                "it has dates or times of before 1900 in the Julian calendar (Spark 2, or Spark's legacy mode), which only Spark "
                "converts"
            )
        return result

    return checked
