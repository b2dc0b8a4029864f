"""String literals of Spark SQL: what their text means (Spark's ``SparkParserUtils.unescapeSQLString``)."""

from __future__ import annotations

import re

from airflow_delta.lazy_patterns import lazy_pattern

STRING = r"""[rR](?:'[^']++'|"[^"]++")|'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*'|"[^"\\]*+(?:(?:\\.|"")[^"\\]*+)*\""""  # in re.DOTALL
"""Regular expression of a string literal; raw ones of no characters are left out."""

_ESCAPE = lazy_pattern(
    r"""
      \\u(?P<short>[0-9a-fA-F]{4}) | \\U(?P<long>[0-9a-fA-F]{8}) | \\(?P<octal>[01][0-7]{2}) | \\(?P<one>.)
    | (?P<quote>''|"")
    """,
    re.VERBOSE | re.DOTALL,
)

_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def unescaped(literal: str) -> str:
    """Return the value of a string literal.

    :param literal: as :data:`STRING` matches it.
    :raises ValueError: if it is not a text of whole characters.
    """
    if literal[0] in "rR":
        return literal[2:-1]
    if "\\" not in literal and literal[0] not in literal[1:-1]:
        return literal[1:-1]

    def character(match: re.Match[str]) -> str:
        if match["quote"]:
            return match[0][0] if match[0][0] == literal[0] else match[0]
        if match["one"] is not None:
            return _ESCAPED.get(match["one"], match["one"])
        return chr(int(match["octal"], 8) if match["octal"] else int(match["short"] or match["long"], 16))

    text = _ESCAPE.sub(character, literal[1:-1])
    text.encode()  # half of a surrogate pair is not a character
    return text
