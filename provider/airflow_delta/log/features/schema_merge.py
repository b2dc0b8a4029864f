"""Schema enforcement and evolution: whether data fits a table, and how the write changes the table's schema.

Columns are matched by name, ignoring case; the table's spelling is kept (Delta's ``SchemaMergingUtils``).
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_delta.contract.casts import cast_of
from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.log.features.type_widening import may_change_type
from airflow_delta.log.schema.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    as_nullable,
    nullable_schema,
)


class WriteCast(NamedTuple):
    """A column that must be cast before it is written.

    :param column: name of the top-level column, as in the table.
    :param data_type: type of the data, in Spark SQL.
    :param table_type: type to cast to, in Spark SQL.
    """

    column: str
    data_type: str
    table_type: str


def widens(data_type: DataType, table_type: DataType) -> bool:
    """Return whether the table's type can hold every value of the data's type, so that a write may cast without loss."""
    return data_type == table_type or cast_of(data_type.name, table_type.name) is not None


class _Merge:
    def __init__(self, merge: bool, widen: bool = False) -> None:
        self.merge = merge
        self.widen = widen
        self.problems: list[str] = []

    def struct(self, table: StructType, data: StructType, path: str) -> StructType:
        """Return the merged struct, and record what does not fit."""
        found: dict[str, StructField] = {}
        for f in data.fields:
            if f.name.lower() in found:
                self.problems.append(f"column {path}{f.name}: given twice in the data, in different spellings")
            found[f.name.lower()] = f
        fields: list[StructField] = []
        for f in table.fields:
            match = found.pop(f.name.lower(), None)
            if match is None:
                if not f.nullable:
                    self.problems.append(f"column {path}{f.name}: missing in the data, expected {f.data_type} NOT NULL")
                fields.append(f)
                continue
            merged = self.types(f.data_type, match.data_type, f"{path}{f.name}")
            fields.append(StructField(f.name, merged, f.nullable, f.metadata))
        for f in found.values():
            if not self.merge:
                self.problems.append(f"column {path}{f.name}: unexpected, the table has no such column (got {f.data_type})")
            elif f.data_type.name == "void":
                self.problems.append(f"column {path}{f.name}: new, but of type void; cast it to another type")
            else:
                fields.append(StructField(f.name, as_nullable(f.data_type), True, f.metadata))
        return StructType(tuple(fields))

    def types(self, table: DataType, data: DataType, path: str) -> DataType:
        """Return the merged type, and record what does not fit."""
        match table, data:
            case StructType(), StructType():
                return self.struct(table, data, f"{path}.")
            case ArrayType(), ArrayType():
                return ArrayType(self.types(table.element_type, data.element_type, f"{path}.element"), table.contains_null)
            case MapType(), MapType():
                key = self.types(table.key_type, data.key_type, f"{path}.key")
                value = self.types(table.value_type, data.value_type, f"{path}.value")
                return MapType(key, value, table.value_contains_null)
        if self.widen and may_change_type(table, data):
            return data
        if self.merge and table.name == "void":  # no file holds it, so it takes any type
            return as_nullable(data)
        if not widens(data, table):
            self.problems.append(f"column {path}: expected {table}, got {data}")
        return table


def merge_schema(
    table_schema: StructType,
    data_schema: StructType,
    *,
    merge: bool,
    widen: bool = False,
    table: str | None = None,
    version: int | None = None,
) -> StructType:
    """Return the table's schema after a write: the same, or with new nullable columns at the end (also of structs).

    A column that is missing in the data is written as null. Data of a narrower type is cast, see :func:`write_casts`.

    A column of the type ``void`` takes the type of the data (``mergeSchema``).

    :param merge: new columns may be added (``mergeSchema``).
    :param widen: columns take the wider type of the data where type widening allows it.
    :raises SchemaMismatchException: if the data does not fit; names for each column the expected and the actual type.
    """
    merging = _Merge(merge, widen)
    result = merging.struct(table_schema, data_schema, "")
    if merging.problems:
        hint = "" if merge or not any("unexpected" in p for p in merging.problems) else " Set mergeSchema to add new columns."
        raise SchemaMismatchException(
            f"The data does not match the schema of {table or 'the table'}{'' if version is None else f' at version {version}'}: "
            f"{'; '.join(merging.problems)}.{hint} To replace the schema, overwrite with overwriteSchema.",
            table=table,
            version=version,
        )
    return result


def overwrite_schema(data_schema: StructType) -> StructType:
    """Return the schema that replaces a table's: that of the data, with everything nullable, as Delta stores it."""
    return nullable_schema(data_schema)


def write_casts(table_schema: StructType, data_schema: StructType) -> list[WriteCast]:
    """Return the casts that data needs before it is written into a table that it fits (:func:`merge_schema`)."""
    result: list[WriteCast] = []
    for f in table_schema.fields:
        match = data_schema.find(f.name)
        if (
            match is not None
            and as_nullable(match.data_type) != as_nullable(f.data_type)
            and str(match.data_type) != str(f.data_type)
        ):
            result.append(WriteCast(f.name, str(match.data_type), str(f.data_type)))
    return result
