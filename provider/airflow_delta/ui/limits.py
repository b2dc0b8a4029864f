"""How much of a table's log the pages read to know its list of files: what exceeds a limit is not read, and the page says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.exceptions import (
    DeltaLogCorruptedException,
    ReadLimitException,
)
from airflow_delta.log.storage.base import UNKNOWN
from airflow_delta.log.storage.file_names import commit_file

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

MAX_TAIL_BYTES = 64 << 20
"""Bytes of commits since the checkpoint, in the search for uncommitted transactions."""

MAX_ACTIONS = 3_000_000
"""Rows of a checkpoint, in the same search."""


def check_size(log: DeltaLog) -> None:
    """Refuse a log whose list of files takes too long or too much memory to read.

    :raises ReadLimitException: if it is over a limit.
    """
    snapshot = log.update()
    if snapshot.version < 0:
        return
    check_commits(log, snapshot.segment.commit_versions)
    reader = snapshot.checkpoint_reader()
    try:
        rows = sum(group.num_rows for part in reader.parts for group in part.row_groups) if reader is not None else 0
    except DeltaLogCorruptedException:  # another one is read instead
        rows = 0
    if rows > MAX_ACTIONS:
        raise snapshot.error(
            ReadLimitException, f"The checkpoint of table {log.uri} has {rows} rows; at most {MAX_ACTIONS} are searched."
        )


def check_commits(log: DeltaLog, versions: range, *, what: str = "checkpoint") -> None:
    """Refuse commits of the latest version that are too large together.

    :param versions: some of those since its checkpoint.
    :param what: what they came after.
    :raises ReadLimitException: if they are over the limit.
    """
    segment, size = log.snapshot.segment, 0
    for version in versions:
        status = segment.statuses.get(version)
        if status is None or status.size == UNKNOWN:
            status = log.store.head(commit_file(version))
        size += status.size if status is not None else 0
        if size > MAX_TAIL_BYTES:
            raise log.error(
                ReadLimitException,
                f"The commits of table {log.uri} since its last {what} exceed {MAX_TAIL_BYTES >> 20} MiB.",
                version=segment.version,
            )
