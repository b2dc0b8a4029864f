"""COMPUTE STATS as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION, TRUTH
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.sql_parameters import SqlParameters

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaComputeStatisticsOperator(DeltaOperator, CommitParameters, SqlParameters):
    """Recompute the statistics of a table's files from their footers, and commit those that changed.

    It has no identity in the log: a rerun finds nothing to change. Concurrent appends do not conflict.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param predicate: only files of partitions that satisfy it. (templated)
    :param only_missing: only add missing statistics; files with complete ones are not opened.
    :param max_restarts: how often to start over if another commit removes one of the files.
    :param delta_conn_id: connection of type ``delta``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`.
    """

    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = FINAL_ERRORS
    ui_color = "#dae8fc"

    table: str = parameter(templated=True, kind=LOCATION)
    predicate: str | None = parameter(default=None, templated=True, renderer="sql")
    only_missing: bool = parameter(default=False, kind=TRUTH)
    max_restarts: int = parameter(default=3)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the result of the commit; ``attempts`` is 0 if nothing had changed.

        :raises PredicateException: if the predicate names columns other than partition columns.
        :raises DeltaConcurrentModificationException: if another commit conflicts and no restart is left.
        """
        committer = self.hold(CommitPart)
        log = DeltaHook(self.delta_conn_id).get_log(self.table)
        with committer.watched(context, log, (self.table, self.delta_conn_id)):
            result = engine.compute_statistics(
                log,
                predicate=self.predicate,
                only_missing=self.only_missing,
                max_restarts=self.max_restarts,
                **committer.options(context),
            )
        return committer.finish(context, result)
