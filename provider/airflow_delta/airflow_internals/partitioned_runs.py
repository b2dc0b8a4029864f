"""Runs of partitioned Dags, as the scheduler would make them for keys of an asset.

Waits for: a REST API that maps keys as a Dag's timetable does. ``airflow backfill`` makes the runs of a span of time, and none of
a Dag whose partitions are those of an asset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.types import DagRunTriggeredByType

from airflow_delta.airflow_internals.database import create_session


class NoPartitions(ValueError):
    """There is no such Dag, or it has no partitions."""


def mapped_keys(dag_id: str, uris: Collection[str], keys: Iterable[str]) -> dict[str, list[str]]:
    """Return the keys of a Dag's runs for keys of an asset, each with those that it stands for.

    :param uris: the asset may have any of them. A Dag that does not listen to it takes the keys as they are.
    """
    timetable = _timetable(dag_id)
    assets = (key for key, _ in timetable.asset_condition.iter_assets())
    listened = next((key for key in assets if key.uri in uris or key.name in uris), None)
    mapper = None if listened is None else timetable.get_partition_mapper(name=listened.name, uri=listened.uri)
    found: dict[str, list[str]] = {}
    for key in keys:
        targets = key if mapper is None else mapper.to_downstream(key)
        for target in [targets] if isinstance(targets, str) else targets:
            found.setdefault(target, []).append(key)
    return found


def _timetable(dag_id: str) -> Any:
    with create_session() as session:
        dag = SerializedDagModel.get_dag(dag_id, session=session)
    if dag is None:
        raise NoPartitions(f"Airflow's database has no Dag {dag_id!r}.")
    if not (dag.timetable.partitioned or dag.timetable.partitioned_at_runtime):
        raise NoPartitions(f"The runs of the Dag {dag_id!r} have no partition keys: its timetable is not a partitioned one.")
    return dag.timetable


def make_run(dag_id: str, key: str) -> str:
    """Make a run of a Dag for a partition, and return its id."""
    made: Any = trigger_dag(dag_id, triggered_by=DagRunTriggeredByType.CLI, partition_key=key)
    return str(made.run_id)
