"""The outlets of a task that commits, unless it is given some: the asset of its table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset
from airflow.sdk.definitions.asset import BaseAsset

from airflow_delta.assets.delta import DEFAULT_CONN_ID, delta_asset
from airflow_delta.exceptions import DeltaIllegalArgumentException


def listed(outlets: Any) -> list[Any]:
    """Return outlets as a list: an author may name one, or several."""
    return list(outlets) if isinstance(outlets, Iterable) and not isinstance(outlets, BaseAsset) else [outlets]


def table_outlets(table: Any, delta_conn_id: Any) -> list[Asset]:
    """Return the asset of a table; nothing if its name, or the connection of a relative name, is known only in a run."""
    if not isinstance(table, str) or "{" in table:
        return []
    if not isinstance(delta_conn_id, str) or "{" in delta_conn_id:
        asset = delta_asset(table)
        # The asset of a name below a connection needs the connection.
        return [] if asset.uri.startswith("delta://connection/") else [asset]
    return [delta_asset(table, delta_conn_id)]


def set_default_outlets(task: Any, given: Mapping[str, Any]) -> None:
    """Let a task that commits by itself emit the asset of its table.

    Not an instance of a mapped task: Airflow registers the outlets of the mapped task, which has none.

    :param task: has ``table``, and ``emits_table`` if it changes what readers of the table see.
    :param given: what Airflow has called the constructor with, ``default_args`` included.
    """
    task._has_default_outlets = False
    is_instance = getattr(task, "_BaseOperator__from_mapped", False)
    own = any((arguments or {}).get("outlets") is not None for arguments in (given, given.get("default_args")))
    if own or is_instance or not task.emits_table or getattr(task, "transaction", None) is not None:
        return
    try:
        task.outlets = table_outlets(task.table, task.delta_conn_id or DEFAULT_CONN_ID)
    except DeltaIllegalArgumentException:  # an empty name, or one with credentials: the task itself refuses it
        return
    task._has_default_outlets = True


def withdraw_default_outlets(task: Any) -> None:
    """Let a task emit only what it was given: it is a stage of a transaction, or had nothing to commit."""
    if getattr(task, "_has_default_outlets", False):
        task.outlets = []
