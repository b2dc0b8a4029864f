"""CREATE TABLE, CREATE OR REPLACE TABLE, REPLACE TABLE as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.choices import CREATE_MODES
from airflow_delta.contract.kinds import NAMES, PROPERTIES, SCHEMA, TEXT
from airflow_delta.exceptions import DeltaTableNotFoundException
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.outlets import withdraw_default_outlets
from airflow_delta.tasks.start.own_transaction import OwnTransaction

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.tasks.declared import Taken
    from airflow_delta.tasks.stage.work import StageWork


class DeltaCreateTableOperator(DeltaTableOperator):
    """Create or replace a Delta table. Needs no Spark.

    In a transaction, later stages with ``after=<output of this task>`` write into the new table; it appears with their rows, as
    one version. To create a table from a DataFrame (CREATE TABLE AS SELECT), pass ``create=`` to the stage of its rows.

    :param schema: columns as in SQL (``id BIGINT GENERATED ALWAYS AS IDENTITY, day DATE NOT NULL``), or Spark's JSON form of a
        schema. (templated)
    :param mode: ``create`` (fails if the table exists), ``create_if_not_exists``, ``create_or_replace`` or ``replace``.
        (templated)
    :param partition_by: partition columns. (templated)
    :param cluster_by: clustering columns, up to four, instead of partition columns. (templated)
    :param properties: table properties. (templated)
    :param description: comment of the table. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.operation.DeltaTableOperator`.
    """

    creates_table = True

    schema: Taken[str | Mapping[str, Any], str | None] = parameter(templated=True, kind=SCHEMA)
    mode: str = parameter(default="create", templated=True, choices=CREATE_MODES)
    partition_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    cluster_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    properties: Mapping[str, str] | None = parameter(default=None, templated=True, kind=PROPERTIES)
    description: str | None = parameter(default=None, templated=True, kind=TEXT)

    def plan_stage(self, stage: StageView) -> StagedWrite:
        """Stage the new table."""
        return engine.plan_create(
            stage,
            schema=self.schema or "",
            partition_by=self.partition_by,
            cluster_by=self.cluster_by,
            properties=self.properties,
            description=self.description,
            mode=self.mode,
        )

    def run_alone(self, work: StageWork, context: Context) -> Any:
        """Return the result of the commit; ``create_if_not_exists`` does not commit to an existing table.

        :raises DeltaTableAlreadyExistsException: if the table exists and is not to be replaced.
        :raises DeltaTableNotFoundException: if there is no table to replace.
        """
        if self.mode == "create_if_not_exists" and (found := self._existing(work)) is not None:
            withdraw_default_outlets(self)
            return found
        return super().run_alone(work, context)

    def _existing(self, work: StageWork) -> dict[str, Any] | None:
        """Return the existing table in the form of a commit result; ``None`` if there is none."""
        try:
            log = OwnTransaction.of(self).log(work.delta_conn_id)
        except DeltaTableNotFoundException:  # of a catalog, which alone says where the table is
            return None
        snapshot = log.update()
        if snapshot.version < 0:
            return None
        self.log.info("Table %s exists (version %s) and is left unchanged.", log.uri, snapshot.version)
        return engine.result_of_existing(snapshot).to_dict()
