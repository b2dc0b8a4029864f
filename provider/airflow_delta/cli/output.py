"""Output of the commands: tables that fit a terminal, or all data as JSON or YAML.

Also the Dag runs of transactions that have not committed, from Airflow's metadata database.

How far a long command is, on stderr: a bar on a terminal, else a line from time to time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unicodedata import category

from rich.console import Console
from sqlalchemy import select

from airflow_delta.airflow_internals import database
from airflow_delta.airflow_internals.command_line import AirflowConsole, SimpleTable
from airflow_delta.contract.files import OWNER_LENGTH, owner_prefix
from airflow_delta.log.storage import progress as engine

if TYPE_CHECKING:
    from airflow_delta.log.storage.progress import Progress
    from airflow_delta.table.state.open_transactions import TransactionState


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_WIDE = 120


def print_data(data: Any, output: str) -> bool:
    """Print data as JSON or YAML if ``output`` says so; return whether it did.

    Numbers stay numbers; ``AirflowConsole.print_as`` would turn them into text.

    :param output: ``json``, ``yaml``, ``table`` or ``plain``.
    """
    console: Any = AirflowConsole()
    if output == "json":
        console.print_as_json(data)
    elif output == "yaml":
        console.print_as_yaml(data)
    return output in ("json", "yaml")


def print_rows(
    rows: Iterable[Mapping[str, Any]], output: str, *, fold: Collection[str] = (), only_wide: Collection[str] = ()
) -> None:
    """Print rows for people, without breaking ids and times into two lines.

    :param rows: all with the same columns.
    :param output: ``table`` or ``plain``.
    :param fold: columns whose values may take several lines of a table.
    :param only_wide: columns that a table in a narrow terminal leaves out.
    """
    console = AirflowConsole(markup=False, emoji=False)  # errors and predicates may contain square brackets
    hidden = only_wide if output == "table" and console.width < _WIDE else ()
    texts: Any = [{name: text(value) for name, value in row.items() if name not in hidden} for row in rows]
    if output == "plain":
        console.print_as_plain_table(texts)
        return
    if not texts:
        console.print_as_table([])  # prints Airflow's message for no data
        return
    new_table: Any = SimpleTable
    table = new_table(show_header=True)
    for name in texts[0]:
        table.add_column(name, no_wrap=name not in fold, overflow="fold" if name in fold else None)
    for row in texts:
        table.add_row(*row.values())
    console.print(table)


def print_line(line: str = "") -> None:
    """Print a line of text."""
    AirflowConsole(markup=False, emoji=False).print(printable(line), highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Return a text with control characters escaped: any writer of a table may have put them there for the terminal."""
    return "".join(ascii(c)[1:-1] if category(c).startswith("C") and c not in "\n\t" else c for c in text)


def text(value: Any) -> str:
    """Return a value as text for a cell."""
    return printable(_text(value))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def size(num_bytes: int | None) -> str:
    """Return a number of bytes in a readable unit: ``1.5 MiB``."""
    if num_bytes is None:
        return ""
    value, unit = float(num_bytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{num_bytes} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def span(milliseconds: int) -> str:
    """Return a duration in its largest unit: ``9 d``."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= length:
            return f"{milliseconds // length} {unit}"
    return f"{max(milliseconds, 0) // 1000} s"


def utc(milliseconds: int | None) -> str:
    """Return a time to the minute, in UTC."""
    if milliseconds is None or milliseconds < 0:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


logger = logging.getLogger(__name__)

_START = "DeltaStartTransactionOperator"
_MAX_STARTS = 20_000
"""Start tasks that are looked at, the latest ones: a digest for each."""


def with_runs(transactions: Sequence[TransactionState]) -> list[TransactionState]:
    """Return the transactions, each with the Dag run of the start task that began it, if Airflow still knows that.

    A commit names its run itself. Of an open one only its id tells: it is made of Dag, start task and run.
    """
    unknown = [one for one in transactions if one.run_id is None]
    if not unknown:
        return list(transactions)
    try:
        starts = _starts(max(one.last_modified or 0 for one in unknown))
    except Exception as error:  # noqa: BLE001 - without a database, or with another one, the rest is shown
        logger.info("The Dag runs of uncommitted transactions are not shown: %s: %s", type(error).__name__, error)
        return list(transactions)
    return [_with_run(one, starts) for one in transactions]


def _with_run(transaction: TransactionState, starts: Mapping[str, tuple[str, str]]) -> TransactionState:
    run = starts.get(transaction.transaction_id[:OWNER_LENGTH]) if transaction.run_id is None else None
    return transaction if run is None else replace(transaction, dag_id=run[0], run_id=run[1])


def _starts(until: int) -> dict[str, tuple[str, str]]:
    """Return Dag id and run id of the latest start tasks, by what the ids of their transactions begin with.

    :param until: when the transactions were last touched, in milliseconds; a start task began before.
    """
    instance_table = database.TaskInstance
    wanted = (
        select(instance_table.dag_id, instance_table.task_id, instance_table.run_id)
        .where(
            instance_table.operator == _START,
            instance_table.start_date <= datetime.fromtimestamp(until / 1000 + 600, UTC),
        )
        .order_by(instance_table.start_date.desc())
        .limit(_MAX_STARTS)
    )
    with database.create_session(scoped=False) as session:
        found = [tuple(row) for row in session.execute(wanted)]
    return {owner_prefix(dag_id, task_id, run_id): (dag_id, run_id) for dag_id, task_id, run_id in found}


@contextmanager
def progress_shown() -> Iterator[None]:
    """Show how far the operations of a command are; logs are silent without ``-v``."""
    if not sys.stderr.isatty():
        with engine.shown_by(_Lines()):
            yield
        return
    bars = _Bars()
    try:
        with engine.shown_by(bars):
            yield
    finally:
        bars.close()


class _Lines:
    """A line at most as often as a log gets one."""

    @property
    def interval(self) -> float:
        return engine.INTERVAL

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
