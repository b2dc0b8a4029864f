"""Texts that somebody else wrote, shown to people who decide."""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return a text in which nothing is hidden: characters that are not shown, or turn the direction of others, by their code.

    ``a<U+202E>b`` for a right-to-left override; two values that look alike are alike. Control characters would reach a terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"<U+{ord(one):04X}>" if one not in "\n\t" and unicodedata.category(one) in _HIDDEN else one for one in text)
