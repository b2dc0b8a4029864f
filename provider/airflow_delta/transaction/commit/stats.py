"""Facts about one commit, as a structured event (Delta's ``CommitStats``, event ``delta.commit.stats``)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.exceptions import DeltaError
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import (
    Action,
    AddCDCFile,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from airflow_delta.log.checksum.histograms import FILE_SIZE_BINS
from airflow_delta.transaction import events
from airflow_delta.transaction.policy import CommitOutcome

if TYPE_CHECKING:
    from airflow_delta.log.checksum.totals import Totals
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction.prepare.prepare import PreparedCommit


EVENT = "delta.commit.stats"
UNKNOWN = -1
"""A number that would take more than the commit to find out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitStats:
    """What a commit did and what it cost; the event has Delta's field names.

    :param start_version: version that the transaction read.
    :param read_version: version of the log right after the commit.
    :param txn_duration_ms: from the start of the transaction to the durable commit.
    :param commit_duration_ms: the commit loop's share of it.
    :param fs_write_duration_ms: duration of the winning put.
    :param num_files_total: files of the table at ``read_version``; :data:`UNKNOWN` if no small file says. So is
        ``size_in_bytes_total``.
    :param total_commits_size_since_last_checkpoint: bytes of the commits after the checkpoint, as far as known.
    :param is_idempotent_retry: the log already held this transaction's commit.
    :param add_files_histogram: added files by size, in Delta's bins. So is ``remove_files_histogram``.
    :param versions_checked: winning commits that were checked for conflicts (ours, as is ``attempts``).
    """

    start_version: int
    commit_version: int
    read_version: int
    txn_duration_ms: int
    commit_duration_ms: int
    fs_write_duration_ms: int
    state_reconstruction_duration_ms: int
    num_add: int
    num_remove: int
    num_set_transaction: int
    bytes_new: int
    num_files_total: int
    size_in_bytes_total: int
    num_cdc_files: int
    cdc_bytes_new: int
    protocol: Protocol
    commit_size_bytes: int
    total_commits_size_since_last_checkpoint: int
    checkpoint_attempt: bool
    info: CommitInfo
    new_metadata: Metadata | None
    num_absolute_paths_in_add: int
    num_distinct_partitions_in_add: int
    num_partition_columns_in_table: int
    isolation_level: str
    add_files_histogram: Mapping[str, Any] | None
    remove_files_histogram: Mapping[str, Any] | None
    is_idempotent_retry: bool
    num_of_domain_metadatas: int
    txn_id: str
    attempts: int
    versions_checked: int

    @classmethod
    def of(
        cls,
        outcome: CommitOutcome,
        actions: Sequence[Action],
        prepared: PreparedCommit,
        log: DeltaLog,
        *,
        start_version: int,
        size: int,
        txn_seconds: float,
        write_seconds: float,
        checkpoint_attempt: bool,
    ) -> CommitStats:
        """Return the facts about one commit.

        :param actions: what was committed, without ``commitInfo``.
        :param size: bytes of the log entry.
        """
        adds = [action for action in actions if isinstance(action, AddFile)]
        removes = [action for action in actions if isinstance(action, RemoveFile)]
        cdc = [action for action in actions if isinstance(action, AddCDCFile)]
        info = outcome.commit_info
        snapshot = log.snapshot
        totals = _known_totals(snapshot)
        known = [status.size for version, status in snapshot.segment.statuses.items() if version <= snapshot.version]
        return cls(
            start_version=start_version,
            commit_version=outcome.version,
            read_version=snapshot.version,
            txn_duration_ms=int(txn_seconds * 1000),
            commit_duration_ms=int(outcome.elapsed * 1000),
            fs_write_duration_ms=int(write_seconds * 1000),
            state_reconstruction_duration_ms=0,
            num_add=len(adds),
            num_remove=len(removes),
            num_set_transaction=sum(isinstance(action, SetTransaction) for action in actions),
            bytes_new=sum(add.size for add in adds if add.data_change),
            num_files_total=totals.num_files if totals is not None else UNKNOWN,
            size_in_bytes_total=totals.size_in_bytes if totals is not None else UNKNOWN,
            num_cdc_files=len(cdc),
            cdc_bytes_new=sum(file.size for file in cdc),
            protocol=prepared.protocol,
            commit_size_bytes=size,
            total_commits_size_since_last_checkpoint=sum(size for size in known if size > 0),
            checkpoint_attempt=checkpoint_attempt,
            info=info,
            new_metadata=prepared.new_metadata,
            num_absolute_paths_in_add=sum(":/" in add.path or add.path.startswith("/") for add in adds),
            num_distinct_partitions_in_add=len({frozenset(add.partition_values.items()) for add in adds}),
            num_partition_columns_in_table=len(prepared.metadata.partition_columns),
            isolation_level=info.isolation_level or "",
            add_files_histogram=_histogram([add.size for add in adds]),
            remove_files_histogram=_histogram([remove.size or 0 for remove in removes]),
            is_idempotent_retry=outcome.recognised,
            num_of_domain_metadatas=sum(isinstance(action, DomainMetadata) for action in actions),
            txn_id=info.txn_id or "",
            attempts=outcome.attempts,
            versions_checked=outcome.versions_checked,
        )

    @staticmethod
    def enabled() -> bool:
        """Tell whether anybody listens for the event."""
        return events.enabled(name=EVENT)

    def as_event(self) -> dict[str, Any]:
        """Return the facts as JSON values under Delta's names."""
        return {_camel(field.name): msgspec.to_builtins(getattr(self, field.name)) for field in fields(self)}

    def record(self, table: str) -> None:
        """Record the event."""
        events.record_event(EVENT, table, self.as_event())


def _known_totals(snapshot: Snapshot) -> Totals | None:
    try:
        return snapshot.derived_totals()
    except (DeltaError, OSError):  # the commit is durable: a number for its event must not fail it
        return None


def _histogram(sizes: Sequence[int]) -> dict[str, Any] | None:
    if not sizes:
        return None
    counts, totals = [0] * len(FILE_SIZE_BINS), [0] * len(FILE_SIZE_BINS)
    for size in sizes:
        index = bisect_right(FILE_SIZE_BINS, max(size, 0)) - 1
        counts[index] += 1
        totals[index] += size
    return {"sortedBinBoundaries": list(FILE_SIZE_BINS), "fileCounts": counts, "totalBytes": totals}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
