"""Spark work of a task: in a session of its own, or in an application that it submits.

What Airflow's ``SparkSubmitHook`` leaves to its caller.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowException

from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException, StageFailedException
from airflow_delta.tasks.spark.application_output import ApplicationOutput, application_error, ended_by
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
from airflow_delta.tasks.spark.properties import (
    check_no_packages,
    check_submission,
    java_error,
    properties_file,
    submit_defaults,
    submit_error,
)
from airflow_delta.tasks.spark.session import TaskSession
from airflow_delta.tasks.spark.source_options import mask_settings
from airflow_delta.tasks.spark.storage import SparkStorage

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog

    Source = Callable[[SparkSession], DataFrame | None]
    Secrets = Callable[[], Mapping[str, str]]


logger = logging.getLogger(__name__)

_FIRST = 5
"""Lines in which ``spark-submit`` says that it does not start."""

_COMMAND = re.compile(r"Cannot execute: .*?Error code is: -?\d+\.?\s*", re.DOTALL)


def follow_driver(hook: Any) -> None:
    """Wait for the driver where ``spark-submit`` does not: ``yarn_track_via_rm_api``, ``track_driver_via_k8s_api``."""
    if hook._should_track_yarn_application_via_rm_api():
        hook._start_yarn_application_status_tracking(hook._yarn_application_id)
    elif hook._should_track_driver_via_k8s_api():
        hook._poll_k8s_driver_via_api()


def close_pipe(hook: Any) -> None:
    """Close the output of an ended ``spark-submit``, rather than whenever it is collected as garbage."""
    process = getattr(hook, "_submit_sp", None)
    if process is not None and process.poll() is not None and process.stdout is not None:
        process.stdout.close()


def cause_of(
    failure: Exception,
    log: DeltaLog,
    request: StageRequest,
    *,
    hook: Any,
    output: ApplicationOutput,
    application: str,
    uri: str,
    spark_conn_id: str,
    stopped: bool,
) -> DeltaError | None:
    """Return the error that says why a submitted application failed; ``None`` if the failure is not the application's.

    In this order: what the stage reported, what Spark says of its set-up, and the error that the application printed.

    :param failure: what Airflow's hook raised: the command, and the last lines of any output.
    :param uri: the table's location for Spark.
    :param stopped: whether the task was told to stop, which ends its application.
    """
    from airflow_delta.spark.errors import typed_error
    from airflow_delta.table.stage.write.plan import reported_error

    reported = reported_error(log, request)
    if reported is not None and not isinstance(reported, StageFailedException):
        return reported
    found = application_error(output.lines)
    if (missing := java_error("\n".join(list(output.lines)[:_FIRST]))) is not None:
        return missing
    known = submit_error(failure, uri, spark_conn_id) or (typed_error(found.text, uri) if found is not None else None)
    if known is not None or stopped or not _is_of_application(failure, hook):
        return known
    logger.debug("The submission failed", exc_info=failure)
    if reported is not None:
        text = f"{reported.message.rstrip('.')}. {_where_the_log_is(hook)}"
        return StageFailedException(text, table=reported.table, version=reported.version)
    return _application_failed(failure, request, hook, output, application)


def _is_of_application(failure: Exception, hook: Any) -> bool:
    """Return whether an application was submitted and failed: the hook raises the same errors for arguments that it refuses."""
    if type(failure) is AirflowException:
        return getattr(hook, "_submit_sp", None) is not None
    # Of a driver that the hook tracks, perhaps an earlier try's; one that it loses sight of may be alive.
    return type(failure) is RuntimeError and hook is not None and "iving up" not in str(failure)


def _application_failed(
    failure: Exception, request: StageRequest, hook: Any, output: ApplicationOutput, application: str
) -> StageFailedException:
    from airflow_delta.spark.errors import memory_advice, spaced

    code = getattr(getattr(hook, "_submit_sp", None), "returncode", None)
    ended, found = ended_by(code), application_error(output.lines)
    if ended.startswith("killed"):  # it cannot have printed why
        said = f"the driver was {ended}"
    elif found is not None:
        said = f"{found.said.rstrip('.')}{f' ({ended})' if ended else ''}"
    elif said := _COMMAND.sub("", str(failure)).partition("Last spark-submit output:")[0].strip():
        pass  # what a cluster says of a driver
    else:
        said = f"it ended with {ended or 'an error'}, and printed none"
    advice = memory_advice(f"{said}\n{found.text if found is not None else failure}\nexit code {code}")
    return StageFailedException(
        f"The Spark application {os.path.basename(application)} of stage {request.stage} failed: {said.rstrip('.')}."
        f"{spaced(advice)} {_where_the_log_is(hook)}",
        table=request.table,
        version=request.read_version,
    )


def _where_the_log_is(hook: Any) -> str:
    """Return where an application's output is: in cluster mode, not here."""
    if found := getattr(hook, "_yarn_application_id", None):
        return f"Its log: yarn logs -applicationId {found}"
    if found := getattr(hook, "_kubernetes_driver_pod", None):
        return f"Its log: kubectl logs {found}"
    if found := getattr(hook, "_driver_id", None):
        return f"Its log is that of the driver {found}, on the master's page and on the cluster's worker."
    return "Its output is above in this log."


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

    The other parameters are those of :class:`~airflow_delta.tasks.spark.session.TaskSession`.
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
        from airflow_delta.spark.job import run_operation

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

        from airflow_delta.spark.job import REQUEST_PROPERTY
        from airflow_delta.spark.package import application_path, build_package
        from airflow_delta.table.stage.write.plan import put_request, read_report

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
