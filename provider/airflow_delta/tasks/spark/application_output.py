"""What a submitted application says of its failure, found in the output of ``spark-submit``."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.spark.errors import is_library, place_in_files, useful_line

_LINES = 3000
_LONGEST = 4000
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LOGGED = lazy_pattern(r'\d\d/\d\d/\d\d \d\d:\d\d:\d\d [A-Z]+ |\{"ts": ?"|\[?\d{4}-\d\d-\d\d[T ]\d\d:')
_FRAME = lazy_pattern(r'\s*File "([^"]+)", line (\d+)(?:, in (.+))?')
_WORKER = "/pyspark/worker.py"
_PYTHONS = lazy_pattern(r"[A-Za-z_][\w.]*(?:: |:?$)")
_JAVAS = lazy_pattern(r'Exception in thread "[^"]*" (.*)')
_JAVA_FRAME = lazy_pattern(
    r"\s*at (?!(?:org\.apache\.(?:spark|hadoop)|java|javax|scala|jdk|sun|py4j)\b)[\w$.]+\(([\w$]+\.\w+:\d+)\)"
)
_DIAGNOSTICS = lazy_pattern(r"\s*[Dd]iagnostics: (?!N/A)(\S.*)")


class ApplicationOutput:
    """The last lines that ``spark-submit`` printed: in client mode those of the application."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_LINES)

    def follow(self, hook: Any) -> None:
        """Note what Airflow's hook is going to read, which keeps twenty lines: fewer than Spark logs after an error."""
        read = getattr(hook, "_process_spark_submit_log", None)
        if read is not None:
            hook._process_spark_submit_log = lambda lines: read(self._noted(lines))

    def _noted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self.lines.append(line.rstrip()[:_LONGEST])
            yield line


@dataclass(slots=True)
class ApplicationError:
    """An error that ended an application, or that it printed last.

    :param said: in one line.
    :param text: in full, with everything that Java adds.
    """

    said: str
    text: str


@dataclass(slots=True)
class _Trace:
    """A traceback of Python: its frames, and the lines after them."""

    frames: list[tuple[str, str, str | None]] = field(default_factory=list)
    message: list[str] = field(default_factory=list)


def application_error(lines: Iterable[str]) -> ApplicationError | None:
    """Return the error that an application printed: of Python, of Java, or of YARN; ``None`` if there is none."""
    lines = list(lines)
    return _of_python(lines) or _of_syntax(lines) or _of_yarn(lines) or _of_java(lines) or _of_memory(lines)


def ended_by(code: int | None) -> str:
    """Return how a process ended, as its exit code says; empty if that says nothing."""
    if not code:
        return ""
    number = -code if code < 0 else code - 128 if 128 < code < 192 else 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return f"killed by {name}" if number == signal.SIGKILL else f"ended by {name}"


def _of_python(lines: list[str]) -> ApplicationError | None:
    """Return the last traceback that is not part of a line of a log, nor of another error's message."""
    last: _Trace | None = None
    for trace in _traces(lines):
        last = trace if trace.message else last
    if last is None:
        return None
    name, _, said = last.message[0].partition(": ")
    text = "\n".join([said or last.message[0], *last.message[1:]])
    if name.startswith(("pyspark.", "py4j.")):
        said = useful_line(text)
        name = "" if name.startswith("py4j.") or said.startswith("Python code failed") else name
    else:
        said = said or next((line for line in last.message[1:] if line.strip()), "")
        if any(file.endswith(_WORKER) for file, _, _ in last.frames):  # a log line came between it and Spark's own message
            file, line, function = last.frames[-1]
            said, name = f'Python code failed on an executor: {name}: {said} (File "{file}", line {line}, in {function})', ""
    said = ": ".join(part for part in (name.rpartition(".")[2].rstrip(":"), said.strip()) if part)
    return ApplicationError(f"{said.rstrip('.')}{_place(last.frames, said)}", "\n".join(last.message))


def _traces(lines: list[str]) -> Iterator[_Trace]:
    trace: _Trace | None = None
    chained = False
    for line in lines:
        if line == _TRACEBACK and (trace is None or not trace.message or chained):
            if trace is not None:
                yield trace
            trace, chained = _Trace(), False
        elif trace is None:
            continue
        elif _LOGGED.match(line):
            yield trace
            trace = None
        elif line.startswith(_CHAINED):
            chained = True
        elif trace.message:
            trace.message.append(line)
        elif found := _FRAME.match(line):
            trace.frames.append((found[1], found[2], found[3]))
        elif line and not line.startswith(" ") and _PYTHONS.match(line):
            trace.message.append(line)
    if trace is not None:
        yield trace


def _of_syntax(lines: list[str]) -> ApplicationError | None:
    """Return the error of a file that Python cannot parse: it has no header."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith(("SyntaxError: ", "IndentationError: ", "TabError: ")):
            found = next((f for line in reversed(lines[:number][-5:]) if (f := _FRAME.match(line))), None)
            place = _place([(found[1], found[2], found[3])], "") if found else ""
            return ApplicationError(f"{lines[number]}{place}", lines[number])
    return None


def _of_yarn(lines: list[str]) -> ApplicationError | None:
    found = next((f for line in reversed(lines) if (f := _DIAGNOSTICS.match(line))), None)
    if found is None:
        return None
    number = max(index for index, line in enumerate(lines) if line == found.string)
    block = [found[1], *lines[number + 1 : number + 20]]
    return ApplicationError(found[1][:700], "\n".join(block))


def _of_java(lines: list[str]) -> ApplicationError | None:
    number = max((index for index, line in enumerate(lines) if _JAVAS.match(line)), default=None)
    if number is None:
        return None
    end = next((index for index in range(number + 1, len(lines)) if _LOGGED.match(lines[index])), len(lines))
    block = [_JAVAS.sub(r"\1", lines[number]), *lines[number + 1 : end]]
    name = block[0].partition(":")[0].rpartition(".")[2]
    said = useful_line("\n".join(block)).rstrip(".")
    place = next((f" ({found[1]})" for line in block if (found := _JAVA_FRAME.match(line))), "")
    return ApplicationError(f"{said if name in said else f'{name}: {said}'}{place}", "\n".join(block))


def _of_memory(lines: list[str]) -> ApplicationError | None:
    """Return Java's last word: it ends with the first error of memory, before Python can tell."""
    found = next((line for line in reversed(lines) if "OutOfMemoryError" in line), None)
    return None if found is None else ApplicationError(found[found.index("OutOfMemoryError") :][:200], found)


def _place(frames: list[tuple[str, str, str | None]], said: str) -> str:
    """Return the innermost line of the user's own, else the first one."""
    found = place_in_files([frame for frame in frames if not is_library(frame[0])] or frames[:1], said)
    return f" ({found})" if found else ""
