"""Stages whose Spark job, or any other job, runs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_delta.operators.stage_base import DeltaStageBaseOperator
from airflow_delta.staging.report import StageRequest

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue


_REQUEST_KEY = "delta_stage_request"  # whose work the driver in the state store does: transaction and directory of the attempt
_K8S_STATUS_KEY = "k8s_driver_status"  # where Airflow's operator remembers a finished driver pod


class DeltaStageSparkSubmitOperator(DeltaStageBaseOperator, SparkSubmitOperator):
    """Submit a Spark application that stages its result, and collect what it staged.

    The application calls ``airflow_delta.spark.stage.delta_stage(spark).write(df)``; the cluster needs neither Airflow nor this
    provider: the few modules for it travel along with ``--py-files``. A durable task (Airflow's default, in cluster mode) that is
    retried reconnects to the driver of the earlier try and collects what that one was asked to stage.

    :param spark_conn_id: connection of type ``spark``.
    :param read: plan a scan of the table for the application's ``read()``: ``True`` for all of it, or a predicate. (templated)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's. (templated)
    :param package_uri: where the cluster finds the zip of :func:`airflow_delta.spark.package.build_package`, when it cannot fetch
        a local file of the worker (standalone masters in cluster mode); default: that local file. (templated)

    The other parameters are those of :class:`~airflow_delta.operators.stage_base.DeltaStageBaseOperator` and of Airflow's
    ``SparkSubmitOperator``.
    """

    template_fields: Sequence[str] = (
        *DeltaStageBaseOperator.template_fields,
        "read",
        "write_options",
        "spark_table_uri",
        "package_uri",
        *SparkSubmitOperator.template_fields,
    )
    ui_color = DeltaStageBaseOperator.ui_color

    def __init__(
        self,
        *,
        spark_conn_id: str = "spark_default",
        read: bool | str = False,
        write_options: Mapping[str, Any] | None = None,
        spark_table_uri: str | None = None,
        package_uri: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=spark_conn_id, **kwargs)
        self.read = read
        self.write_options = write_options
        self.spark_table_uri = spark_table_uri
        self.package_uri = package_uri
        self._request: StageRequest | None = None
        self._submitted = False
        self._resumed = False

    def execute(self, context: Context) -> Any:
        """Return the staged write, whichever way the job came to its end: submitted now, reconnected to, or found finished.

        :raises StagingException: the application ended without staging.
        :raises DeltaError: what the stage itself ran into on the cluster, under its own type.
        """
        from airflow_delta.commands.write import collect_stage, plan_stage, put_request, read_report, read_request, reported_error
        from airflow_delta.spark.job import REQUEST_PROPERTY
        from airflow_delta.spark.package import build_package

        log, handle = self._open()
        if (skipped := self._skip_if_committed(handle, context)) is not None:
            return skipped
        earlier = self._earlier_job(context, handle.transaction_id)
        request = plan_stage(
            log,
            handle,
            **self._identity(context),
            **self._write_options(),
            read=self.read or False,
            options={key: str(value) for key, value in (self.write_options or {}).items()},
            spark_table_uri=self.spark_table_uri,
        )
        self._request = request
        # The hook takes both when it is built, at the beginning of the base class's execute.
        self.conf = {**(self.conf or {}), REQUEST_PROPERTY: put_request(log, request)}
        self.py_files = ",".join(part for part in (self.py_files, self.package_uri or build_package()) if part)
        try:
            super().execute(context)
        except Exception as failure:
            worked_on = read_request(log, earlier) if self._resumed and earlier else request
            if (reported := reported_error(log, worked_on)) is None:
                raise
            raise reported from failure
        if self._resumed and earlier:
            request = read_request(log, earlier)
            self.log.info("Collecting what attempt %s was asked to stage.", request.attempt)
        staged = collect_stage(log, handle, request, read_report(log, request))
        self._forget_job(context)
        return self._report(staged)

    def submit_job(self, context: Context) -> str | None:
        """Submit the driver, after its request was stored for a later try that reconnects to it."""
        self._submitted = True
        if self.durable and (store := context.get("task_state_store")) is not None and self._request is not None:
            store.set(_REQUEST_KEY, {"transactionId": self._request.transaction_id, "directory": self._request.directory})
        return super().submit_job(context)

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> None:
        """Wait for the driver; one that an earlier try submitted works on that try's request."""
        self._resumed = not self._submitted
        super().poll_until_complete(external_id, context)

    def get_job_result(self, external_id: JsonValue, context: Context) -> None:
        """Note whether the driver that is done was this try's."""
        self._resumed = not self._submitted
        super().get_job_result(external_id, context)

    def _earlier_job(self, context: Context, transaction_id: str) -> str | None:
        """Return the directory that the driver in the state store works on, after one of another transaction was dropped.

        Airflow keeps the driver's id over a clear, and would take that driver's success for the new transaction's.
        """
        store = context.get("task_state_store")
        if store is None or not self.durable:
            return None
        stored = store.get(_REQUEST_KEY)
        if isinstance(stored, Mapping) and stored.get("transactionId") == transaction_id:
            return str(stored["directory"])
        self._forget_job(context)
        return None

    def _forget_job(self, context: Context) -> None:
        """Drop the driver's id, so that clearing this task runs the job again."""
        store = context.get("task_state_store")
        if store is not None and self.durable:
            for key in (self.external_id_key, _K8S_STATUS_KEY, _REQUEST_KEY):
                if store.get(key) is not None:
                    store.delete(key)


class DeltaStageFilesOperator(DeltaStageBaseOperator):
    """Stage Parquet files that any job wrote under the transaction's staging path (``stagingPath`` of the handle).

    Statistics are read from the footers, partition values from the directories.

    :param path: directory that the job wrote, a URI or relative to the staging path; default: all of that. (templated)
    :param time_zone: time zone of timestamps in the names of partition directories. (templated)
    :param rows_checked: the job itself keeps to what only rows tell of: CHECK constraints, generated columns, lengths of texts,
        NOT NULL structs, lists and maps; without it, files for a table that has such rules are refused.

    The other parameters are those of :class:`~airflow_delta.operators.stage_base.DeltaStageBaseOperator`.
    """

    template_fields: Sequence[str] = (*DeltaStageBaseOperator.template_fields, "path", "time_zone")

    def __init__(self, *, path: str | None = None, time_zone: str = "UTC", rows_checked: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.time_zone = time_zone
        self.rows_checked = rows_checked

    def execute(self, context: Context) -> Any:
        """Return the staged write.

        :raises StagingException: the path is not under the staging path of this transaction.
        :raises StagedFileException: a file is no readable Parquet.
        """
        from airflow_delta.commands.write import collect_files

        log, handle = self._open()
        if (skipped := self._skip_if_committed(handle, context)) is not None:
            return skipped
        staged = collect_files(
            log,
            handle,
            **self._identity(context),
            **self._write_options(),
            path=self.path,
            time_zone=self.time_zone,
            rows_checked=self.rows_checked,
        )
        return self._report(staged)
