"""Expressions that are plainly such: columns and constants, joined by ``+``, ``-``, ``*``, ``/`` and ``%``.

Most that set columns are. They need no parser: sqlglot's import alone takes longer than a small UPDATE.
"""

from __future__ import annotations

import re

from airflow_delta.lazy_patterns import lazy_pattern

_OPERAND = r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[0-9]+(?:\.[0-9]+)?|'[^'\\]*')"
_PLAIN = lazy_pattern(rf"\s*{_OPERAND}(?:\s*[-+*/%]\s*{_OPERAND})*\s*", re.ASCII)
_WORDS = lazy_pattern(r"'[^']*'|([A-Za-z_]\w*)", re.ASCII)

# Words that mean something to Spark or to sqlglot, at least in some places.
_WORDS_OF_SQL = frozenset(
    re.findall(
        r"\w+",
        """
        all alter analyze and any array as begin between both cache call case cast collate column comment commit
        connect_by_root copy create cross current_catalog current_database current_date current_schema current_time
        current_timestamp current_user date declare delete desc describe distinct div drop else end escape except
        execute exists explain false fetch for from full glob grant group having if ilike in inner insert intersect
        interval into is join kill lateral leading left like limit load localtimestamp map merge minus natural not
        notnull null on only optimize or order outer over partitioned_by pivot pragma prepare qualify refresh regexp
        rename returning revoke right rlike rollback row select serdeproperties session_user set show some struct
        sysdate table tablesample then time timestamp timestamp_ltz timestamp_ntz to trailing true truncate try_cast
        uncache union unique unknown unpivot update use user using vacuum values when where window with xor
        """,
    )
)


def is_plain(text: str) -> bool:
    """Return whether a text certainly is a valid expression without calls and subqueries; ``False`` if that needs a parser."""
    if _PLAIN.fullmatch(text) is None:
        return False
    return not any(word.lower() in _WORDS_OF_SQL for word in _WORDS.findall(text))
