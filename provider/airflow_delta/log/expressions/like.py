"""LIKE in linear time: ``%`` matches any text, ``_`` one character, and a backslash escapes.

A regular expression would backtrack between the wildcards, on text that comes from the table.
"""

from __future__ import annotations

from functools import lru_cache

Segment = tuple[str | None, ...]
"""Consecutive characters; ``None`` matches any character."""


class LikePattern:
    """A pattern, split at ``%``.

    :ivar prefix: prefix of all matches.
    """

    def __init__(self, pattern: str) -> None:
        segments: list[list[str | None]] = [[]]
        at = 0
        while at < len(pattern):
            letter = pattern[at]
            if letter == "\\" and at + 1 < len(pattern):
                at += 1
                segments[-1].append(pattern[at])
            elif letter == "%":
                segments.append([])
            else:
                segments[-1].append(None if letter == "_" else letter)
            at += 1
        first, *middle, last = [tuple(s) for s in segments] if len(segments) > 1 else [tuple(segments[0]), ()]
        self._exact = len(segments) == 1
        self._first, self._last = first, last
        self._middle = [_Search(segment) for segment in middle if segment]
        self._least = len(first) + len(last) + sum(search.length for search in self._middle)
        known = next((i for i, letter in enumerate(first) if letter is None), len(first))
        self.prefix = "".join(letter for letter in first[:known] if letter is not None)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches the pattern."""
        if len(text) < self._least or (self._exact and len(text) != self._least):
            return False
        end = len(text) - len(self._last)
        if not _equal(self._first, text, 0) or not _equal(self._last, text, end):
            return False
        at: int | None = len(self._first)
        for search in self._middle:  # the earliest match leaves most room for the others
            at = search.end(text, at or 0, end)
            if at is None:
                return False
        return True


class _Search:
    """Finds a segment anywhere in a text."""

    def __init__(self, segment: Segment) -> None:
        self.length = len(segment)
        self._text = None if None in segment else "".join(letter or "" for letter in segment)
        self._masks: dict[str, int] = {}
        self._any = 0
        if self._text is None:
            for position, letter in enumerate(segment):
                if letter is None:
                    self._any |= 1 << position
                else:
                    self._masks[letter] = self._masks.get(letter, 0) | 1 << position

    def end(self, text: str, start: int, stop: int) -> int | None:
        """Return where its first occurrence between two positions ends."""
        if self._text is not None:
            found = text.find(self._text, start, stop)
            return None if found < 0 else found + self.length
        state, done = 0, 1 << (self.length - 1)  # one bit for each prefix of the segment that ends here
        for at in range(start, stop):
            state = (state << 1 | 1) & (self._masks.get(text[at], 0) | self._any)
            if state & done:
                return at + 1
        return None


def _equal(segment: Segment, text: str, at: int) -> bool:
    return all(letter is None or letter == text[at + i] for i, letter in enumerate(segment))


@lru_cache(maxsize=256)
def like_pattern(pattern: str) -> LikePattern:
    """Return the compiled form of a pattern, cached."""
    return LikePattern(pattern)
