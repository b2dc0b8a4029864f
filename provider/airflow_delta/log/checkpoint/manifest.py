"""The manifest of a V2 checkpoint: the non-file actions, and the sidecars that hold the files (protocol, "V2 Spec")."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from urllib.parse import unquote

import msgspec

from airflow_delta.log.actions import lenient
from airflow_delta.log.actions.actions import AddFile, DomainMetadata, Metadata, Protocol, RemoveFile, SetTransaction
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.file_names import SIDECAR_DIRECTORY

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
        lines = lenient.decode_lines(_Line, data)
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
