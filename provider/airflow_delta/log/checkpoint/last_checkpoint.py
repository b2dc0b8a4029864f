"""``_last_checkpoint``: a hint about where to start listing (protocol, "Last Checkpoint File"; Delta's LastCheckpointInfo).

It is only a hint: if it is stale, corrupt or missing, a longer listing is needed, but the same state is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any
from urllib.parse import quote

import msgspec

from airflow_delta.exceptions import DeltaLogCorruptedException, PathOutsideTableException
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.file_names import LAST_CHECKPOINT

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
        info = msgspec.json.decode(data, type=LastCheckpointInfo)
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
