"""Which expressions are refused before they are parsed: by the functions they call, comments and variables, and their size.

Predicates and expressions are templated, and Spark runs them with the rights of its driver. A condition may call Spark's built-in
functions that are deterministic and depend only on their arguments (outside predicates, also on the clock); an assigned
expression may also call random functions and functions registered in the session. The text is tokenised by Spark's lexical
rules; anything ambiguous is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.expressions.functions import (
    DETERMINISTIC,
    NOT_DETERMINISTIC,
    OF_THE_SESSION,
    OTHERS,
    UNSAFE,
    names_in,
)

# Words that may precede a parenthesis without being a call.
_WORDS = names_in(
    """
    and or not in between like rlike ilike regexp is when then else end case as distinct using on div interval any all some
    escape from for over partition by order both leading trailing varchar character dec numeric within group
    """
)

# No possessive quantifier on a group: Python before 3.11.5 matches them wrongly.
_TOKEN = lazy_pattern(
    r"""
      (?P<space>\s++|--[^\r\n\\]*+(?:\\(?!\n)[^\r\n\\]*+)*)
    | (?P<string>[rR](?:'[^']*+'|"[^"]*+")|'[^'\\]*+(?:\\.[^'\\]*+)*'|"[^"\\]*+(?:\\.[^"\\]*+)*")
    | `(?P<quoted>[^`]*+(?:``[^`]*+)*)`(?!`)
    | (?P<word>\w++)
    | (?P<other>/\*|.)
    """,
    re.VERBOSE | re.DOTALL,
)

_OPENING, _CLOSING = frozenset("(["), frozenset(")]")

MAX_DEPTH = 32
MAX_TOKENS = 10_000
_UNREADABLE = {"'": "an unclosed quote", '"': "an unclosed quote", "`": "an unclosed backtick"}
_UNREADABLE |= {"/*": "a comment between /* and */", "$": "a dollar sign"}
_UNREADABLE["\\"] = "a backslash outside a string"  # at the end of a comment it makes Spark continue the comment

_AFTER_COLUMN = names_in("and between div escape ilike in is like not or regexp rlike")


def refused_function(text: str, *, assigned: bool = False, session: bool = True) -> str | None:
    """Return why an expression is refused, for an error message; ``None`` if it is allowed.

    :param assigned: whether its value is stored rather than used as a condition; it is then evaluated once, and may be random.
    :param session: whether it may depend on the time, the user and the like.
    """
    if "${" in text:  # even inside strings: ${env:HOME} is read from the driver's environment
        return r"contains ${, which Spark replaces by a variable; write $\{ in a string"
    previous: list[tuple[str, str]] = []  # the last two tokens: kind, text
    for kind, value in _tokens(text):
        if kind == "other" and value in _UNREADABLE:
            return f"contains {_UNREADABLE[value]}"
        if kind == "string" and previous and previous[-1] == ("word", "using"):
            return "runs a script (USING)"
        if previous == [("other", "("), ("word", "table")] and (
            kind == "quoted" or (kind == "word" and value not in _AFTER_COLUMN)
        ):
            return "contains a subquery (TABLE)"
        if value == "(" and kind == "other" and previous:
            last = previous[-1]
            qualified = len(previous) > 1 and previous[-2] == ("other", ".")
            if (problem := _called(*last, qualified, assigned, session)) is not None:
                return problem
        previous = [*previous[-1:], (kind, value)]
    return None


def oversized(text: str) -> str | None:
    """Return why an expression is too large to parse, for an error message; ``None`` if it is not.

    The time that the parser needs grows with every operator, and faster with every level of nesting.
    """
    depth = count = types = 0
    before = ""
    for kind, value in _tokens(text):
        if value in _OPENING and kind == "other":
            depth += 1
            if depth > MAX_DEPTH:
                return f"is nested too deeply (more than {MAX_DEPTH} levels)"
        elif value in _CLOSING and kind == "other":
            depth -= 1
        elif value == "<" and before in ("array", "map", "struct"):
            types += 1
            if types > MAX_DEPTH:
                return f"has more than {MAX_DEPTH} nested types"
        if kind == "quoted" or (kind == "word" and not value[0].isdecimal()) or (kind == "other" and value != ","):
            count += 1
            if count > MAX_TOKENS:
                return f"has more than {MAX_TOKENS:,} names and operators"
        before = value
    return None


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "space":
            continue
        value = match[kind]
        if kind == "other" and not value.isascii():
            continue  # may be white space to Spark, which then calls the name before it
        yield kind, value.replace("``", "`") if kind == "quoted" else value.lower() if kind == "word" else value


def _called(kind: str, name: str, qualified: bool, assigned: bool, session: bool) -> str | None:
    if kind == "string":  # an identifier where spark.sql.ansi.doubleQuotedIdentifiers is set
        return f"calls {name}" if name[:1] == '"' else None
    if kind == "other" or (kind == "word" and not qualified and name in _WORDS):
        return None
    folded = name.lower()
    if folded in UNSAFE:
        return f"calls {folded}(), which is never allowed"
    own = assigned and folded not in OTHERS | DETERMINISTIC | NOT_DETERMINISTIC | OF_THE_SESSION
    if own:
        return None
    if qualified:
        return f"calls {name}() by a qualified name; use the plain names of Spark's built-in functions"
    if folded in DETERMINISTIC or (session and folded in OF_THE_SESSION) or (assigned and folded in NOT_DETERMINISTIC):
        return None
    what = "is not deterministic" if folded in NOT_DETERMINISTIC else "is not one of Spark's built-in deterministic functions"
    return f"calls {name}(), which {what}"
