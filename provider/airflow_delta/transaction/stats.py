"""Facts about one commit, as a structured log event (Delta's ``CommitStats``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_delta.log.actions import Action, AddCDCFile, AddFile, RemoveFile, SetTransaction
from airflow_delta.transaction.policy import CommitOutcome
from airflow_delta.transaction.prepare import PreparedCommit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitStats:
    """What a commit did and what it cost.

    :param start_version: version that the transaction read.
    :param txn_duration_ms: from the start of the transaction to the durable commit.
    :param commit_duration_ms: of which the commit loop took.
    :param fs_write_duration_ms: of which the put that won took.
    """

    start_version: int
    commit_version: int
    txn_id: str
    operation: str
    isolation_level: str
    attempts: int
    versions_checked: int
    recognised: bool
    num_add: int
    num_remove: int
    num_cdc_files: int
    num_set_transaction: int
    bytes_new: int
    num_absolute_paths_in_add: int
    num_distinct_partitions_in_add: int
    num_partition_columns_in_table: int
    commit_size_bytes: int
    new_metadata: bool
    txn_duration_ms: int
    commit_duration_ms: int
    fs_write_duration_ms: int

    @classmethod
    def of(
        cls,
        outcome: CommitOutcome,
        actions: Sequence[Action],
        prepared: PreparedCommit,
        *,
        start_version: int,
        size: int,
        txn_seconds: float,
        write_seconds: float,
    ) -> CommitStats:
        """Return the facts about one commit.

        :param actions: what was committed, without ``commitInfo``.
        :param size: bytes of the log entry.
        """
        adds = [action for action in actions if isinstance(action, AddFile)]
        info = outcome.commit_info
        return cls(
            start_version=start_version,
            commit_version=outcome.version,
            txn_id=info.txn_id or "",
            operation=info.operation or "",
            isolation_level=info.isolation_level or "",
            attempts=outcome.attempts,
            versions_checked=outcome.versions_checked,
            recognised=outcome.recognised,
            num_add=len(adds),
            num_remove=sum(isinstance(action, RemoveFile) for action in actions),
            num_cdc_files=sum(isinstance(action, AddCDCFile) for action in actions),
            num_set_transaction=sum(isinstance(action, SetTransaction) for action in actions),
            bytes_new=sum(add.size for add in adds if add.data_change),
            num_absolute_paths_in_add=sum(":/" in add.path or add.path.startswith("/") for add in adds),
            num_distinct_partitions_in_add=len({frozenset(add.partition_values.items()) for add in adds}),
            num_partition_columns_in_table=len(prepared.metadata.partition_columns),
            commit_size_bytes=size,
            new_metadata=prepared.new_metadata is not None,
            txn_duration_ms=int(txn_seconds * 1000),
            commit_duration_ms=int(outcome.elapsed * 1000),
            fs_write_duration_ms=int(write_seconds * 1000),
        )

    @staticmethod
    def enabled() -> bool:
        """Tell whether anybody listens."""
        return logger.isEnabledFor(logging.DEBUG)

    def record(self) -> None:
        """Log the event; handlers find the fields in the record's ``commit_stats``."""
        fields: dict[str, Any] = asdict(self)
        logger.debug("CommitStats %s", fields, extra={"commit_stats": fields})
