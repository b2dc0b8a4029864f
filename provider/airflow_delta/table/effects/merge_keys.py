"""The keys of a MERGE, by the condition in its commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log import heavy
from airflow_delta.log.expressions.refused import oversized
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.table.stage.compared_columns import conjunct_texts

if TYPE_CHECKING:
    from airflow_delta.log.actions.decode import DecodedCommit

_EXPRESSION_ID = lazy_pattern(r"#\d+L?")
"""Spark writes ``(id#12L = id#34L)``."""


def merge_keys(commit: DecodedCommit, columns: Sequence[str]) -> list[str]:
    """Return the columns that the condition of a MERGE compares with a column of the same name; none if it is not a MERGE.

    :param columns: of the table.
    """
    info = commit.commit_info or {}
    if info.get("operation") != "MERGE":
        return []
    names = {name.lower(): name for name in columns}
    found = [names[key] for text in _conditions(info) for key in _compared_keys(text) if key in names]
    return list(dict.fromkeys(found))


def _conditions(info: Mapping[str, Any]) -> list[str]:
    """Return the conditions in the commit: a list as JSON, or text (older Spark, and delta-rs' ``mergePredicate``)."""
    said = info.get("operationParameters")
    parameters = said if isinstance(said, Mapping) else {}
    text = parameters.get("predicate") or parameters.get("mergePredicate")
    if not isinstance(text, str):
        return []
    try:
        conditions = json.loads(text)
    except ValueError:
        conditions = [text]
    return [one for one in conditions if isinstance(one, str)] if isinstance(conditions, list) else []


def _compared_keys(condition: str) -> list[str]:
    """Return the names that both sides of an equality have, in lower case; none if the text is not an expression."""
    text = _EXPRESSION_ID.sub("", condition)
    try:
        if oversized(text) is not None:
            return []
        found = [heavy.equality_of(tree_of(part)) for part in conjunct_texts(text)]
    except (SqlSyntaxError, RecursionError):
        return []
    names = [(each.left.parts[-1].lower(), each.right.parts[-1].lower()) for each in found if each is not None]
    return [left for left, right in names if left == right]
