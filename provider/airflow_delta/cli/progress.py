"""How far a long command is, on stderr: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from airflow_delta.cli.output import printable
from airflow_delta.log.storage import progress
from airflow_delta.log.storage.progress import shown_by

if TYPE_CHECKING:
    from airflow_delta.log.storage.progress import Progress


@contextmanager
def progress_shown() -> Iterator[None]:
    """Show how far the operations of a command are; logs are silent without ``-v``."""
    if not sys.stderr.isatty():
        with shown_by(_Lines()):
            yield
        return
    bars = _Bars()
    try:
        with shown_by(bars):
            yield
    finally:
        bars.close()


class _Lines:
    """A line at most as often as a log gets one."""

    @property
    def interval(self) -> float:
        return progress.INTERVAL

    def update(self, progress: Progress) -> None:
        sys.stderr.write(printable(f"{progress}.\n"))
        sys.stderr.flush()

    def end(self, progress: Progress) -> None:
        """Leave the lines as they are."""


class _Bars:
    """A bar for each operation that takes longer than a moment; gone when it ends."""

    interval = 0.3

    def __init__(self) -> None:
        self._shown: Any = None
        self._tasks: dict[Progress, Any] = {}

    def update(self, progress: Progress) -> None:
        if self._shown is None:
            self._shown = _display()
            self._shown.start()
        if progress not in self._tasks:
            what = printable(progress.what)
            self._tasks[progress] = self._shown.add_task(what, total=progress.total, unit=progress.unit, rate="")
        rate = f"{round(progress.done / progress.seconds):,}/s" if progress.seconds else ""
        self._shown.update(self._tasks[progress], completed=progress.done, rate=rate)

    def end(self, progress: Progress) -> None:
        task = self._tasks.pop(progress, None)
        if task is not None:
            self._shown.remove_task(task)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._shown is not None:
            self._shown.stop()


def _display() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]} {task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
