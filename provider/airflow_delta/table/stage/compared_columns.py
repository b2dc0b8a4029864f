"""A condition over a row of the table and a row of a source: which of its columns are whose, and which it compares.

Expressions of a MERGE, rewritten so that each pass of Spark over the rows takes them for the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_delta.contract.operations import ComparedColumns
from airflow_delta.log import heavy
from airflow_delta.log.expressions.ast import quote_name
from airflow_delta.log.expressions.text import split, tokens_of, tree_of

if TYPE_CHECKING:
    from airflow_delta.log.expressions.nodes import ColumnName
    from airflow_delta.log.schema.types import StructType


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a condition.

    A column without an alias is the table's if the table has it; if the source has it too, Spark refuses it as ambiguous.

    :param schema: of the table.
    :param target: alias of the table, in lower case.
    :param source: alias of the source, in lower case.
    """

    schema: StructType
    target: str
    source: str

    def of(self, column: ColumnName) -> tuple[str, list[str]]:
        """Return the side of a column, ``target`` or ``source``, and its names without the alias."""
        names = list(column.parts)
        if len(names) > 1 and names[0].lower() in (self.target, self.source):
            return ("target" if names[0].lower() == self.target else "source"), names[1:]
        return ("target" if self.schema.find(names[0]) is not None else "source"), names

    def unknown(self, conjunct_texts: Iterable[str]) -> str | None:
        """Return a column that some conditions say is the table's, and that it does not have; ``None`` if there is none."""
        for text in conjunct_texts:
            for column in heavy.columns_of(tree_of(text)):
                names = column.parts
                aliased = len(names) > 1 and names[0].lower() == self.target and self.schema.find(names[0]) is None
                if aliased and self.schema.find(names[1]) is None:
                    return names[1]
        return None

    def compared(self, conjunct_texts: Iterable[str]) -> list[ComparedColumns]:
        """Return the columns that are equal in rows for which all of some conditions are true."""
        found = []
        for text in conjunct_texts:
            equality = heavy.equality_of(tree_of(text))
            if equality is None:
                continue
            by_side = dict(map(self.of, (equality.left, equality.right)))
            names = by_side.get("target", [])
            field = self.schema.find(names[0]) if len(names) == 1 else None
            if field is None or "source" not in by_side:
                continue
            source = ".".join(quote_name(name) for name in by_side["source"])
            found.append(ComparedColumns(column=field.name, source=source, null_safe=equality.null_safe))
        return found


def conjunct_texts(text: str) -> Iterator[str]:
    """Yield the conditions that a condition joins by ``AND``."""
    pieces = split(text)
    if pieces is None or pieces[0] != "AND":
        yield text
        return
    for part in pieces[1]:
        yield from conjunct_texts(part)


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
    heads = [(column.parts[0], column.start) for column in heavy.columns_of(tree_of(text)) if column.start is not None]
    found = {start for name, start in heads if name.lower() != alias.lower() and schema.find(name) is not None}
    prefix = "`" + alias.replace("`", "``") + "`."
    for start in sorted(found, reverse=True):
        text = f"{text[:start]}{prefix}{text[start:]}"
    return text
