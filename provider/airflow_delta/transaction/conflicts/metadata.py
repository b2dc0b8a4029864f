"""Metadata changes of a winning commit that a transaction accepts and adopts.

Only changes that enable a feature which the protocol already supports and that leave the table's schema, partitioning and
identity alone (Delta's allowlist for concurrent feature enablement); and, beyond Delta, the new columns that this transaction
adds itself. Everything else is a conflict, even for a blind append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from airflow_delta.contract.delta_names import (
    CHECKPOINT_POLICY,
    COLUMN_ID,
    COLUMN_MAPPING_MODE,
    ENABLE_DELETION_VECTORS,
    ENABLE_IN_COMMIT_TIMESTAMPS,
    ENABLE_ROW_TRACKING,
    HIGH_WATER_MARK,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
    MATERIALIZED_ROW_COMMIT_VERSION,
    MATERIALIZED_ROW_ID,
    MAX_COLUMN_ID,
    NESTED_IDS,
    PHYSICAL_NAME,
    ROW_TRACKING_PRESERVED,
)
from airflow_delta.exceptions import MetadataChangedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Metadata, Protocol
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.errors import conflict
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.prepare import row_tracking

IDENTITY_TAG = "delta.identity.schemaUpdate"
"""Tag of a commit whose metadata only records which identity values have been used."""

_FIXED = ("id", "name", "description", "format", "partition_columns", "created_time")
_MAPPING_KEYS = frozenset({COLUMN_ID, PHYSICAL_NAME, NESTED_IDS})


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
        return feature in table_protocol.features(self.protocol)

    def is_enabled(self, feature: str, value: str) -> bool:
        return self.value == value and self.supports(feature)

    def maps_by_name(self) -> bool:
        return self.current.get(COLUMN_MAPPING_MODE, "none").lower() == "none" and self.is_enabled("columnMapping", "name")

    def has_row_tracking(self) -> bool:
        return self.winner.get(ENABLE_ROW_TRACKING, "").lower() == "true"

    def is_new(self) -> bool:
        return self.key not in self.current


_RULES: dict[str, Callable[[_Change], bool]] = {
    ENABLE_ROW_TRACKING: lambda change: change.is_enabled("rowTracking", "true"),
    MATERIALIZED_ROW_ID: _Change.has_row_tracking,
    MATERIALIZED_ROW_COMMIT_VERSION: _Change.has_row_tracking,
    COLUMN_MAPPING_MODE: _Change.maps_by_name,
    MAX_COLUMN_ID: lambda _change: True,
    ENABLE_DELETION_VECTORS: lambda change: change.is_enabled("deletionVectors", "true"),
    CHECKPOINT_POLICY: lambda change: change.is_enabled("v2Checkpoint", "v2"),
    ENABLE_IN_COMMIT_TIMESTAMPS: lambda change: change.is_enabled("inCommitTimestamp", "true"),
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION: _Change.is_new,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP: _Change.is_new,
}


def check_winner_metadata(current: CurrentTransaction, winner: WinningCommit, *, has_metadata: bool) -> None:
    """Check a winning commit that changes the metadata, and adopt the change if it is acceptable.

    :param has_metadata: the transaction changes the metadata too.
    :raises MetadataChangedException: if the change is not acceptable.
    """
    found = winner.metadata
    if not found:
        return
    if has_metadata and _has_added(current, found[0]):
        current.replace_actions(action for action in current.own_actions if not isinstance(action, Metadata))
        current.metadata = found[0]
        return
    if has_metadata:
        raise conflict(
            MetadataChangedException,
            winner,
            "The metadata was changed by a concurrent update while this transaction changes it too",
            current=current,
        )
    if winner.has_tag(IDENTITY_TAG):
        return
    after = found[0]
    if current.options.resolve_feature_enablement:
        what = intolerable_change(current.metadata, after, current.protocol)
    else:
        what = None if winner.has_tag(row_tracking.ENABLEMENT_ONLY_TAG) else "the metadata"
    if what is not None:
        raise conflict(MetadataChangedException, winner, f"A concurrent update changed {what}", current=current)
    if row_tracking.has_row_tracking(after) and not row_tracking.has_row_tracking(current.metadata):
        current.add_tag(ROW_TRACKING_PRESERVED, "false")
    current.metadata = after


def _has_added(current: CurrentTransaction, winner: Metadata) -> bool:
    """Tell whether a winner has already added the columns that the transaction adds, with no other change on either side."""
    read = current.read_metadata
    if not current.options.resolve_same_new_columns or read is None:
        return False
    if any(isinstance(action, Protocol) for action in current.own_actions):
        return False
    return only_adds_columns(read, current.metadata) and adds_columns_of(current.metadata, winner)


def only_adds_columns(before: Metadata, after: Metadata) -> bool:
    """Tell whether metadata differs from an earlier one only in new columns at the end, also of structs."""
    old, new = (TableDefinition.of(metadata).struct for metadata in (before, after))
    return old != new and _has_grown(old, new) and _same_but_columns(before, after)


def _has_grown(before: Any, after: Any) -> bool:
    """Tell whether a type equals another, apart from more fields at the end of its structs."""
    if before == after:
        return True
    if not isinstance(before, dict) or not isinstance(after, dict) or before.keys() != after.keys():
        return False
    if "fields" in before:
        old, new = before["fields"], after["fields"]
        return len(new) >= len(old) and all(_has_grown(*pair) for pair in zip(old, new, strict=False))
    nested = {"type", "elementType", "keyType", "valueType"}
    return all(_has_grown(before[key], after[key]) if key in nested else before[key] == after[key] for key in before)


def adds_columns_of(own: Metadata, winner: Metadata) -> bool:
    """Tell whether the winner's metadata has each of our columns unchanged, and otherwise only nullable columns.

    For a column with a default or an expression, this transaction would have written values had it known of it.
    """
    mine, theirs = (TableDefinition.of(metadata).struct["fields"] for metadata in (own, winner))
    more = [field for field in theirs if field not in mine]
    return (
        all(field in theirs for field in mine)
        and all(field.get("nullable", True) and not (field.get("metadata") or {}).keys() - {"comment"} for field in more)
        and _same_but_columns(own, winner)
    )


def _same_but_columns(one: Metadata, other: Metadata) -> bool:
    return msgspec.structs.replace(one, schema_string=other.schema_string) == other


def identity_only(old: Metadata | None, new: Metadata | None) -> bool:
    """Tell whether metadata only changes which values of identity columns have been used."""
    if old is None or new is None or old == new or HIGH_WATER_MARK not in new.schema_string:
        return False
    if msgspec.structs.replace(new, schema_string=old.schema_string) != old:
        return False
    before, after = (TableDefinition.of(metadata).struct for metadata in (old, new))
    keys = frozenset({HIGH_WATER_MARK})
    return bool(_without(before, keys) == _without(after, keys))


def intolerable_change(current: Metadata, winner: Metadata, protocol: Protocol) -> str | None:
    """Return what the winner changed that this transaction cannot accept, or ``None``.

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
    """Tell whether the schemas differ only in the ids and names that enabling column mapping by name adds."""
    if (
        current.configuration.get(COLUMN_MAPPING_MODE, "none").lower() != "none"
        or winner.configuration.get(COLUMN_MAPPING_MODE, "none").lower() != "name"
    ):
        return False
    before, after = (TableDefinition.of(metadata).struct for metadata in (current, winner))
    return bool(_without(before, _MAPPING_KEYS) == _without(after, _MAPPING_KEYS))


def _without(schema: Any, keys: frozenset[str]) -> Any:
    """Return a schema without some keys of its fields' metadata."""
    if isinstance(schema, list):
        return [_without(item, keys) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {k: v for k, v in value.items() if k not in keys}
        if key == "metadata" and isinstance(value, dict)
        else _without(value, keys)
        for key, value in schema.items()
    }
