"""Spark work of a task: in a session of its own, or in an application that it submits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.spark.connection import check_submission
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.properties import check_no_packages, mask_settings
from airflow_delta.tasks.spark.session import SessionParameters, TaskSession
from airflow_delta.tasks.spark.submission import SparkSubmission
from airflow_delta.tasks.spark.submit_hook import follow_driver
from airflow_delta.tasks.task_state import state_store

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog

    Source = Callable[[SparkSession], DataFrame | None]
    Secrets = Callable[[], Mapping[str, str]]


class RunnerParameters(SessionParameters):
    """Parameters of a task whose data work is Spark's.

    :param application: Spark application that does the work: it calls ``airflow_delta.spark.delta_stage(spark).run()``, with a
        source if the operation needs one. Default with ``spark_submit``: the provider's own application. (templated)
    :param spark_submit: parameters of Airflow's ``SparkSubmitHook`` (``conf``, ``num_executors``, ``packages``, ...): submit the
        work to ``spark_conn_id`` instead of using a session. If the worker is lost, the next try of the stage takes over what the
        application has staged. (templated)
    :param package_uri: URI of the zip of :func:`airflow_delta.spark.package.build_package`, if the cluster cannot fetch a local
        file of the worker; default: that local file. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.spark.session.SessionParameters`.
    """

    application: str | None = parameter(default=None, templated=True)
    spark_submit: Mapping[str, Any] | None = parameter(default=None, templated=True, renderer="json")
    package_uri: str | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        mask_settings(self.spark_submit.get("conf") if isinstance(self.spark_submit, Mapping) else None)


class SparkRunner(TaskSession, RunnerParameters):
    """The part of a task whose data work is Spark's."""

    _submission: SparkSubmission | None = None

    @property
    def submits(self) -> bool:
        """Whether the work is done by an application, submitted by this task or another one, rather than in a session."""
        by_a_job = getattr(self.task, "transaction_role", None) == "job"
        return by_a_job or self.application is not None or self.spark_submit is not None

    def on_kill(self) -> None:
        """End the submitted application, or interrupt the jobs of this session."""
        if self._submission is not None:
            self._submission.kill()
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
        store = state_store() if self.submits else None
        if store is None:
            return request, self.run(log, request, source, secrets)
        submission = self._prepared(log, request, store)
        found = submission.taken_over() or self._submit(submission, secrets)
        submission.forget()  # whoever clears this task from here on wants the work to run again
        return found

    def has_submitted(self, log: DeltaLog, request: StageRequest) -> bool:
        """Return whether an earlier try of this task has submitted this work for the same transaction."""
        store = state_store() if self.submits else None
        return store is not None and self._prepared(log, request, store).is_noted

    def run(
        self, log: DeltaLog, request: StageRequest, source: Source | None = None, secrets: Secrets | None = None
    ) -> StageReport:
        """Have Spark work on a request; ``source`` and ``secrets`` as for :meth:`work_on`."""
        if self.submits:
            self._check()
            return self._submit(self._prepared(log, request), secrets)[1]
        with self.session(log, request) as spark, spark_work(self.task.log, log, request, session=spark):
            return engine.run_operation(spark, request, source(spark) if source is not None else None)

    def worker(self, log: DeltaLog, stack: ExitStack) -> Callable[[StageRequest], StageReport]:
        """Return a function that runs requests on Spark, in one session or as applications."""
        return (lambda request: self.run(log, request)) if self.submits else super().worker(log, stack)

    def _check(self) -> None:
        """Refuse what cannot be submitted, before anything is written."""
        if self.submits:
            given = self.spark_submit or {}
            check_no_packages(self.spark_packages)
            check_submission(
                self.spark_conn_id, self.application or engine.application_path(), given.get("deploy_mode"), given.get("conf")
            )

    def _prepared(self, log: DeltaLog, request: StageRequest, store: Any = None) -> SparkSubmission:
        given = {"application": self.application, "spark_submit": self.spark_submit, "config_kwargs": self.config_kwargs}
        self._submission = SparkSubmission(
            task=self.task,
            log=log,
            request=request,
            application=self.application or engine.application_path(),
            spark_conn_id=self.spark_conn_id,
            spark_table_uri=self.spark_table_uri,
            spark_credentials=self.spark_credentials,
            package_uri=self.package_uri,
            inputs={**given, "spark_conn_id": self.spark_conn_id},
            store=store,
        )
        return self._submission

    def _submit(self, submission: SparkSubmission, secrets: Secrets | None) -> tuple[StageRequest, StageReport]:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        options = {"name": f"{self.task.dag_id}-{self.task.task_id}", **(self.spark_submit or {})}
        conf = {**(self.config_kwargs or {}), **(options.pop("conf", None) or {})}
        py_files, given = options.pop("py_files", None), options.pop("properties_file", None)

        def submit(prepared: Mapping[str, Any]) -> None:
            hook = SparkSubmitHook(conn_id=self.spark_conn_id, **prepared, **options)
            submission.use(hook)
            hook.submit(submission.application)
            follow_driver(hook)

        return submission.run(submit, conf=conf, py_files=py_files, given=given, secrets=secrets() if secrets is not None else {})
