"""Whether a transaction may still be committed after others have taken the versions it wanted (Delta's ``ConflictChecker``).

Each winning commit is checked once, in ascending order; the first check that fails decides the exception. The cost follows the
winning commits, never the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from airflow_delta.log import protocol as table_protocol
from airflow_delta.log.actions import Action, DomainMetadata, Metadata, Protocol, RemoveFile
from airflow_delta.transaction.conflict_errors import BEGIN_AGAIN, conflict, partition_hint
from airflow_delta.transaction.conflict_metadata import intolerable_change
from airflow_delta.transaction.isolation import IsolationLevel
from airflow_delta.transaction.read_tracking import ReadSet
from airflow_delta.transaction.winning_commit import (
    ADD_KEY,
    DOMAIN_KEY,
    METADATA_KEY,
    PROTOCOL_KEY,
    REMOVE_KEY,
    TXN_KEY,
    WinningCommit,
)

_ROW_TRACKING_DOMAIN = "delta.rowTracking"
_BACKFILLS = ("ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL")

_NARROW = (
    "Transactions on disjoint partitions do not conflict: let the predicate of an overwrite, a delete or a read name the "
    "partition columns."
)


@dataclass(slots=True)
class CurrentTransaction:
    """What the checks need to know of the transaction that wants to commit; metadata and protocol are folded forward.

    :param partition_columns: at the version that was read.
    :param actions: prepared actions, without ``commitInfo``.
    """

    table: str
    read_version: int
    reads: ReadSet
    metadata: Metadata
    protocol: Protocol
    partition_columns: Sequence[str]
    actions: Sequence[Action]
    is_blind_append: bool
    isolation_level: IsolationLevel


class ConflictChecker:
    """Checks winning commits against one transaction."""

    def __init__(self, current: CurrentTransaction) -> None:
        self.current = current
        self._has_metadata = any(isinstance(action, Metadata) for action in current.actions)
        self._has_protocol = any(isinstance(action, Protocol) for action in current.actions)
        self._domains = {action.domain for action in current.actions if isinstance(action, DomainMetadata)}
        self._removes = {action.path for action in current.actions if isinstance(action, RemoveFile)}
        self._checks_adds = not current.is_blind_append and current.isolation_level is not IsolationLevel.SNAPSHOT_ISOLATION
        self._checks_removes = current.reads.has_files or current.reads.whole_table or bool(self._removes)
        self._batch: Sequence[WinningCommit] = ()
        self._read_and_removed: set[str] | None = None

    def begin(self, winners: Sequence[WinningCommit]) -> None:
        """Take a batch of winners, so that the files that were read are searched once for all of them."""
        self._batch = winners
        self._read_and_removed = None

    def check(self, winner: WinningCommit) -> None:
        """Check one winning commit of the batch; each once, in ascending order.

        :raises DeltaConcurrentModificationException: this transaction cannot be serialised after it.
        :raises DeltaUnsupportedTableFeatureException: the winner raised the protocol beyond what this provider can write.
        """
        changes_table = winner.may_hold(PROTOCOL_KEY) | winner.may_hold(METADATA_KEY)
        if changes_table:
            self._check_protocol(winner)
            self._check_metadata(winner)
        if self._domains and winner.may_hold(DOMAIN_KEY):
            self._check_domains(winner)
        if self.current.reads.app_ids and winner.may_hold(TXN_KEY):
            self._check_app_ids(winner)
        if self._checks_adds and winner.may_hold(ADD_KEY):
            self._check_added(winner)
        if self._checks_removes and winner.may_hold(REMOVE_KEY):
            self._check_removed(winner)
        if changes_table and (winner.protocol is not None or winner.metadata):
            # What was adopted must still be a table that this provider can write.
            table_protocol.check_can_write(self.current.protocol, self.current.metadata, winner.table, winner.version)

    def _fail(
        self,
        kind: type[DeltaConcurrentModificationException],
        winner: WinningCommit,
        what: str,
        advice: str = BEGIN_AGAIN,
        partition: str | None = None,
    ) -> DeltaConcurrentModificationException:
        return conflict(kind, winner, what, advice, read_version=self.current.read_version, partition=partition)

    def _check_protocol(self, winner: WinningCommit) -> None:
        protocol = winner.protocol
        if protocol is None:
            return
        current = self.current
        table_protocol.check_can_read(protocol, winner.table, winner.version)
        if self._has_protocol:
            hint = (
                " Two writers created the table at once: create it before tasks write to it in parallel."
                if winner.version == 0
                else ""
            )
            raise self._fail(
                ProtocolChangedException,
                winner,
                "The protocol was changed by a concurrent update while this transaction sets it too",
                BEGIN_AGAIN + hint,
            )
        dropped = table_protocol.features(current.protocol) - table_protocol.features(protocol)
        if dropped:
            names = ", ".join(sorted(dropped))
            raise self._fail(ProtocolChangedException, winner, f"A concurrent update dropped the table features {names}")
        current.protocol = protocol

    def _check_metadata(self, winner: WinningCommit) -> None:
        found = winner.metadata
        if not found:
            return
        current = self.current
        if self._has_metadata:
            raise self._fail(
                MetadataChangedException,
                winner,
                "The metadata was changed by a concurrent update while this transaction changes it too",
            )
        tags = winner.commit_info.get("tags")
        if isinstance(tags, dict) and tags.get("delta.identity.schemaUpdate") == "true":
            return
        what = intolerable_change(current.metadata, found[0], current.protocol)
        if what is not None:
            raise self._fail(MetadataChangedException, winner, f"A concurrent update changed {what}")
        current.metadata = found[0]

    def _check_domains(self, winner: WinningCommit) -> None:
        if "domainMetadata" not in table_protocol.features(self.current.protocol):
            return
        common = sorted(self._domains.intersection(winner.domains) - {_ROW_TRACKING_DOMAIN})
        if common:
            raise self._fail(
                ConcurrentTransactionException,
                winner,
                f"The domain metadata {', '.join(common)} was written by a concurrent update and by this transaction",
            )

    def _check_app_ids(self, winner: WinningCommit) -> None:
        common = sorted(self.current.reads.app_ids.intersection(winner.app_ids))
        if common:
            raise self._fail(
                ConcurrentTransactionException,
                winner,
                f"The application transaction {', '.join(common)}, whose version this transaction looked up, was written by a "
                "concurrent update",
                "What to do: nothing, if the other run did the same work; a new transaction will see it in the log and apply its "
                "rerun policy. Else give every concurrent run its own transaction key (appId).",
            )

    def _check_added(self, winner: WinningCommit) -> None:
        current = self.current
        if current.isolation_level is IsolationLevel.WRITE_SERIALIZABLE and not self._has_metadata and winner.is_blind_append:
            return
        for _path, values in winner.added:
            if self._should_have_read(values):
                if winner.commit_info.get("operation") in _BACKFILLS:
                    return
                hint = partition_hint(values, current.partition_columns)
                where = f"the partition {hint}" if hint else "the table"
                raise self._fail(
                    ConcurrentAppendException,
                    winner,
                    f"Files were added to {where} by a concurrent update, and this transaction should have read them (it read "
                    f"{current.reads.describe()})",
                    f"{BEGIN_AGAIN} {_NARROW}",
                    partition=hint,
                )

    def _should_have_read(self, partition_values: dict[str, str | None]) -> bool:
        reads = self.current.reads
        if reads.whole_table or not self.current.partition_columns:
            return True
        return any(predicate.covers(partition_values) for predicate in reads.predicates.values())

    def _check_removed(self, winner: WinningCommit) -> None:
        removed = winner.removed
        if not removed:
            return
        reads = self.current.reads
        values_of = dict(removed)
        read = self._read_files_removed_by_batch().intersection(values_of)
        if read or reads.whole_table:
            path = min(read) if read else None
            hint = partition_hint(values_of[path], self.current.partition_columns) if path is not None else None
            what = (
                f"A file in the partition {hint} that this transaction read ({path}) was removed by a concurrent update"
                if hint
                else f"A file that this transaction read ({path or 'it read the whole table'}) was removed by a concurrent update"
            )
            raise self._fail(ConcurrentDeleteReadException, winner, what, f"{BEGIN_AGAIN} {_NARROW}", partition=hint)
        self._check_deleted_twice(winner, values_of)

    def _read_files_removed_by_batch(self) -> set[str]:
        if self._read_and_removed is None:
            paths = {path for winner in self._batch if winner.may_hold(REMOVE_KEY) for path, _values in winner.removed}
            self._read_and_removed = self.current.reads.read_among(list(paths))
        return self._read_and_removed

    def _check_deleted_twice(self, winner: WinningCommit, removed: dict[str, dict[str, str | None]]) -> None:
        both = min(self._removes.intersection(removed), default=None)
        if both is not None:
            hint = partition_hint(removed[both], self.current.partition_columns)
            where = f" in the partition {hint}" if hint else ""
            raise self._fail(
                ConcurrentDeleteDeleteException,
                winner,
                f"A file{where} that this transaction removes ({both}) was removed by a concurrent update",
                f"{BEGIN_AGAIN} {_NARROW}",
                partition=hint,
            )
