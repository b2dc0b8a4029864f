"""What the checks of an audit have read of the table, for the commit to look at again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.audit import BEFORE, FAIL, RATIOS, RESULT, AuditCheck, HeldCheck, SqlCheck, key_of
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.expressions.text import SqlSyntaxError, tokens_of
from airflow_delta.transaction.reads.table_reads import TableReads

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.table.audit.audited_table import AuditedTable


def held_ratio(table: AuditedTable, limits: Mapping[str, Any], outcome: AuditCheck, task: str) -> list[HeldCheck]:
    """Return how ``rows_change`` is looked at again by the commit; nothing if it has not decided, or only warns.

    :param limits: as the author gives them.
    :param outcome: of the check.
    :param task: for errors.
    """
    before, after = table.rows_before, table.rows_after
    if not outcome.passed or outcome.severity != FAIL or before is None or after is None:
        return []
    low, high = (None if limits.get(key) is None else str(limits[key]) for key in RATIOS)
    held = _held(table, f"{outcome.name} of {task}")
    return [replace(held, ratios=(low, high), rows_before=before, rows_after=after)]


def held_unique(table: AuditedTable, given: Any, outcome: AuditCheck, task: str) -> list[HeldCheck]:
    """Return how ``unique`` is looked at again by the commit; nothing if it has not passed, or only warns.

    :param given: as the author gives it.
    :param outcome: of the check.
    :param task: for errors.
    """
    if not outcome.passed or outcome.severity != FAIL:
        return []
    columns, limit = key_of(given)
    return [replace(_held(table, f"{outcome.name} of {task}"), unique=columns, limit=limit)]


def held_queries(
    table: AuditedTable, checks: Sequence[SqlCheck], task: str, *, views: Sequence[str] = (RESULT, BEFORE)
) -> list[HeldCheck]:
    """Return what SQL checks have read of a table; nothing of those that only warn, or only read what is staged.

    :param task: for errors.
    :param views: the names that queries have for the table before and after the commit.
    """
    found = []
    for check in checks:
        if check.on_failure != FAIL or not _names(views).search(check.sql):
            continue
        condition = condition_of(check.sql, views) if table.handle.read_version >= 0 else None
        if condition is not None and not _is_bound(table.view.snapshot, condition):
            condition = None
        held = _held(table, f"{check.name} of {task}")
        found.append(replace(held, whole_table=True) if condition is None else replace(held, predicates=(condition,)))
    return found


def held_queries_of_tables(tables: Mapping[str, AuditedTable], checks: Sequence[SqlCheck], task: str) -> list[HeldCheck]:
    """Return what SQL checks over several tables have read of each.

    :param tables: by the name of their views, as of :func:`~airflow_delta.table.audit.sql_checks.plan_checks_of_tables`.
    """
    return [
        held for name, table in tables.items() for held in held_queries(table, checks, task, views=(name, f"{name}_{BEFORE}"))
    ]


def _held(table: AuditedTable, name: str) -> HeldCheck:
    return HeldCheck(name=name, transaction_id=table.handle.transaction_id, version=table.version)


def _any_of(views: Sequence[str]) -> str:
    return "|".join(map(re.escape, views))


def _names(views: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{_any_of(views)})\b", re.IGNORECASE)


_ENDS = ("GROUP_BY", "HAVING", "ORDER_BY", "SORT_BY", "CLUSTER_BY", "DISTRIBUTE_BY", "LIMIT", "OFFSET", "WINDOW", "SEMICOLON")

_MORE = ("SELECT", "JOIN", "UNION", "INTERSECT", "EXCEPT", "WITH", "QUALIFY", "LATERAL")


def condition_of(sql: str, views: Sequence[str] = (RESULT, BEFORE)) -> str | None:
    """Return the condition on the rows that a query reads of the table; ``None`` if it may read others.

    Only of one ``SELECT ... FROM result WHERE ...`` without joins and subqueries: whatever else a query says, it reads the whole
    table, which is never too little.

    :param views: as of :func:`held_queries`.
    """
    start = re.search(rf"\bFROM\s+`?(?:{_any_of(views)})`?\s+WHERE\b", sql, re.IGNORECASE)
    if start is None or len(_names(views).findall(sql)) != 1:
        return None
    try:
        tokens = tokens_of(sql)
    except SqlSyntaxError:
        return None
    kinds = [token.token_type.name for token in tokens]
    if kinds.count("SELECT") != 1 or kinds.count("WHERE") != 1 or set(kinds) & (set(_MORE) - {"SELECT"}):
        return None
    first = kinds.index("WHERE") + 1
    if tokens[first - 1].end + 1 != start.end():  # the words are in a string or a comment
        return None
    last = next((at for at in range(first, len(kinds)) if kinds[at] in _ENDS), len(kinds))
    return sql[tokens[first].start : tokens[last - 1].end + 1] if last > first else None


def _is_bound(snapshot: Snapshot, condition: str) -> bool:
    """Return whether a condition is one on the columns of the table."""
    try:
        TableReads(snapshot).track_read_predicates(condition, scanned=True)
    except DeltaAnalysisException:
        return False
    return True
