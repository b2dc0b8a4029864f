"""A task instance of a run, with its links in Airflow's UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow_delta.contract.tags import DAG_ID_TAG, MAP_INDEX_TAG, RUN_ID_TAG, TASK_ID_TAG, TRY_NUMBER_TAG


def run_of(tags: Mapping[str, str], root: str) -> dict[str, Any] | None:
    """Return the Airflow task instance that the tags of a commit name, with its links.

    :param root: path below which Airflow's UI is served.
    """
    dag_id, run_id = tags.get(DAG_ID_TAG), tags.get(RUN_ID_TAG)
    if not dag_id or not run_id:
        return None
    return task_run(
        root,
        dag_id,
        run_id,
        tags.get(TASK_ID_TAG),
        _number(tags.get(MAP_INDEX_TAG), -1),
        _number(tags.get(TRY_NUMBER_TAG), None),
    )


def task_run(
    root: str, dag_id: str, run_id: str, task_id: str | None = None, map_index: int | None = -1, try_number: int | None = None
) -> dict[str, Any]:
    """Return a task instance with the URLs of its run and of itself in Airflow's UI."""
    url = f"{root}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    task_url = None
    if task_id:
        mapped = f"/mapped/{map_index}" if map_index is not None and map_index >= 0 else ""
        task_url = f"{url}/tasks/{quote(task_id, safe='')}{mapped}"
    return {
        "dag_id": dag_id,
        "run_id": run_id,
        "task_id": task_id,
        "map_index": map_index,
        "try_number": try_number,
        "url": url,
        "task_url": task_url,
    }


def _number(value: Any, default: int | None) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return default
