"""Expressions over a row of the table and a row of a source, rewritten so that each pass of Spark takes them for the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.log import heavy
from airflow_delta.log.expressions.text import tokens_of, tree_of

if TYPE_CHECKING:
    from airflow_delta.log.schema.types import StructType

_TIMES = {
    "current_timestamp": "{0}",
    "now": "{0}",
    "current_date": "CAST({0} AS DATE)",
    "curdate": "CAST({0} AS DATE)",
    "localtimestamp": "CAST({0} AS TIMESTAMP_NTZ)",
    "unix_timestamp": "unix_timestamp({0})",
}

_ONLY_CALLED = ("now", "curdate", "unix_timestamp")


def at_one_instant(text: str, micros: int, schema: StructType) -> str:
    """Return the text with one instant for ``current_timestamp()`` and its like, which every Spark job would evaluate again.

    A row whose clause is decided twice, at two instants, could be lost or doubled.

    :param micros: the instant in microseconds since 1970, UTC; dates and local times of it are the session's.
    :param schema: of the table: a column may be named like a function that is called without parentheses.
    """
    tokens = tokens_of(text)
    kinds = ["", *(token.token_type.name for token in tokens), "", ""]  # of the token before it at its own position
    for position in range(len(tokens) - 1, -1, -1):
        token, name = tokens[position], tokens[position].text.lower()
        before, kind, following, last = kinds[position : position + 4]
        if name not in _TIMES or kind in ("STRING", "IDENTIFIER") or "DOT" in (before, following):
            continue
        called = (following, last) == ("L_PAREN", "R_PAREN")
        if not called and (following == "L_PAREN" or name in _ONLY_CALLED or schema.find(name) is not None):
            continue
        end = tokens[position + 2].end if called else token.end
        text = text[: token.start] + _TIMES[name].format(f"timestamp_micros({micros}L)") + text[end + 1 :]
    return text


def of_table(text: str, schema: StructType, alias: str) -> str:
    """Return the text with the table's alias before its columns that have none: Spark evaluates it beside the source's columns.

    :param alias: of the table.
    """
    named = [(column.parts, column.start) for column in heavy.named_columns(tree_of(text)) if column.start is not None]
    found = {start for parts, start in named if schema.find(parts[0]) is not None and not _has_alias(parts, schema, alias)}
    prefix = "`" + alias.replace("`", "``") + "`."
    for start in sorted(found, reverse=True):
        text = f"{text[:start]}{prefix}{text[start:]}"
    return text


def _has_alias(parts: Sequence[str], schema: StructType, alias: str) -> bool:
    """Return whether a name begins with the alias, not with a column or struct of that name."""
    return parts[0].lower() == alias.lower() and len(parts) > 1 and schema.find(parts[1]) is not None
