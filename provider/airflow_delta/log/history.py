"""The commits of a table, newest first (Delta's DESCRIBE HISTORY)."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import read_commit_info, timestamp_of_info
from airflow_delta.log.storage.file_names import COMMIT_SUFFIX, LOG_DIRECTORY, commit_file, commit_version, version_prefix
from airflow_delta.log.storage.progress import tracked

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.time_travel import first_recorded_version, monotonic_timestamps

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit of a table's history.

    :param timestamp: milliseconds since the epoch: the in-commit timestamp if the table has them, else the file's time.
    :param commit_info: ``commitInfo`` as in the log; empty if the commit has none.
    """

    version: int
    timestamp: int
    commit_info: dict[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str | None:
        """Return the name of the operation."""
        return self.commit_info.get("operation")

    @property
    def operation_parameters(self) -> dict[str, Any]:
        """Return the parameters of the operation."""
        return self.commit_info.get("operationParameters") or {}

    @property
    def operation_metrics(self) -> dict[str, Any]:
        """Return the metrics of the operation, numbers as strings."""
        return self.commit_info.get("operationMetrics") or {}

    @property
    def read_version(self) -> int | None:
        """Return the version that the transaction read."""
        return self.commit_info.get("readVersion")

    @property
    def isolation_level(self) -> str | None:
        """Return the isolation level of the commit."""
        return self.commit_info.get("isolationLevel")

    @property
    def is_blind_append(self) -> bool | None:
        """Return whether the commit was a blind append: it added files and read none."""
        return self.commit_info.get("isBlindAppend")

    @property
    def user_metadata(self) -> str | None:
        """Return the user metadata of the commit."""
        return self.commit_info.get("userMetadata")

    @property
    def tags(self) -> dict[str, Any]:
        """Return the tags of the commit."""
        return self.commit_info.get("tags") or {}

    @property
    def engine_info(self) -> str | None:
        """Return the name of the engine that wrote the commit."""
        return self.commit_info.get("engineInfo")

    @property
    def txn_id(self) -> str | None:
        """Return the id of the transaction that wrote the commit."""
        return self.commit_info.get("txnId")


def read_history(latest: Snapshot, limit: int | None) -> list[CommitRecord]:
    """Return the commits that are still in the log, newest first.

    :param latest: the table's latest version.
    :param limit: maximum number of commits.
    """
    log = latest.log
    if limit is not None and limit < 0:
        raise log.error(DeltaIllegalArgumentException, f"The history limit of table {log.uri} must not be negative: {limit}")
    last = latest.segment.version
    lowest = 0 if limit is None else max(last - limit + 1, 0)
    # One commit more than requested: a commit's time is adjusted by the one before.
    listed = log.store.list_from(LOG_DIRECTORY, version_prefix(max(lowest - 1, 0)) + COMMIT_SUFFIX, stat=False)
    versions = sorted(version for status in listed if (version := commit_version(status.name)) is not None and version <= last)
    contiguous = _newest_run(versions)
    times = monotonic_timestamps(log, contiguous, listed)
    records: list[CommitRecord] = []
    first_recorded: int | None = None
    wanted = [version for version in reversed(contiguous) if version >= lowest]
    for start in tracked(range(0, len(wanted), _CHUNK), f"Reading the history of {log.uri}", len(wanted), "commits", _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        contents = _read(log.store, chunk)
        infos = [read_commit_info(version, data, table=log.uri) for version, data in zip(chunk, contents, strict=False)]
        if first_recorded is None and any(info is not None and "inCommitTimestamp" in info for info in infos):
            # Only now look up in the metadata when in-commit timestamps began, which may read the whole log.
            first_recorded = first_recorded_version(latest)
        for version, info in zip(chunk, infos, strict=False):
            recorded = first_recorded is not None and version >= first_recorded
            time = timestamp_of_info(version, info, table=log.uri) if recorded else times[version]
            records.append(CommitRecord(version, time, info or {}))
        if len(contents) < len(chunk):
            break
    return records


def _read(store: LogStore, versions: list[int]) -> list[bytes]:
    """Return the contents of commits, newest first, up to those that were cleaned up meanwhile."""
    try:
        return store.read_many([commit_file(version) for version in versions])
    except FileNotFoundError:
        contents = []
        for version in versions:
            try:
                contents.append(store.read(commit_file(version)))
            except FileNotFoundError:  # older ones are gone as well
                break
        return contents


def _newest_run(versions: list[int]) -> list[int]:
    """Return the contiguous versions at the end; those before a gap are left over from a cleanup."""
    start = max(len(versions) - 1, 0)
    while start > 0 and versions[start - 1] == versions[start] - 1:
        start -= 1
    return versions[start:]
