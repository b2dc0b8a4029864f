"""Which SQL texts of an author may go to Spark, so that they mean the same in every Spark and run nothing else on its driver.

Texts are templates, and what is rendered into them may be somebody else's. Where Spark's lexer could read a text in more than one
way (comments, quotes), the text is refused if any of them is, or written in the one way (:func:`with_escaped_quotes`).
"""

from __future__ import annotations

import re

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern

_VARIABLE = lazy_pattern(r"\$\{(?!\{)")  # ${{ x }}: a dollar sign before a template, and no variable of Spark's
CALLS_JVM = ("reflect", "try_reflect", "java_method")
"""Functions of Spark SQL that call any method of a class on the driver."""

NAMES_FROM_TEXT = "identifier"
"""The function that turns text into the name of a column or table."""

_CALLED = lazy_pattern(rf"\b({'|'.join(CALLS_JVM)}|{NAMES_FROM_TEXT})\b", re.IGNORECASE)
_USING = lazy_pattern(r"\busing\b", re.IGNORECASE)
_NAMED = lazy_pattern(r"\(\s*(?::\w+|'[\w.`-]*')\s*\)")
"""The parameter or the literal of ``IDENTIFIER``."""


def check_query(text: str, *, whose: str) -> None:
    """Refuse SQL that calls JVM methods or runs a program, or whose variables Spark would replace by its driver's environment.

    :param whose: what the text is, for the message.
    :raises DeltaIllegalArgumentException: if it does; says what.
    """
    if (problem := query_problem(text)) is not None:
        raise DeltaIllegalArgumentException(
            f"The SQL of {whose} {problem}. Templates may put somebody else's text into it, and Spark would run it with the "
            "rights of its driver. A function of @task.delta_stage may do what SQL may not."
        )


def query_problem(text: str) -> str | None:
    """Return why a query is refused, for an error message; ``None`` if it is not."""
    if _VARIABLE.search(text):  # even inside strings: ${env:HOME} is read from the driver's environment
        return r"contains ${, which Spark replaces by a variable; write $\{ in a string, or use DECLARE or :parameters"
    for match in _CALLED.finditer(text):
        name = match[1].lower()
        place = _next(text, match.end(), '`"')
        if text[place : place + 1] != "(" and text[place : place + 2] != "/*":
            continue
        if name != NAMES_FROM_TEXT:
            return f"calls {name}(), which is never allowed"
        named = _NAMED.match(text, place)
        if named is None or text[_next(text, named.end()) :][:1] in ("(", "/"):
            return "turns text into a name other than by IDENTIFIER(:parameter)"
    for match in _USING.finditer(text):
        following = text[_next(text, match.end()) :]
        if following[:1] in ("'", '"') or following[:2].lower() in ("r'", 'r"', "/*"):
            return "runs a script (TRANSFORM ... USING)"
    return None


def _next(text: str, place: int, skipped: str = "") -> int:
    """Return where the next token begins that is neither white space nor a comment to the end of a line."""
    while place < len(text):
        character = text[place]
        if character.isspace() or character in skipped or not character.isascii() or not character.isprintable():
            place += 1
        elif text.startswith("--", place):
            end = _LINE_END.search(text, place)
            place = len(text) if end is None else end.end()
        else:
            break
    return place


# A backslash makes Spark continue the comment on the next line.
_LINE_END = lazy_pattern(r"(?<!\\)[\r\n]")


_TOKEN = lazy_pattern(
    r"""
      `[^`]*` | --(?:\\\n|[^\r\n])* | /\*.*?\*/ | \b[rR](?:'[^']*'|"[^"]*")
    | (?P<string>'[^'\\]*(?:(?:\\.|'')[^'\\]*)*'|"[^"\\]*(?:(?:\\.|"")[^"\\]*)*")
    """,
    re.VERBOSE | re.DOTALL,
)
_WITHIN = lazy_pattern(r"""(\\.)|''|\"\"""", re.DOTALL)


def with_escaped_quotes(text: str) -> str:
    """Return the text with doubled quotes inside strings (``'it''s'``) escaped with a backslash.

    From Spark 4.1 on they are one quote, as the log's own predicates read them; to Spark 4.0, two strings side by side: ``its``.
    """
    if "''" not in text and '""' not in text:
        return text

    def escaped(match: re.Match[str]) -> str:
        if (string := match["string"]) is None:
            return match[0]
        quote = string[0]
        inside = _WITHIN.sub(lambda found: f"\\{quote}" if found[0] == quote * 2 else found[0], string[1:-1])
        return f"{quote}{inside}{quote}"

    return _TOKEN.sub(escaped, text)
