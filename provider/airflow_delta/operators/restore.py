"""RESTORE as a task."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import TIME, TRUTH, WHOLE_NUMBER
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.maintenance_base import DeltaMaintenanceBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.commit.commit_part import CommitPart
    from airflow_delta.tasks.declared import Taken


class DeltaRestoreOperator(DeltaMaintenanceBase):
    """Restore a table to an earlier version (RESTORE), in the worker. Returns the result of the commit.

    Runs once for its identity: a retry or clear does not undo what was written since.

    :param version: version to restore. (templated)
    :param timestamp: restore the last version committed at or before this time: a datetime or ISO 8601 text (naive: UTC).
        (templated)
    :param ignore_missing_files: restore even if files of that version are gone.
    :param protocol_downgrade_allowed: restore the protocol as well.
    :param max_restarts: how often to start over if another writer commits meanwhile; its commit is undone, too.

    The other parameters are those of :class:`~airflow_delta.tasks.maintenance_base.DeltaMaintenanceBase`.
    """

    version: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    timestamp: Taken[datetime | str | None, datetime | None] = parameter(default=None, templated=True, kind=TIME)
    ignore_missing_files: bool = parameter(default=False, kind=TRUTH)
    protocol_downgrade_allowed: bool = parameter(default=False, kind=TRUTH)
    max_restarts: int = parameter(default=0)

    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Restore the table."""
        result = engine.restore(
            log,
            version=self.version,
            timestamp=self.timestamp or None,
            ignore_missing_files=self.ignore_missing_files,
            protocol_downgrade_allowed=self.protocol_downgrade_allowed,
            max_restarts=self.max_restarts,
            **self.commit_options(committer, context),
        )
        return committer.finish(context, result)
