"""What the pages show of a table, read from its log: as plain JSON, at the cost of what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_delta.commands.committed import num_records
from airflow_delta.plugins.problems import gone

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog

PAGE = 30
"""Commits on one page of a history."""

MAX_PAGE = 200
FILES = 200
"""Files on one page of a commit."""

WINNERS = 20
"""Commits listed of those that one was checked against."""

_AT_ONCE = 10
_FILE_ACTIONS = (b'{"add"', b'{"remove"', b'{"cdc"')
_STATE_ACTIONS = (b'{"metaData"', b'{"protocol"', b'{"domainMetadata"')


def history(log: DeltaLog, *, limit: int = PAGE, before: int | None = None) -> dict[str, Any]:
    """Return a page of a table's history, newest commit first.

    :param before: only versions below this one.
    :raises PageProblem: there is no table.
    """
    from airflow_delta.commands.observe import recent_commits

    latest = log.update().version
    if latest < 0:
        raise gone(log.uri)
    commits: list[dict[str, Any]] = []
    below = before
    while len(commits) < limit:
        # What is asked for at once is in memory at once, with all its files.
        asked = min(_AT_ONCE, limit - len(commits))
        found = recent_commits(log, asked, before=below)
        commits += [summary.to_dict() for summary in found]
        if len(found) < asked:
            break
        below = found[-1].version
    oldest = commits[-1]["version"] if commits else None
    more = oldest is not None and oldest > 0 and len(commits) == limit
    newer = None
    if before is not None and before <= latest:
        newer = min(before + limit, latest + 1)
    return {
        "version": latest,
        "commits": commits,
        "older": oldest if more else None,
        "newer": newer,
        "begins_at": oldest if oldest and not more else None,
    }


def open_transactions(log: DeltaLog) -> list[dict[str, Any]]:
    """Return the transactions with staged files that no commit holds; lists what is under ``staged/``."""
    from airflow_delta.commands.transactions import transactions

    return [state.to_dict() for state in transactions(log, states=("open", "abandoned", "aborted"))]


def commit_detail(log: DeltaLog, version: int, *, offset: int = 0, limit: int = FILES) -> dict[str, Any]:
    """Return one commit: its summary, what it was checked against, the metadata it set, and a page of its files.

    :raises VersionNotFoundException: the log does not hold it.
    """
    from airflow_delta.commands.observe import commit_summary, recent_commits

    summary = commit_summary(log, version).to_dict()
    read_version = summary["read_version"]
    # Without a read version nothing is known; a commit that was not raced was checked against nothing.
    num_winners = max(version - read_version - 1, 0) if read_version is not None else None
    winners = recent_commits(log, min(num_winners, WINNERS), before=version) if num_winners else []
    raw = log.read_commit(version)
    return {
        "commit": summary,
        "num_winners": num_winners,
        "winners": [winner.to_dict() for winner in winners],
        "latest": log.snapshot.version,
        "changes": _changes(raw),
        "files": files_of_commit(raw, offset=offset, limit=limit),
        "offset": offset,
        "limit": limit,
        "num_files": sum(1 for _ in _file_lines(raw)),
        "size": len(raw),
    }


def files_of_commit(raw: bytes, *, offset: int = 0, limit: int = FILES) -> list[dict[str, Any]]:
    """Return some of the file actions of a commit, in its order; the others are counted, not decoded.

    :param raw: the commit as it stands in the log.
    """
    files = []
    for index, line in enumerate(_file_lines(raw)):
        if index >= offset + limit:
            break
        if index >= offset:
            (kind, action), *_ = json.loads(line).items()
            files.append(_file(kind, action))
    return files


def _file_lines(raw: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(raw):
        end = raw.find(b"\n", start)
        end = len(raw) if end < 0 else end
        if raw.startswith(_FILE_ACTIONS, start):
            yield raw[start:end]
        start = end + 1


def _file(kind: str, action: Mapping[str, Any]) -> dict[str, Any]:
    stats = action.get("stats")
    vector = action.get("deletionVector")
    return {
        "action": kind,
        "path": unquote(str(action.get("path", ""))),
        "size": action.get("size"),
        "num_records": num_records(stats) if isinstance(stats, str) else None,
        "partition_values": dict(action.get("partitionValues") or {}),
        "data_change": action.get("dataChange"),
        "deleted_rows": vector.get("cardinality") if isinstance(vector, Mapping) else None,
    }


def _changes(raw: bytes) -> dict[str, Any]:
    """Return the metadata, the protocol and the domains that a commit sets."""
    changes: dict[str, Any] = {"metadata": None, "protocol": None, "domains": []}
    for line in raw.split(b"\n"):
        if not line.startswith(_STATE_ACTIONS):
            continue
        (kind, action), *_ = json.loads(line).items()
        if kind == "metaData":
            changes["metadata"] = _metadata(action)
        elif kind == "protocol":
            changes["protocol"] = {
                "min_reader_version": action.get("minReaderVersion"),
                "min_writer_version": action.get("minWriterVersion"),
                "features": sorted({*(action.get("readerFeatures") or ()), *(action.get("writerFeatures") or ())}),
            }
        else:
            changes["domains"].append({"domain": action.get("domain"), "removed": bool(action.get("removed"))})
    return changes


def _metadata(action: Mapping[str, Any]) -> dict[str, Any]:
    schema = _json(action.get("schemaString"))
    fields = schema.get("fields", []) if isinstance(schema, Mapping) else []
    return {
        "id": action.get("id"),
        "name": action.get("name"),
        "description": action.get("description"),
        "partition_columns": list(action.get("partitionColumns") or ()),
        "configuration": dict(action.get("configuration") or {}),
        "columns": [
            {"name": field.get("name"), "type": _type(field.get("type")), "nullable": field.get("nullable", True)}
            for field in fields
        ],
    }


def _type(data_type: Any) -> str:
    """Return a type of a schema as Spark's SQL spells it."""
    if not isinstance(data_type, Mapping):
        return "bigint" if data_type == "long" else str(data_type)
    kind = data_type.get("type")
    if kind == "array":
        return f"array<{_type(data_type.get('elementType'))}>"
    if kind == "map":
        return f"map<{_type(data_type.get('keyType'))}, {_type(data_type.get('valueType'))}>"
    if kind == "struct":
        fields = (f"{field.get('name')}: {_type(field.get('type'))}" for field in data_type.get("fields", []))
        return f"struct<{', '.join(fields)}>"
    return str(kind)


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
