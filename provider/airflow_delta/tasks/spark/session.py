"""The Spark session of a task, found by its connection as for Airflow's ``@task.pyspark``."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_delta import engine
from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.hooks.fields import OWN
from airflow_delta.hooks.named_connection import named_connection
from airflow_delta.spark.errors import told_once, typed_error, without_java
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.spark.connection import DEFAULT_SPARK_CONN_ID, registration_error, spark_extras, spark_master
from airflow_delta.tasks.spark.driver_log import driver_error, quiet, start_driver
from airflow_delta.tasks.spark.ending import SessionKiller, has_ended
from airflow_delta.tasks.spark.installed import check_pyspark, check_spark_here, missing_client
from airflow_delta.tasks.spark.packages import with_packages
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.properties import mask_settings
from airflow_delta.tasks.spark.storage import SparkStorage

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import SparkSession

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.base import DeltaOperator


logger = logging.getLogger("airflow_delta.spark.driver")


class SessionParameters(Parameters):
    """Parameters of a task that works in a Spark session: a Spark Connect URL, a master, or a local session.

    A task gets a local session if the default connection does not exist.

    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``. (templated)
    :param config_kwargs: Spark properties, over those of the connection. (templated)
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's. (templated)
    :param spark_credentials: ``own`` if Spark has credentials of its own; by default it gets those of the table's connection.
    :param spark_packages: Maven coordinates to load into a session of this process; ``auto``: the connector to the table's store
        in the version of the installed Spark; default: what the table's connection says. (templated)
    """

    spark_conn_id: str = parameter(default=DEFAULT_SPARK_CONN_ID, templated=True)
    config_kwargs: Mapping[str, Any] | None = parameter(default=None, templated=True, renderer="json")
    spark_table_uri: str | None = parameter(default=None, templated=True)
    spark_credentials: str | None = parameter(default=None, choices=(OWN, ""))
    spark_packages: str | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        mask_settings(self.config_kwargs)


class TaskSession(Part, SessionParameters):
    """The part of a task that works in a Spark session: a Spark Connect URL, a master, or a local session."""

    _killer: SessionKiller | None = None
    _shared: SparkSession | None = None

    def on_kill(self) -> None:
        """Interrupt the session's Spark jobs; a driver of this process that continues is killed 3 seconds later."""
        if self._killer is not None:
            self._killer.kill()

    @contextmanager
    def session(self, log: DeltaLog, request: StageRequest | None = None) -> Iterator[SparkSession]:
        """Yield a session that reaches a table; it is stopped afterwards if the task made it.

        :param request: names the files that are read, some of which may be elsewhere.
        """
        check_spark_here()
        check_pyspark()
        quiet_about_pandas()
        storage = SparkStorage.of(log, self.spark_table_uri, self.spark_credentials, request)
        active = engine.SparkSession.getActiveSession()
        builder = engine.SparkSession.builder
        properties = self.properties()
        if active is None:  # a JVM that runs loads no more
            check_spark_here(properties)
            packages = self.spark_packages or storage.packages
            properties = with_packages(properties, packages, storage.uri, of_connection=not self.spark_packages)
            properties = {**quiet(properties), **properties}
        for key, value in properties.items():
            builder = builder.config(key, value)
        with typed_errors(storage.uri, properties.get("spark.master", "")):
            if active is None:
                start_driver(properties)
            with local_python(properties) if active is None else nullcontext():
                spark = _made(builder, properties)
        self._killer = killer = SessionKiller(spark, owned=active is None, logger=self.task.log)
        try:
            if self.task.is_cancelled:  # there was nothing to interrupt while the session was being made
                raise DeltaIllegalStateException(f"The task {self.task.task_id!r} was told to stop before its Spark work began.")
            with storage.in_session(spark, made=active is None), typed_errors(storage.uri, task=self.task):
                try:
                    yield spark
                except Exception:
                    if active is None:
                        ask_once(spark)
                    raise
        finally:
            killer.done()
            self._killer = None
            if active is None:
                self._stop(spark)

    def run(self, log: DeltaLog, request: StageRequest) -> StageReport:
        """Have Spark work on a request, in a session."""
        with self.session(log, request) as spark, spark_work(self.task.log, log, request, session=spark):
            return engine.run_operation(spark, request)

    def worker(self, log: DeltaLog, stack: ExitStack) -> Callable[[StageRequest], StageReport]:
        """Return a function that runs requests on Spark, in one session that starts with the first of them.

        :param stack: stops the session.
        """

        def work(request: StageRequest) -> StageReport:
            if self._shared is None:
                self._shared = stack.enter_context(self.session(log, request))
            with spark_work(self.task.log, log, request, session=self._shared):
                return engine.run_operation(self._shared, request)

        return work

    def _stop(self, spark: SparkSession) -> None:
        """Stop the session that this task made; no error of that takes the place of one that ended the work."""
        if sys.exception() is None and not self.task.is_cancelled and not has_ended(spark):
            spark.stop()
            return
        try:
            with warnings.catch_warnings(action="ignore"):
                spark.stop()
        except Exception as error:  # noqa: BLE001 - the error that ended the work says more
            self.task.log.info("The Spark session did not stop cleanly after its work had ended: %s", error)

    def properties(self) -> dict[str, str]:
        """Return the session's properties as ``@task.pyspark`` does: connection, its extra, then ``config_kwargs``."""
        properties: dict[str, Any] = {"spark.app.name": f"{self.task.dag_id}-{self.task.task_id}"}
        url = "local[*]"
        try:
            conn = named_connection(self.spark_conn_id, "spark_conn_id", "spark or spark_connect")
        except AirflowNotFoundException:
            if self.spark_conn_id != DEFAULT_SPARK_CONN_ID:
                raise
        else:
            if conn.conn_type == SparkConnectHook.conn_type:
                url = SparkConnectHook(self.spark_conn_id).get_connection_url()
            elif conn.host:
                url = spark_master(conn)
            properties.update(spark_extras(conn))
        if url.startswith("sc://"):
            properties["spark.remote"] = url
        properties.update(self.config_kwargs or {})
        if not {"spark.remote", "spark.master"} & properties.keys():
            properties["spark.master"] = url
        return {key: str(value) for key, value in properties.items()}


def quiet_about_pandas() -> None:
    """Keep what PySpark 4.2 says of every pandas from 3.0 on, used or not, out of the log: the two work together here."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


def _made(builder: Any, properties: Mapping[str, str]) -> SparkSession:
    try:
        spark: SparkSession = builder.getOrCreate()
    except ImportError as error:  # PySpark asks for the packages of its client only now
        if "spark.remote" not in properties:
            raise
        raise missing_client(error) from error
    return spark


def ask_once(spark: Any) -> None:
    """Have a session whose work failed ask its Spark Connect server nothing twice: it may be gone.

    Its client would repeat each request for ten minutes, for details of the error and to tidy up, before the task fails.
    """
    client = getattr(spark, "_client", None)  # a session of this process has none
    if client is not None:
        client.set_retry_policies([])


@contextmanager
def local_python(properties: Mapping[str, str]) -> Iterator[None]:
    """Let a local session run Python functions with this interpreter, not with whatever ``python3`` the PATH has.

    PySpark takes it from the environment alone when the session is made, also in a session of this process.

    :param properties: those of the session; ``spark.pyspark.python`` names another one.
    """
    name = "PYSPARK_PYTHON"
    if not properties.get("spark.master", "").startswith("local") or name in os.environ:
        yield
        return
    os.environ[name] = properties.get("spark.pyspark.python") or sys.executable
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextmanager
def typed_errors(uri: str, master: str = "", task: DeltaOperator | None = None) -> Iterator[None]:
    """Raise the typed error if Spark cannot work, or reach the table's store, as it is set up, or its driver has ended.

    :param master: the master of a session that is being made.
    :param task: may have been told to stop, and have ended the driver itself.
    """
    try:
        with told_once():
            yield
    except Exception as error:
        died = None if task is not None and task.is_cancelled else driver_error(error, uri)
        if died is not None:
            raise died.with_traceback(error.__traceback__) from None
        if (typed := registration_error(error, master) or typed_error(error, uri)) is None:
            raise
        typed, cause = without_java(typed, error)
        raise typed from cause
