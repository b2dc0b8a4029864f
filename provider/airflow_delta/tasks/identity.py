"""Who the running task is in the log: the ids and tags of its transactions, its attempts and its tries."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.clocks import WORKERS_DIFFER_BY
from airflow_delta.contract.staging_directory import new_attempt, owned_transaction_id
from airflow_delta.contract.tags import (
    DAG_ID_TAG,
    MAP_INDEX_TAG,
    MAX_TRIES_TAG,
    RUN_ID_TAG,
    SCHEDULED_FOR_TAG,
    TASK_ID_TAG,
    TRY_NUMBER_TAG,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.table.state.find_commit import TryChain


def commit_tags(context: Context) -> dict[str, str]:
    """Return the tags that name the committing task instance in ``commitInfo``."""
    ti = context["ti"]
    max_tries = getattr(ti, "max_tries", None)
    scheduled_for = _scheduled_for(context.get("dag_run"))
    return {
        DAG_ID_TAG: str(ti.dag_id),
        RUN_ID_TAG: str(ti.run_id),
        TASK_ID_TAG: str(ti.task_id),
        MAP_INDEX_TAG: str(map_index(ti)),
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
    return {"task_id": ti.task_id, "map_index": map_index(ti), "attempt": new_attempt(ti.try_number)}


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


def map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def new_transaction_id(context: Context) -> str:
    """Return an id for this execution of a start task: a UUID (version 8) that starts with a digest of its owner."""
    ti = context["ti"]
    return owned_transaction_id(ti.dag_id, ti.task_id, ti.run_id)
