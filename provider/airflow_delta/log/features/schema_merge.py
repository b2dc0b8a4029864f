"""Schema enforcement and evolution: whether data fits a table, and how the write changes the table's schema.

Columns are matched by name, ignoring case; the table's spelling is kept (Delta's ``SchemaMergingUtils``).

Type widening: columns get a wider type without their files being rewritten (Delta protocol, "Type Widening").

Every change is recorded in the metadata of the nearest field, so that readers know which types files may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_delta.contract.delta_names import TYPE_CHANGES
from airflow_delta.contract.sql_types import WIDENS, cast_of
from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.log.schema.types import (
    FLOATING,
    INTEGRAL,
    ArrayType,
    DataType,
    MapType,
    Path,
    StructField,
    StructType,
    as_nullable,
    dotted,
    folded,
    nullable_schema,
    transform_fields,
    walk_fields,
)


def may_change_type(before: DataType, after: DataType) -> bool:
    """Return whether a column may change from one type to the other without rewriting its files."""
    return before != after and cast_of(before.name, after.name) == WIDENS


def with_type_changes(new: StructType, old: StructType) -> StructType:
    """Return the new schema with the old types of widened columns recorded in its metadata, beside what either has recorded.

    Columns are matched by name, ignoring case.
    """
    known = {folded(path): field for path, field in walk_fields(old)}

    def note(path: Path, field: StructField) -> StructField:
        before = known.get(folded(path))
        if before is None:
            return field
        noted = list(before.metadata.get(TYPE_CHANGES) or [])
        noted += [change for change in field.metadata.get(TYPE_CHANGES) or [] if change not in noted]
        changed = list(_changed(before.data_type, field.data_type, ()))
        fresh = [_change(a, b, at) for a, b, at in changed if may_change_type(a, b)]
        if changed and not fresh:  # RESTORE brings back a narrower type, together with its recorded changes
            return field
        if not noted and not fresh:
            return field
        return replace(field, metadata={**field.metadata, TYPE_CHANGES: [*noted, *(c for c in fresh if not _is_noted(c, noted))]})

    return transform_fields(new, note)


def _is_noted(change: dict[str, Any], noted: Sequence[dict[str, Any]]) -> bool:
    """Return whether changes lead from the one type to the other, at once or through others."""
    here = [known for known in noted if known.get("fieldPath") == change.get("fieldPath")]
    return all(any(known[end] == change[end] for known in here) for end in ("fromType", "toType"))


def _change(before: DataType, after: DataType, at: Path) -> dict[str, Any]:
    change: dict[str, Any] = {"toType": after.name, "fromType": before.name}
    return {**change, "fieldPath": ".".join(at)} if at else change


def _changed(before: DataType, after: DataType, at: Path) -> Iterator[tuple[DataType, DataType, Path]]:
    """Yield the types that differ, down to the next struct, whose fields record their own changes."""
    match before, after:
        case StructType(), StructType():
            return
        case ArrayType(), ArrayType():
            yield from _changed(before.element_type, after.element_type, (*at, "element"))
        case MapType(), MapType():
            yield from _changed(before.key_type, after.key_type, (*at, "key"))
            yield from _changed(before.value_type, after.value_type, (*at, "value"))
        case _ if before != after:
            yield before, after, at


_NESTED = {"struct", "array", "map"}
_PROMOTED = (frozenset(INTEGRAL), frozenset(FLOATING))


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


def stored_otherwise(
    table: DataType, files: DataType, *, widening: bool, path: Path = ()
) -> Iterator[tuple[str, DataType, DataType]]:
    """Yield the columns whose type in files readers do not take for the table's, with both types, the files' first.

    Readers promote integers, and floats to doubles. Without type widening, not all of them read other types as decimals, and
    none of them reads numbers as text. Different kinds of types are left to :func:`merge_schema`.
    """
    match table, files:
        case StructType(), StructType():
            known = {f.name.lower(): f.data_type for f in table.fields}
            for f in files.fields:
                if (same := known.get(f.name.lower())) is not None:
                    yield from stored_otherwise(same, f.data_type, widening=widening, path=(*path, f.name))
        case ArrayType(), ArrayType():
            yield from stored_otherwise(table.element_type, files.element_type, widening=widening, path=(*path, "element"))
        case MapType(), MapType():
            yield from stored_otherwise(table.key_type, files.key_type, widening=widening, path=(*path, "key"))
            yield from stored_otherwise(table.value_type, files.value_type, widening=widening, path=(*path, "value"))
        case _ if table != files and not {*_NESTED, "void"} & {table.name, files.name}:
            promoted = may_change_type(files, table) and any({files.name, table.name} <= kinds for kinds in _PROMOTED)
            if not promoted and not (widening and (may_change_type(files, table) or may_change_type(table, files))):
                yield dotted(path), files, table


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
