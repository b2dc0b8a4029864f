"""What Spark's errors mean, where their reader can do something about it: typed errors, and the useful line without Java."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from airflow_delta.exceptions import (
    DeltaError,
    LocationNotWritableException,
    SparkJobException,
    SparkVersionException,
)
from airflow_delta.spark.connectors import LONGEST, storage_error

_PYTHON = r"PYTHON_VERSION_MISMATCH[^\n]*|Cannot run program \"[^\"]*python[^\"]*\"[^\n]*|PYSPARK_PYTHON[^\n]* No such file[^\n]*"
_SPARK = r"InvalidClassException: \S+; local class incompatible[^\n]*"


def version_error(error: BaseException | str, uri: str = "") -> SparkVersionException | None:
    """Return the typed error if the parts of Spark do not fit together; ``None`` for any other error.

    :param uri: the table's location for Spark.
    """
    if isinstance(error, DeltaError):
        return None
    text = str(error)
    if found := re.search(_PYTHON, text):
        return SparkVersionException(
            f"Python code cannot run on Spark's executors: {found[0][:LONGEST]}. Their Python has to be of the driver's minor "
            f"version ({sys.version_info.major}.{sys.version_info.minor} here): install it there and name it with "
            "PYSPARK_PYTHON or spark.pyspark.python. See docs/how-to/cluster.md.",
            table=uri or None,
        )
    if found := re.search(_SPARK, text):
        return SparkVersionException(
            f"The driver's Spark is not the cluster's: {found[0][:LONGEST]}. Submit with the cluster's own spark-submit, or "
            "install its version of PySpark. See docs/how-to/cluster.md.",
            table=uri or None,
        )
    return None


logger = logging.getLogger(__name__)

# Patterns are text: each parse of a Dag file imports this module, and only an error compiles them.

_JAVA_FRAME = r"(?m)^\s+at [\w$.]+[\w$./<>]*\(|^\s*\.\.\. \d+ more|JVM stacktrace:"
_HEADER = r"An error occurred while calling |\w+: *$"
_THROWN = r"^(?:Caused by: |: |\()*(?!java\.lang\.OutOfMemoryError)(?:[\w$]+\.)+[\w$]*(?:Exception|Error|Throwable)\b\)?:? ?"
_ABORTED = r"^Job aborted due to stage failure: .*?\bTask \S+ in stage \S+ .*?\((?:TID \S+)\) \([^)]*\): "
_CLASSES = r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\]"
_PLAN = r"^\s*(?:[+:]-|'[A-Z]|== SQL)"
_LIBRARIES = r"[/\\](?:site-packages|dist-packages|pyspark|py4j|airflow_delta(?:-[^/\\]*\.zip)?)[/\\]|[/\\]lib[/\\]python3|^<"
_MEMORY = (
    (
        r"OutOfMemoryError",
        "Java's memory was not enough: give it more (spark.driver.memory, spark.executor.memory), or each task less to do (more "
        "partitions; no collect of large results).",
    ),
    (
        r"(?i)OOMKilled|memory limits?\b|exit(?:ed with)? ?code:? (?:is )?(?:137|-9)\b",
        "A process was killed, which a machine or a cluster does when its memory runs out: give it more "
        "(spark.driver.memoryOverhead, spark.executor.memoryOverhead).",
    ),
    (
        r"Python worker exited unexpectedly|\bMemoryError\b",
        "Python may have run out of memory: give it more (spark.executor.pyspark.memory, spark.executor.memoryOverhead), or "
        "less to do at once.",
    ),
    (
        r"(?i)exit(?:ed with)? ?code:? (?:is )?52\b",
        "Exit code 52 says that Java ran out of memory: give it more (spark.driver.memory, spark.executor.memory).",
    ),
    (
        r"StatusCode\.UNAVAILABLE",
        "Check that it runs; if it ended during the work, its own log says why. One whose memory runs out ends without an answer "
        "(spark.driver.memory).",
    ),
)
_RPC = r'status = StatusCode\.(\w+)\s+details = "(.*)"'
_LONGEST_LINE = 700
_OWN_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def spark_job_error(error: BaseException, uri: str = "") -> SparkJobException | None:
    """Return the error of a task whose Spark work failed; ``None`` if it did not fail in Spark's JVM, or on its server.

    :param uri: the table's location for Spark.
    """
    if isinstance(error, DeltaError) or not _is_javas(error):
        return None
    said = useful_line(str(error)) or _nothing_said(error)
    place = users_place(error, said)
    return SparkJobException(
        f"Spark failed{f' on table {uri}' if uri else ''}: {said}{f' Called from {place}.' if place else ''}"
        f"{spaced(memory_advice(str(error)))} The stack trace is in the log at DEBUG.",
        condition=spark_condition(error),
        table=uri or None,
    )


def memory_advice(text: str) -> str:
    """Return what to do about memory that ran out, if Spark's message mentions it; else an empty string."""
    return next((advice for pattern, advice in _MEMORY if re.search(pattern, text)), "")


def spaced(text: str) -> str:
    """Return a text to follow a sentence."""
    return f" {text}" if text else ""


def users_place(error: BaseException, said: str = "") -> str:
    """Return the innermost line of an error's traceback that is the user's own; empty if there is none.

    :param said: the error's message: what it names is left out, such as the line of a function that ran on an executor.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    return place_in_files([(f.filename, f.lineno, f.name) for f in frames], said)


def is_library(file: str) -> bool:
    """Return whether a file of a traceback is Python's, Spark's, ours or another package's, rather than the user's."""
    return re.search(_LIBRARIES, file) is not None


def place_in_files(frames: Sequence[tuple[str, object, str | None]], said: str) -> str:
    """Return the innermost of some frames as an error names it, without those that it has named; empty if there is none."""
    for file, line, function in reversed(frames):
        if f'{file}", line {line}' not in said:
            return f"{file}, line {line}" + (f", in {function}" if function and function != "<module>" else "")
    return ""


def _nothing_said(error: BaseException) -> str:
    """Return what is known of an error without a message, such as that of a Python worker that died."""
    frames = str(getattr(error, "_stackTrace", None) or error).splitlines()
    thrown = next((line.strip() for line in frames if line.strip() and not re.match(_HEADER, line)), type(error).__name__)
    name = type(error).__name__
    return f"{name} without a message ({thrown[:_LONGEST_LINE]}); the lines of Spark before it in this log may tell why."


def spark_condition(error: BaseException) -> str | None:
    """Return the name of the condition that Spark raised an error for, such as ``PATH_NOT_FOUND``; ``None`` if it has none."""
    name = "getCondition" if hasattr(error, "getCondition") else "getErrorClass"  # of Spark 3.5
    try:
        return str(getattr(error, name, lambda: None)() or "") or None
    except Exception:  # noqa: BLE001 - it asks the JVM, which may be gone
        return None


def without_java(typed: DeltaError, error: BaseException) -> tuple[DeltaError, BaseException | None]:
    """Return a typed error and its cause: not the one whose message is a Java trace, which is logged at DEBUG instead.

    The typed error then has the Python frames of the other one.
    """
    text = str(error)
    logger.debug("%s", getattr(error, "_stackTrace", None) or text)
    if not re.search(_JAVA_FRAME, text):
        return typed, error
    trace: TracebackType | None = error.__traceback__
    return typed.with_traceback(trace), None


@contextmanager
def told_once() -> Iterator[None]:
    """Log at DEBUG what PySpark logs of an error in a query: an ERROR, as JSON with the whole trace, also if it is caught."""
    from pyspark.logger import PySparkLogger

    def at_debug(record: logging.LogRecord) -> bool:
        logger.debug("%s", record.getMessage())
        return False

    loggers = [PySparkLogger.getLogger(name) for name in _OWN_LOGGERS]
    for each in loggers:
        each.addFilter(at_debug)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(at_debug)


def useful_line(text: str) -> str:
    """Return the one or two lines of a text that say what is wrong, as one line that ends with a period; empty without any."""
    found = _of_python(text) or _of_rpc(text) or _of_java(text)
    if not found.strip(" .:"):
        return ""
    found = found if len(found) <= _LONGEST_LINE else f"{found[:_LONGEST_LINE]}..."
    return found if found.endswith((".", "!", "?")) else f"{found}."


def _of_python(text: str) -> str:
    """Return what a Python function raised on an executor, and where; Spark puts its trace in the middle of its own."""
    if "Traceback (most recent call last):" not in text:
        return ""
    frame = said = ""
    for line in text.rpartition("Traceback (most recent call last):")[2].splitlines()[1:]:
        if line.startswith("  File "):
            frame, said = line.strip(), ""
        elif frame and not said and line.strip() and not line.startswith((" ", "\t")):
            said = line.strip()
    return f"Python code failed on an executor: {said} ({frame})" if said else ""


def _of_rpc(text: str) -> str:
    """Return what gRPC says of a request that Spark Connect's server did not answer as Spark does; it prints an object."""
    found = re.search(_RPC, text)
    if found is None:
        return ""
    said = "does not answer" if found[1] == "UNAVAILABLE" else "did not carry out a request"
    return f"Spark Connect's server {said} ({found[1]}: {found[2].strip().rstrip('.')[:LONGEST]})"


def _of_java(text: str) -> str:
    thrown: list[str] = []
    for line in text.splitlines():
        if not line.strip() or re.search(_JAVA_FRAME, line) or re.match(_HEADER, line):
            continue
        if re.match(_PLAN, line):
            break
        if not thrown or line.startswith("Caused by: "):
            thrown.append(_bare(line))
    if not thrown:
        return text.strip().partition("\n")[0]
    first, last = thrown[0], thrown[-1]
    if last in first:
        return first
    if not re.search(_CLASSES, first) and re.search(_CLASSES, last):
        return last
    return f"{first.rstrip('.')}; caused by: {last}"


def _bare(line: str) -> str:
    """Return a line without the class that was thrown, and without what Spark says of the job."""
    before, line = "", line.removeprefix("Caused by: ")
    while before != line:
        before, line = line, re.sub(_ABORTED, "", re.sub(_THROWN, "", line, count=1), count=1).strip()
    return line.rstrip(";")


def _is_javas(error: BaseException) -> bool:
    module = type(error).__module__
    return module.startswith(("pyspark.errors.exceptions.captured", "pyspark.errors.exceptions.connect")) or (
        type(error).__name__ == "Py4JJavaError" and module.startswith("py4j.")
    )


_MKDIRS = r"Mkdirs failed to create (\S+)"


def typed_error(error: BaseException | str, uri: str = "") -> DeltaError | None:
    """Return the typed error if Spark cannot work as it is set up, or has failed; ``None`` for any other error.

    :param uri: the table's location for Spark.
    """
    known = storage_error(error, uri) or _not_created(error, uri) or version_error(error, uri)
    return known if known is not None or isinstance(error, str) else spark_job_error(error, uri)


def _not_created(error: BaseException | str, uri: str) -> LocationNotWritableException | None:
    """Return the typed error if Hadoop could not create a directory, of which it does not say why."""
    if isinstance(error, DeltaError) or (found := re.search(_MKDIRS, str(error))) is None:
        return None
    return LocationNotWritableException(
        f"Spark cannot create the directory {found[1]}{f' of table {uri}' if uri else ''}. Check the path, that the file system "
        "is mounted where Spark runs, and that its user may write there.",
        table=uri or None,
    )
