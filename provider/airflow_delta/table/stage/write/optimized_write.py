"""Optimised writes: how many bytes of rows go into one file (Delta's ``optimizeWrite``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_delta.log.table_definition import TableDefinition

TARGET_FILE_SIZE = 128 * 1024 * 1024
"""Bytes of a file that an optimised write aims at, where ``delta.targetFileSize`` does not say."""

SHUFFLE_FACTOR = 4
"""Bytes of shuffled rows for a byte of Parquet; Delta's own bins (``optimizeWrite.binSize``) are 512 MiB of such bytes."""

_UNITS = {"b": 0, "k": 1, "kb": 1, "m": 2, "mb": 2, "g": 3, "gb": 3, "t": 4, "tb": 4}


def optimized_file_size(table: TableDefinition, optimize_write: bool | None) -> int | None:
    """Return the bytes of rows that go into one file of an optimised write; ``None`` for any other."""
    folded = {key.lower(): value for key, value in table.configuration.items()}
    if optimize_write is None:
        optimize_write = folded.get("delta.autooptimize.optimizewrite", "false").strip().lower() == "true"
    if not optimize_write:
        return None
    text = folded.get("delta.targetfilesize", "").strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = _UNITS.get(text[len(number) :].strip() or "b")
    size = int(number) * 1024**unit if number.isdecimal() and len(number) < 20 and unit is not None else TARGET_FILE_SIZE
    return max(size, 1) * SHUFFLE_FACTOR
