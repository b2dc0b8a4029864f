"""How far back a transaction key may have been committed: the log keeps keys for a time only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.tasks.task_state import keep

if TYPE_CHECKING:
    from airflow.sdk import Context


logger = logging.getLogger(__name__)

STATE_KEY = "delta_run_began"
"""Key in the task state store: when the run first started. Airflow moves the run's start with every clear."""

_WORTH_A_NOTE = 24 * 3600 * 1000


def possible_since(context: Context, key: str | None) -> Callable[[], int | None]:
    """Return a function for the earliest time at which a key may have been committed, in milliseconds since the epoch.

    A key of the run's own (the default key, or one that contains the run id) is as old as the run: a backfill made today for old
    dates is young. Any other key may have been committed by an earlier run for the same dates.

    :param key: the author's transaction key, rendered.
    """
    dag_run: Any = context.get("dag_run")
    if dag_run is None:
        return lambda: None
    began, created_after = _milliseconds(dag_run.start_date), _milliseconds(dag_run.run_after)
    ti, store = context["ti"], context.get("task_state_store")
    if dag_run.clear_number and (ti.try_number > 1 or _is_mapped(ti)):  # otherwise it has not run before
        began = _noted(store)
    elif began is not None and created_after is not None and began - created_after > _WORTH_A_NOTE:
        _note(store, began)
    own = began if began is not None else created_after
    if key is None or str(ti.run_id) in key:
        return lambda: own
    dates = (own, created_after, dag_run.data_interval_end or dag_run.logical_date, getattr(dag_run, "partition_date", None))
    known = [value for value in map(_milliseconds, dates) if value is not None]
    return lambda: min(known, default=None)


def _is_mapped(ti: Any) -> bool:
    return ti.map_index is not None and ti.map_index >= 0


def _note(store: Any, began: int) -> None:
    if store is None:
        return
    try:
        keep(store, STATE_KEY, {"at": began})
    except Exception:  # only a much later clear would need it, and would then refuse
        logger.warning("Could not record the start of the run", exc_info=True)


def _noted(store: Any) -> int | None:
    note = store.get(STATE_KEY) if store is not None else None
    at = note.get("at") if isinstance(note, dict) else None
    return at if isinstance(at, int) else None


def _milliseconds(value: datetime | int | None) -> int | None:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value
