"""Output of the commands: tables that fit a terminal, or all data as JSON or YAML."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from unicodedata import category

from airflow_delta.airflow_internals.command_line import AirflowConsole, SimpleTable

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
