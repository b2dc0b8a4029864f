"""Stages whose job runs elsewhere: a submitted Spark application, or any job that writes Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_delta import engine
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.spark.connection import check_submission
from airflow_delta.tasks.spark.properties import mask_settings
from airflow_delta.tasks.spark.submission import SparkSubmission
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.application import ApplicationParameters, plan_application
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.work import GivenTable, StageWork, StageWorkParameters
from airflow_delta.tasks.stage.write_options import WriteOptions, WriteParameters

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context
    from pydantic import JsonValue

    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.table.stage.stage_view import SparkWork, StageView

_K8S_STATUS_KEY = "k8s_driver_status"  # where Airflow's operator keeps the state of a finished driver pod


class DeltaStageSparkSubmitOperator(
    StageOperator, StageWorkParameters, GivenTable, WriteParameters, SqlParameters, ApplicationParameters, SparkSubmitOperator
):
    """Submit a Spark application that stages its result, and collect what it staged.

    The application calls ``airflow_delta.spark.delta_stage(spark).write(df)``. The cluster needs neither Airflow nor this
    provider: the few modules that it needs are sent with ``--py-files``. If the worker of a durable task (Airflow's default) is
    lost, the retry collects what the earlier try submitted: in cluster mode (YARN, Kubernetes) it reconnects to the driver; in
    client mode it takes the report that the application left, and waits for an application that still runs on this machine.
    Otherwise the job is resubmitted.

    :param spark_conn_id: connection of type ``spark``. (templated)
    :param spark_credentials: ``own`` if Spark has credentials of its own; by default it gets those of the table's connection.
    :param package_uri: URI of the zip of :func:`airflow_delta.spark.package.build_package`, if the cluster cannot fetch a local
        file of the worker; default: that local file. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters`,
    :class:`~airflow_delta.tasks.stage.work.GivenTable`, :class:`~airflow_delta.tasks.stage.application.ApplicationParameters`,
    :class:`~airflow_delta.tasks.stage.write_options.WriteParameters` and of Airflow's ``SparkSubmitOperator``.
    """

    by_job: ClassVar[bool | str] = "submits an application itself: without an operator, a program of yours writes rows"

    spark_conn_id: str = parameter(default="spark_default", templated=True)
    package_uri: str | None = parameter(default=None, templated=True)
    spark_credentials: str | None = parameter(default=None)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(conn_id=None, **kwargs)  # type: ignore[call-arg] # it is spark_conn_id
        mask_settings(self.conf)
        self._submission: Any = None

    @property
    def _conn_id(self) -> Any:
        """The connection, under the name by which Airflow's operator keeps it."""
        return self.spark_conn_id

    @_conn_id.setter
    def _conn_id(self, value: Any) -> None:
        self.spark_conn_id = value

    def open(self, work: StageWork, context: Context) -> None:
        """Open the transaction; refuse what cannot be submitted."""
        check_submission(self.spark_conn_id, self.application, self._deploy_mode, self.conf)
        super().open(work, context)

    def plan_stage(self, stage: StageView) -> SparkWork:
        """Plan the write, and the scan of the table if the application reads it."""
        planned = plan_application(self, stage)

        def collect(asked: StageRequest, report: StageReport) -> StagedWrite:
            with self._submission.forgotten_if_useless():
                staged = planned.collect(asked, report)
            self._submission.forget()
            return staged

        return replace(planned, collect=collect)

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Submit the application, reconnect to its driver, or take over what an earlier try has submitted.

        :raises StagingException: if the application ended without staging.
        :raises DeltaError: if the stage failed on the cluster, with the type of the error there.
        """
        # Not the name: it may contain the number of the try.
        inputs = {name: getattr(self, name, None) for name in SparkSubmitOperator.template_fields if name != "name"}
        self._submission = submission = SparkSubmission(
            task=self,
            log=stage.log,
            request=request,
            application=self.application,
            spark_conn_id=self.spark_conn_id,
            spark_table_uri=self.spark_table_uri,
            spark_credentials=self.spark_credentials,
            package_uri=self.package_uri,
            inputs={**inputs, "conn_id": self._conn_id},
            store=self.opened.context.get("task_state_store") if self.durable else None,
            driver_key=self.external_id_key,
            more_keys=(_K8S_STATUS_KEY,),
        )
        if (found := submission.taken_over()) is not None:
            return found
        return submission.run(self._submit, conf=self.conf, py_files=self.py_files, given=self.properties_file)

    def on_kill(self) -> None:
        """End the application; what takes longer than Airflow waits for this task continues in the background."""
        self._killed = True
        if self._submission is not None:
            self._submission.kill(super().on_kill)

    def _submit(self, prepared: Mapping[str, Any]) -> None:
        """Submit the application as Airflow's operator does, or reconnect to a driver that it tracks."""
        given = self.properties_file
        for name, value in prepared.items():  # its hook takes them when it is built
            setattr(self, name, value)
        try:
            SparkSubmitOperator.execute(self, self.opened.context)
        finally:
            self.properties_file = given

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        if self._submission is not None:
            self._submission.use(hook)
        return hook

    def submit_job(self, context: Context) -> str | None:
        """Note the request for a later try that reconnects, then submit the driver."""
        self._submission.submits()
        return super().submit_job(context)

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> None:
        """Wait for the driver; one submitted by an earlier try works on that try's request."""
        self._submission.waits()
        super().poll_until_complete(external_id, context)

    def get_job_result(self, external_id: JsonValue, context: Context) -> None:
        """Note whether the finished driver was this try's."""
        self._submission.waits()
        super().get_job_result(external_id, context)


class DeltaStageFilesOperator(StageOperator, StageWorkParameters, GivenTable, WriteParameters, SqlParameters):
    """Stage Parquet files that a job without Spark wrote under the transaction's staging path (``stagingPath`` of the handle).

    Of pandas, Polars, DuckDB or dbt, for example. For Spark, ``delta_job`` also checks rows and tells of errors by their type.

    Every file below ``path`` must be Parquet or hidden (``_*``, ``.*``). Statistics are read from the footers, partition values
    from the directories. A job that may be retried writes to ``airflow_delta.staging_path(transaction, ti)``, a directory for
    each of its tries: ``path=job.output["staging_path"]``.

    :param path: directory that the job wrote: a URI, or a path relative to the staging path. Required; the staging path itself
        is refused. (templated)
    :param time_zone: time zone of timestamps in the names of partition directories. (templated)
    :param rows_checked: the job has checked the rules that footers cannot show: CHECK constraints, generated columns, lengths of
        texts, NOT NULL structs, lists and maps. Without it, files for a table with such rules are refused.

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters`,
    :class:`~airflow_delta.tasks.stage.work.GivenTable` and
    :class:`~airflow_delta.tasks.stage.write_options.WriteParameters`.
    """

    path: str | None = parameter(default=None, templated=True)
    time_zone: str = parameter(default="UTC", templated=True)
    rows_checked: bool = parameter(default=False)

    def plan_stage(self, stage: StageView) -> StagedWrite:
        """Return the staged write: the work is done.

        :raises DeltaAnalysisException: if Spark cannot read the type of a column.
        :raises SchemaMismatchException: if a column's type or spelling differs from the table's.
        :raises StagingException: if the path is not below the transaction's staging path.
        :raises StagedFileException: if there is no file, or one that is not Parquet.
        """
        return self.opened.collected(
            lambda: engine.collect_files(
                stage,
                **WriteOptions.of(self).options(),
                path=self.path,
                time_zone=self.time_zone,
                rows_checked=self.rows_checked,
            )
        )
