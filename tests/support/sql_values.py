"""Values that are hard to spell: in SQL, and in the paths of partitions."""

from __future__ import annotations

TEXTS = (
    "1 OR true",
    "' OR true OR '",
    "'' OR true --",
    '" OR true OR "',
    "\\' OR true -- ",
    "\\",
    "a\\",
    "it's",
    "line\nline\r\n\ttab\0 \x1a",
    "${env:HOME} {{ x }} :x `a`",
    "/* */ -- ;",
    "\\u0027 \\047 \\' \\%",
    "Ünï 😀 \u2028 \uff07 \u02bc",
    "",
    " ",
)
"""Values that try to be SQL."""

PARTITION_VALUES = [
    *("é", "e\u0301", "ß ü", "日本", "😀", "100%", "%C3%A9", "a b", "a+b", "12:30", "a=b", "a/b", "(a);b,c", "~a!b", "a&b@c$d"),
    *("a'b", '"q"', "<x>|y", "{a}[b]^`c\\", "a#b?c", "\u00a0\u200b", "tab\tnew\nline", "\u0085", "..", "a.b_c-d"),
]
"""Values that a path spells otherwise than the log."""
