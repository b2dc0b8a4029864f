"""Spark's data types as frozen values, and their JSON form (Delta protocol, "Schema Serialization Format").

Unknown types are kept by name, so that the schema of any table can be read and written back unchanged; where data is written,
:func:`airflow_delta.log.features.schema_checks.check_table_metadata` refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.delta_names import PHYSICAL_NAME
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.schema.suggestions import known_names

if TYPE_CHECKING:
    import pyarrow as pa


INTEGRAL = ("byte", "short", "integer", "long")
FLOATING = ("float", "double")
PRIMITIVES = frozenset(
    {*INTEGRAL, *FLOATING, "string", "boolean", "binary", "date", "timestamp", "timestamp_ntz", "void", "variant"}
)
_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_DECIMAL = lazy_pattern(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A type without parameters.

    :param name: the name in the JSON form: ``integer``, ``timestamp_ntz``, ...
    """

    name: str

    def __str__(self) -> str:
        return _SQL_NAMES.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class DecimalType:
    """A decimal number of ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    @property
    def name(self) -> str:
        """Return the name in the JSON form."""
        return f"decimal({self.precision},{self.scale})"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list of values of one type."""

    element_type: DataType
    contains_null: bool = True
    name = "array"

    def __str__(self) -> str:
        return f"array<{self.element_type}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """A map; keys are never null."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True
    name = "map"

    def __str__(self) -> str:
        return f"map<{self.key_type},{self.value_type}>"


@dataclass(frozen=True, slots=True)
class StructField:
    """A named column, or a named field of a struct.

    :param metadata: JSON object stored with the column (comments, constraints, column mapping).
    """

    name: str
    data_type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def physical_name(self) -> str:
        """Return the name in data files, statistics and partition values."""
        return str(self.metadata.get(PHYSICAL_NAME, self.name))

    def without_metadata(self, *keys: str) -> StructField:
        """Return the field without these keys in its metadata; the field itself if it has none of them."""
        kept = {key: value for key, value in self.metadata.items() if key not in keys}
        return self if len(kept) == len(self.metadata) else replace(self, metadata=kept)


@dataclass(frozen=True, slots=True)
class StructType:
    """The schema of a table, or a nested struct."""

    fields: tuple[StructField, ...] = ()
    _folded: dict[str, list[StructField]] | None = field(default=None, init=False, repr=False, compare=False, hash=False)
    name = "struct"

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{_quoted(f.name)}:{f.data_type}" for f in self.fields) + ">"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the fields in order."""
        return tuple(f.name for f in self.fields)

    def find(self, name: str) -> StructField | None:
        """Return the field with that name, ignoring case; an exact match wins."""
        if self._folded is None:  # a search through the fields for each of them would take the square of their number
            by_name: dict[str, list[StructField]] = {}
            for f in self.fields:
                by_name.setdefault(f.name.lower(), []).append(f)
            object.__setattr__(self, "_folded", by_name)
        found = (self._folded or {}).get(name.lower(), ())
        return next((f for f in found if f.name == name), found[0] if found else None)

    def select(self, names: Sequence[str]) -> StructType:
        """Return the fields with these names (ignoring case), in the order of ``names``."""
        return StructType(tuple(self._required(name) for name in names))

    def without(self, names: Sequence[str]) -> StructType:
        """Return the schema without the fields with these names (ignoring case)."""
        dropped = {name.lower() for name in names}
        return StructType(tuple(f for f in self.fields if f.name.lower() not in dropped))

    def _required(self, name: str) -> StructField:
        found = self.find(name)
        if found is None:
            raise DeltaAnalysisException(f"There is no column {name!r}. {known_names(name, self.names)}.")
        return found


DataType = PrimitiveType | DecimalType | ArrayType | MapType | StructType

STRING = PrimitiveType("string")
BOOLEAN = PrimitiveType("boolean")
INTEGER = PrimitiveType("integer")
LONG = PrimitiveType("long")
DOUBLE = PrimitiveType("double")
DATE = PrimitiveType("date")
TIMESTAMP = PrimitiveType("timestamp")
TIMESTAMP_NTZ = PrimitiveType("timestamp_ntz")


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column that is not a struct, at any depth of structs; lists and maps are leaves.

    :param path: logical names from the top.
    :param physical_path: the names in data files and statistics.
    """

    path: tuple[str, ...]
    physical_path: tuple[str, ...]
    data_type: DataType


def leaves(schema: StructType) -> list[Leaf]:
    """Return the leaf columns in schema order, as ``delta.dataSkippingNumIndexedCols`` counts them."""

    def walk(struct: StructType, path: tuple[str, ...], physical: tuple[str, ...]) -> Iterator[Leaf]:
        for f in struct.fields:
            here, there = (*path, f.name), (*physical, f.physical_name)
            if isinstance(f.data_type, StructType):
                yield from walk(f.data_type, here, there)
            else:
                yield Leaf(here, there, f.data_type)

    return list(walk(schema, (), ()))


# -- JSON ---------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def parse_schema(schema_string: str) -> StructType:
    """Parse a ``schemaString``.

    :raises DeltaAnalysisException: if it is not Spark's JSON form of a struct.
    """
    try:
        parsed = _parse_type(msgspec.json.decode(schema_string))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DeltaAnalysisException(
            f"The schema string is not Spark's JSON form of a schema ({type(error).__name__}: {error}): {schema_string[:200]!r}"
        ) from error
    if not isinstance(parsed, StructType):
        raise DeltaAnalysisException(f"The schema string must describe a struct, got {parsed}")
    return parsed


def struct_of(value: Any) -> StructType:
    """Return the struct of its decoded JSON form.

    :raises DeltaAnalysisException: if it is the JSON form of another type, or of no type.
    """
    parsed = parse_type(value)
    if not isinstance(parsed, StructType):
        raise DeltaAnalysisException(f"The schema must describe a struct, got {parsed}")
    return parsed


def parse_type(value: Any) -> DataType:
    """Parse the decoded JSON form of a type: a name, or an object with ``type``.

    :raises DeltaAnalysisException: if it is not the JSON form of a type.
    """
    try:
        return _parse_type(value)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DeltaAnalysisException(f"Not the JSON form of a type ({type(error).__name__}: {error}): {value!r}") from error


def _parse_type(value: Any) -> DataType:
    if isinstance(value, str):
        if match := _DECIMAL.fullmatch(value):
            return DecimalType(int(match[1]), int(match[2]))
        return DecimalType(10, 0) if value == "decimal" else PrimitiveType(value)
    match value["type"]:
        case "struct":
            return StructType(tuple(_parse_field(f) for f in value["fields"]))
        case "array":
            return ArrayType(_parse_type(value["elementType"]), bool(value["containsNull"]))
        case "map":
            return MapType(_parse_type(value["keyType"]), _parse_type(value["valueType"]), bool(value["valueContainsNull"]))
        case other:
            raise ValueError(f"unknown kind of type {other!r}")


def _parse_field(value: Any) -> StructField:
    name = value["name"]
    if not isinstance(name, str):
        raise TypeError(f"a field's name must be a string, got {name!r}")
    return StructField(name, _parse_type(value["type"]), bool(value.get("nullable", True)), value.get("metadata") or {})


def to_json(schema: StructType) -> str:
    """Return the schema in Spark's compact JSON form, as in ``schemaString``."""
    return msgspec.json.encode(type_to_json(schema)).decode()


def type_to_json(data_type: DataType) -> Any:
    """Return the JSON value of a type: a string, or an object for nested types."""
    match data_type:
        case StructType(fields):
            return {"type": "struct", "fields": [_field_to_json(f) for f in fields]}
        case ArrayType(element, contains_null):
            return {"type": "array", "elementType": type_to_json(element), "containsNull": contains_null}
        case MapType(key, value, contains_null):
            return {
                "type": "map",
                "keyType": type_to_json(key),
                "valueType": type_to_json(value),
                "valueContainsNull": contains_null,
            }
        case _:
            return data_type.name


def _field_to_json(f: StructField) -> dict[str, Any]:
    return {"name": f.name, "type": type_to_json(f.data_type), "nullable": f.nullable, "metadata": dict(f.metadata)}


# -- derived forms ------------------------------------------------------------------------------------------------------------


def as_nullable(data_type: DataType) -> DataType:
    """Return the type with everything in it nullable, as Delta stores the schema of data (Spark's ``asNullable``)."""
    match data_type:
        case StructType(fields):
            return StructType(tuple(StructField(f.name, as_nullable(f.data_type), True, f.metadata) for f in fields))
        case ArrayType(element, _):
            return ArrayType(as_nullable(element), True)
        case MapType(key, value, _):
            return MapType(as_nullable(key), as_nullable(value), True)
        case _:
            return data_type


def has_floating(data_type: DataType) -> bool:
    """Return whether a type is, or holds in a struct, a floating-point number: what may be NaN in a column with bounds."""
    match data_type:
        case StructType(fields):
            return any(has_floating(field.data_type) for field in fields)
        case PrimitiveType(name):
            return name in FLOATING
    return False


def nullable_schema(schema: StructType) -> StructType:
    """Return the schema with every column, field, element and value nullable."""
    nullable = as_nullable(schema)
    return nullable if isinstance(nullable, StructType) else schema


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type for a type.

    :raises DeltaAnalysisException: if there is none.
    """
    import pyarrow as pa

    match data_type:
        case StructType(fields):
            return pa.struct([pa.field(f.name, arrow_type(f.data_type), f.nullable) for f in fields])
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", arrow_type(element), contains_null))
        case MapType(key, value, contains_null):
            return pa.map_(arrow_type(key), pa.field("value", arrow_type(value), contains_null))
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
    primitives = {
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "void": pa.null(),
    }
    if data_type.name not in primitives:
        raise DeltaAnalysisException(f"The type {data_type} has no Arrow equivalent")
    return primitives[data_type.name]
