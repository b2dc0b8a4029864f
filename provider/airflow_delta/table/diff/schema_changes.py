"""What a commit does to the columns of its table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from airflow_delta.contract.delta_names import PHYSICAL_NAME
from airflow_delta.contract.drift import MISSING, NEW, SPELLING, TYPE, differences
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.diff.sides import DROPPED, RENAMED

_KINDS = {NEW: NEW, MISSING: DROPPED, TYPE: TYPE, SPELLING: RENAMED}

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
    """Return how the columns differ; nothing if there was no table, or if that is unknown."""
    if before is None or after is None or before.schema_string == after.schema_string:
        return []
    old, new = TableDefinition.of(before).struct, TableDefinition.of(after).struct
    names = {physical: field["name"] for field in new["fields"] if (physical := _physical(field)) is not None}
    found, now = [], []
    for field in old["fields"]:
        physical = _physical(field)
        name = field["name"] if physical is None else names.get(physical, field["name"])
        renamed = name.lower() != field["name"].lower()  # of a table with column mapping
        if renamed:
            found.append(SchemaChange(kind=RENAMED, column=field["name"], before=field["name"], after=name))
        now.append({**field, "name": name} if renamed else field)
    differing = list(differences(new, {**old, "fields": now}))
    found += [SchemaChange(kind=_KINDS[d.kind], column=d.column, before=d.expected, after=d.given) for d in differing]
    return found


def schema_lines(changes: list[SchemaChange]) -> list[str]:
    """Return a line for each kind of change."""
    lines = []
    for kind, title in _TITLES.items():
        if some := [str(change) for change in changes if change.kind == kind]:
            lines.append(f"{title}: {', '.join(some)}")
    return lines


def _physical(field: dict[str, Any]) -> str | None:
    name = field.get("metadata", {}).get(PHYSICAL_NAME)
    return None if name is None else str(name)
