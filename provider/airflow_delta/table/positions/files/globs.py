"""Globs of file names as regular expressions whose matching takes time in proportion to the name, whatever the glob.

``*`` is any text, ``?`` one character, ``[abc]``, ``[a-z]`` and ``[!abc]`` one of some, ``{a,b}`` one of several strings; a
backslash takes the next character literally.
"""

from __future__ import annotations

import re
from itertools import product

from airflow_delta.exceptions import DeltaIllegalArgumentException

_STAR = "*"
_MOST_ALTERNATIVES = 1000
"""Of one part of a path: each is tried with every name."""

Alternatives = list[list[str]]
"""Texts that a glob stands for, each as :data:`_STAR` and expressions of one character."""


def part_expression(glob: str, whole: str) -> str:
    """Return the regular expression of one part of a path.

    :param whole: the pattern, for errors.
    """
    found = _Parser(glob, whole).alternatives()
    return "|".join(map(_expression, found)).join(("(?:", ")"))


def _expression(tokens: list[str]) -> str:
    """Return the expression of one alternative: what a star has skipped is never tried again, unless it is the last one."""
    first, *rest = _split(tokens)
    if not rest:
        return first
    *inner, last = rest
    return first + "".join(f"(?>[^/]*?{fixed})" for fixed in inner if fixed) + f"[^/]*{last}"


def _split(tokens: list[str]) -> list[str]:
    found = [""]
    for token in tokens:
        if token is _STAR:
            found.append("")
        else:
            found[-1] += token
    return found


class _Parser:
    """Reads a glob from left to right."""

    def __init__(self, glob: str, whole: str) -> None:
        self._glob = glob
        self._whole = whole
        self._at = 0

    def alternatives(self, *, inside: bool = False) -> Alternatives:
        """Read up to the end, or inside of braces to the closing one."""
        done: Alternatives = []
        current: Alternatives = [[]]
        while self._at < len(self._glob):
            char = self._next()
            if inside and char == "}":
                return [*done, *current]
            if inside and char == ",":
                done, current = [*done, *current], [[]]
                continue
            following = self.alternatives(inside=True) if char == "{" else [[self._token(char)]]
            if len(done) + len(current) * len(following) > _MOST_ALTERNATIVES:
                raise self._invalid(f"stands for more than {_MOST_ALTERNATIVES} names. Use wildcards, or several tasks")
            current = [[*before, *after] for before, after in product(current, following)]
        if inside:
            raise self._invalid("has a { without its }, in one part of the path")
        return current

    def _next(self) -> str:
        self._at += 1
        return self._glob[self._at - 1]

    def _token(self, char: str) -> str:
        if char == "*":
            return _STAR
        if char == "?":
            return "[^/]"
        if char == "[":
            return self._set()
        if char == "\\" and self._at < len(self._glob):
            char = self._next()
        return re.escape(char)

    def _set(self) -> str:
        negated = self._glob[self._at : self._at + 1] in ("!", "^")
        end = self._glob.find("]", self._at + negated + 1)
        if end < 0:
            raise self._invalid("has a [ without its ]")
        inner = re.sub(r"([\\\[\]^&~|])", r"\\\1", self._glob[self._at + negated : end])
        self._at = end + 1
        found = f"[{'^/' if negated else ''}{inner}]"
        try:
            re.compile(found)
        except re.error as error:
            raise self._invalid(f"has the set {self._glob[self._at - len(inner) - 2 : self._at]!r}: {error.msg}") from error
        return found

    def _invalid(self, why: str) -> DeltaIllegalArgumentException:
        return DeltaIllegalArgumentException(f"The pattern {self._whole!r} {why}.")
