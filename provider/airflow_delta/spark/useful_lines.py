"""What an error of Spark says, without the Java that it says it in."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from airflow_delta.exceptions import DeltaError, SparkJobException

logger = logging.getLogger(__name__)

_JAVA_FRAME = re.compile(r"^\s+at [\w$.]+[\w$./<>]*\(|^\s*\.\.\. \d+ more|JVM stacktrace:", re.MULTILINE)
_HEADER = re.compile(r"An error occurred while calling |\w+: *$")
_THROWN = re.compile(
    r"^(?:Caused by: |: |\()*(?!java\.lang\.OutOfMemoryError)(?:[\w$]+\.)+[\w$]*(?:Exception|Error|Throwable)\b\)?:? ?"
)
_ABORTED = re.compile(r"^Job aborted due to stage failure: .*?\bTask \S+ in stage \S+ .*?\((?:TID \S+)\) \([^)]*\): ")
_CLASSES = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\]")
_PLAN = re.compile(r"^\s*(?:[+:]-|'[A-Z]|== SQL)")
_LIBRARIES = re.compile(
    r"[/\\](?:site-packages|dist-packages|pyspark|py4j|airflow_delta(?:-[^/\\]*\.zip)?)[/\\]|[/\\]lib[/\\]python3|^<"
)
_MEMORY = (
    (
        re.compile(r"OutOfMemoryError"),
        "Java's memory was not enough: give it more (spark.driver.memory, spark.executor.memory), or each task less to do (more "
        "partitions; no collect of large results).",
    ),
    (
        re.compile(r"OOMKilled|memory limits?\b|exit(?:ed with)? ?code:? (?:is )?(?:137|-9)\b", re.IGNORECASE),
        "A process was killed, which a machine or a cluster does when its memory runs out: give it more "
        "(spark.driver.memoryOverhead, spark.executor.memoryOverhead).",
    ),
    (
        re.compile(r"Python worker exited unexpectedly|\bMemoryError\b"),
        "Python may have run out of memory: give it more (spark.executor.pyspark.memory, spark.executor.memoryOverhead), or "
        "less to do at once.",
    ),
    (
        re.compile(r"exit(?:ed with)? ?code:? (?:is )?52\b", re.IGNORECASE),
        "Exit code 52 says that Java ran out of memory: give it more (spark.driver.memory, spark.executor.memory).",
    ),
)
_LONGEST = 700
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
        condition=_condition_of(error),
        table=uri or None,
    )


def memory_advice(text: str) -> str:
    """Return what to do about memory that ran out, if a text of Spark tells of that; else an empty text."""
    return next((advice for pattern, advice in _MEMORY if pattern.search(text)), "")


def spaced(text: str) -> str:
    """Return a text to follow a sentence."""
    return f" {text}" if text else ""


def users_place(error: BaseException, said: str = "") -> str:
    """Return the innermost line of an error's traceback that is the user's own; empty if there is none.

    :param said: the error's message: what it names is left out, such as the line of a function that ran on an executor.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    return place_of([(f.filename, f.lineno, f.name) for f in frames], said)


def is_library(file: str) -> bool:
    """Return whether a file of a traceback is Python's, Spark's, ours or another package's, rather than the user's."""
    return _LIBRARIES.search(file) is not None


def place_of(frames: Sequence[tuple[str, object, str | None]], said: str) -> str:
    """Return the innermost of some frames as an error names it, without those that it has named; empty if there is none."""
    for file, line, function in reversed(frames):
        if f'{file}", line {line}' not in said:
            return f"{file}, line {line}" + (f", in {function}" if function and function != "<module>" else "")
    return ""


def _nothing_said(error: BaseException) -> str:
    """Return what is known of an error without a message, such as that of a Python worker that died."""
    frames = str(getattr(error, "_stackTrace", None) or error).splitlines()
    thrown = next((line.strip() for line in frames if line.strip() and not _HEADER.match(line)), type(error).__name__)
    name = type(error).__name__
    return f"{name} without a message ({thrown[:_LONGEST]}); the lines of Spark before it in this log may tell why."


def _condition_of(error: BaseException) -> str | None:
    try:
        return str(getattr(error, "getCondition", lambda: None)() or "") or None
    except Exception:  # noqa: BLE001 - it asks the JVM, which may be gone
        return None


def without_java(typed: DeltaError, error: BaseException) -> tuple[DeltaError, BaseException | None]:
    """Return a typed error and its cause: not the one whose message is a Java trace, which is logged at DEBUG instead.

    The typed error then has the Python frames of the other one.
    """
    text = str(error)
    logger.debug("%s", getattr(error, "_stackTrace", None) or text)
    if not _JAVA_FRAME.search(text):
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
    found = _of_python(text) or _of_java(text)
    if not found.strip(" .:"):
        return ""
    found = found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
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


def _of_java(text: str) -> str:
    thrown: list[str] = []
    for line in text.splitlines():
        if not line.strip() or _JAVA_FRAME.search(line) or _HEADER.match(line):
            continue
        if _PLAN.match(line):
            break
        if not thrown or line.startswith("Caused by: "):
            thrown.append(_bare(line))
    if not thrown:
        return text.strip().partition("\n")[0]
    first, last = thrown[0], thrown[-1]
    if last in first:
        return first
    if not _CLASSES.search(first) and _CLASSES.search(last):
        return last
    return f"{first.rstrip('.')}; caused by: {last}"


def _bare(line: str) -> str:
    """Return a line without the class that was thrown, and without what Spark says of the job."""
    before = ""
    while before != line:
        before, line = line, _ABORTED.sub("", _THROWN.sub("", line, count=1), count=1).strip()
    return line.rstrip(";")


def _is_javas(error: BaseException) -> bool:
    module = type(error).__module__
    return module.startswith(("pyspark.errors.exceptions.captured", "pyspark.errors.exceptions.connect")) or (
        type(error).__name__ == "Py4JJavaError" and module.startswith("py4j.")
    )
