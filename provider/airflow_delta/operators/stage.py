"""Stages whose job runs elsewhere: a submitted Spark application, or any job that writes Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_delta.contract.options import check_writer_options
from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException
from airflow_delta.tasks.base import DeltaOperator, Parts, templated
from airflow_delta.tasks.spark.application_output import ApplicationOutput
from airflow_delta.tasks.spark.earlier_try import (
    REQUEST_KEY,
    WAIT,
    EarlierTry,
    earlier_try,
    inputs_of,
    note_request,
    noted_directory,
    within,
)
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.properties import check_submission, properties_file, submit_defaults
from airflow_delta.tasks.spark.runner import cause_of, close_pipe
from airflow_delta.tasks.spark.source_options import mask_settings
from airflow_delta.tasks.spark.storage import SparkStorage
from airflow_delta.tasks.stage_work import STAGE_COLOR, GivenTable, StageWork, drift_told
from airflow_delta.tasks.write_options import WriteOptions

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context
    from pydantic import JsonValue

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog

_K8S_STATUS_KEY = "k8s_driver_status"  # where Airflow's operator keeps the state of a finished driver pod


class DeltaStageSparkSubmitOperator(DeltaOperator, SparkSubmitOperator):
    """Submit a Spark application that stages its result, and collect what it staged.

    The application calls ``airflow_delta.spark.delta_stage(spark).write(df)``. The cluster needs neither Airflow nor this
    provider: the few modules that it needs are sent with ``--py-files``. If the worker of a durable task (Airflow's default) is
    lost, the retry collects what the earlier try submitted: in cluster mode (YARN, Kubernetes) it reconnects to the driver; in
    client mode it takes the report that the application left, and waits for an application that still runs on this machine.
    Otherwise the job is resubmitted.

    :param spark_conn_id: connection of type ``spark``. (templated)
    :param read: plan a scan of the table for the application's ``read()``: ``True`` for the whole table, or a predicate.
        (templated)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's. (templated)
    :param spark_credentials: ``own`` if Spark has credentials of its own; by default it gets those of the table's connection.
    :param package_uri: URI of the zip of :func:`airflow_delta.spark.package.build_package`, if the cluster cannot fetch a local
        file of the worker; default: that local file. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.stage_work.StageWork`,
    :class:`~airflow_delta.tasks.stage_work.GivenTable`,
    :class:`~airflow_delta.tasks.write_options.WriteOptions` and of Airflow's ``SparkSubmitOperator``.
    """

    parts: ClassVar[Parts] = (StageWork, GivenTable, WriteOptions)
    template_fields: Sequence[str] = (
        *templated(parts),
        "read",
        "write_options",
        "spark_table_uri",
        "package_uri",
        "spark_conn_id",
        *SparkSubmitOperator.template_fields,
    )
    transaction_role: ClassVar[str] = "stage"
    changes_table: ClassVar[bool] = False
    ui_color = STAGE_COLOR

    def __init__(
        self,
        *,
        spark_conn_id: str = "spark_default",
        read: bool | str = False,
        write_options: Mapping[str, Any] | None = None,
        spark_table_uri: str | None = None,
        package_uri: str | None = None,
        spark_credentials: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=spark_conn_id, **kwargs)
        check_writer_options(write_options, whose=f"The task {self.task_id!r}")
        mask_settings(self.conf)
        self.read = read
        self.write_options = write_options
        self.spark_table_uri = spark_table_uri
        self.package_uri = package_uri
        self.spark_credentials = spark_credentials
        self._request: StageRequest | None = None
        self._inputs = ""
        self._waiting: EarlierTry | None = None
        self._submitted = False
        self._resumed = False
        self._output = ApplicationOutput()

    @property
    def spark_conn_id(self) -> str:
        """The connection, which Airflow's operator keeps under another name."""
        return str(self._conn_id)

    @spark_conn_id.setter
    def spark_conn_id(self, value: str) -> None:
        self._conn_id = value

    def execute(self, context: Context) -> Any:
        """Return the staged write of a job that was submitted now, reconnected to, or found finished.

        :raises StagingException: if the application ended without staging.
        :raises DeltaError: if the stage failed on the cluster, with the type of the error there.
        """
        from airflow_delta.table.stage.write.collect import collect_stage
        from airflow_delta.table.stage.write.plan import plan_stage

        work, write = self.hold(StageWork), WriteOptions.of(self)
        check_submission(self.spark_conn_id, self.application, self._deploy_mode, self.conf)
        work.open(context)
        if (done := work.report_if_committed(write.mode)) is not None:
            return done
        log = work.log
        # Not the name: it may contain the number of the try.
        submitted = {name: getattr(self, name, None) for name in SparkSubmitOperator.template_fields if name != "name"}
        self._inputs = inputs_of({**submitted, "conn_id": self._conn_id})
        earlier = self._earlier_job(context, work.handle.transaction_id)
        stage = work.view(self.spark_table_uri)
        request = plan_stage(stage, **write.options(), read=self.read or False, options=self.write_options)
        self._request = request
        work.tell_plan(request)

        with drift_told(context, work.handle):
            asked, report = self._taken_over(log, context, earlier, request) or self._submit(log, context, earlier, request)
        with self._forgotten_if_useless(context):
            staged = work.collected(lambda: collect_stage(stage, asked, report))
        self._forget_job(context)
        return work.report(staged)

    def on_kill(self) -> None:
        """End the application; what takes longer than Airflow waits for this task continues in the background."""
        self._killed = True
        if self._waiting is not None:
            self._waiting.kill()
        if self._hook is not None:
            # The hook waits for the commands that end a driver on the cluster.
            within(WAIT, super().on_kill, what="Ending the submitted application", logger=self.log)

    def _taken_over(
        self, log: DeltaLog, context: Context, earlier: str | None, request: StageRequest
    ) -> tuple[StageRequest, StageReport] | None:
        """Return what the application of an earlier try has staged, if Airflow does not track that application."""
        store = self._store(context)
        if store is None or earlier is None or store.get(self.external_id_key):
            return None
        self._waiting = earlier_try(log, earlier, request, self.log)
        if self._waiting is None:
            return None
        try:
            report = self._waiting.report()
            return None if report is None else (self._waiting.request, report)
        finally:
            self._waiting = None

    def _submit(
        self, log: DeltaLog, context: Context, earlier: str | None, request: StageRequest
    ) -> tuple[StageRequest, StageReport]:
        """Submit the application, or reconnect to a driver that Airflow tracks; return its request and its report."""
        from airflow_delta.spark.job import REQUEST_PROPERTY
        from airflow_delta.spark.package import build_package
        from airflow_delta.table.stage.write.plan import put_request, read_report, read_request

        def resumed() -> str | None:
            return earlier if self._resumed else None

        own = request.directory

        def directory() -> str:
            return resumed() or own

        # The hook takes both when it is built, at the start of the base class's execute.
        self.conf = {**(self.conf or {}), REQUEST_PROPERTY: put_request(log, request)}
        self.py_files = ",".join(part for part in (self.py_files, self.package_uri or build_package()) if part)
        if self.is_cancelled:
            raise DeltaIllegalStateException(f"The task {self.task_id!r} was told to stop before it submitted its application.")
        store = self._store(context)
        if store is not None and not store.get(self.external_id_key):  # in client mode submit_job is not called
            note_request(store, request, self._inputs)
        storage = SparkStorage.of(log, self.spark_table_uri, self.spark_credentials, request)
        given = self.properties_file
        try:
            with (
                properties_file({}, given, submit_defaults(self.spark_conn_id, storage), self.conf) as self.properties_file,
                spark_work(self.log, log, request, directory=directory),
            ):
                super().execute(context)
        except Exception as failure:
            worked_on = request if (found := resumed()) is None else read_request(log, found)
            cause = cause_of(
                failure,
                log,
                worked_on,
                hook=self._hook,
                output=self._output,
                application=self.application,
                uri=storage.uri,
                spark_conn_id=self.spark_conn_id,
                stopped=self.is_cancelled,
            )
            if cause is None:
                raise
            raise cause from None  # whose lines this log has; the long command would come first
        finally:
            self.properties_file = given
            close_pipe(self._hook)
        with self._forgotten_if_useless(context):
            if (found := resumed()) is not None:
                request = read_request(log, found)
                self.log.info("Transaction %s: collecting what attempt %s has staged.", request.transaction_id, request.attempt)
            return request, read_report(log, request)

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        self._output.follow(hook)
        return hook

    def submit_job(self, context: Context) -> str | None:
        """Store the request for a later try that reconnects, then submit the driver."""
        self._submitted = True
        if (store := self._store(context)) is not None and self._request is not None:
            note_request(store, self._request, self._inputs)
        return super().submit_job(context)

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> None:
        """Wait for the driver; one submitted by an earlier try works on that try's request."""
        self._resumed = not self._submitted
        super().poll_until_complete(external_id, context)

    def get_job_result(self, external_id: JsonValue, context: Context) -> None:
        """Note whether the finished driver was this try's."""
        self._resumed = not self._submitted
        super().get_job_result(external_id, context)

    def _earlier_job(self, context: Context, transaction_id: str) -> str | None:
        """Return the directory of the earlier try's application; forget a job that belongs to other work.

        Airflow keeps the driver's id across a clear, and would take that driver's success for that of the new transaction, or of
        an application with other inputs.
        """
        directory = noted_directory(self._store(context), transaction_id, self._inputs)
        if directory is None:
            self._forget_job(context)
        return directory

    @contextmanager
    def _forgotten_if_useless(self, context: Context) -> Iterator[None]:
        """Forget an application whose result cannot be used: every later try would find the same."""
        try:
            yield
        except DeltaError:
            try:
                self._forget_job(context)
            except Exception:  # the error itself says what is wrong
                self.log.warning("Could not forget the application that ended; clear the start task", exc_info=True)
            raise

    def _forget_job(self, context: Context) -> None:
        """Forget the driver's id, so that the job runs again if this task is cleared."""
        if (store := self._store(context)) is not None:
            for key in (self.external_id_key, _K8S_STATUS_KEY, REQUEST_KEY):
                if store.get(key) is not None:
                    store.delete(key)

    def _store(self, context: Context) -> Any:
        return context.get("task_state_store") if self.durable else None


class DeltaStageFilesOperator(DeltaOperator):
    """Stage Parquet files that any job wrote under the transaction's staging path (``stagingPath`` of the handle).

    Every file below ``path`` must be Parquet or hidden (``_*``, ``.*``). Statistics are read from the footers, partition values
    from the directories. A job that may be retried writes to ``airflow_delta.staging_path(transaction, ti)``, a directory for
    each of its tries: ``path=job.output["staging_path"]``.

    :param path: directory that the job wrote: a URI, or a path relative to the staging path. Required; the staging path itself
        is refused. (templated)
    :param time_zone: time zone of timestamps in the names of partition directories. (templated)
    :param rows_checked: the job has checked the rules that footers cannot show: CHECK constraints, generated columns, lengths of
        texts, NOT NULL structs, lists and maps. Without it, files for a table with such rules are refused.

    The other parameters are those of :class:`~airflow_delta.tasks.stage_work.StageWork`,
    :class:`~airflow_delta.tasks.stage_work.GivenTable` and
    :class:`~airflow_delta.tasks.write_options.WriteOptions`.
    """

    parts: ClassVar[Parts] = (StageWork, GivenTable, WriteOptions)
    template_fields: Sequence[str] = (*templated(parts), "path", "time_zone")
    transaction_role: ClassVar[str] = "stage"
    changes_table: ClassVar[bool] = False
    ui_color = STAGE_COLOR

    def __init__(self, *, path: str | None = None, time_zone: str = "UTC", rows_checked: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.time_zone = time_zone
        self.rows_checked = rows_checked

    def execute(self, context: Context) -> Any:
        """Return the staged write.

        :raises DeltaAnalysisException: if Spark cannot read the type of a column.
        :raises SchemaMismatchException: if a column's type or spelling differs from the table's.
        :raises StagingException: if the path is not below the transaction's staging path.
        :raises StagedFileException: if there is no file, or one that is not Parquet.
        """
        from airflow_delta.table.stage.write.collect import collect_files

        work, write = self.hold(StageWork), WriteOptions.of(self)
        work.open(context)
        if (done := work.report_if_committed(write.mode)) is not None:
            return done
        with drift_told(context, work.handle):
            staged = work.collected(
                lambda: collect_files(
                    work.view(),
                    **write.options(),
                    path=self.path,
                    time_zone=self.time_zone,
                    rows_checked=self.rows_checked,
                )
            )
        return work.report(staged)
