"""Tokens of Spark SQL expressions, by Spark's own lexical rules; a text with others is for Spark."""

from __future__ import annotations

import re

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.expressions.string_literals import STRING
from airflow_delta.table.expressions.problems import NotDecided

# No possessive quantifier on a group: Python before 3.11.5 matches them wrongly.
_TOKEN = re.compile(
    rf"""(?:[ \t\r\n]|--[^\n\\]*(?=\n|\Z)|/\*(?!\+)(?:(?!/\*|\*/).)*\*/)*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[bB][dD]|[lLsSyYfFdD])?(?![\w.]))
    | (?P<string>{STRING})
    | `(?P<quoted>(?:[^`]|``)[^`]*+(?:``[^`]*+)*)`(?!`)
    | (?P<word>[^\W\d]\w*+)
    | (?P<mark><=>|<=|>=|<>|!=|==|\|\||::|[=<>](?![=<>])|[(),.*%+&|^~]|/(?!\*)|-(?![->]))
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_SUFFIX = re.compile(r"(?<=[0-9.])(?:BD|[LSYFD])\Z")


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an expression.

    :param kind: ``number``, ``string``, ``quoted`` (a name in backticks), ``word``, ``mark`` or ``end``.
    :param value: its text, without backticks.
    """

    kind: str
    value: str
    start: int
    end: int

    @property
    def folded(self) -> str:
        """Return a keyword or a mark in upper case; nothing for other tokens."""
        return self.value.upper() if self.kind in ("word", "mark") else ""


def expression_tokens(text: str) -> list[Token]:
    """Return the tokens of a text; the last one is its end.

    :raises NotDecided: if it has anything else.
    """
    found: list[Token] = []
    at = 0
    while not found or found[-1].kind != "end":
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotDecided(f"{text[at : at + 20].strip()!r} is not read here")
        kind = str(match.lastgroup)
        value = match[kind].replace("``", "`") if kind == "quoted" else match[kind]
        found.append(Token(kind, value, match.start(kind), match.end()))
        at = match.end()
    return found


def number_parts(text: str) -> tuple[str, str]:
    """Return the digits of a number and its suffix, in upper case."""
    folded = text.upper()
    match = _SUFFIX.search(folded)
    return (folded, "") if match is None else (folded[: match.start()], match[0])
