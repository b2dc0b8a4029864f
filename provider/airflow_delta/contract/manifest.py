"""Staged actions for the commit: inline in the XCom if small, else in a manifest beside the staged files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from airflow_delta.contract.payloads import Json, ManifestRef
from airflow_delta.exceptions import ManifestException

INLINE_LIMIT = 24 * 1024
"""Bytes of JSON up to which actions travel inside the XCom."""


def encode_manifest(lines: Sequence[bytes]) -> bytes:
    """Return the content of a manifest: one action per line, as in the log's commits."""
    return b"".join(line + b"\n" for line in lines)


def manifest_ref(path: str, data: bytes, count: int) -> ManifestRef:
    """Return the reference that a missing or altered manifest is recognised by.

    :param path: relative to the table root.
    """
    return ManifestRef(path=path, count=count, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def verify_manifest(
    ref: ManifestRef, data: bytes | None, *, table: str, what: str = "manifest", lines_are: str = "actions"
) -> list[bytes]:
    """Return the lines of a manifest, or of another file with a line for each item, checked against its reference.

    :param data: its content, ``None`` if it is missing.
    :param what: what the file is, for messages.
    :param lines_are: what its lines are.
    :raises ManifestException: if it is missing, truncated or altered.
    """
    where = f"The {what} {ref.path} of staged files for table {table}"
    way_out = "Nothing was committed. Clear the start task with everything downstream."
    if data is None:
        raise ManifestException(f"{where} is missing. {way_out}", table=table)
    if len(data) != ref.size:
        raise ManifestException(f"{where} has {len(data)} bytes, but its stage wrote {ref.size}. {way_out}", table=table)
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise ManifestException(f"{where} was altered: its checksum is not the one its stage reported. {way_out}", table=table)
    lines = data.splitlines()
    if len(lines) != ref.count:
        found = f"{where} holds {len(lines)} {lines_are}, but its stage reported {ref.count}."
        raise ManifestException(f"{found} {way_out}", table=table)
    return lines


def decode_actions(lines: Iterable[bytes]) -> tuple[Json, ...]:
    """Return actions in the JSON form of inline actions."""
    return tuple(json.loads(line) for line in lines)
