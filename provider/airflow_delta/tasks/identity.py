"""Identity of the running task in the log, and the values that it gets from templates and XComs.

How far back a Dag run may have committed: needed to tell whether its transaction key may have expired.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.airflow_internals.tasks import all_of
from airflow_delta.contract.clocks import WORKERS_DIFFER_BY
from airflow_delta.contract.files import new_attempt
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.tags import (
    DAG_ID_TAG,
    MAP_INDEX_TAG,
    MAX_TRIES_TAG,
    RUN_ID_TAG,
    SCHEDULED_FOR_TAG,
    TASK_ID_TAG,
    TRY_NUMBER_TAG,
)
from airflow_delta.exceptions import DeltaIllegalArgumentException, StagingException

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.table.state.find_commit import TryChain


def default_transaction_key(context: Context) -> str:
    """Return the default transaction key: Dag id, group id, run id, and the mapped value.

    The group is that of ``delta_transaction``, whose start task is ``<group id>.start``; any other start task counts by its own
    id, since a task group may hold several. Without mapping the key ends in ``-1``.
    """
    ti = context["ti"]
    name = "-1"
    if _map_index(ti) >= 0:
        from airflow_delta.tasks.mapped_identity import instance_name

        name = instance_name(context)
    return _key(ti, name)


def default_key_prefix(dag_id: str, start_task_id: str, run_id: str) -> str:
    """Return the prefix of all default keys of a start task in one run."""
    return f"{dag_id}/{start_task_id.removesuffix('.start')}/{run_id}/"


def former_keys(context: Context, key: str | None) -> tuple[str, ...]:
    """Return the default keys, by map index, that earlier versions of this provider gave to mapped instances.

    :param key: the author's key.
    """
    ti = context["ti"]
    return () if key is not None or _map_index(ti) < 0 else tuple(_key(ti, str(index)) for index in {0, _map_index(ti)})


def _key(ti: Any, name: str) -> str:
    return default_key_prefix(ti.dag_id, ti.task_id, ti.run_id) + name


def commit_tags(context: Context) -> dict[str, str]:
    """Return the tags that name the committing task instance in ``commitInfo``."""
    ti = context["ti"]
    max_tries = getattr(ti, "max_tries", None)
    scheduled_for = _scheduled_for(context.get("dag_run"))
    return {
        DAG_ID_TAG: str(ti.dag_id),
        RUN_ID_TAG: str(ti.run_id),
        TASK_ID_TAG: str(ti.task_id),
        MAP_INDEX_TAG: str(_map_index(ti)),
        TRY_NUMBER_TAG: str(ti.try_number),
        **({} if max_tries is None else {MAX_TRIES_TAG: str(max_tries)}),
        **({} if scheduled_for is None else {SCHEDULED_FOR_TAG: scheduled_for}),
    }


def _scheduled_for(dag_run: Any) -> str | None:
    """Return what Airflow has created a run for: its partition, its interval, its date, or else, for events, the run itself.

    :return: ``None`` for a run that somebody has triggered: only they know what it works on.
    """
    run_type = getattr(dag_run, "run_type", None)
    if str(getattr(run_type, "value", run_type)) not in ("scheduled", "backfill", "asset_triggered"):
        return None
    if (partition := getattr(dag_run, "partition_key", None)) is not None:
        return f"partition {partition}"
    start, end = getattr(dag_run, "data_interval_start", None), getattr(dag_run, "data_interval_end", None)
    if start is not None and end is not None and start < end:
        return f"{start.astimezone(UTC).isoformat()}/{end.astimezone(UTC).isoformat()}"
    date = getattr(dag_run, "logical_date", None)
    return f"run {dag_run.run_id}" if date is None else str(date.astimezone(UTC).isoformat())


def stage_identity(context: Context) -> dict[str, Any]:
    """Return the identity of a new attempt to stage something: ``task_id``, ``map_index`` and ``attempt``."""
    ti = context["ti"]
    return {"task_id": ti.task_id, "map_index": _map_index(ti), "attempt": new_attempt(ti.try_number)}


def try_chain(context: Context) -> TryChain:
    """Return the running try with the tries that it is a retry of."""
    ti = context["ti"]
    tags = commit_tags(context)
    max_tries = int(tags.get(MAX_TRIES_TAG, -1))
    retries = getattr(context.get("task"), "retries", None)
    first_try = max_tries - retries + 1 if isinstance(retries, int) and max_tries >= 0 else 1
    # Airflow moves the run's start if an ended run is cleared, not between two tries of a task. A first try is given up after
    # minutes of silence, longer than clocks differ; a second one may commit at once.
    first = int(ti.try_number) <= 1
    began: Any = getattr(ti if first else context.get("dag_run"), "start_date", None)
    since = None if began is None else int(began.timestamp() * 1000) - (0 if first else WORKERS_DIFFER_BY)
    return engine.TryChain(tags, max(first_try, 1), since)


def _map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def parse_handle(value: Any, *, task_id: str) -> TransactionHandle:
    """Return the handle that a task got as XCom.

    :raises StagingException: if there is none, or the value is not a handle.
    """
    if isinstance(value, TransactionHandle):
        return value
    if value is None:
        raise StagingException(
            f"The task {task_id!r} got no transaction. Pass transaction=<output of the start task>, or put the task into a "
            "delta_transaction group. If it has one, the start task has not run, or was cleared, in this run."
        )
    if not isinstance(value, Mapping) or not value.keys() >= _HANDLE:
        raise StagingException(
            f"The task {task_id!r} got something other than a transaction: {_shown(value)}. Pass transaction=<output of the "
            "start task> itself: a template makes text of it, and of a mapped start task it is a list (put start, stages and "
            "commit into an expanded @task_group)."
        )
    return TransactionHandle.from_dict(value)


_HANDLE = {"contract", "transactionId", "table"}
_REPORT = {"contract", "transactionId", "stage"}


def parse_report(value: Mapping[str, Any], *, task_id: str) -> StagedWrite:
    """Return the staged write that a task got as XCom.

    :raises StagingException: if the value is not a report.
    """
    if not value.keys() >= _REPORT:
        raise not_a_report(value, f"The task {task_id!r}")
    return StagedWrite.from_dict(value)


def not_a_report(value: Any, whose: str = "The task") -> StagingException:
    """Return the error of a task that got something other than what a stage returns."""
    return StagingException(
        f"{whose} got something other than a staged write: {_shown(value)}. Pass the outputs of stage tasks themselves, such as "
        "staged=[first.output, second.output]."
    )


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"


def column_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names in an argument that is one name or several."""
    return (value,) if isinstance(value, str) and value else tuple(value or ())


def schema_text(schema: str | Mapping[str, Any] | None) -> str | None:
    """Return a schema that a start task was given, in Spark's JSON form."""
    return json.dumps(schema) if isinstance(schema, Mapping) else schema


def flatten_reports(value: Any) -> Iterator[Mapping[str, Any] | None]:
    """Yield the staged writes in a value: one, a list, mapped results, or lists of these; ``None`` is kept."""
    if value is None or isinstance(value, Mapping):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in all_of(value):
            yield from flatten_reports(item)
    else:
        raise not_a_report(value)


def true_or_false(name: str, value: bool | str) -> bool:
    """Return a truth value that a template may have turned into text.

    :raises DeltaIllegalArgumentException: if it is neither true nor false.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise DeltaIllegalArgumentException(f"{name} must be true or false, got {value!r}.")
    return text == "true"


def whole_number(name: str, value: int | str | None) -> int | None:
    """Return a whole number that a template may have turned into text.

    :raises DeltaIllegalArgumentException: if it is not a whole number.
    """
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(str(value))
    except ValueError:
        raise DeltaIllegalArgumentException(f"{name} must be a whole number, got {value!r}") from None


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


def keep(store: Any, key: str, value: dict[str, Any]) -> None:
    """Keep something in a task's state store for as long as Airflow has the task."""
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it

    store.set(key, value, retention=NEVER_EXPIRE)


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
