"""What a commit did, read from its JSON: for sensors, triggers, the plugin's pages and the command line.

The cost depends on the commit, never on the table: neither a checkpoint nor the list of files is read. Only for a commit with an
in-commit timestamp, the table's metadata must tell whether that is its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_delta.contract.check_records import CheckRecords, checks_of
from airflow_delta.exceptions import VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, CommitInfo, RemoveFile
from airflow_delta.log.actions.decode import CommitFile, CommitHead, DecodedCommit, decode_commit
from airflow_delta.log.segment.segment import list_log
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.log.storage.file_names import LOG_DIRECTORY, commit_file, commit_version, version_prefix
from airflow_delta.log.time_travel import first_recorded_version, monotonic_timestamps

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus


MAX_PARTITIONS = 100
"""Partitions that a summary lists; ``num_partitions`` counts all of them."""

_CHUNK = 64
_ASKED_ONE_BY_ONE = 2
_LISTED_AS_CHEAPLY = 300
"""Versions (of a few files each) that a store lists at the cost of one file lookup."""
_NO_INFO = CommitInfo()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSummary:
    """What one commit did.

    :param timestamp: milliseconds since the epoch, as ``DeltaLog.history`` gives it: the in-commit timestamp if the table has
        them, else the file's time, or ``commitInfo.timestamp`` if the store does not tell it.
    :param tags: ``commitInfo.tags``; those that begin with ``airflow.`` name the Airflow run.
    :param app_transactions: version by application id, from the ``txn`` actions.
    :param num_records: rows of the added files by their statistics, without deleted rows; ``None`` if a file lacks them.
    :param data_change: rows changed; ``False`` for OPTIMIZE or ALTER.
    :param partitions: partitions of the added and removed files (serialised values by physical name), at most 100.
    :param changes_metadata: the commit holds ``metaData``: schema, partitioning or properties.
    :param changes_protocol: the commit holds ``protocol``.
    """

    version: int
    timestamp: int
    operation: str | None
    operation_parameters: Mapping[str, Any]
    operation_metrics: Mapping[str, str]
    read_version: int | None
    isolation_level: str | None
    is_blind_append: bool | None
    engine_info: str | None
    user_metadata: str | None
    txn_id: str | None
    tags: Mapping[str, str]
    app_transactions: Mapping[str, int]
    num_added_files: int
    num_removed_files: int
    bytes_added: int
    bytes_removed: int
    num_records: int | None
    data_change: bool
    num_partitions: int
    partitions: tuple[Mapping[str, str | None], ...]
    changes_metadata: bool
    changes_protocol: bool

    @property
    def checks(self) -> CheckRecords | None:
        """What was checked between stages and commit; ``None`` if the commit does not say."""
        return checks_of(self.tags)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "partitions": [dict(partition) for partition in self.partitions]}


class Observation(NamedTuple):
    """A commit with all of its partitions.

    :param partitions: all partitions that it touched; ``None`` means a file whose partition is not in the commit.
    """

    summary: CommitSummary
    partitions: tuple[Mapping[str, str | None] | None, ...]


def commit_summary(log: DeltaLog, version: int) -> CommitSummary:
    """Return what a version did."""
    return observe(log, version).summary


def commits_after(log: DeltaLog, version: int, *, limit: int = 1000) -> list[CommitSummary]:
    """Return what the commits after a version did, oldest first; empty if there are none, or no table.

    :param version: -1 means from the first commit on.
    :param limit: maximum number of commits; the oldest ones.
    :raises VersionNotFoundException: if the first of them was cleaned up, so not all of them are known; its
        ``earliest`` is the first commit that the log still holds.
    """
    return [observation.summary for observation in observe_after(log, version, limit=limit)]


def recent_commits(log: DeltaLog, limit: int = 20, *, before: int | None = None) -> list[CommitSummary]:
    """Return what the latest commits did, newest first, as far back as the log goes; empty if there is no table.

    :param limit: maximum number of commits.
    :param before: only versions below this one, for the next page.
    """
    latest = log.update().version
    newest = latest if before is None else min(latest, before - 1)
    found: list[CommitSummary] = []
    while newest >= 0 and len(found) < limit:
        lowest = max(newest - min(limit - len(found), _CHUNK) + 1, 0)
        commits = _read_back(log, range(lowest, newest + 1))
        found.extend(observation.summary for observation in reversed(_observe(log, commits)))
        if len(commits) <= newest - lowest:
            break
        newest = lowest - 1
    return found


def observe(log: DeltaLog, version: int) -> Observation:
    """Return what a version did, with all partitions that it touched.

    :raises VersionNotFoundException: if the log does not hold its commit yet, or no longer does.
    """
    if version >= 0:
        try:
            return _observe(log, [CommitFile(version, log.read_commit(version))])[0]
        except FileNotFoundError:
            pass
    raise _not_found(log, version)


def observe_after(log: DeltaLog, version: int, *, limit: int = 1000) -> list[Observation]:
    """Return what :func:`commits_after` returns, with all partitions that each commit touched."""
    latest = log.update().version
    end = min(latest, version + limit)
    found: list[Observation] = []
    for start in range(version + 1, end + 1, _CHUNK):
        versions = range(start, min(start + _CHUNK, end + 1))
        try:
            commits = log.read_commit_range(versions)
        except VersionsNotContiguousException:
            commits = _read_forward(log, versions)
        found.extend(_observe(log, commits))
        if len(commits) < len(versions):
            if not found:
                raise _not_found(log, version + 1)
            break  # the caller gets what there is; asking for more raises
    return found


def _read_forward(log: DeltaLog, versions: range) -> list[CommitFile]:
    commits = []
    for version in versions:
        try:
            commits.append(CommitFile(version, log.read_commit(version)))
        except FileNotFoundError:
            break
    return commits


def _read_back(log: DeltaLog, versions: range) -> list[CommitFile]:
    """Return the commits that have not been cleaned up, oldest first."""
    try:
        return log.read_commit_range(versions)
    except VersionsNotContiguousException:
        commits = []
        for version in reversed(versions):
            try:
                commits.append(CommitFile(version, log.read_commit(version)))
            except FileNotFoundError:  # older ones are gone too
                break
        return commits[::-1]


def observe_files(log: DeltaLog, files: Sequence[CommitFile], *, light: bool = False) -> list[Observation]:
    """Return what commits did that are already read, in the given order.

    :param files: oldest first.
    :param light: trust every in-commit timestamp instead of reading since when they count from the metadata.
    """
    return _observe(log, files, light=light)


def commit_statuses(log: DeltaLog, wanted: range) -> dict[int, FileStatus]:
    """Return the sizes and times of the commit files of some versions, if the log holds them."""
    statuses: Iterable[FileStatus | None]
    far = len(wanted) > _ASKED_ONE_BY_ONE and log.snapshot.version - wanted.stop > _LISTED_AS_CHEAPLY * len(wanted)
    if log.store.probes or len(wanted) <= _ASKED_ONE_BY_ONE or far:  # a listing continues to the end of the log
        statuses = (log.store.head(commit_file(version)) for version in wanted)
    else:
        statuses = log.store.list_from(LOG_DIRECTORY, version_prefix(wanted.start), stat=False)
    return {
        version: status
        for status in statuses
        if status is not None and (version := commit_version(status.name)) is not None and version in wanted
    }


def _observe(log: DeltaLog, files: Sequence[CommitFile], *, light: bool = False) -> list[Observation]:
    """Return what commits did, in the given order."""
    observed: list[Observation] = []
    recorded: list[int | None] = []
    for file in files:  # one by one: the actions of many large commits are not kept together
        commit = decode_commit(file.version, file.data, table=log.uri)
        observed.append(_observation(commit))
        recorded.append(CommitHead.of(commit.commit_info).in_commit_timestamp)
    first: int | None = None
    if any(timestamp is not None for timestamp in recorded):
        # Only then can times be in the commits; reading the metadata can mean opening a checkpoint.
        first = 0 if light else first_recorded_version(log.snapshot)
    by_file = [
        file.version
        for file, timestamp in zip(files, recorded, strict=True)
        if first is None or timestamp is None or file.version < first
    ]
    times = _file_times(log, by_file)
    return [
        observation._replace(summary=replace(observation.summary, timestamp=time)) if time is not None else observation
        for observation, timestamp in zip(observed, recorded, strict=True)
        for time in (times.get(observation.summary.version, timestamp),)
    ]


def _file_times(log: DeltaLog, versions: Sequence[int]) -> Mapping[int, int]:
    """Return the times of commit files, each later than the one before, including that before the first."""
    if not versions:
        return {}
    found = commit_statuses(log, range(max(versions[0] - 1, 0), versions[-1] + 1))
    return monotonic_timestamps(log, sorted(found), found.values())


def _observation(commit: DecodedCommit) -> Observation:
    """Return what a commit says, with the time that its writer noted."""
    info = CommitInfo.from_mapping(commit.commit_info) if commit.commit_info else _NO_INFO
    touched: dict[tuple[tuple[str, str | None], ...] | None, Mapping[str, str | None] | None] = {}
    files: list[AddFile | RemoveFile] = [*commit.adds, *commit.removes]
    for file in files:
        values = file.partition_values
        touched.setdefault(None if values is None else tuple(sorted(values.items())), values)
    known = [values for values in touched.values() if values]
    rows = [live_records(add) for add in commit.adds]
    summary = CommitSummary(
        version=commit.version,
        timestamp=info.timestamp or 0,
        operation=info.operation,
        operation_parameters=dict(info.operation_parameters or {}),
        operation_metrics={name: str(value) for name, value in (info.operation_metrics or {}).items()},
        read_version=info.read_version,
        isolation_level=info.isolation_level,
        is_blind_append=info.is_blind_append,
        engine_info=info.engine_info,
        user_metadata=info.user_metadata,
        txn_id=info.txn_id,
        tags={name: str(value) for name, value in (info.tags or {}).items()},
        app_transactions={txn.app_id: txn.version for txn in commit.txns},
        num_added_files=len(commit.adds),
        num_removed_files=len(commit.removes),
        bytes_added=sum(add.size for add in commit.adds),
        bytes_removed=sum(remove.size or 0 for remove in commit.removes),
        num_records=None if None in rows else sum(count or 0 for count in rows),
        data_change=any(file.data_change for file in files),
        num_partitions=len(known),
        partitions=tuple(known[:MAX_PARTITIONS]),
        changes_metadata=bool(commit.metadata),
        changes_protocol=bool(commit.protocol),
    )
    return Observation(summary, tuple(touched.values()))


def _not_found(log: DeltaLog, version: int) -> VersionNotFoundException:
    latest = log.update().version
    if latest < 0:
        message = f"There is no version {version} at {log.uri}: no table is there (yet)."
        return log.error(VersionNotFoundException, message, version=version)
    commits = list_log(log.store).commits
    # What is left after a gap in the log: callers that continue from there must not return to the gap.
    earliest = min((found for found in commits if found > version), default=min(commits, default=None))
    if version > latest:
        message = f"Table {log.uri} has no version {version} yet; its latest is {latest}. Wait for it, or ask for an earlier one."
    elif version < 0:
        message = f"There is no version {version} of table {log.uri}: versions begin at 0."
    else:
        held = f"it holds those of versions {earliest} to {latest}" if earliest is not None else f"version {latest} is the latest"
        message = (
            f"The commit of version {version} of table {log.uri} has been cleaned up from its log; {held}. What it did is no "
            "longer known. Keep the log longer with the table property delta.logRetentionDuration."
        )
    return log.error(VersionNotFoundException, message, earliest=earliest, latest=latest, version=version)
