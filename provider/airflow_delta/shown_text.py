"""Texts that somebody else wrote, shown to people who decide: with nothing hidden, and of a traceback only the useful line."""

from __future__ import annotations

import unicodedata


def message_of(error: str) -> str:
    """Return the message of the last error of a traceback, in one line: what follows the frames, which are indented."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    after = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1) + 1
    return " ".join(line.strip() for line in lines[after:] or lines[-1:]) if lines else "cannot be read"


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return a text in which nothing is hidden: characters that are not shown, or turn the direction of others, by their code.

    ``a<U+202E>b`` for a right-to-left override; two values that look alike are alike. Control characters would reach a terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"<U+{ord(one):04X}>" if one not in "\n\t" and unicodedata.category(one) in _HIDDEN else one for one in text)
