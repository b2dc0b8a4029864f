"""VACUUM as a task."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import HOURS, TRUTH
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.maintenance_base import DeltaMaintenanceBase
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.commit.commit_part import CommitPart
    from airflow_delta.tasks.declared import Taken

_TRANSACTION_TIMEOUT_HOURS = 7 * 24.0


class DeltaVacuumOperator(DeltaMaintenanceBase):
    """Delete the files that neither the table nor a staged transaction needs (VACUUM), in the worker.

    Files of a transaction that may still be published are never deleted, whatever the retention. Returns JSON: ``table``,
    ``version``, ``mode``, ``dryRun``, ``numFiles``, ``numDirectories``, ``numBytes``, ``numLiveTransactions``,
    ``abandonedTransactions`` (given up by this run) and ``paths``.
    Every run deletes what is due, so it has no identity in the log: the parameters of the identity have no effect.

    :param retention_hours: minimum age of the files to delete, or a ``timedelta``; default: the table's
        ``delta.deletedFileRetentionDuration``. (templated)
    :param retention_check: refuse a retention below that property.
    :param lite: delete only what commits since the last VACUUM removed; does not list the table.
    :param inventory: a Delta table with a list of files (URI, absolute path, or name below the connection's base path): look only
        at these (VACUUM USING INVENTORY). Its columns: ``path`` string, ``length`` long, ``isDir`` boolean, ``modificationTime``
        long. (templated)
    :param dry_run: only return what would be deleted.
    :param transaction_timeout_hours: age at which a staged transaction without commit or abort counts as abandoned. (templated)
    :param logging_enabled: commit VACUUM START and VACUUM END.
    :param max_paths: number of paths to list in the result.

    The other parameters are those of :class:`~airflow_delta.tasks.maintenance_base.DeltaMaintenanceBase`.
    """

    emits_table = False

    retention_hours: Taken[timedelta | float | str | None, float | None] = parameter(default=None, templated=True, kind=HOURS)
    retention_check: bool = parameter(default=True, kind=TRUTH)
    lite: bool = parameter(default=False, kind=TRUTH)
    inventory: str | None = parameter(default=None, templated=True)
    only_list: bool = parameter(default=False, alias="dry_run", kind=TRUTH)  # dry_run() is a method of every operator
    transaction_timeout_hours: Taken[timedelta | float | str, float | None] = parameter(
        default=_TRANSACTION_TIMEOUT_HOURS, templated=True, kind=HOURS
    )
    logging_enabled: bool = parameter(default=True, kind=TRUTH)
    max_paths: int = parameter(default=1000)

    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Delete the files."""
        timeout = self.transaction_timeout_hours
        clock = Stopwatch()
        given: dict[str, Any] = {}
        if self.inventory is not None:
            if not isinstance(self.inventory, str) or not self.inventory.strip():
                raise DeltaIllegalArgumentException(f"The inventory of the task {self.task_id!r} is {self.inventory!r}.")
            given["inventory"] = engine.read_table(DeltaHook(self.delta_conn_id).get_log(self.inventory))
        result = engine.vacuum(
            log,
            retention_hours=self.retention_hours,
            retention_check=self.retention_check,
            lite=self.lite,
            **given,
            dry_run=self.only_list,
            transaction_timeout_hours=_TRANSACTION_TIMEOUT_HOURS if timeout is None else timeout,
            logging_enabled=self.logging_enabled,
            policy=committer.policy(),
            tags=committer.tags(context),
            user_metadata=committer.user_metadata,
        )
        if not result.dry_run:
            TaskMetrics(context["ti"]).vacuumed(
                result.table,
                files=result.num_files,
                directories=result.num_directories,
                size=result.num_bytes,
                seconds=clock.seconds,
            )
        self.log.info(
            "VACUUM: %s %s files and %s directories (%s bytes) of %s; %s transactions are staged.",
            "would delete" if result.dry_run else "deleted",
            result.num_files,
            result.num_directories,
            result.num_bytes,
            result.table,
            result.num_live_transactions,
        )
        return result.to_dict(max_paths=self.max_paths)
