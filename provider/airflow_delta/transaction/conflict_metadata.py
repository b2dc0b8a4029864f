"""Metadata changes of a winning commit that a transaction may live with.

Only those that enable a feature whose protocol support is there already, and that leave schema, partitioning and identity
of the table alone (Delta's allowlist for concurrent feature enablement). Everything else is a conflict, also for a blind append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_delta.log.actions import Metadata, Protocol

_FIXED = ("id", "name", "description", "format", "partition_columns", "created_time")
_MODE = "delta.columnMapping.mode"
_MAPPING_KEYS = frozenset({"delta.columnMapping.id", "delta.columnMapping.physicalName", "delta.columnMapping.nested.ids"})


@dataclass(frozen=True, slots=True)
class _Change:
    """One table property that the winner added or changed."""

    key: str
    current: Mapping[str, str]
    winner: Mapping[str, str]
    protocol: Protocol

    @property
    def value(self) -> str:
        return self.winner[self.key].lower()

    def supports(self, feature: str) -> bool:
        versions = self.protocol
        if feature == "columnMapping" and 5 <= versions.min_writer_version < 7:
            return True
        return feature in (versions.writer_features or ()) or feature in (versions.reader_features or ())

    def is_enabled(self, feature: str, value: str) -> bool:
        return self.value == value and self.supports(feature)

    def maps_by_name(self) -> bool:
        return self.current.get(_MODE, "none").lower() == "none" and self.is_enabled("columnMapping", "name")

    def has_row_tracking(self) -> bool:
        return self.winner.get("delta.enableRowTracking", "").lower() == "true"

    def is_new(self) -> bool:
        return self.key not in self.current


_RULES: dict[str, Callable[[_Change], bool]] = {
    "delta.enableRowTracking": lambda change: change.is_enabled("rowTracking", "true"),
    "delta.rowTracking.materializedRowIdColumnName": _Change.has_row_tracking,
    "delta.rowTracking.materializedRowCommitVersionColumnName": _Change.has_row_tracking,
    _MODE: _Change.maps_by_name,
    "delta.columnMapping.maxColumnId": lambda _change: True,
    "delta.enableDeletionVectors": lambda change: change.is_enabled("deletionVectors", "true"),
    "delta.checkpointPolicy": lambda change: change.is_enabled("v2Checkpoint", "v2"),
    "delta.enableInCommitTimestamps": lambda change: change.is_enabled("inCommitTimestamp", "true"),
    "delta.inCommitTimestampEnablementVersion": _Change.is_new,
    "delta.inCommitTimestampEnablementTimestamp": _Change.is_new,
}


def intolerable_change(current: Metadata, winner: Metadata, protocol: Protocol) -> str | None:
    """Return what the winner changed that this transaction cannot live with, or ``None`` when it can.

    :param current: metadata that the transaction relies on.
    :param winner: the winning commit's metadata.
    :param protocol: protocol after the winning commit.
    """
    changed = [name for name in _FIXED if getattr(current, name) != getattr(winner, name)]
    if changed:
        return f"the table's {', '.join(changed)}"
    before, after = current.configuration, winner.configuration
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    refused = [key for key in keys if key not in after or not _allowed(_Change(key, before, after, protocol))]
    if refused:
        return f"the table properties {', '.join(refused)}"
    if current.schema_string != winner.schema_string and not _only_adds_column_mapping(current, winner):
        return "the table's schema"
    return None


def _allowed(change: _Change) -> bool:
    rule = _RULES.get(change.key)
    return rule is not None and rule(change)


def _only_adds_column_mapping(current: Metadata, winner: Metadata) -> bool:
    """Tell whether the schemas differ only in the mapping ids and names that going from no mapping to names adds."""
    if current.configuration.get(_MODE, "none").lower() != "none" or winner.configuration.get(_MODE, "none").lower() != "name":
        return False
    before, after = (msgspec.json.decode(metadata.schema_string) for metadata in (current, winner))
    return bool(_without_mapping(before) == _without_mapping(after))


def _without_mapping(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_mapping(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {k: v for k, v in value.items() if k not in _MAPPING_KEYS}
        if key == "metadata" and isinstance(value, dict)
        else _without_mapping(value)
        for key, value in schema.items()
    }
