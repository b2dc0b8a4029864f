"""Spark work of a task: in a session of its own, or in an application that it submits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.operators.application_output import ApplicationOutput
from airflow_delta.operators.earlier_try import REQUEST_KEY, EarlierTry, earlier_try, inputs_of, note_request, noted_directory
from airflow_delta.operators.kill import WAIT, within
from airflow_delta.operators.progress import spark_work
from airflow_delta.operators.source_options import mask_settings
from airflow_delta.operators.spark_connection import check_submission
from airflow_delta.operators.spark_properties import check_no_packages, properties_file, submit_defaults
from airflow_delta.operators.spark_session import TaskSession
from airflow_delta.operators.spark_storage import SparkStorage
from airflow_delta.operators.submission import cause_of, close_pipe, follow_driver

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.staging.report import StageReport, StageRequest

    Source = Callable[[SparkSession], DataFrame | None]
    Secrets = Callable[[], Mapping[str, str]]


@dataclass(kw_only=True, eq=False, repr=False)
class SparkRunner(TaskSession):
    """The part of a task whose data work is Spark's.

    :param application: Spark application that does the work: it calls ``airflow_delta.spark.delta_stage(spark).run()``, with a
        source if the operation needs one. Default with ``spark_submit``: the provider's own application. (templated)
    :param spark_submit: parameters of Airflow's ``SparkSubmitHook`` (``conf``, ``num_executors``, ``packages``, ...): submit the
        work to ``spark_conn_id`` instead of using a session. If the worker is lost, the next try of the stage takes over what the
        application has staged. (templated)
    :param package_uri: URI of the zip of :func:`airflow_delta.spark.package.build_package`, if the cluster cannot fetch a local
        file of the worker; default: that local file. (templated)

    The other parameters are those of :class:`~airflow_delta.operators.spark_session.TaskSession`.
    """

    template_fields: ClassVar[tuple[str, ...]] = (
        *TaskSession.template_fields,
        "application",
        "spark_submit",
        "package_uri",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"spark_submit": "json", "config_kwargs": "json"}

    application: str | None = None
    spark_submit: Mapping[str, Any] | None = None
    package_uri: str | None = None
    _submitting: Any = field(init=False, default=None)
    _waiting: EarlierTry | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        mask_settings(self.spark_submit.get("conf") if isinstance(self.spark_submit, Mapping) else None)

    @property
    def submits(self) -> bool:
        """Whether the work is submitted as an application rather than done in a session."""
        return self.application is not None or self.spark_submit is not None

    def on_kill(self) -> None:
        """End the submitted application, or interrupt the jobs of this session."""
        if self._waiting is not None:
            self._waiting.kill()
        if self._submitting is not None:
            # The hook waits for the commands that end a driver on the cluster, longer than Airflow waits for this task.
            within(WAIT, self._submitting.on_kill, what="Ending the submitted application", logger=self.task.log)
        super().on_kill()

    def work_on(
        self, log: DeltaLog, request: StageRequest, source: Source | None = None, secrets: Secrets | None = None
    ) -> tuple[StageRequest, StageReport]:
        """Have Spark work on a request, or take over what an earlier try of this task submitted for the same transaction.

        :param source: returns the rows of the operation's source, in a session.
        :param secrets: returns secret Spark properties for a submitted application.
        :return: the request that was worked on, and the report.
        """
        self._check()
        store = _state_store() if self.submits else None
        if store is None:
            return request, self.run(log, request, source, secrets)
        given = {"application": self.application, "spark_submit": self.spark_submit, "config_kwargs": self.config_kwargs}
        inputs = inputs_of({**given, "spark_conn_id": self.spark_conn_id})
        directory = noted_directory(store, request.transaction_id, inputs)
        self._waiting = earlier_try(log, directory, request, self.task.log) if directory is not None else None
        if self._waiting is not None:
            try:
                if (found := self._waiting.report()) is not None:
                    store.delete(REQUEST_KEY)
                    return self._waiting.request, found
            finally:
                self._waiting = None
        note_request(store, request, inputs)
        report = self.run(log, request, source, secrets)
        store.delete(REQUEST_KEY)  # whoever clears this task from here on wants the work to run again
        return request, report

    def run(
        self, log: DeltaLog, request: StageRequest, source: Source | None = None, secrets: Secrets | None = None
    ) -> StageReport:
        """Have Spark work on a request; ``source`` and ``secrets`` as for :meth:`work_on`."""
        if self.submits:
            self._check()
            return self._submit(log, request, secrets() if secrets is not None else {})
        from airflow_delta.spark.operations import run_operation

        with self.session(log, request) as spark, spark_work(self.task.log, log, request, session=spark):
            return run_operation(spark, request, source(spark) if source is not None else None)

    def worker(self, log: DeltaLog, stack: ExitStack) -> Callable[[StageRequest], StageReport]:
        """Return a function that runs requests on Spark, in one session or as applications."""
        return (lambda request: self.run(log, request)) if self.submits else super().worker(log, stack)

    def _check(self) -> None:
        """Refuse what cannot be submitted, before anything is written."""
        if self.submits:
            from airflow_delta.spark.package import application_path

            given = self.spark_submit or {}
            check_no_packages(self.spark_packages)
            check_submission(
                self.spark_conn_id, self.application or application_path(), given.get("deploy_mode"), given.get("conf")
            )

    def _submit(self, log: DeltaLog, request: StageRequest, secrets: Mapping[str, str]) -> StageReport:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        from airflow_delta.commands.write.plan_write import put_request, read_report
        from airflow_delta.spark.job import REQUEST_PROPERTY
        from airflow_delta.spark.package import application_path, build_package

        options = dict(self.spark_submit or {})
        conf = {**(self.config_kwargs or {}), **(options.pop("conf", None) or {}), REQUEST_PROPERTY: put_request(log, request)}
        py_files = ",".join(part for part in (options.pop("py_files", None), self.package_uri or build_package()) if part)
        options.setdefault("name", f"{self.task.dag_id}-{self.task.task_id}")
        if self.task.is_cancelled:
            raise DeltaIllegalStateException(
                f"The task {self.task.task_id!r} was told to stop before it submitted its application."
            )
        storage = SparkStorage.of(log, self.spark_table_uri, self.spark_credentials, request)
        defaults = submit_defaults(self.spark_conn_id, storage)
        given = options.pop("properties_file", None)
        application, output = self.application or application_path(), ApplicationOutput()
        try:
            with properties_file(secrets, given, defaults, conf) as properties, spark_work(self.task.log, log, request):
                self._submitting = hook = SparkSubmitHook(
                    conn_id=self.spark_conn_id, conf=conf, py_files=py_files, properties_file=properties, **options
                )
                output.follow(hook)
                hook.submit(application)
                follow_driver(hook)
        except Exception as failure:
            cause = cause_of(
                failure,
                log,
                request,
                hook=self._submitting,
                output=output,
                application=application,
                uri=storage.uri,
                spark_conn_id=self.spark_conn_id,
                stopped=self.task.is_cancelled,
            )
            if cause is None:
                raise
            raise cause from None  # whose lines this log has; the long command would come first
        finally:
            close_pipe(self._submitting)
            self._submitting = None
        return read_report(log, request)


def _state_store() -> Any:
    """Return the running task's state store; ``None`` outside a task, or if Airflow has none."""
    from airflow.sdk import get_current_context

    try:
        return get_current_context().get("task_state_store")
    except RuntimeError:
        return None
