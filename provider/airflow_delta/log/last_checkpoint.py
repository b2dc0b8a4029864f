"""``_last_checkpoint``: a hint where to start listing (protocol, "Last Checkpoint File"; Delta's LastCheckpointInfo).

Only ever a hint: a stale, corrupt or missing one costs a longer listing and never changes what is read.
"""

from __future__ import annotations

import logging

import msgspec

from airflow_delta.log.file_names import LAST_CHECKPOINT
from airflow_delta.log.store import LogStore

logger = logging.getLogger(__name__)


class LastCheckpointHint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the hint says; only ``version`` is relied on."""

    version: int
    size: int | None = None
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None


_decoder = msgspec.json.Decoder(LastCheckpointHint)


def read_last_checkpoint(store: LogStore) -> LastCheckpointHint | None:
    """Return the hint, or ``None`` when it is absent or cannot be understood (logged)."""
    try:
        data = store.read(LAST_CHECKPOINT)
    except FileNotFoundError:
        return None
    try:
        hint = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("Table %s: %s cannot be understood and is ignored: %s", store.root, LAST_CHECKPOINT, error)
        return None
    return hint if hint.version >= 0 else None
