"""A diff as JSON, and as Markdown for people who decide."""

from __future__ import annotations

import base64
import re
from datetime import date, datetime, time
from typing import Any

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.shown_text import visible
from airflow_delta.table.effects.diff import TableDiff
from airflow_delta.table.effects.schema_changes import schema_lines

_MAX_TEXT = 100

_MAX_COLUMNS = 20


def diff_to_dict(diff: TableDiff) -> dict[str, Any]:
    """Return plain JSON: values that JSON does not know are text."""
    return {
        "table": diff.table,
        "version": diff.version,
        "readVersion": diff.read_version,
        "keys": list(diff.keys),
        "exact": diff.exact,
        "added": diff.added,
        "removed": diff.removed,
        "changed": diff.changed,
        "schemaChanges": [change.to_dict() for change in diff.schema_changes],
        "sample": {
            "added": [plain_value(row) for row in diff.added_rows],
            "removed": [plain_value(row) for row in diff.removed_rows],
            "changed": [{"before": plain_value(old), "after": plain_value(new)} for old, new in diff.changed_rows],
        },
    }


def diff_to_text(diff: TableDiff) -> str:
    """Return Markdown: the counts, what changes in the schema, and the sample as tables."""
    lines = [summary(diff)]
    for line in schema_lines(diff.schema_changes):
        lines += ["", _harmless(line)]
    if diff.changed_rows:
        lines += ["", "Changed rows, each before and after:", "", *_changes(diff)]
    for title, rows in (("Added rows", diff.added_rows), ("Removed rows", diff.removed_rows)):
        if rows:
            lines += ["", f"{title}:", "", *_table(rows)]
    return "\n".join(lines)


def summary(diff: TableDiff) -> str:
    """Return the counts in a sentence that claims no more than is known."""
    against = "a new table" if diff.read_version < 0 else f"version {diff.read_version}"
    if not diff.exact:
        why = "There are too many rows to compare"
        if diff.unread:
            why = f"Rows with variants ({_harmless(', '.join(diff.unread))}) are not compared"
        return (
            f"Compared with {against}: at most {_count(diff.added)} added and at most {_count(diff.removed)} removed. {why}: "
            "those that are only copied to another file are counted as well."
        )
    changed = "" if diff.changed is None else f", {_count(diff.changed)} changed (by {_harmless(', '.join(diff.keys))})"
    return f"Compared with {against}: {_count(diff.added)} added, {_count(diff.removed)} removed{changed}."


def _count(rows: int | None) -> str:
    return "an unknown number of rows" if rows is None else f"{rows:,} row{'' if rows == 1 else 's'}"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    names = list(rows[0])[:_MAX_COLUMNS]
    return [*_head(names), *(_line(_cell(row.get(name)) for name in names) for row in rows)]


def _changes(diff: TableDiff) -> list[str]:
    """Return the changed rows: their keys, and the columns in which one of them differs."""
    names = list(diff.changed_rows[0][1])
    differing = [n for n in names if n not in diff.keys and any(old.get(n) != new.get(n) for old, new in diff.changed_rows)]
    shown = [*diff.keys, *differing][:_MAX_COLUMNS]

    def cell(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
        before, after = _cell(old.get(name)), _cell(new.get(name))
        return after if before == after else f"{before} → {after}"

    return [*_head(shown), *(_line(cell(name, old, new) for name in shown) for old, new in diff.changed_rows)]


def _head(names: list[str]) -> list[str]:
    return [_line(map(_cell, names)), _line("---" for _ in names)]


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    """Return a value as text of a cell: nothing in it is Markdown or HTML."""
    if value is None:
        return "null"
    text = " ".join(str(plain_value(value)).split())
    return _harmless(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…")


def _harmless(text: str) -> str:
    """Return a text as Markdown that shows it and does nothing else.

    Escapes do not keep GitHub and others from making links of bare addresses, and mentions of names: only code does.
    """
    text = visible(text)
    if _LINKED.search(text) is None:
        return _escaped(text)
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


_LINKED = lazy_pattern(r"://|www\.|@|mailto:|xmpp:|#\d|\bGH-\d", re.IGNORECASE)


def _escaped(text: str) -> str:
    for character in "\\`*_{}[]<>#|!~":
        text = text.replace(character, f"\\{character}")
    return text


def plain_value(value: Any) -> Any:
    """Return a value of a row as plain JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):  # JSON has no NaN
        return value if value - value == 0 else str(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): plain_value(each) for name, each in value.items()}
    return [plain_value(each) for each in value] if isinstance(value, list | tuple) else str(value)
