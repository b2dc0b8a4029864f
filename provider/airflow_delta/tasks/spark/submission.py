"""An application for the Spark work of one request: prepared, submitted or taken over from an earlier try, and its report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.options import REQUEST_PROPERTY
from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.spark.application_output import ApplicationOutput
from airflow_delta.tasks.spark.earlier_try import REQUEST_KEY, EarlierTry, earlier_try, inputs_of, note_request, noted_directory
from airflow_delta.tasks.spark.ending import WAIT, within
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.properties import properties_file, submit_defaults
from airflow_delta.tasks.spark.storage import SparkStorage
from airflow_delta.tasks.spark.submit_hook import cause_of, close_pipe

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog

    Submit = Callable[[dict[str, Any]], object]


logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class SparkSubmission:
    """The application that works on one request for a task.

    :param task: the running task; a kill of it calls :meth:`kill`.
    :param application: what is submitted.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :param spark_credentials: ``own`` if Spark has credentials of its own.
    :param package_uri: URI of the zip of :func:`airflow_delta.spark.package.build_package`; default: a local file.
    :param inputs: what the application is submitted with: a later try takes over only what has the same.
    :param store: Airflow's task state store; without one, no later try takes over.
    :param driver_key: where Airflow keeps the id of a driver that it tracks, and reconnects to.
    :param more_keys: other keys that Airflow keeps about that driver.
    """

    task: Any
    log: DeltaLog
    request: StageRequest
    application: str
    spark_conn_id: str
    spark_table_uri: str | None = None
    spark_credentials: str | None = None
    package_uri: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    store: Any = None
    driver_key: str | None = None
    more_keys: tuple[str, ...] = ()

    _hook: Any = field(init=False, default=None)
    _output: ApplicationOutput = field(init=False, default_factory=ApplicationOutput)
    _waiting: EarlierTry | None = field(init=False, default=None)
    _earlier: str | None = field(init=False, default=None)
    _submitted: bool = field(init=False, default=False)
    _resumed: bool = field(init=False, default=False)

    @property
    def is_noted(self) -> bool:
        """Whether an earlier try has noted an application for the same transaction, with the same inputs."""
        return noted_directory(self.store, self.request.transaction_id, inputs_of(self.inputs)) is not None

    def taken_over(self) -> tuple[StageRequest, StageReport] | None:
        """Return what the application of an earlier try has staged, if Airflow does not track that application.

        An application of other work, or with other inputs, is forgotten: Airflow keeps the driver's id across a clear, and would
        take that driver's success for this one's.
        """
        self._earlier = noted_directory(self.store, self.request.transaction_id, inputs_of(self.inputs))
        if self._earlier is None and self.driver_key is not None:
            self.forget()
        if self._earlier is None or self._is_tracked:
            return None
        self._waiting = earlier_try(self.log, self._earlier, self.request, self.task.log)
        if self._waiting is None:
            return None
        try:
            report = self._waiting.report()
            return None if report is None else (self._waiting.request, report)
        finally:
            self._waiting = None

    def run(
        self,
        submit: Submit,
        *,
        conf: Mapping[str, Any] | None = None,
        py_files: str | None = None,
        given: str | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> tuple[StageRequest, StageReport]:
        """Prepare the application, submit it and wait for it, and read its report.

        :param submit: submits with the ``conf``, ``py_files`` and ``properties_file`` that it gets, through a hook that it hands
            to :meth:`use`; or reconnects to a driver that Airflow tracks, and says so by :meth:`waits`.
        :param conf: Spark properties of the author.
        :param py_files: files of the author.
        :param given: the author's own properties file.
        :param secrets: secret Spark properties.
        :return: the request that was worked on, and the report.
        :raises DeltaError: if the application failed, with the type of the error there.
        """
        log, request = self.log, self.request
        conf = {**(conf or {}), REQUEST_PROPERTY: engine.put_request(log, request)}
        py_files = ",".join(part for part in (py_files, self.package_uri or engine.build_package()) if part)
        if self.task.is_cancelled:
            raise DeltaIllegalStateException(
                f"The task {self.task.task_id!r} was told to stop before it submitted its application."
            )
        if not self._is_tracked:
            self.note()
        storage = SparkStorage.of(log, self.spark_table_uri, self.spark_credentials, request)
        defaults = submit_defaults(self.spark_conn_id, storage)
        try:
            with (
                properties_file(secrets or {}, given, defaults, conf) as properties,
                spark_work(self.task.log, log, request, directory=self._directory),
            ):
                submit({"conf": conf, "py_files": py_files, "properties_file": properties})
        except Exception as failure:
            cause = cause_of(
                failure,
                log,
                self._worked_on(),
                hook=self._hook,
                output=self._output,
                application=self.application,
                uri=storage.uri,
                spark_conn_id=self.spark_conn_id,
                stopped=self.task.is_cancelled,
            )
            if cause is None:
                raise
            raise cause from None  # whose lines this log has; the long command would come first
        finally:
            close_pipe(self._hook)
            self._hook = None
        with self.forgotten_if_useless():
            request = self._worked_on()
            if request is not self.request:
                self.task.log.info(
                    "Transaction %s: collecting what attempt %s has staged.", request.transaction_id, request.attempt
                )
            return request, engine.read_report(log, request)

    def use(self, hook: Any) -> None:
        """Read what a hook prints, and end its application if the task is killed."""
        self._hook = hook
        self._output.follow(hook)

    def note(self) -> None:
        """Note what is about to be submitted, for a later try."""
        note_request(self.store, self.request, inputs_of(self.inputs))

    def submits(self) -> None:
        """Note that a driver that Airflow tracks is about to be submitted, although it knew an earlier one."""
        self._submitted = True
        self.note()

    def waits(self) -> None:
        """Note that a driver that Airflow tracks is waited for; one submitted by an earlier try works on that try's request."""
        self._resumed = not self._submitted

    def forget(self) -> None:
        """Forget the application, so that the work is done again if the task is cleared."""
        if self.store is not None:
            for key in (*filter(None, (self.driver_key,)), *self.more_keys, REQUEST_KEY):
                if self.store.get(key) is not None:
                    self.store.delete(key)

    @contextmanager
    def forgotten_if_useless(self) -> Iterator[None]:
        """Forget an application whose result cannot be used: every later try would find the same."""
        try:
            yield
        except DeltaError:
            try:
                self.forget()
            except Exception:  # the error itself says what is wrong
                self.task.log.warning("Could not forget the application that ended; clear the start task", exc_info=True)
            raise

    def kill(self, end: Callable[[], object] | None = None) -> None:
        """End the application; what takes longer than Airflow waits for this task continues in the background.

        :param end: ends what the hook has submitted; default: the hook's own.
        """
        if self._waiting is not None:
            self._waiting.kill()
        if self._hook is not None:
            # The hook waits for the commands that end a driver on the cluster.
            within(WAIT, end or self._hook.on_kill, what="Ending the submitted application", logger=self.task.log)

    @property
    def _is_tracked(self) -> bool:
        return self.store is not None and self.driver_key is not None and bool(self.store.get(self.driver_key))

    def _directory(self) -> str:
        return self._earlier if self._resumed and self._earlier is not None else self.request.directory

    def _worked_on(self) -> StageRequest:
        directory = self._directory()
        return self.request if directory == self.request.directory else engine.read_request(self.log, directory)
