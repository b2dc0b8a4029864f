"""What a commit does to the columns of its table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructType
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.effects.later_columns import Pairing

NEW, DROPPED, RENAMED, TYPE = "new", "dropped", "renamed", "type"

_TITLES = {NEW: "New columns", DROPPED: "Dropped columns", RENAMED: "Renamed columns", TYPE: "Changed types"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A column, or a field in one, that is added, removed or changed.

    :param kind: ``new``, ``dropped``, ``renamed`` or ``type``.
    :param column: its path before the commit; of a new one, after it.
    :param before: type, or name; ``None`` if it is new.
    :param after: type, or name; ``None`` if it is dropped.
    """

    kind: str
    column: str
    before: str | None
    after: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.kind in (NEW, DROPPED):
            return f"{self.column} ({self.after or self.before})"
        return f"{self.column} to {self.after}" if self.kind == RENAMED else f"{self.column} ({self.before} to {self.after})"


def schema_changes(before: Metadata | None, after: Metadata | None) -> list[SchemaChange]:
    """Return how the columns differ: renamed ones first, new ones last; nothing if there was no table, or if that is unknown."""
    if before is None or after is None or before.schema_string == after.schema_string:
        return []
    old, new = TableDefinition.of(before), TableDefinition.of(after)
    pairing = Pairing.of(old, new, by_name=True)
    return sorted(
        _of_fields(pairing, old.schema, new.schema, ""), key=lambda change: (change.kind != RENAMED, change.kind == NEW)
    )


def _of_fields(pairing: Pairing, old: StructType, new: StructType, prefix: str) -> Iterator[SchemaChange]:
    for was, field in pairing.pairs(old, new):
        if was is None:
            if field is not None:
                yield SchemaChange(kind=NEW, column=prefix + field.name, before=None, after=str(field.data_type))
            continue
        path = prefix + was.name
        if field is None or pairing.is_another(was, field):
            yield SchemaChange(kind=DROPPED, column=path, before=str(was.data_type), after=None)
            if field is not None:
                yield SchemaChange(kind=NEW, column=prefix + field.name, before=None, after=str(field.data_type))
            continue
        if was.name != field.name:
            yield SchemaChange(kind=RENAMED, column=path, before=was.name, after=field.name)
        yield from _of_types(pairing, was.data_type, field.data_type, path)


def _of_types(pairing: Pairing, old: DataType, new: DataType, path: str) -> Iterator[SchemaChange]:
    match old, new:
        case StructType(), StructType():
            yield from _of_fields(pairing, old, new, f"{path}.")
        case ArrayType(), ArrayType():
            yield from _of_types(pairing, old.element_type, new.element_type, f"{path}[element]")
        case MapType(), MapType():
            yield from _of_types(pairing, old.key_type, new.key_type, f"{path}[key]")
            yield from _of_types(pairing, old.value_type, new.value_type, f"{path}[value]")
        case _ if old != new:
            yield SchemaChange(kind=TYPE, column=path, before=str(old), after=str(new))


def schema_lines(changes: list[SchemaChange]) -> list[str]:
    """Return a line for each kind of change."""
    lines = []
    for kind, title in _TITLES.items():
        if some := [str(change) for change in changes if change.kind == kind]:
            lines.append(f"{title}: {', '.join(some)}")
    return lines
