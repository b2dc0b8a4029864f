"""Whether a transaction may still commit after others have taken the versions it wanted (Delta's ``ConflictChecker``).

Each winning commit is checked once, in ascending order; the first check that fails decides the exception. The cost grows with the
winning commits, not with the table. What winners require (row ids, timestamps, adopted metadata) is folded into the transaction,
and its actions are updated once for all winners found together.

What a winner's protocol, or dropping a feature ourselves, means for a transaction (Delta's protocol check).

Metadata domains that two transactions both write (Delta's check of domain metadata).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.delta_names import CLUSTERING_DOMAIN, ROW_TRACKING_DOMAIN
from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaAnalysisException,
    DeltaConcurrentModificationException,
    DeltaIllegalStateException,
    FeatureDropConflictException,
    MetadataChangedException,
    ProtocolChangedException,
)
from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata, Protocol, RemoveFile
from airflow_delta.log.actions.decode import timestamp_of_info
from airflow_delta.log.features import clustering
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.errors import BEGIN_AGAIN, conflict, describe_winner
from airflow_delta.transaction.conflicts.file_conflicts import BACKFILLS, FileConflicts
from airflow_delta.transaction.conflicts.metadata import check_winner_metadata
from airflow_delta.transaction.conflicts.resolution import Resolution
from airflow_delta.transaction.conflicts.winning_commit import (
    ADD_KEY,
    DOMAIN_KEY,
    METADATA_KEY,
    PROTOCOL_KEY,
    REMOVE_KEY,
    TXN_KEY,
    WinningCommit,
)
from airflow_delta.transaction.operation_kinds import COMPACTIONS, operation_kind
from airflow_delta.transaction.prepare import commit_info as in_commit_timestamps
from airflow_delta.transaction.prepare import feature_drop, row_tracking
from airflow_delta.transaction.prepare.checks import REPLACES
from airflow_delta.transaction.prepare.isolation import IsolationLevel
from airflow_delta.transaction.reads.app_ids import LOOKED_UP, START_OVER

if TYPE_CHECKING:
    from airflow_delta.log.schema.types import Path
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit


def _catalog(current: CurrentTransaction) -> str | None:
    """Return the table if its catalog decides on its versions: the transaction could not have begun otherwise than through it."""
    return current.table if table_protocol.CATALOG_MANAGED in table_protocol.features(current.protocol) else None


def check_protocol(current: CurrentTransaction, winner: WinningCommit, *, has_protocol: bool) -> None:
    """Check a winning commit that sets the protocol, and adopt it if it is acceptable.

    :param has_protocol: the transaction sets the protocol too.
    :raises ProtocolChangedException: if it is not acceptable.
    :raises DeltaUnsupportedTableFeatureException: if this provider can no longer read the table.
    """
    protocol = winner.protocol
    if protocol is None:
        return
    table_protocol.check_can_read(protocol, winner.table, winner.version, catalog=_catalog(current))
    if has_protocol:
        hint = (
            " Two writers created the table at the same time: create it before tasks write to it in parallel."
            if winner.version == 0
            else ""
        )
        raise _changed(
            current,
            winner,
            "The protocol was changed by a concurrent update while this transaction sets it too",
            BEGIN_AGAIN + hint,
        )
    read = table_protocol.features(current.read_protocol or current.protocol)
    new = table_protocol.features(protocol)
    if read - new:
        raise _changed(current, winner, f"A concurrent update dropped the table features {', '.join(sorted(read - new))}")
    strict = sorted(name for name in new - read if _has_rules_for_every_write(name))
    if strict and current.options.enforce_concurrent_feature_enablement:
        what = f"A concurrent update added the table features {', '.join(strict)}, which have rules for every write"
        raise _changed(current, winner, what)
    current.protocol = protocol


def _has_rules_for_every_write(feature: str) -> bool:
    known = table_protocol.FEATURES.get(feature)
    return known is None or known.fail_concurrent_transactions_at_upgrade


def check_own_drop(current: CurrentTransaction, winner: WinningCommit) -> None:
    """Check again, on the table as a winning commit left it, that the feature which the transaction drops is not in use.

    :raises FeatureDropConflictException: if it is, or more than one is dropped.
    """
    if current.read_protocol is None or not any(isinstance(action, Protocol) for action in current.own_actions):
        return
    dropped = feature_drop.dropped(current.read_protocol, current.protocol)
    if not dropped:
        return
    if row_tracking.FEATURE in dropped:
        current.replace_actions(row_tracking.unbackfilled(current.own_actions, winner.added_files, winner.touched))
        current.forgotten |= winner.touched
    else:
        in_use = feature_drop.obstacle(dropped, current.snapshot_at(winner.version))
        if in_use is not None:
            raise winner.error(
                FeatureDropConflictException,
                f"The table feature {', '.join(sorted(dropped))} cannot be dropped from table {current.table}: {in_use}, since "
                f"{describe_winner(winner)}. This transaction read version {current.read_version} and committed nothing. "
                "Remove what uses the feature, and drop it in a new transaction.",
            )
    if feature_drop.needs_history_protection(current.protocol, dropped):
        current.replace_metadata(feature_drop.with_history_protection(current.metadata, winner.version + 1))


def _changed(
    current: CurrentTransaction, winner: WinningCommit, what: str, advice: str = BEGIN_AGAIN
) -> ProtocolChangedException:
    return conflict(ProtocolChangedException, winner, what, advice, current=current)


_GOES_WITH_THE_TABLE = frozenset({CLUSTERING_DOMAIN})
"""Domains that a REPLACE TABLE removes along with the table that it replaces."""


def check_winner_domains(current: CurrentTransaction, winner: WinningCommit) -> None:
    """Check the domains of a winning commit; a REPLACE TABLE removes those that it must not inherit.

    :raises ConcurrentTransactionException: if both write the same domain.
    :raises MetadataChangedException: if the winner clusters the table by a column that this transaction drops, or by other ones
        than this transaction has clustered files by.
    """
    if "domainMetadata" not in table_protocol.features(current.protocol):
        return
    own = {action.domain for action in current.own_actions if isinstance(action, DomainMetadata)}
    common = sorted(own.intersection(winner.domains) - {ROW_TRACKING_DOMAIN})
    if common:
        raise conflict(
            ConcurrentTransactionException,
            winner,
            f"The domain metadata {', '.join(common)} was written by a concurrent update and by this transaction",
            current=current,
        )
    if current.operation not in REPLACES:
        _check_clustering(current, winner)
    elif current.options.replace_removes_new_domains:
        tombstones = [
            msgspec.structs.replace(domain, removed=True)
            for domain in winner.domain_metadata
            if domain.domain in _GOES_WITH_THE_TABLE and not domain.removed
        ]
        if tombstones:
            others: list[Action] = [action for action in current.own_actions if not isinstance(action, DomainMetadata)]
            domains = [action for action in current.own_actions if isinstance(action, DomainMetadata)]
            current.replace_actions([*others, *domains, *tombstones])


def _check_clustering(current: CurrentTransaction, winner: WinningCommit) -> None:
    domains = {domain.domain: domain for domain in winner.domain_metadata if domain.domain == CLUSTERING_DOMAIN}
    if not domains:
        return
    columns = clustering.clustering_columns(domains)
    if _clusters_by_others(current, columns):
        raise conflict(
            MetadataChangedException,
            winner,
            "The clustering columns were changed by a concurrent update, and this transaction has clustered files by the former "
            "ones",
            current=current,
        )
    metadata = next((action for action in current.own_actions if isinstance(action, Metadata)), None)
    if metadata is None:
        return
    try:
        clustering.check_clustering(metadata, columns)
    except DeltaAnalysisException as error:
        raise conflict(
            MetadataChangedException,
            winner,
            f"The clustering columns were changed by a concurrent update and do not fit this transaction ({error.message})",
            current=current,
        ) from error


def _clusters_by_others(current: CurrentTransaction, columns: Sequence[Path]) -> bool:
    """Tell whether files that the transaction has clustered, whatever else it does, name other columns than these."""
    if operation_kind(current.operation).in_place:
        return False
    # A file whose rows are marked is both removed and added, and stays in its cube.
    removed = {action.path for action in current.own_actions if isinstance(action, RemoveFile)}
    new = (action for action in current.own_actions if isinstance(action, AddFile) and action.path not in removed)
    cubes = (clustering.cube_of(action.tags) for action in new if action.clustering_provider is not None)
    schema = TableDefinition.of(current.metadata).schema
    names = tuple(map(clustering.quoted_path, clustering.logical_columns(schema, columns)))
    return any(cube is not None and cube.columns != names for cube in cubes)


__all__ = ["ConflictChecker", "CurrentTransaction"]


class ConflictChecker:
    """Checks winning commits against one transaction.

    :param modification_time: returns the time of a winner's file in milliseconds, for a winner without a timestamp of its own.
    :param resolution: decides by bounds and rows what partition values and paths leave as a conflict; ``None``: they decide.
    """

    def __init__(
        self, current: CurrentTransaction, modification_time: Callable[[int], int], resolution: Resolution | None = None
    ) -> None:
        self.current = current
        self._modification_time = modification_time
        self._resolution = resolution
        self._files = FileConflicts(current, resolution)
        self._is_backfill = current.operation in BACKFILLS
        self._had_files = any(isinstance(action, AddFile | RemoveFile) for action in current.own_actions)
        self._checks_adds = (
            not current.is_blind_append
            and not self._is_backfill
            and current.isolation_level is not IsolationLevel.SNAPSHOT_ISOLATION
        )
        self._look_at_actions()

    def _look_at_actions(self) -> None:
        actions = self._seen = self.current.own_actions
        self._has_metadata = any(isinstance(action, Metadata) for action in actions)
        self._has_protocol = any(isinstance(action, Protocol) for action in actions)
        removes = {action.path: action.partition_values for action in actions if isinstance(action, RemoveFile)}
        self._files.look(removes)
        reads = self.current.reads
        self._checks_removes = reads.has_files or reads.whole_table or bool(removes)

    def begin(self, winners: Sequence[WinningCommit]) -> None:
        """Begin a batch of winners, so that the files that were read are searched once for all of them."""
        self._files.begin(winners)

    def check(self, winner: WinningCommit) -> None:
        """Check one winning commit of the batch; call once for each, in ascending order."""
        changes_table = winner.may_hold(PROTOCOL_KEY) | winner.may_hold(METADATA_KEY)
        if changes_table:
            check_protocol(self.current, winner, has_protocol=self._has_protocol)
        if self._has_protocol:
            check_own_drop(self.current, winner)
        if changes_table:
            check_winner_metadata(self.current, winner, has_metadata=self._has_metadata)
        if winner.may_hold(DOMAIN_KEY):
            check_winner_domains(self.current, winner)
        if (self.current.reads.app_ids or self.current.reads.app_id_rules) and winner.may_hold(TXN_KEY):
            self._check_app_ids(winner)
        if row_tracking.is_supported(self.current.protocol):
            self._fold_row_tracking(winner)
        self.check_files(winner)
        if in_commit_timestamps.uses_in_commit_timestamps(self.current.metadata):
            self._fold_timestamp(winner)
        if changes_table and (winner.protocol is not None or winner.metadata):
            # The provider must still be able to write the table with what was adopted.
            table_protocol.check_can_write(
                self.current.protocol, self.current.metadata, winner.table, winner.version, catalog=_catalog(self.current)
            )
        if self.current.own_actions is not self._seen:
            self._look_at_actions()

    def check_files(self, winner: WinningCommit) -> None:
        """Check only the files of a winner of the batch: stages of the same transaction have nothing else."""
        if self._checks_adds and winner.may_hold(ADD_KEY):
            self._files.check_added(winner)
        if self._checks_removes and winner.may_hold(REMOVE_KEY):
            self._files.check_removed(winner)
        self._files.note_added(winner)

    def rebase(self, version: int) -> bool:
        """Update the transaction after a batch of winners; tell whether its log entry has changed.

        :param version: version that it tries next.
        """
        current = self.current
        seen, info = current.actions, current.commit_info
        if self._resolution is not None:
            self._resolution.apply()
            self._look_at_actions()
        changed = current.rebase(version) or current.commit_info is not info
        if current.actions is not seen:
            current.validate(current.actions)
        return changed

    @property
    def has_nothing_left(self) -> bool:
        """Whether a compaction has left out every file, so that there is nothing to commit."""
        moved = self.current.operation in COMPACTIONS and self._had_files
        return moved and all(isinstance(action, DomainMetadata) for action in self.current.own_actions)

    def _fail(
        self,
        kind: type[DeltaConcurrentModificationException],
        winner: WinningCommit,
        what: str,
        advice: str = BEGIN_AGAIN,
    ) -> DeltaConcurrentModificationException:
        return conflict(kind, winner, what, advice, current=self.current)

    def _check_app_ids(self, winner: WinningCommit) -> None:
        read = self.current.reads.app_ids
        if common := sorted(read.keys() & winner.app_ids):
            kinds = {read[app_id] for app_id in common}
            conflict = kinds.pop() if len(kinds) == 1 else LOOKED_UP
            what = conflict.what.format(app_ids=", ".join(common))
            raise self._fail(ConcurrentTransactionException, winner, what, conflict.advice)
        for rule in self.current.reads.app_id_rules:
            why = rule({txn.app_id: txn.version for txn in winner.set_transactions})
            if why is not None:
                raise self._fail(ConcurrentTransactionException, winner, why, f"{START_OVER} is told what the table has by then.")

    # -- what is folded into the transaction -----------------------------------------------------------------------------------

    def _fold_row_tracking(self, winner: WinningCommit) -> None:
        current = self.current
        if current.operation == row_tracking.BACKFILL:
            touched = winner.touched
            if touched:
                current.replace_actions(row_tracking.without_touched(current.own_actions, touched, table=current.table))
                current.forgotten |= touched
        if winner.operation == row_tracking.BACKFILL:
            if current.operation == row_tracking.UNBACKFILL:
                raise winner.error(
                    DeltaIllegalStateException,
                    f"Row tracking is being enabled and dropped on table {current.table} at the same time: version "
                    f"{winner.version} is a {row_tracking.BACKFILL} (DELTA_ROW_TRACKING_BACKFILL_RUNNING_CONCURRENTLY_WITH_"
                    "UNBACKFILL). Drop the feature again once that is done.",
                )
            backfilled: dict[str, AddFile] = {file.path: file for file in winner.added_files}
            current.replace_actions(row_tracking.with_backfilled(current.own_actions, backfilled))
        elif current.operation == row_tracking.UNBACKFILL:
            current.replace_actions(row_tracking.unbackfilled(current.own_actions, winner.added_files, winner.touched))
            current.forgotten |= winner.touched
        if winner.may_hold(DOMAIN_KEY):
            for domain in winner.domain_metadata:
                if domain.domain == ROW_TRACKING_DOMAIN:
                    current.winning_high_water_mark = row_tracking.mark_of(domain, table=current.table)

    def _fold_timestamp(self, winner: WinningCommit) -> None:
        current = self.current
        winning = winner.in_commit_timestamp
        if winning is None and in_commit_timestamps.uses_in_commit_timestamps(current.read_metadata):
            winning = timestamp_of_info(winner.version, winner.commit_info or None, table=winner.table)  # which refuses
        if winning is None:
            winning = winner.modification_time
        if winning is None:
            winning = self._modification_time(winner.version)
        own = current.in_commit_timestamp
        if own is None:  # a winner has enabled timestamps
            own = current.commit_info.timestamp or 0
        current.in_commit_timestamp = in_commit_timestamps.rebase_timestamp(own, winning)
