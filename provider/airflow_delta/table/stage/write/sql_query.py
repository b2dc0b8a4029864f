"""The SQL of a stage: one query, after statements that only prepare the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_delta.contract.queries import check_query
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.expressions.text import SqlSyntaxError, tokens_of

_QUERY = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
_PREPARE = ("SET", "USE", "DECLARE")
_TEMPORARY = ("TEMP", "TEMPORARY")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The statements of a SQL text.

    :param preparation: ``SET``, ``USE``, ``DECLARE`` and ``CREATE TEMPORARY VIEW`` or ``FUNCTION``, in order.
    :param query: the query that returns the rows.
    """

    preparation: tuple[str, ...]
    query: str

    @classmethod
    def parse(cls, text: str, *, whose: str) -> SqlQuery:
        """Split a text at its semicolons.

        :param whose: the task, for the message.
        :raises DeltaAnalysisException: if there is no query at the end, or a statement before it does more than prepare.
        :raises DeltaIllegalArgumentException: if it would run something on Spark's driver.
        """
        check_query(text, whose=whose)
        *before, last = _statements(text) or [([], "")]
        if not last[1]:
            raise DeltaAnalysisException(f"The SQL of {whose} is empty. Give a query that returns the rows to write.")
        for words, statement in before:
            if not _prepares(words):
                raise _refused(whose, statement, "does not only prepare the session (SET, USE, DECLARE, CREATE TEMPORARY VIEW)")
        words, query = last
        if words[0] not in _QUERY:
            raise _refused(whose, query, "is not a query")
        return cls(tuple(statement for _, statement in before), query)

    @property
    def text(self) -> str:
        """Return all statements."""
        return "\n".join((*self.preparation, self.query))

    def mentions(self, name: str) -> bool:
        """Return whether a name occurs in the text, in whatever place."""
        return name.lower() in self.text.lower()


def _statements(text: str) -> list[tuple[list[str], str]]:
    """Return the statements of a text, each with its words in upper case; comments around them are left out."""
    try:
        tokens = tokens_of(text)
    except SqlSyntaxError:  # Spark says what is wrong
        return [([word.upper() for word in text.split()], text.strip().rstrip(";"))] if text.strip() else []
    found: list[list[Any]] = [[]]
    for token in tokens:
        if token.token_type.name == "SEMICOLON":
            found.append([])
        else:
            found[-1].append(token)
    return [([t.text.upper() for t in each], text[each[0].start : each[-1].end + 1]) for each in found if each]


def _prepares(words: Sequence[str]) -> bool:
    if words[0] == "CREATE":
        rest = words[3:] if tuple(words[1:3]) == ("OR", "REPLACE") else words[1:]
        return len(rest) > 1 and rest[0] in _TEMPORARY and rest[1] in ("VIEW", "FUNCTION")
    return words[0] in _PREPARE


def _refused(whose: str, statement: str, what: str) -> DeltaAnalysisException:
    line = " ".join(statement.split())
    shown = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
    return DeltaAnalysisException(
        f"The SQL of {whose} has a statement that {what}: {shown!r}. A stage writes the rows of its query itself, and nothing is "
        "visible until the commit: leave out INSERT, CREATE TABLE and the like, and end with the SELECT."
    )
