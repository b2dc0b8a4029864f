"""Type widening: columns get a wider type without their files being rewritten (Delta protocol, "Type Widening").

Every change is recorded in the metadata of the nearest field, so that readers know which types files may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType
from airflow_delta.log.schema.walk import Path, folded, transform_fields, walk_fields
from airflow_delta.staging.casts import WIDENS, cast_of

TYPE_CHANGES = "delta.typeChanges"


def may_change_type(before: DataType, after: DataType) -> bool:
    """Return whether a column may change from one type to the other without rewriting its files."""
    return before != after and cast_of(before.name, after.name) == WIDENS


def with_type_changes(new: StructType, old: StructType) -> StructType:
    """Return the new schema with the old types of widened columns recorded in its metadata.

    Columns are matched by name, ignoring case.
    """
    known = {folded(path): field for path, field in walk_fields(old)}

    def note(path: Path, field: StructField) -> StructField:
        before = known.get(folded(path))
        if before is None:
            return field
        noted = list(before.metadata.get(TYPE_CHANGES) or field.metadata.get(TYPE_CHANGES) or [])
        changed = list(_changed(before.data_type, field.data_type, ()))
        fresh = [_change(a, b, at) for a, b, at in changed if may_change_type(a, b)]
        if changed and not fresh:  # RESTORE brings back a narrower type, together with its recorded changes
            return field
        if not noted and not fresh:
            return field
        return replace(field, metadata={**field.metadata, TYPE_CHANGES: [*noted, *(c for c in fresh if c not in noted)]})

    return transform_fields(new, note)


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
