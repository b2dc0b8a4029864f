"""The words that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def near_words(word: str, words: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return what :func:`difflib.get_close_matches` finds; it is imported for messages only."""
    import difflib

    return difflib.get_close_matches(word, list(words), n=n, cutoff=cutoff)
