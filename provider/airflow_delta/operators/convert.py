"""CONVERT TO DELTA as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.kinds import PROPERTIES, TRUTH, Kinds
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

    kinds: ClassVar[Kinds] = {"collect_stats": TRUTH, "properties": PROPERTIES}
    template_fields: Sequence[str] = (*DeltaMaintenanceBase.template_fields, "partition_schema", "properties", "time_zone")
    template_fields_renderers = {"partition_schema": "json", "properties": "json"}

    def __init__(
        self,
        *,
        partition_schema: str | Mapping[str, str] | None = None,
        collect_stats: bool = True,
        properties: Mapping[str, str] | None = None,
        time_zone: str = "UTC",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partition_schema = partition_schema
        self.collect_stats = collect_stats
        self.properties = properties
        self.time_zone = time_zone

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
