"""The log of a driver JVM that a task starts: quiet, and each line at the level that it names.

Airflow logs every line on a task's stderr as an ERROR. A JVM inherits it, and so colours green tasks red.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any, BinaryIO

from airflow_delta import engine
from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException, SparkJobException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.spark.errors import memory_advice, spaced
from airflow_delta.tasks.spark.application_output import ended_by
from airflow_delta.tasks.spark.installed import java_error
from airflow_delta.tasks.spark.properties import machine_properties

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

_SPARKS = lazy_pattern(rf"\d\d/\d\d/\d\d \d\d:\d\d:\d\d ({'|'.join(_LEVELS)}) (.*)")

_OTHER = lazy_pattern(rf"(?=[\[\d]).{{0,60}}?[\[\s]({'|'.join(_LEVELS)})[\]\s:]")

_UNDATED = lazy_pattern(r"(?:.* VM )?(WARNING|warning|SEVERE|INFO|ERROR|error): ")

_BANNERS = lazy_pattern(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting (?:default|Spark) log level to "
    r"|To adjust logging level use |(?:NOTE: )?Picked up \w*JAVA\w*_OPTIONS"
    r"|.* WARN (?:NativeCodeLoader: Unable to load native-hadoop|FileStreamSink: Assume no metadata directory"
    r"|Utils: (?:Your hostname, .* loopback address|Set SPARK_LOCAL_IP))"
)

_TRACE = lazy_pattern(r"\s+at \S|Caused by: |\s*Suppressed: |\s+\.\.\. \d+ more")

_THROWN = lazy_pattern(r"(?:[\w$]+\.)+[\w$]*(?:Exception|Error|Throwable)\b")

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
