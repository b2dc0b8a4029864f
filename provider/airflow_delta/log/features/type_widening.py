"""Type widening: columns get a wider type without their files being rewritten (Delta protocol, "Type Widening").

Every change is recorded in the metadata of the nearest field, so that readers know which types files may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from airflow_delta.contract.casts import WIDENS, cast_of
from airflow_delta.contract.delta_names import TYPE_CHANGES
from airflow_delta.log.schema.types import (
    FLOATING,
    INTEGRAL,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from airflow_delta.log.schema.walk import Path, dotted, folded, transform_fields, walk_fields


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
