"""The manifest of a V2 checkpoint: the non-file actions, and the sidecars that hold the files (protocol, "V2 Spec").

``_last_checkpoint``: a hint about where to start listing (protocol, "Last Checkpoint File"; Delta's LastCheckpointInfo).

It is only a hint: if it is stale, corrupt or missing, a longer listing is needed, but the same state is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from airflow_delta.exceptions import DeltaLogCorruptedException, PathOutsideTableException
from airflow_delta.log.actions import decode as lenient
from airflow_delta.log.actions.actions import AddFile, DomainMetadata, Metadata, Protocol, RemoveFile, SetTransaction
from airflow_delta.log.storage.base import FileStatus, LogStore
from airflow_delta.log.storage.file_names import LAST_CHECKPOINT, SIDECAR_DIRECTORY

Corrupted = Callable[[str], Exception]
"""Makes the error for a manifest, given what is wrong with it."""


class SidecarFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A file in ``_delta_log/_sidecars`` with files and tombstones of a checkpoint.

    :param path: its file name, URL-encoded; of a longer path only the last component counts, as in Delta.
    :param modification_time: milliseconds since the epoch.
    """

    path: str
    size_in_bytes: int
    modification_time: int
    tags: dict[str, str | None] | None = None

    @property
    def name(self) -> str:
        """Return its file name, not URL-encoded."""
        return unquote(self.path.rpartition("/")[2])

    @property
    def status(self) -> FileStatus:
        """Return its path, size and modification time."""
        return FileStatus(f"{SIDECAR_DIRECTORY}/{self.name}", self.size_in_bytes, self.modification_time)


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The ``checkpointMetadata`` action of a V2 checkpoint.

    :param tags: Delta writes ``sidecarNumActions``, ``sidecarSizeInBytes``, ``numOfAddFiles`` and ``sidecarFileSchema``.
    """

    version: int
    tags: dict[str, str | None] | None = None

    def number(self, tag: str) -> int | None:
        """Return the value of a numeric tag, or ``None`` if it is absent or not a number."""
        text = (self.tags or {}).get(tag)
        return int(text) if text is not None and text.isascii() and text.isdigit() else None


class _Line(msgspec.Struct, kw_only=True, rename="camel"):
    add: AddFile | None = None
    remove: RemoveFile | None = None
    meta_data: Metadata | None = None
    txn: SetTransaction | None = None
    protocol: Protocol | None = None
    sidecar: SidecarFile | None = None
    checkpoint_metadata: CheckpointMetadata | None = None
    domain_metadata: DomainMetadata | None = None


_lines = msgspec.json.Decoder(_Line)


class Manifest(msgspec.Struct, kw_only=True):
    """The content of a JSON manifest.

    :ivar adds: files listed in the manifest itself; Delta writes none.
    """

    checkpoint_metadata: CheckpointMetadata | None = None
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    sidecars: list[SidecarFile] = msgspec.field(default_factory=list)
    transactions: list[SetTransaction] = msgspec.field(default_factory=list)
    domains: list[DomainMetadata] = msgspec.field(default_factory=list)
    adds: list[AddFile] = msgspec.field(default_factory=list)
    removes: list[RemoveFile] = msgspec.field(default_factory=list)


def decode_manifest(data: bytes, corrupted: Corrupted) -> Manifest:
    """Decode a JSON manifest.

    :raises Exception: the error made by ``corrupted``, if a line is not an action or the last one is truncated.
    """
    manifest = Manifest()
    try:
        lines = lenient.decode_lines(_lines, data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise corrupted(f"is damaged: {error}") from error
    for line in lines:
        _add_line(manifest, line)
    return manifest


def _add_line(manifest: Manifest, line: _Line) -> None:
    # The order of Delta's SingleAction.unwrap, in case a line holds several.
    if line.add is not None:
        manifest.adds.append(line.add)
    elif line.remove is not None:
        manifest.removes.append(line.remove)
    elif line.meta_data is not None:
        manifest.metadata = line.meta_data
    elif line.txn is not None:
        manifest.transactions.append(line.txn)
    elif line.protocol is not None:
        manifest.protocol = line.protocol
    elif line.sidecar is not None:
        manifest.sidecars.append(line.sidecar)
    elif line.checkpoint_metadata is not None:
        manifest.checkpoint_metadata = line.checkpoint_metadata
    elif line.domain_metadata is not None:
        manifest.domains.append(line.domain_metadata)


def check_checkpoint_manifest(
    version: int, about: CheckpointMetadata | None, sidecars: Sequence[SidecarFile], *, complete: bool, corrupted: Corrupted
) -> None:
    """Refuse a manifest that was truncated between two actions, as far as that can be detected.

    :param complete: whether it has a protocol and metadata, as every checkpoint must.
    :raises Exception: the error made by ``corrupted``.
    """
    if about is None:
        raise corrupted("has no checkpointMetadata, which a V2 checkpoint must have")
    if about.version != version:
        raise corrupted(f"claims to be of version {about.version}")
    if not complete:
        raise corrupted("has no protocol or no metadata")
    size = about.number("sidecarSizeInBytes")
    listed = sum(sidecar.size_in_bytes for sidecar in sidecars)
    if size is not None and size != listed:
        raise corrupted(f"lists sidecars of {listed} bytes, but should list {size} bytes")


logger = logging.getLogger(__name__)

CHECKSUM = "checksum"
SCHEMA_LENGTH = 20_000
"""A checkpoint schema of more characters of JSON is left out (``checkpointSchema.writeThresholdLength``)."""
ACTIONS_LISTED = 30
"""Maximum number of sidecars, and of non-file actions, copied into the hint (``lastCheckpoint.*.threshold``)."""


class LastCheckpointV2(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The V2 checkpoint in the hint.

    :param path: file name of the manifest, without directory.
    :param non_file_actions: all actions of the checkpoint other than files, unless there are too many.
    :param sidecar_files: its sidecars, unless there are too many.
    """

    path: str
    size_in_bytes: int
    modification_time: int
    non_file_actions: list[dict[str, Any]] | None = None
    sidecar_files: list[dict[str, Any]] | None = None


class LastCheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The newest checkpoint; readers rely on ``version`` only.

    :param size: number of actions, -1 if unknown.
    :param parts: number of files of a multi-part checkpoint.
    :param size_in_bytes: size of all files together.
    :param checkpoint_schema: schema of the Parquet file, in Spark's JSON form.
    :param checksum: MD5 of the canonical form of the rest.
    """

    version: int
    size: int = -1
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    checkpoint_schema: dict[str, Any] | None = None
    v2_checkpoint: LastCheckpointV2 | None = None
    checksum: str | None = None


_decoder = msgspec.json.Decoder(LastCheckpointInfo)


def short_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return a schema in Spark's JSON form, or ``None`` if it is too long for the hint."""
    return schema if len(msgspec.json.encode(schema).decode()) <= SCHEMA_LENGTH else None


def encode_last_checkpoint(info: LastCheckpointInfo) -> bytes:
    """Return the content of ``_last_checkpoint``, with its checksum."""
    # "size" is always written: old readers require it.
    content = {"version": info.version, "size": info.size, **msgspec.to_builtins(info)}
    content.pop(CHECKSUM, None)
    return msgspec.json.encode({**content, CHECKSUM: canonical_checksum(content)})


def canonical_checksum(content: Any) -> str:
    """Return the MD5 of a JSON document's canonical form (protocol, "JSON checksum").

    Every leaf becomes ``key=value``, where the key is the path to it (keys or positions, joined by ``+``) and strings
    are percent-encoded in quotes; these entries are sorted and joined by commas. The document's own ``checksum`` is left out.
    """
    own, entries = _quoted(CHECKSUM), list[tuple[str, str]]()
    _collect(content, "", entries)
    text = ",".join(sorted(f"{key}={value}" for key, value in entries if key != own))
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _collect(node: Any, prefix: str, into: list[tuple[str, str]]) -> None:
    if isinstance(node, dict):
        for name, value in node.items():
            _collect(value, f"{prefix}+{_quoted(name)}" if prefix else _quoted(name), into)
    elif isinstance(node, list):
        for position, value in enumerate(node):
            _collect(value, f"{prefix}+{position}" if prefix else str(position), into)
    else:
        into.append((prefix, _quoted(node) if isinstance(node, str) else json.dumps(node)))


def _quoted(text: str) -> str:
    return f'"{quote(text.encode("utf-8", "surrogatepass"), safe="")}"'


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def read_last_checkpoint(store: LogStore) -> LastCheckpointInfo | None:
    """Return the hint, or ``None`` if it is absent, malformed or does not match its checksum (logged)."""
    try:
        data = store.read(LAST_CHECKPOINT)
    except FileNotFoundError:
        return None
    except (DeltaLogCorruptedException, PathOutsideTableException) as error:
        logger.warning("Table %s: ignoring %s: %s", store.root, LAST_CHECKPOINT, error.message)
        return None
    try:
        info = _decoder.decode(data)
        _verify(data, info.checksum)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        logger.warning("Table %s: ignoring malformed %s: %s", store.root, LAST_CHECKPOINT, error)
        return None
    return info if info.version >= 0 else None


def _verify(data: bytes, stored: str | None) -> None:
    """Raise if the content does not match its checksum: it may be half of one file and half of the next."""
    content = json.loads(data, object_pairs_hook=_unique)
    if stored is not None and stored != (actual := canonical_checksum(content)):
        raise ValueError(f"its checksum should be {stored}, but is {actual}")
