"""DROP FEATURE, and the end of column mapping, as tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION, WHOLE_NUMBER
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.spark.runner import RunnerParameters, SparkRunner

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import CommitResult
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.declared import Taken


class _WithoutFeatureOperator(DeltaOperator, CommitParameters, RunnerParameters):
    """Base of the tasks that take a feature away from a table, in commits without an identity in the log.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param parallel: files that Spark writes at a time. (templated)
    :param max_restarts: how often in a row to start over if another commit conflicts.
    :param delta_conn_id: connection of type ``delta``. (templated)
    """

    by_job: ClassVar[bool | str] = "commits by itself, step after step"
    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = FINAL_ERRORS
    ui_color = "#dae8fc"

    table: str = parameter(templated=True, kind=LOCATION)
    parallel: Taken[int | str, int] = parameter(default=4, templated=True, kind=WHOLE_NUMBER)
    max_restarts: int = parameter(default=3)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)

    @abstractmethod
    def run(self, log: DeltaLog, on_spark: Callable[..., Any], options: dict[str, Any]) -> CommitResult:
        """Do it, and return the last commit."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the result of the last commit; ``attempts`` is 0 if there was nothing to do.

        :raises DeltaConcurrentModificationException: if another commit conflicts and no restart is left.
        """
        committer, runner = self.hold(CommitPart), self.hold(SparkRunner)
        log = DeltaHook(self.delta_conn_id).get_log(self.table)
        with committer.watched(context, log, (self.table, self.delta_conn_id)), ExitStack() as stack:
            options = {
                "identity": stage_identity(context),
                "parallel": self.parallel or 1,
                "spark_table_uri": runner.spark_table_uri,
                "max_restarts": self.max_restarts,
                **committer.options(context),
            }
            result = self.run(log, runner.worker(log, stack), options)
        return committer.finish(context, result)


class DeltaDropFeatureOperator(_WithoutFeatureOperator):
    """Drop a table feature, with the traces that it has left (``ALTER TABLE ... DROP FEATURE``).

    Several versions: what uses the feature goes; three empty commits with checkpoints follow; the last commit drops the feature
    and adds ``checkpointProtection``. It has no identity in the log: a rerun goes on with what is left. Spark is only started to
    rewrite files: for deletion vectors, column mapping and widened types.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param feature: name of the feature, such as ``deletionVectors``. (templated)
    :param truncate_history: delete the versions that have the feature instead of protecting them (TRUNCATE HISTORY). The first
        run fails with ``FeatureDropWaitException``, and so do others until these versions have expired, by default after 24
        hours (``delta.dropFeatureTruncateHistory.retentionDuration``).
    :param parallel: files that Spark writes at a time. (templated)
    :param max_restarts: how often in a row to start over if another commit conflicts.
    :param delta_conn_id: connection of type ``delta``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters` and
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    feature: str = parameter(templated=True)
    truncate_history: bool = parameter(default=False)

    def run(self, log: DeltaLog, on_spark: Callable[..., Any], options: dict[str, Any]) -> CommitResult:
        """Drop the feature.

        :raises FeatureDropWaitException: if versions that have it are still in the log.
        :raises FeatureDropConflictException: if another writer has used it again.
        """
        if not isinstance(self.feature, str) or not self.feature.strip():
            raise DeltaIllegalArgumentException(
                f"The feature of the task {self.task_id!r} is {self.feature!r}, expected a name such as 'deletionVectors'."
            )
        return engine.drop_feature(log, self.feature, on_spark, truncate_history=self.truncate_history, **options)


class DeltaRemoveColumnMappingOperator(_WithoutFeatureOperator):
    """Write all files of a table with the column names of its schema, and set ``delta.columnMapping.mode`` to ``none``.

    One commit, which conflicts with every other. The protocol keeps the feature until it is dropped
    (:class:`DeltaDropFeatureOperator`, which also does this).

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param parallel: files that Spark writes at a time. (templated)
    :param max_restarts: how often to start over if another commit conflicts.
    :param delta_conn_id: connection of type ``delta``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters` and
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    def run(self, log: DeltaLog, on_spark: Callable[..., Any], options: dict[str, Any]) -> CommitResult:
        """Rewrite the files.

        :raises DeltaAnalysisException: if a column has a name that only column mapping allows.
        """
        return engine.remove_column_mapping(log, on_spark, **options)
