"""VACUUM: delete files that the table, its readers and open transactions no longer need."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    VacuumRetentionPeriodTooShortException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.features import protocol
from airflow_delta.log.storage.table_paths import forget_links
from airflow_delta.table.operations.vacuum.delete import Found, delete, with_markers_last
from airflow_delta.table.operations.vacuum.inventory import files_in_inventory
from airflow_delta.table.operations.vacuum.last_look import LastLook
from airflow_delta.table.operations.vacuum.listing import Listing, all_parents, even_cuts, hidden_names, list_table, select_listed
from airflow_delta.table.operations.vacuum.staged_transactions import AbandonedTransaction, staged_transactions, transaction_of
from airflow_delta.table.operations.vacuum.valid_files import (
    committed_within,
    last_version_before,
    needs_commits,
    remember_vacuum,
    removed_files,
    valid_files,
)
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from airflow_delta.transaction.intents import IGNORE_INTENTS

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.read.read_table import Rows

logger = logging.getLogger(__name__)

HOUR = 3_600_000
TRANSACTION_TIMEOUT_HOURS = 7 * 24.0
"""Age of a transaction's newest file at which it counts as abandoned."""

_MAX_ABANDONED = 100


@dataclass(frozen=True)
class VacuumResult:
    """What VACUUM deleted, or would delete.

    :param version: version of the table whose files were kept.
    :param num_files: files deleted (``dry_run``: that would be).
    :param num_directories: empty directories deleted (``dry_run``: tried; those with hidden or recent files stay). A directory
        that this run empties goes with the next run.
    :param num_bytes: bytes of these files.
    :param num_live_transactions: staged transactions that may still be published; their files were not looked at.
    :param paths: files and directories, relative to the table root and not URL-encoded.
    :param abandoned: transactions that this run gave up (``dry_run``: would give up), with all that they staged.
    """

    table: str
    version: int
    mode: str
    dry_run: bool
    num_files: int
    num_directories: int
    num_bytes: int
    num_live_transactions: int
    paths: tuple[str, ...]
    abandoned: tuple[AbandonedTransaction, ...] = ()

    def to_dict(self, *, max_paths: int | None = None) -> dict[str, Any]:
        """Return it as JSON for XCom.

        :param max_paths: how many of the paths to keep; ``None``: all.
        """
        return {
            "table": self.table,
            "version": self.version,
            "mode": self.mode,
            "dryRun": self.dry_run,
            "numFiles": self.num_files,
            "numDirectories": self.num_directories,
            "numBytes": self.num_bytes,
            "numLiveTransactions": self.num_live_transactions,
            # A name that is not UTF-8 cannot be stored as JSON everywhere.
            "abandonedTransactions": [transaction.to_dict() for transaction in self.abandoned[:_MAX_ABANDONED]],
            "paths": [path.encode(errors="backslashreplace").decode() for path in self.paths[:max_paths]],
        }


def vacuum(
    log: DeltaLog,
    *,
    retention_hours: float | None = None,
    retention_check: bool = True,
    lite: bool = False,
    inventory: pa.Table | Rows | None = None,
    dry_run: bool = False,
    transaction_timeout_hours: float = TRANSACTION_TIMEOUT_HOURS,
    logging_enabled: bool = True,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    clock: Callable[[], int] | None = None,
) -> VacuumResult:
    """Delete files that no version within the retention needs, and directories that are empty.

    Files of a staged transaction that may still be published stay, whatever the retention; see
    :func:`airflow_delta.table.operations.vacuum.staged_transactions.staged_transactions`. It neither waits for publications of
    several tables nor ends them: its entries conflict with nothing, and what they have staged stays.

    :param retention_hours: age that files must have; default: the property ``delta.deletedFileRetentionDuration``.
    :param retention_check: refuse a retention below that property (Delta's ``retentionDurationCheck.enabled``).
    :param lite: delete only what the commits since the last VACUUM removed, without listing the table (VACUUM LITE).
    :param inventory: look only at the files that it lists (VACUUM USING INVENTORY), see
        :func:`~airflow_delta.table.operations.vacuum.inventory.files_in_inventory`. One that is out of date misses files.
    :param dry_run: delete nothing and commit nothing.
    :param transaction_timeout_hours: age of its newest file at which a staged transaction counts as abandoned; at least the
        retention.
    :param logging_enabled: commit VACUUM START and VACUUM END (Delta's ``vacuum.logging.enabled``).
    :param clock: returns the current time in milliseconds since the epoch.
    :raises DeltaTableNotFoundException: if there is no table; nothing is ever deleted then.
    :raises DeltaUnsupportedOperationException: if the table's catalog does not leave it to its clients.
    :raises VacuumRetentionPeriodTooShortException: if the retention is below the property and that is checked.
    :raises DeltaUnsupportedTableFeatureException: if the table has a feature that this provider does not know (also
        :class:`~airflow_delta.exceptions.InvalidProtocolVersionException`).
    :raises DeltaIllegalStateException: if ``lite`` is set and the log does not reach back to the last VACUUM.
    """
    log.store.committer.check_allowed("VACUUM START")
    now = clock() if clock is not None else int(time.time() * 1000)
    default, specified = _retention(log, retention_hours, retention_check=retention_check)
    retention = default if specified is None else specified
    if transaction_timeout_hours < 0:
        raise log.error(DeltaIllegalArgumentException, "transaction_timeout_hours must not be negative.")
    dead_before = now - max(retention, round(transaction_timeout_hours * HOUR))
    forget_links()
    last = last_version_before(log, now - retention)
    # Files first, then the version: what is committed in between is kept.
    hidden = hidden_names(log.snapshot)
    if inventory is not None:
        if lite:
            raise log.error(DeltaIllegalArgumentException, "VACUUM takes lite or an inventory, not both.")
        listing = select_listed(log.store, hidden, files_in_inventory(log, inventory))
    elif lite:
        listing = select_listed(log.store, hidden, removed_files(log, last, deleted_before=now - retention))
    else:
        listing = list_table(log.store, hidden, cuts=even_cuts(log.snapshot))
    snapshot = log.update()
    _check_protocol(snapshot)
    planned_after = min(dead_before, now - snapshot.properties.log_retention)
    found = _find(log, snapshot, listing, deleted_before=now - retention, dead_before=dead_before, planned_after=planned_after)
    if needs_commits(snapshot, found.files, longer=retention > default):
        kept = committed_within(log, snapshot, last)
        found = replace(found, files=[status for status in found.files if status.path not in kept])
    found = with_markers_last(listing, found)
    result = VacuumResult(
        table=log.uri,
        version=snapshot.version,
        mode="INVENTORY" if inventory is not None else "LITE" if lite else "FULL",
        dry_run=dry_run,
        num_files=len(found.files) + len(found.markers),
        num_directories=len(found.directories),
        num_bytes=found.num_bytes,
        num_live_transactions=len(found.staged.live),
        paths=found.paths,
        abandoned=found.staged.abandoned,
    )
    if dry_run:
        return result

    without_waiting = replace(policy if policy is not None else CommitPolicy(), intents=IGNORE_INTENTS)

    def record(operation: Operation) -> None:
        if logging_enabled:
            OptimisticTransaction(log, policy=without_waiting).commit([], operation, tags=tags, user_metadata=user_metadata)

    record(
        Operation.vacuum_start(
            retention_check_enabled=retention_check,
            default_retention_millis=default,
            specified_retention_millis=specified,
            metrics={"numFilesToDelete": len(result.paths), "sizeOfDataToDelete": found.num_bytes},
        )
    )
    look = LastLook(
        log,
        snapshot.version,
        over=lambda transaction: transaction in found.staged.committed,
        deleted_before=now - retention,
        dead_before=dead_before,
        now=now,
    )
    wanted = found
    try:
        found = delete(log, wanted, look)
    except BaseException:
        record(Operation.vacuum_end("FAILED"))
        raise
    metrics = {"numDeletedFiles": len(found.paths), "numVacuumedDirectories": found.num_listed_directories + 1}
    record(Operation.vacuum_end("COMPLETED", metrics=metrics))
    if inventory is None:  # else files that it does not list may be left, which LITE would not look for again
        remember_vacuum(log, last)
    num_files = len(found.files) + len(found.markers)
    abandoned = _given_up(wanted, found)
    for transaction in abandoned:
        logger.warning(
            "VACUUM of %s: gave up the abandoned transaction %s (%s files, %s bytes of %s)",
            log.uri,
            transaction.transaction_id,
            transaction.num_files,
            transaction.num_bytes,
            ", ".join(transaction.stages) or "no stage",
        )
    logger.info("VACUUM of %s deleted %s files and %s directories", log.uri, num_files, len(found.directories))
    return replace(
        result,
        num_files=num_files,
        num_bytes=found.num_bytes,
        num_directories=len(found.directories),
        paths=found.paths,
        abandoned=abandoned,
    )


def _given_up(wanted: Found, deleted: Found) -> tuple[AbandonedTransaction, ...]:
    """Return the abandoned transactions whose files are gone; the last look spares one that is committed after all."""
    gone = {transaction_of(status.path) for status in deleted.files}
    kept = {transaction_of(status.path) for status in set(wanted.files) - set(deleted.files)}
    return tuple(found for found in wanted.staged.abandoned if found.transaction_id in gone - kept)


def _retention(log: DeltaLog, hours: float | None, *, retention_check: bool) -> tuple[int, int | None]:
    """Return the table's retention and the requested one, in milliseconds."""
    snapshot = log.update()
    if snapshot.version < 0:
        raise log.error(DeltaTableNotFoundException, f"There is no Delta table at {log.uri}, so VACUUM deletes nothing.")
    default = snapshot.properties.deleted_file_retention
    if hours is None:
        return default, None
    if hours < 0:
        raise log.error(
            DeltaIllegalArgumentException,
            f"The retention must not be negative, got {hours} hours (DELTA_VACUUM_RETENTION_PERIOD_NEGATIVE).",
        )
    specified = round(hours * HOUR)
    if retention_check and specified < default:
        raise snapshot.error(
            VacuumRetentionPeriodTooShortException,
            f"A retention of {hours} hours is below delta.deletedFileRetentionDuration of table {log.uri} ({-(-default // HOUR)} "
            "hours): readers of older versions, and writers that do not stage their files, may lose files. If there are none, "
            "pass retention_check=False.",
        )
    return default, specified


def _check_protocol(snapshot: Snapshot) -> None:
    """Refuse a table with unknown features: they may need files that nothing else names (vacuumProtocolCheck)."""
    protocol.check_can_read(snapshot.protocol, snapshot.log.uri, snapshot.version, provided=snapshot.log.provided)
    protocol.check_can_write(
        snapshot.protocol, snapshot.metadata, snapshot.log.uri, snapshot.version, provided=snapshot.log.provided
    )


def _find(
    log: DeltaLog, snapshot: Snapshot, listing: Listing, *, deleted_before: int, dead_before: int, planned_after: int
) -> Found:
    valid = valid_files(snapshot, deleted_before=deleted_before)
    staged = staged_transactions(log, listing.staged or listing, valid, dead_before=dead_before, planned_after=planned_after)
    old = [status for status in listing.files if status.modification_time < deleted_before]
    occupied = all_parents([status.path for status in old])
    kept = all_parents(valid)
    directories = [
        path for path in listing.directories if path not in occupied and path not in kept and not staged.protects(path)
    ]
    files = [status for status in old if status.path not in valid and not staged.protects(status.path)]
    return Found(files, sorted(directories, reverse=True), len(listing.directories), staged)
