"""CONVERT TO DELTA as a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import PROPERTIES, TRUTH
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.maintenance_base import DeltaMaintenanceBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.commit.commit_part import CommitPart


class DeltaConvertOperator(DeltaMaintenanceBase):
    """Convert a directory of Parquet files to a Delta table in place. Only footers are read, and only the log is written.

    :param table: the directory. If it is a table already, nothing happens. (templated)
    :param partition_schema: columns of the partition directories, in order: ``p STRING, q DATE``, or SQL types by name. Required
        if there are such directories. (templated)
    :param collect_stats: collect statistics of every file.
    :param properties: properties of the table. (templated)
    :param time_zone: time zone of timestamps in directory names without one. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.maintenance_base.DeltaMaintenanceBase`.
    """

    partition_schema: str | Mapping[str, str] | None = parameter(default=None, templated=True, renderer="json")
    collect_stats: bool = parameter(default=True, kind=TRUTH)
    properties: Mapping[str, str] | None = parameter(default=None, templated=True, kind=PROPERTIES, renderer="json")
    time_zone: str = parameter(default="UTC", templated=True)

    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Convert, commit and return the result.

        :raises DeltaAnalysisException: if a file is not Parquet, or the directories do not match the partition schema.
        :raises SchemaMismatchException: if files disagree on the type of a column.
        """
        result = engine.convert_to_delta(
            log,
            partition_schema=self.partition_schema,
            collect_stats=self.collect_stats,
            properties=self.properties,
            time_zone=self.time_zone,
            **self.commit_options(committer, context),
        )
        return committer.finish(context, result)
