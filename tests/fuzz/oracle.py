"""The state of a table from its JSON commits alone (protocol, "Action Reconciliation"): what every other reader is judged by."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

FileKey = tuple[str, str | None]


@dataclass
class State:
    """A table at one version; files by decoded path and id of the deletion vector."""

    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[FileKey, dict[str, Any]] = field(default_factory=dict)
    tombstones: set[FileKey] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)

    def apply(self, action: dict[str, Any]) -> None:
        ((kind, value),) = action.items()
        match kind:
            case "protocol":
                self.protocol = value
            case "metaData":
                self.metadata = value
            case "txn":
                self.transactions[value["appId"]] = value["version"]
            case "domainMetadata" if value["removed"]:
                self.domains.pop(value["domain"], None)
            case "domainMetadata":
                self.domains[value["domain"]] = value["configuration"]
            case "add":
                self.files[key(value)] = value
                self.tombstones.discard(key(value))
            case "remove":
                self.files.pop(key(value), None)
                self.tombstones.add(key(value))


def key(action: dict[str, Any]) -> FileKey:
    vector = action.get("deletionVector")
    if vector is None:
        return unquote(action["path"]), None
    offset = "" if vector.get("offset") is None else f"@{vector['offset']}"
    return unquote(action["path"]), f"{vector['storageType']}{vector['pathOrInlineDv']}{offset}"


def replay(table: Path, version: int) -> State:
    """Return the state of a version."""
    state = State()
    for number in range(version + 1):
        for line in (table / "_delta_log" / f"{number:020d}.json").read_text().splitlines():
            state.apply(json.loads(line))
    return state
