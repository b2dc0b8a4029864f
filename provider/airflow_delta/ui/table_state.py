"""What a table is now, for its page: schema, partitioning, properties, number and bytes of files, at the cost of small files.

Runs in the reader's process, like :mod:`airflow_delta.ui.data`, so nothing here knows Airflow. The list of files is never
read: what the checksum and the newest commits do not tell is unknown, and the page says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.exceptions import DeltaTableNotFoundException, ReadLimitException
from airflow_delta.log.checksum.totals import MAX_FILES
from airflow_delta.log.features.protocol import features
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.observe.describe import clustered_by, is_readable
from airflow_delta.ui.limits import check_commits
from airflow_delta.ui.metadata import told_metadata

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog, Snapshot
    from airflow_delta.log.checksum.totals import Totals

MAX_COMMITS = 200
"""Commits since the newest checksum or checkpoint that are read."""


def table_state(log: DeltaLog) -> dict[str, Any]:
    """Return what the latest version of a table is, as plain JSON.

    ``num_files``, ``size_in_bytes`` and ``num_records`` are ``None`` if small files do not tell them; ``unknown`` says why, by
    name.

    :raises DeltaTableNotFoundException: if there is no table.
    :raises ReadLimitException: if too many commits would have to be read.
    """
    snapshot = log.update()
    if snapshot.version < 0:
        raise log.error(DeltaTableNotFoundException, f"There is no Delta table at {log.uri}.")
    _check_tail(log, snapshot)
    metadata, protocol = snapshot.metadata, snapshot.protocol
    return {
        "version": snapshot.version,
        "metadata": told_metadata(msgspec.to_builtins(metadata)),
        "created_at": metadata.created_time,
        "clustering_columns": clustered_by(snapshot),
        "protocol": {
            "min_reader_version": protocol.min_reader_version,
            "min_writer_version": protocol.min_writer_version,
            "features": sorted(features(protocol)),
        },
        **_sizes(snapshot),
    }


def _check_tail(log: DeltaLog, snapshot: Snapshot) -> None:
    """Refuse a log without a checksum or checkpoint near its end.

    :raises ReadLimitException: if too many commits came since, or too large ones.
    """
    segment = snapshot.segment
    base = max((*segment.checksum_versions[:1], segment.first_commit - 1))
    since = range(base + 1, snapshot.version + 1)
    if len(since) > MAX_COMMITS:
        raise snapshot.error(
            ReadLimitException,
            f"Table {log.uri} has {len(since)} commits since its last checksum or checkpoint; at most {MAX_COMMITS} are read.",
        )
    check_commits(log, since, what="checksum or checkpoint")


def _sizes(snapshot: Snapshot) -> dict[str, Any]:
    if not is_readable(snapshot):
        return _told(None, None, "This provider cannot read the table: its protocol has a feature that it does not know.")
    totals = snapshot.derived_totals()
    if totals is None:
        why = "No checksum file (.crc) near the latest version has it, and the pages do not read the list of files."
        return _told(None, None, why)
    if totals.files is None:
        return _told(totals, None, f"The pages count rows of tables of up to {MAX_FILES} files.")
    rows = [live_records(file) for file in totals.files.values()]
    if None in rows:
        return _told(totals, None, "Some files have no row count in their statistics.")
    return _told(totals, sum(count or 0 for count in rows), None)


def _told(totals: Totals | None, num_records: int | None, why: str | None) -> dict[str, Any]:
    sizes = {
        "num_files": None if totals is None else totals.num_files,
        "size_in_bytes": None if totals is None else totals.size_in_bytes,
        "num_records": num_records,
    }
    return {**sizes, "unknown": {name: why for name, value in sizes.items() if value is None}}
