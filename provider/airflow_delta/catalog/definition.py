"""What a catalog keeps of a table's definition, too: columns, properties, protocol, comment and some domains.

A commit that changes one of these takes the change along in its request, so that the catalog makes both, or none of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_delta.catalog.answers import TableMetadata
from airflow_delta.contract.catalog_names import TABLE_ID
from airflow_delta.contract.delta_names import (
    CHECKPOINT_POLICY,
    CLUSTERING_DOMAIN,
    ENABLE_IN_COMMIT_TIMESTAMPS,
    ROW_TRACKING_DOMAIN,
)
from airflow_delta.log.storage.committer import Definition

DOMAINS = frozenset({CLUSTERING_DOMAIN, ROW_TRACKING_DOMAIN})
"""Domains that the catalog keeps, too."""
FIXED_PROPERTIES = (TABLE_ID, CHECKPOINT_POLICY, ENABLE_IN_COMMIT_TIMESTAMPS)
"""Properties that make a table the catalog's own. A catalog may let them be changed all the same, so it is refused here."""

Json = dict[str, Any]


class CommittedDefinition:
    """The parts of a commit that concern the table's definition.

    :param data: the commit.
    """

    def __init__(self, data: bytes) -> None:
        self.metadata: Json | None = None
        self.protocol: Json | None = None
        self.domains: dict[str, Json] = {}
        for line in data.splitlines():
            if not any(kind in line[:32] for kind in (b'"metaData"', b'"protocol"', b'"domainMetadata"')):
                continue
            action = json.loads(line)
            self.metadata = action.get("metaData", self.metadata)
            self.protocol = action.get("protocol", self.protocol)
            domain = action.get("domainMetadata")
            if domain is not None and domain["domain"] in DOMAINS:
                self.domains[domain["domain"]] = domain

    @property
    def columns(self) -> Json:
        """The schema in the catalog's spelling."""
        columns: Json = _kebab(json.loads((self.metadata or {})["schemaString"]))
        return columns

    @property
    def properties(self) -> dict[str, str]:
        """The table properties."""
        return dict((self.metadata or {}).get("configuration") or {})

    @property
    def partition_columns(self) -> list[str]:
        """The names of the partition columns."""
        return list((self.metadata or {}).get("partitionColumns") or [])

    @property
    def comment(self) -> str:
        """The table's comment."""
        return str((self.metadata or {}).get("description") or "")

    @property
    def catalog_protocol(self) -> Json:
        """The protocol in the catalog's spelling."""
        protocol = self.protocol or {}
        return {
            "min-reader-version": protocol["minReaderVersion"],
            "min-writer-version": protocol["minWriterVersion"],
            "reader-features": protocol.get("readerFeatures") or [],
            "writer-features": protocol.get("writerFeatures") or [],
        }

    @property
    def domain_settings(self) -> dict[str, Any]:
        """The content of the domains that the commit sets."""
        return {name: json.loads(found["configuration"]) for name, found in self.domains.items() if not found.get("removed")}

    def updates(self, before: Definition | None) -> tuple[Json, ...]:
        """Return what the catalog has to change, each kind of update at most once, as the catalog wants it.

        :param before: the table that the commit changes; ``None`` if it is not known: then no property is removed.
        """
        return tuple(update for update in (*self._metadata_updates(before), *self._domain_updates()) if update)

    def _metadata_updates(self, before: Definition | None) -> Iterable[Json]:
        metadata = self.metadata
        if metadata is not None:
            if before is None or metadata["schemaString"] != before.schema_string:
                yield {"action": "set-columns", "columns": self.columns}
            if before is None or self.partition_columns != list(before.partition_columns):
                yield {"action": "set-partition-columns", "partition-columns": self.partition_columns}
            if before is None or self.properties != before.configuration:
                yield {"action": "set-properties", "updates": self.properties}
            if before is not None and (removed := sorted(before.configuration.keys() - self.properties.keys())):
                yield {"action": "remove-properties", "removals": removed}
            if self.comment != ((before.description if before is not None else None) or ""):
                yield {"action": "set-table-comment", "comment": self.comment}
        if self.protocol is not None:
            yield {"action": "set-protocol", "protocol": self.catalog_protocol}

    def _domain_updates(self) -> Iterable[Json]:
        if self.domain_settings:
            yield {"action": "set-domain-metadata", "updates": self.domain_settings}
        if removed := sorted(name for name, found in self.domains.items() if found.get("removed")):
            yield {"action": "remove-domain-metadata", "domains": removed}


def are_made(updates: Iterable[Mapping[str, Any]], metadata: TableMetadata) -> bool:
    """Tell whether the catalog shows a table as the updates want it, as far as it shows that."""
    for update in updates:
        action = update["action"]
        if action == "set-columns":
            if _names(metadata.columns) not in (None, _names(update["columns"])):
                return False
        elif action == "set-properties":
            if any(metadata.properties.get(key) != value for key, value in update["updates"].items()):
                return False
        elif action == "remove-properties" and any(key in metadata.properties for key in update["removals"]):
            return False
    return True


def _names(columns: Any) -> list[Any] | None:
    fields = columns.get("fields") if isinstance(columns, Mapping) else None
    return [field.get("name") for field in fields if isinstance(field, Mapping)] if isinstance(fields, list) else None


_WORDS = {
    "elementType": "element-type",
    "containsNull": "contains-null",
    "keyType": "key-type",
    "valueType": "value-type",
    "valueContainsNull": "value-contains-null",
}


def _kebab(schema: Any) -> Any:
    """Return a schema in the catalog's spelling of Delta's JSON form. The metadata of columns stay as they are."""
    if isinstance(schema, Mapping):
        return {_WORDS.get(key, key): value if key == "metadata" else _kebab(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_kebab(part) for part in schema]
    return schema
