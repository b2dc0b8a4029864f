"""The Spark session of a task, found by its connection as for Airflow's ``@task.pyspark``.

The log of a driver JVM that a task starts: quiet, and each line at the level that it names.

Airflow logs every line on a task's stderr as an ERROR. A JVM inherits it, and so colours green tasks red.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_delta import engine
from airflow_delta.contract.choices import Choices
from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException, SparkJobException
from airflow_delta.hooks.fields import OWN, named_connection
from airflow_delta.spark.errors import memory_advice, spaced, told_once, typed_error, without_java
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.spark.application_output import ended_by
from airflow_delta.tasks.spark.earlier_try import SessionKiller, has_ended
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.properties import (
    DEFAULT_SPARK_CONN_ID,
    check_pyspark,
    check_spark_here,
    java_error,
    machine_properties,
    mask_settings,
    missing_client,
    registration_error,
    spark_extras,
    spark_master,
    with_packages,
)
from airflow_delta.tasks.spark.storage import SparkStorage

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import SparkSession

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.base import DeltaOperator


logger = logging.getLogger("airflow_delta.spark.driver")

QUIET = {"spark.ui.showConsoleProgress": "false"}
QUIET_LOCAL = {"spark.ui.enabled": "false"}
"""Of a local session: the page ends with the task, and looking for a free port warns of each that is taken."""

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "SEVERE": logging.ERROR,
}
_SPARKS = re.compile(rf"\d\d/\d\d/\d\d \d\d:\d\d:\d\d ({'|'.join(_LEVELS)}) (.*)")
_OTHER = re.compile(rf"(?=[\[\d]).{{0,60}}?[\[\s]({'|'.join(_LEVELS)})[\]\s:]")
_UNDATED = re.compile(r"(?:.* VM )?(WARNING|warning|SEVERE|INFO|ERROR|error): ")
_BANNERS = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting (?:default|Spark) log level to "
    r"|To adjust logging level use |(?:NOTE: )?Picked up \w*JAVA\w*_OPTIONS"
    r"|.* WARN (?:NativeCodeLoader: Unable to load native-hadoop|FileStreamSink: Assume no metadata directory"
    r"|Utils: (?:Your hostname, .* loopback address|Set SPARK_LOCAL_IP))"
)
_TRACE = re.compile(r"\s+at \S|Caused by: |\s*Suppressed: |\s+\.\.\. \d+ more")
_THROWN = re.compile(r"(?:[\w$]+\.)+[\w$]*(?:Exception|Error|Throwable)\b")
_REMEMBERED = 20
_WAIT = 5.0
"""Seconds in which a driver that broke its connection ends."""

_driver: DriverLog | None = None


class DriverLog:
    """Logs the lines of a JVM's stderr: banners and stack traces at DEBUG, the others at their own level, else INFO."""

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=_REMEMBERED)
        self._trace: str | None = None

    def follow(self, stream: BinaryIO) -> None:
        """Read to the end of the stream. Never raises: a JVM whose pipe is full would wait."""
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                try:
                    if text:
                        if not _TRACE.match(text):
                            self.last.append(text)
                        logger.log(*self._read(text))
                except Exception:  # noqa: BLE001, S112 - nowhere to tell it
                    continue

    def _read(self, text: str) -> tuple[int, str, str]:
        """Return the level of a line, and what is logged."""
        level, message = _leader(text)
        if _BANNERS.match(text):
            level = logging.DEBUG
        if level is not None:
            self._trace = "maybe"  # what was thrown may follow
            return level, "%s", message
        if self._in_trace(text):
            return logging.DEBUG, "%s", text
        return logging.INFO, "%s", text

    def _in_trace(self, text: str) -> bool:
        """Return whether a line without a level belongs to what was thrown; Python's own traces come inside of Java's."""
        if _TRACE.match(text):
            self._trace = "frames"
        elif self._trace == "maybe" and _THROWN.match(text):
            self._trace = "message"
        elif self._trace != "message":
            self._trace = None
        return self._trace is not None


def _leader(text: str) -> tuple[int | None, str]:
    if found := _SPARKS.match(text):
        return _LEVELS[found[1]], found[2]
    if text.startswith("{"):  # spark.log.structuredLogging.enabled
        try:
            entry = json.loads(text)
        except ValueError:
            return None, text
        if isinstance(entry, dict) and entry.get("level") in _LEVELS:
            return _LEVELS[entry["level"]], f"{str(entry.get('logger', '')).rpartition('.')[2]}: {entry.get('msg', text)}"
        return None, text
    if found := _OTHER.match(text) or _UNDATED.match(text):
        return _LEVELS[found[1].upper()], text
    return (logging.ERROR, text) if text.startswith("Exception in thread ") else (None, text)


def quiet(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a session that keep it quiet, without those that its author or the machine has set."""
    if "spark.remote" in properties:
        return {}
    local = properties.get("spark.master", "").startswith("local")
    machine = machine_properties()
    return {name: value for name, value in (QUIET | QUIET_LOCAL if local else QUIET).items() if name not in machine}


def start_driver(properties: Mapping[str, str]) -> None:
    """Start the JVM of this process's session, as PySpark would, but read its stderr; do nothing if there is one.

    :param properties: those of the session; the JVM's own, such as its memory, can only be set now.
    :raises MissingSparkException: if there is no Java, or one that is too old.
    :raises DeltaIllegalStateException: if it ends before it is ready.
    """
    from pyspark.core.context import SparkContext

    if "spark.remote" in properties or SparkContext._gateway is not None:
        return
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf().setAll(list(properties.items()))
    reading, writing = os.pipe()
    log = DriverLog()
    thread = threading.Thread(target=log.follow, args=(os.fdopen(reading, "rb"),), name="delta-driver-log", daemon=True)
    thread.start()
    launch: Any = launch_gateway  # without types
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # newer Pythons: a fork beside a thread
            gateway = launch(conf, {"stderr": writing})
    except engine.PySparkRuntimeError as error:
        os.close(writing)
        thread.join(timeout=1.0)
        raise java_error("\n".join(log.last)) or DeltaIllegalStateException(_ended(log)) from error
    except BaseException:
        os.close(writing)
        raise
    os.close(writing)
    global _driver
    _driver = log
    SparkContext._ensure_initialized(gateway=gateway)


def driver_error(error: BaseException, uri: str = "") -> SparkJobException | None:
    """Return the typed error if the driver that this process started has ended: every call fails then, and none says why.

    :param uri: the table's location for Spark.
    """
    loaded: Any = sys.modules.get("pyspark.core.context")  # a client of Spark Connect has none
    process = getattr(loaded.SparkContext._gateway, "proc", None) if loaded is not None else None
    if isinstance(error, DeltaError) or process is None or not _is_of_driver(error):
        return None
    try:
        code = process.wait(_WAIT if _is_of_connection(error) else 0)
    except subprocess.TimeoutExpired:
        return None
    lines = [_leader(line)[1] for line in _driver.last if not _BANNERS.match(line)] if _driver is not None else []
    thrown = next((line for line in reversed(lines) if "OutOfMemoryError" in line), None)
    said = (thrown or (lines[-1] if lines else "")).rstrip(".")
    return SparkJobException(
        f"Spark's driver, a Java process of this task, ended during the work{f' on table {uri}' if uri else ''}: "
        f"{ended_by(code) or 'without an error'}.{spaced(said and f'It said last: {said[:500]}.')}"
        f"{spaced(memory_advice(f'{said} exit code {code}'))}",
        table=uri or None,
    )


def _is_of_driver(error: BaseException) -> bool:
    """Return whether an error is one of PySpark, or of a connection."""
    return isinstance(error, ConnectionError | EOFError) or type(error).__module__.startswith(("py4j.", "pyspark."))


def _is_of_connection(error: BaseException) -> bool:
    """Return whether an error is one of a connection, or was raised after one: the driver may be about to end."""
    seen: BaseException | None = error
    while seen is not None:
        # Py4J's plain error: of a call without an answer. What Java threw has classes of its own.
        if isinstance(seen, ConnectionError | EOFError) or type(seen).__name__ in ("Py4JError", "Py4JNetworkError"):
            return True
        if "SparkContext was shut down" in str(seen.args):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _ended(log: DriverLog) -> str:
    lines = [line for line in log.last if not _BANNERS.match(line)]
    said = f"It said: {' | '.join(lines[-3:])[:1000]}" if lines else "It said nothing"
    return (
        f"Spark's Java process ended before it was ready. {said}. Check Java (17 or newer; JAVA_HOME is "
        f"{os.environ.get('JAVA_HOME')!r}) and the Spark properties of the connection and of the task."
    )


@dataclass(kw_only=True, eq=False, repr=False)
class TaskSession(Part):
    """The part of a task that works in a Spark session: a Spark Connect URL, a master, or a local session.

    A task gets a local session if the default connection does not exist.

    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``. (templated)
    :param config_kwargs: Spark properties, over those of the connection. (templated)
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's. (templated)
    :param spark_credentials: ``own`` if Spark has credentials of its own; by default it gets those of the table's connection.
    :param spark_packages: Maven coordinates to load into a session of this process; ``auto``: the connector to the table's store
        in the version of the installed Spark; default: what the table's connection says. (templated)
    """

    choices: ClassVar[Choices] = {"spark_credentials": (OWN, "")}
    template_fields: ClassVar[tuple[str, ...]] = ("spark_conn_id", "config_kwargs", "spark_table_uri", "spark_packages")

    spark_conn_id: str = DEFAULT_SPARK_CONN_ID
    config_kwargs: Mapping[str, Any] | None = None
    spark_table_uri: str | None = None
    spark_credentials: str | None = None
    spark_packages: str | None = None
    _killer: SessionKiller | None = field(init=False, default=None)
    _shared: SparkSession | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        mask_settings(self.config_kwargs)

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
