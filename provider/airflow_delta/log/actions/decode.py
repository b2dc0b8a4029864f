"""Decoding commit files: whole commits, or only the small state that starting a transaction needs.

A commit that contains none of the bytes ``"metaData"``, ``"protocol"``, ``"txn"`` or ``"domainMetadata"`` cannot change that
state, so it is not decoded at all; the others are joined and decoded in one call into structs that declare only what is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import msgspec

from airflow_delta.exceptions import (
    DeltaLogCorruptedException,
    MissingCommitInfoException,
    MissingCommitTimestampException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import (
    AddCDCFile,
    AddFile,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from airflow_delta.log.actions.lenient import decode_lines, decoder_of
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.log.storage.progress import tracked

METADATA_KEY = b'"metaData"'
PROTOCOL_KEY = b'"protocol"'
TXN_KEY = b'"txn"'
DOMAIN_KEY = b'"domainMetadata"'
ADD_KEY = b'"add"'
REMOVE_KEY = b'"remove"'
CDC_KEY = b'"cdc"'
SMALL_STATE_KEYS = (METADATA_KEY, PROTOCOL_KEY, TXN_KEY, DOMAIN_KEY)


class CommitFile(NamedTuple):
    """A commit file as stored.

    :param modification_time: milliseconds since the epoch, if the store returned it with the content.
    """

    version: int
    data: bytes
    modification_time: int | None = None


class _Line(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    add: AddFile | None = None
    remove: RemoveFile | None = None
    meta_data: Metadata | None = None
    txn: SetTransaction | None = None
    protocol: Protocol | None = None
    cdc: AddCDCFile | None = None
    domain_metadata: DomainMetadata | None = None
    commit_info: dict[str, Any] | None = None


class _Present(msgspec.Struct):
    """An action whose content does not matter."""


class _SmallLine(msgspec.Struct, kw_only=True, rename="camel"):
    add: _Present | None = None
    remove: _Present | None = None
    meta_data: Metadata | None = None
    txn: SetTransaction | None = None
    protocol: Protocol | None = None
    cdc: _Present | None = None
    domain_metadata: DomainMetadata | None = None


class _InfoLine(msgspec.Struct, kw_only=True, rename="camel"):
    commit_info: dict[str, Any] | None = None


class _Operation(msgspec.Struct, kw_only=True, rename="camel"):
    operation: Any = None
    txn_id: Any = None
    in_commit_timestamp: Any = None


class SizedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file action with only the fields that totals need."""

    path: str
    size: int
    data_change: bool = True
    deletion_vector: DeletionVectorDescriptor | None = None


class _FileLine(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    add: AddFile | None = None
    remove: RemoveFile | None = None
    commit_info: _Operation | None = None


class _SizeLine(msgspec.Struct, kw_only=True, rename="camel"):
    add: SizedFile | None = None
    remove: RemoveFile | None = None
    commit_info: _Operation | None = None


_LINE_OF_THE_INFO = b'{"commitInfo":'
_LINE_OF_AN_ADD = b'{"add":'


class CommitHead(NamedTuple):
    """The fields of ``commitInfo`` that a checksum needs; ``None`` where they are absent."""

    operation: str | None = None
    txn_id: str | None = None
    in_commit_timestamp: int | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any] | None) -> CommitHead:
        """Build from a ``commitInfo``; values of other types than Delta's count as absent."""
        info = info or {}
        return _head(info.get("operation"), info.get("txnId"), info.get("inCommitTimestamp"))


class FileChanges(NamedTuple):
    """The file actions of a commit.

    :param whole: whether ``adds`` are whole actions; otherwise they are :class:`SizedFile`.
    """

    head: CommitHead
    adds: list[AddFile]
    removes: list[RemoveFile]
    whole: bool


@dataclass(slots=True)
class DecodedCommit:
    """A decoded commit; each list is in file order."""

    version: int
    commit_info: dict[str, Any] | None = None
    metadata: list[Metadata] = field(default_factory=list)
    protocol: list[Protocol] = field(default_factory=list)
    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemoveFile] = field(default_factory=list)
    cdcs: list[AddCDCFile] = field(default_factory=list)
    txns: list[SetTransaction] = field(default_factory=list)
    domains: list[DomainMetadata] = field(default_factory=list)


def decode_commit(version: int, data: bytes, *, table: str) -> DecodedCommit:
    """Decode all actions of a commit.

    Of several actions in one line, the first in Delta's order counts (``SingleAction.unwrap``).
    """
    check_complete(version, data, table=table)
    commit = DecodedCommit(version)
    for line in _decode(_Line, version, data, table=table):
        _add_line(commit, line)
    return commit


def decode_commits(files: Sequence[CommitFile], *, table: str) -> list[DecodedCommit]:
    """Decode several commits, in the given order."""
    told = tracked(files, f"Replaying the log of {table}", len(files), "commits")
    return [decode_commit(file.version, file.data, table=table) for file in told]


def _add_line(commit: DecodedCommit, line: _Line) -> None:
    if line.add is not None:
        commit.adds.append(line.add)
    elif line.remove is not None:
        commit.removes.append(line.remove)
    elif line.meta_data is not None:
        commit.metadata.append(line.meta_data)
    elif line.txn is not None:
        commit.txns.append(line.txn)
    elif line.protocol is not None:
        commit.protocol.append(line.protocol)
    elif line.cdc is not None:
        commit.cdcs.append(line.cdc)
    elif line.domain_metadata is not None:
        commit.domains.append(line.domain_metadata)
    elif line.commit_info is not None and commit.commit_info is None:
        commit.commit_info = line.commit_info


def has_small_state(data: bytes) -> bool:
    """Tell whether a commit may hold metadata, protocol, transactions or domains (a byte search, with false positives)."""
    return any(key in data for key in SMALL_STATE_KEYS)


def has_file_actions(data: bytes) -> bool:
    """Tell whether a commit may hold file actions (a byte search, with false positives)."""
    return ADD_KEY in data or REMOVE_KEY in data or CDC_KEY in data


@dataclass(slots=True)
class SmallState:
    """What a run of commits sets apart from files: the last metadata and protocol, transactions and domains by key."""

    metadata: Metadata | None = None
    protocol: Protocol | None = None
    transactions: dict[str, SetTransaction] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def apply(self, later: SmallState) -> SmallState:
        """Return this state with a later one applied. A removed domain is kept, marked as removed."""
        return SmallState(
            later.metadata or self.metadata,
            later.protocol or self.protocol,
            {**self.transactions, **later.transactions} if later.transactions else self.transactions,
            {**self.domains, **later.domains} if later.domains else self.domains,
        )


def read_small_state(files: Iterable[CommitFile], *, table: str) -> SmallState:
    """Return what a run of commits, oldest first, sets apart from files."""
    relevant: list[CommitFile] = []
    for file in files:
        check_complete(file.version, file.data, table=table)
        if has_small_state(file.data):
            relevant.append(file)
    state = SmallState()
    for line in _decode_joined(_SmallLine, relevant, table=table):
        if line.add is not None or line.remove is not None:
            continue
        if line.meta_data is not None:
            state.metadata = line.meta_data
        elif line.txn is not None:
            state.transactions[line.txn.app_id] = line.txn
        elif line.protocol is not None:
            state.protocol = line.protocol
        elif line.domain_metadata is not None and line.cdc is None:
            state.domains[line.domain_metadata.domain] = line.domain_metadata
    return state


def read_commit_info(version: int, data: bytes, *, table: str) -> dict[str, Any] | None:
    """Return a commit's ``commitInfo`` without decoding its other actions.

    Delta and this provider write it first, and in-commit timestamps require that; the other lines are then not read.
    """
    check_complete(version, data, table=table)
    if (info := info_of_first_line(data)) is not None:
        return info
    for line in _decode(_InfoLine, version, data, table=table):
        if line.commit_info is not None:
            return dict(line.commit_info)
    return None


def info_of_first_line(data: bytes) -> dict[str, Any] | None:
    """Return the ``commitInfo`` that a commit begins with; ``None`` if it begins with another action, or the line is cut off.

    :param data: the commit, or its beginning.
    """
    first = data[: data.find(b"\n")] if data.startswith(_LINE_OF_THE_INFO) else b""
    if not first.endswith((b"}", b"}\r")):
        return None
    try:
        found: dict[str, Any] | None = decoder_of(_InfoLine).decode(first).commit_info
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # whoever needs it decodes the whole commit, for the error message
    return found


def decode_file_changes(file: CommitFile, *, table: str, whole_adds_up_to: int) -> FileChanges:
    """Decode a commit's file actions, except change data files.

    :param whole_adds_up_to: for a commit with more adds, only the fields that totals need are decoded.
    """
    few = whole_adds_up_to > 0 and file.data.count(_LINE_OF_AN_ADD) <= whole_adds_up_to
    check_complete(file.version, file.data, table=table)
    changes = FileChanges(CommitHead(), [], [], few)
    head = changes.head
    for line in _decode(_FileLine if few else _SizeLine, file.version, file.data, table=table):
        if line.add is not None:
            changes.adds.append(line.add)
        elif line.remove is not None:
            changes.removes.append(line.remove)
        elif line.commit_info is not None and head is changes.head:
            head = _head(line.commit_info.operation, line.commit_info.txn_id, line.commit_info.in_commit_timestamp)
    return changes._replace(head=head)


def _is_whole(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())


def _head(operation: Any, txn_id: Any, in_commit_timestamp: Any) -> CommitHead:
    return CommitHead(
        operation if isinstance(operation, str) else None,
        txn_id if isinstance(txn_id, str) else None,
        int(in_commit_timestamp) if _is_whole(in_commit_timestamp) else None,
    )


def check_complete(version: int, data: bytes, *, table: str) -> None:
    """Raise if a commit file is empty or does not end with a complete line."""
    if data[-2:] in (b"}\n", b"}\r") or data[-1:] == b"}":
        return
    if not data.strip():
        raise _corrupted(version, "is empty", table=table)
    if not data.rstrip().endswith(b"}"):
        line = data.rstrip().count(b"\n") + 1
        raise _corrupted(version, f"is truncated in line {line}", table=table)


def _decode_joined(kind: Any, files: Sequence[CommitFile], *, table: str) -> list[Any]:
    if len(files) == 1:
        return _decode(kind, files[0].version, files[0].data, table=table)
    try:
        return decoder_of(kind).decode_lines(b"\n".join([file.data for file in files]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Decode one by one to find the commit and the line.
        return [line for file in files for line in _decode(kind, file.version, file.data, table=table)]


def _decode(kind: Any, version: int, data: bytes, *, table: str) -> list[Any]:
    try:
        return decode_lines(kind, data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        for number, line in enumerate(data.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                decode_lines(kind, line)
            except (msgspec.DecodeError, UnicodeDecodeError) as line_error:
                reason = str(line_error).replace("$[0]", "$")
                raise _corrupted(version, f"is malformed in line {number}: {reason}", table=table) from line_error
        raise _corrupted(version, f"is malformed: {error}", table=table) from error


def _corrupted(version: int, what: str, *, table: str) -> DeltaLogCorruptedException:
    return DeltaLogCorruptedException(
        f"Commit {version} of table {table} {what} ({commit_file(version)}). Restore the file from a backup or a replica "
        "before anything else is committed. Deleting it would lose its changes.",
        table=table,
        version=version,
    )


def required_timestamp(version: int, data: bytes, *, table: str) -> int:
    """Return the in-commit timestamp of a commit that must have one (Delta's ``getRequiredInCommitTimestamp``).

    :param data: content of the commit.
    """
    return timestamp_of_info(version, read_commit_info(version, data, table=table), table=table)


def timestamp_of_info(version: int, info: Mapping[str, Any] | None, *, table: str) -> int:
    """Return the in-commit timestamp that a ``commitInfo`` must have; raises as :func:`required_timestamp` does."""
    way_out = (
        "The table has in-commit timestamps (delta.enableInCommitTimestamps), so every commit must have one. Either the commit "
        f"is by a writer that does not support them, or {commit_file(version)} is damaged. Stop that writer, then restore the "
        "file from a backup, or the table to an earlier version."
    )
    if info is None:
        raise MissingCommitInfoException(
            f"Commit {version} of table {table} has no commitInfo. {way_out}", table=table, version=version
        )
    recorded = CommitHead.of(info).in_commit_timestamp
    if recorded is None:
        raise MissingCommitTimestampException(
            f"The commitInfo of commit {version} of table {table} has no inCommitTimestamp. {way_out}",
            table=table,
            version=version,
        )
    return recorded
