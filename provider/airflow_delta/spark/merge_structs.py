"""Structs in a MERGE: fields that clauses set, that a source lacks, or that only the source has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import VARIANT, Type, casts_variants, fields_by_name
from airflow_delta.spark.align import converted, not_null, spark_type
from airflow_delta.spark.row_errors import RowChecks

if TYPE_CHECKING:
    from pyspark.sql import Column

Path = tuple[str, ...]

Assigned = dict[str, Any]
"""What a clause sets, by name in lower case: a column and its type, or for a struct of which only fields are set, those."""

NO_FIELDS: Json = {"type": "struct", "fields": []}
"""The type of a struct that the table lacks."""

_PARTS = ("elementType", "keyType", "valueType")
"""Keys of the types within an array or a map."""


def put(assigned: Assigned, path: Path, value: tuple[Column, Type]) -> None:
    """Add what a clause sets a column or field to."""
    *parents, last = (name.lower() for name in path)
    for name in parents:
        assigned = assigned.setdefault(name, {})
    assigned[last] = value


def assigned_values(assigned: Assigned, struct: Json, path: Path = ()) -> Iterator[tuple[Path, Type, Json]]:
    """Yield the path of each value that a clause sets, its type, and the field of the table that gets it."""
    for field in struct["fields"]:
        value, here = assigned.get(field["name"].lower()), (*path, field["name"])
        if isinstance(value, dict):
            yield from assigned_values(value, field["type"], here)
        elif value is not None:
            yield here, value[1], field


def has_field(struct: Type, path: Path) -> bool:
    """Return whether a struct has a field at a path."""
    for name in path:
        field = None if isinstance(struct, str) or struct["type"] != "struct" else fields_by_name(struct).get(name.lower())
        if field is None:
            return False
        struct = field["type"]
    return True


def named_fields(struct: Json, paths: Collection[Path], path: Path = ()) -> Json:
    """Return the struct with only the fields that clauses name.

    :param paths: in lower case.
    """
    kept = []
    for field in struct["fields"]:
        here, kind = (*path, field["name"].lower()), field["type"]
        if here in paths:
            kept.append(field)
        elif not isinstance(kind, str) and kind["type"] == "struct" and any(named[: len(here)] == here for named in paths):
            kept.append({**field, "type": named_fields(kind, paths, here)})
    return {**struct, "fields": kept}


def absent_fields(given: Type, known: Type, *, within: bool = False) -> list[str]:
    """Return the fields of a struct, at every depth, that another struct lacks.

    :param within: also those of structs within arrays and maps.
    """
    if isinstance(given, str) or isinstance(known, str) or given["type"] != known["type"]:
        return []
    if known["type"] != "struct":
        parts = _PARTS if within else ()
        return [name for part in parts if part in known for name in absent_fields(given[part], known[part], within=True)]
    found, there = [], fields_by_name(given)
    for field in known["fields"]:
        mine = there.get(field["name"].lower())
        inner = [] if mine is None else absent_fields(mine["type"], field["type"], within=within)
        found += [field["name"]] if mine is None else [f"{field['name']}.{name}" for name in inner]
    return found


def is_alike(given: Type, wanted: Type) -> bool:
    """Return whether structs, arrays and maps are the same ones in two types, so that only atomic values and variants differ."""
    if VARIANT in (given, wanted):
        return given == "void" or given == wanted or casts_variants(given, wanted)
    if given == "void" or (isinstance(given, str) and isinstance(wanted, str)):
        return True
    if isinstance(given, str) or isinstance(wanted, str) or given["type"] != wanted["type"]:
        return False
    if wanted["type"] != "struct":
        return all(is_alike(given[part], wanted[part]) for part in _PARTS if part in wanted)
    there = fields_by_name(given)
    return all(is_alike(there[name]["type"], field["type"]) for name, field in fields_by_name(wanted).items() if name in there)


def merge_struct(column: Column, given: Type, wanted: Type, old: Column, known: Type, path: str, checks: RowChecks) -> Column:
    """Return a struct of the source with the table's values in the fields that it lacks.

    :param given: type of ``column``.
    :param wanted: type to return.
    :param old: the table's value; if it and the source's are null, the result is.
    :param known: type of ``old``.
    """
    columns, news, olds = [], fields_by_name(given), fields_by_name(known)
    for field in wanted["fields"]:
        name, here = field["name"].lower(), f"{path}.{field['name']}"
        mine, theirs = news.get(name), olds.get(name)
        if mine is not None and theirs is not None and absent_fields(mine["type"], theirs["type"]):
            new, before = column.getField(mine["name"]), old.getField(theirs["name"])
            value = merge_struct(new, mine["type"], field["type"], before, theirs["type"], here, checks)
        elif mine is not None:
            value = converted(column.getField(mine["name"]), mine["type"], field["type"], here, checks)
        else:
            value = _old_field(old, theirs, field, here, checks)
        columns.append(not_null(value, field, here, checks).alias(field["name"]))
    return sf.when(column.isNotNull() | old.isNotNull(), sf.struct(*columns))


def set_fields(assigned: Assigned, wanted: Type, old: Column, known: Type, path: str, checks: RowChecks) -> Column:
    """Return a struct of the table with some fields set. A null becomes a struct with the other fields null, as in Delta.

    :param wanted: type to return.
    :param old: the table's value.
    :param known: type of ``old``; a struct without fields if the table has none.
    """
    columns, olds = [], fields_by_name(known)
    for field in wanted["fields"]:
        name, here = field["name"].lower(), f"{path}.{field['name']}"
        new, theirs = assigned.get(name), olds.get(name)
        if isinstance(new, dict):
            before, kind = (old, NO_FIELDS) if theirs is None else (old.getField(theirs["name"]), theirs["type"])
            value = set_fields(new, field["type"], before, kind, here, checks)
        elif new is not None:
            value = stored(new, field, here, checks)
        else:
            value = _old_field(old, theirs, field, here, checks)
        columns.append(not_null(value, field, here, checks).alias(field["name"]))
    return sf.struct(*columns)


def stored(value: tuple[Column, Type], field: Json, path: str, checks: RowChecks) -> Column:
    """Return a value in the type of the field that gets it."""
    column, given = value
    return column.cast(spark_type(field["type"])) if given == "void" else converted(column, given, field["type"], path, checks)


def _old_field(old: Column, theirs: Json | None, field: Json, path: str, checks: RowChecks) -> Column:
    if theirs is None:
        return sf.lit(None).cast(spark_type(field["type"]))
    return converted(old.getField(theirs["name"]), theirs["type"], field["type"], path, checks)
