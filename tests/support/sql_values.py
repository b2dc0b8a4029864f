"""Values that try to be SQL."""

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
