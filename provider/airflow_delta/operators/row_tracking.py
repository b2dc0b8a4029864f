"""Row tracking for a table with files, as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.declared import parameter

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaEnableRowTrackingOperator(DeltaOperator, CommitParameters):
    """Give row ids to the files of a table, and switch row tracking on (``delta.enableRowTracking``).

    Several versions: the table feature, row ids batch by batch, the table property. It has no identity in the log: a rerun goes
    on with the files that are left, or finds nothing to do. Concurrent commits that change rows do not conflict.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param max_files: files of one commit; default: 22,000.
    :param max_restarts: how often in a row to start over if another commit changes the table itself.
    :param delta_conn_id: connection of type ``delta``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`.
    """

    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = FINAL_ERRORS
    ui_color = "#dae8fc"

    table: str = parameter(templated=True, kind=LOCATION)
    max_files: int | None = parameter(default=None)
    max_restarts: int = parameter(default=3)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the result of the last commit; ``attempts`` is 0 if there was nothing to do.

        :raises DeltaIllegalArgumentException: if row tracking is suspended.
        :raises DeltaConcurrentModificationException: if another commit conflicts and no restart is left.
        """
        committer = self.hold(CommitPart)
        log = DeltaHook(self.delta_conn_id).get_log(self.table)
        given: dict[str, Any] = {} if self.max_files is None else {"max_files": self.max_files}
        with committer.watched(context, log, (self.table, self.delta_conn_id)):
            result = engine.enable_row_tracking(log, max_restarts=self.max_restarts, **given, **committer.options(context))
        return committer.finish(context, result)
