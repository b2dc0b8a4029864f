"""The pages' data about a table, read from its log: as plain JSON, at the cost of what is shown, and within limits.

Runs in a separate process (:mod:`airflow_delta.ui.reader.worker`), so nothing here knows Airflow. What exceeds a limit is not
read; the page says that it is too large to show, and shows the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_delta.contract.staging_directory import STAGING_DIRECTORY
from airflow_delta.exceptions import (
    DeltaTableNotFoundException,
    VersionsNotContiguousException,
)
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.storage.base import UNKNOWN
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.masking import masked_settings
from airflow_delta.table.observe.commit_summary import commit_statuses, commit_summary, observe_files
from airflow_delta.table.state.open_transactions import list_transactions
from airflow_delta.ui.limits import check_size
from airflow_delta.ui.metadata import told_metadata

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus

PAGE = 30
"""Commits on one page of a history."""

MAX_PAGE = 200
FILES = 200
"""Files on one page of a commit."""

WINNERS = 20
"""Maximum number of listed commits that a commit was checked against."""

MAX_COMMIT_BYTES = 32 << 20
"""Of a larger commit only the ``commitInfo`` is shown; its files are not counted."""

MAX_PAGE_BYTES = 64 << 20
"""Bytes of commits that one page decodes; a page of large commits is shorter."""


_HEAD_BYTES = 256 << 10
_AT_ONCE = 10
_FILE_ACTIONS = (b'{"add"', b'{"remove"', b'{"cdc"')
_STATE_ACTIONS = (b'{"metaData"', b'{"protocol"', b'{"domainMetadata"')
_INFO_ACTIONS = (b'{"commitInfo"', b'{"txn"', *_STATE_ACTIONS)
_NO_INFO = b'{"commitInfo":{}}\n'
_NOT_COUNTED = (
    "num_added_files",
    "num_removed_files",
    "bytes_added",
    "bytes_removed",
    "num_records",
    "num_partitions",
)

Known = Mapping[str, Sequence[int]]
"""Size and time, by version, of the commits whose summary the caller has."""


def history(log: DeltaLog, *, limit: int = PAGE, before: int | None = None, known: Known | None = None) -> dict[str, Any]:
    """Return a page of a table's history, newest commit first.

    :param before: only versions below this one.
    :param known: commits for which only the version is returned if they have not changed.
    :raises DeltaTableNotFoundException: if there is no table.
    """
    latest = log.update().version
    if latest < 0:
        raise log.error(DeltaTableNotFoundException, f"There is no Delta table at {log.uri}.")
    newest = latest if before is None else min(latest, before - 1)
    commits, cut = _summaries(log, newest, limit, known or {})
    oldest = commits[-1]["version"] if commits else None
    more = oldest is not None and oldest > 0 and (cut or len(commits) == limit)
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
    """Return the uncommitted transactions with staged files; lists ``staged/``."""
    if not log.store.list_directories(STAGING_DIRECTORY):
        return []
    check_size(log)
    return [state.to_dict() for state in list_transactions(log, states=("open", "abandoned", "aborted"))]


def commit_detail(
    log: DeltaLog,
    version: int,
    *,
    offset: int = 0,
    limit: int = FILES,
    known: Known | None = None,
    stamp: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return one commit: its summary, what it was checked against, the metadata it set, and a page of its files.

    :param known: as for :func:`history`; for the commits that it was checked against.
    :param stamp: size and time of the caller's copy; only ``latest`` is returned if they have not changed.
    """
    latest = log.update().version
    status = log.store.head(commit_file(version)) if version >= 0 else None
    if status is None:
        commit_summary(log, version)  # raises an error that says what the log has instead
        raise FileNotFoundError(commit_file(version))
    if stamp is not None and list(stamp) == _stamp(status):
        return {"same": True, "latest": latest}
    too_large = status.size > MAX_COMMIT_BYTES
    raw = log.store.read_range(commit_file(version), 0, _HEAD_BYTES) if too_large else log.read_commit(version)
    raw = raw[: raw.rfind(b"\n") + 1] if too_large else raw
    summary = _told(log, [(status, raw)])[0]
    read_version = summary["read_version"]
    # Without a read version this is unknown; a commit without concurrent ones was checked against none.
    num_winners = max(version - read_version - 1, 0) if read_version is not None else None
    winners = _summaries(log, version - 1, min(num_winners, WINNERS), known or {})[0] if num_winners else []
    return {
        "commit": summary,
        "num_winners": num_winners,
        "winners": winners,
        "latest": latest,
        "changes": _changes(raw),
        "files": page_of_files(raw, offset=0 if too_large else offset, limit=limit),
        "offset": 0 if too_large else offset,
        "limit": limit,
        "num_files": None if too_large else sum(1 for _ in _file_lines(raw)),
        "size": status.size,
        "stamp": _stamp(status),
    }


def _summaries(log: DeltaLog, newest: int, limit: int, known: Known) -> tuple[list[dict[str, Any]], bool]:
    """Return summaries of commits, newest first, as far back as the log goes.

    :return: the summaries, and whether the limit on bytes has cut them short.
    """
    if newest < 0 or limit < 1:
        return [], False
    lowest = max(newest - limit + 1, 0)
    statuses = commit_statuses(log, range(lowest, newest + 1))
    found: list[dict[str, Any]] = []
    unread: list[FileStatus] = []
    left, cut = MAX_PAGE_BYTES, False
    for version in range(newest, lowest - 1, -1):
        status = statuses.get(version)
        if status is not None and UNKNOWN in (status.size, status.modification_time):
            status = log.store.head(status.path)
        if status is None:  # older ones were cleaned up, too
            break
        if list(known.get(str(version), ())) == _stamp(status):
            found.append({"version": version, "known": True})
            continue
        cost = status.size if status.size <= MAX_COMMIT_BYTES else _HEAD_BYTES
        if cost > left and found:
            cut = True
            break
        left -= cost
        found.append({"version": version})
        unread.append(status)
    read = {summary["version"]: summary for summary in _read(log, unread)}
    commits: list[dict[str, Any]] = []
    for entry in found:
        told = entry if "known" in entry else read.get(entry["version"])
        if told is None:  # cleaned up meanwhile
            return commits, False
        commits.append(told)
    return commits, cut


def _read(log: DeltaLog, statuses: Sequence[FileStatus]) -> Iterator[dict[str, Any]]:
    """Yield the summaries of commits, newest first, until one is gone; reads several at once, as memory allows."""
    at = 0
    while at < len(statuses):
        group: list[tuple[FileStatus, bytes]] = []
        small: list[FileStatus] = []
        size = 0
        while at < len(statuses) and len(small) < _AT_ONCE and (not small or size + statuses[at].size <= MAX_COMMIT_BYTES):
            status = statuses[at]
            if status.size > MAX_COMMIT_BYTES:
                if small:
                    break
                raw = log.store.read_range(status.path, 0, _HEAD_BYTES)
                group.append((status, raw[: raw.rfind(b"\n") + 1]))
                at += 1
                break
            small.append(status)
            size += status.size
            at += 1
        group += zip(small, _contents(log, small), strict=False)
        yield from _told(log, group)
        if len(group) < len(small):
            return


def _contents(log: DeltaLog, statuses: Sequence[FileStatus]) -> list[bytes]:
    """Return the contents of commits, newest first, up to one that was cleaned up meanwhile."""
    versions = [_version(status) for status in statuses]
    try:
        if versions and versions == list(range(versions[0], versions[-1] - 1, -1)):
            return [file.data for file in reversed(log.read_commit_range(range(versions[-1], versions[0] + 1)))]
    except VersionsNotContiguousException:
        pass
    contents = []
    for version in versions:
        try:
            contents.append(log.read_commit(version))
        except FileNotFoundError:
            break
    return contents


def _told(log: DeltaLog, group: Sequence[tuple[FileStatus, bytes]]) -> list[dict[str, Any]]:
    """Return the summaries of commits in the given order, newest first."""
    files = [
        CommitFile(_version(status), _only_info(raw) if status.size > MAX_COMMIT_BYTES else raw)
        for status, raw in reversed(group)
    ]
    observed = {found.summary.version: found.summary for found in observe_files(log, files, light=True)}
    told = []
    for status, _ in group:
        summary = observed[_version(status)].to_dict()
        summary["operation_parameters"] = masked_settings(summary["operation_parameters"])
        too_large = status.size > MAX_COMMIT_BYTES
        if too_large:
            summary.update(dict.fromkeys(_NOT_COUNTED))
        told.append({**summary, "size": status.size, "too_large": too_large, "stamp": _stamp(status)})
    return told


def _only_info(raw: bytes) -> bytes:
    """Return the lines of the start of a commit that are not about files."""
    lines = [line for line in raw.splitlines(keepends=True) if line.startswith(_INFO_ACTIONS)]
    return b"".join(lines) if any(line.startswith(b'{"commitInfo"') for line in lines) else _NO_INFO + b"".join(lines)


def _stamp(status: FileStatus) -> list[int]:
    return [status.size, status.modification_time]


def _version(status: FileStatus) -> int:
    return int(status.name.partition(".")[0])


def page_of_files(raw: bytes, *, offset: int = 0, limit: int = FILES) -> list[dict[str, Any]]:
    """Return some of the file actions of a commit, in its order; the others are not decoded.

    :param raw: the commit as in the log.
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
            changes["metadata"] = told_metadata(action)
        elif kind == "protocol":
            changes["protocol"] = {
                "min_reader_version": action.get("minReaderVersion"),
                "min_writer_version": action.get("minWriterVersion"),
                "features": sorted({*(action.get("readerFeatures") or ()), *(action.get("writerFeatures") or ())}),
            }
        else:
            changes["domains"].append({"domain": action.get("domain"), "removed": bool(action.get("removed"))})
    return changes
