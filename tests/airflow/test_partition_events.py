"""The events of a commit by partition, task by task: what is refused before anything is written, and what a retry tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, AssetAlias

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import delta_asset
from airflow_delta.contract.partition_events import PartitionEvents
from airflow_delta.dag_checks import dag_problems
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.tasks.partition_events import with_keys
from support.publications import (  # noqa: F401
    AFTER,
    NAMES,
    PUTS,
    SUCCEEDED,
    World,
    kill_at_an_entry,
    leave_at,
    world_of_three_tables,
)
from support.running_tasks import context
from support.watching import commit, stage, start

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def tell(table: str, events: Any, *, handle: Any = None, staged: Any = None, **of_run: Any) -> tuple[Any, set[str | None]]:
    """Commit three rows, and return the extra and the keys of the events."""
    handle = start(table) if handle is None else handle
    staged = stage(handle, (1, 2, 3))[1] if staged is None else staged
    asset = delta_asset(table)
    operator = commit(handle, staged, partition_events=events, outlets=[asset])
    given = context(operator, states={"stage": "success"}, **of_run)
    operator.execute(given)
    accessor = given["outlet_events"][asset]
    return accessor.extra, accessor.partition_keys


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (True, "no partition columns"),
        ("nowhere", "no column 'nowhere'"),
        (PartitionEvents("id", max_keys=2, beyond="fail"), "more than 2 partitions"),
        (PartitionEvents(lambda _: "x" * 251, column="id"), "has 251 characters"),
        (PartitionEvents(lambda _: 1 / 0, column="id"), "division by zero"),
    ],
)
def test_what_is_refused_is_not_written(table: str, events: Any, problem: str) -> None:
    with pytest.raises((DeltaIllegalArgumentException, ZeroDivisionError), match=problem):
        tell(table, events)
    assert not list(Path(table).glob("_delta_log/*.json"))


def test_a_retry_tells_the_same(table: str) -> None:
    handle = start(table)
    staged = stage(handle, (1, 2, 3))[1]
    extra, keys = tell(table, "id", handle=handle, staged=staged)
    assert keys == {"1", "2", "3", None}  # None: the event of the table
    assert (extra["num_partition_keys"], extra["committed_before"]) == (3, False)
    again, told = tell(table, "id", handle=handle, staged=staged)
    assert told == keys
    assert again["committed_before"]
    (entry,) = Path(table).glob("_delta_log/*.json")
    (info,) = (line["commitInfo"] for line in map(json.loads, entry.read_text().splitlines()) if "commitInfo" in line)
    assert info["tags"]["airflow.partitionEvents"] == "true"


def test_many(table: str) -> None:
    extra, keys = tell(table, PartitionEvents("id", max_keys=2))
    assert keys == {"many", None}
    assert extra["num_partition_keys"] is None


def test_what_cannot_be_told_does_not_fail_a_commit_that_is_written(table: str) -> None:
    """The file of the rows is gone when a retry has to read it."""
    handle = start(table)
    staged = stage(handle, (1, 3))[1]
    by_id = PartitionEvents("id", exact=True)
    assert tell(table, by_id, handle=handle, staged=staged)[1] == {"1", "3", None}
    for file in Path(table).rglob("*.parquet"):
        file.unlink()
    assert tell(table, by_id, handle=handle, staged=staged)[1] == {"many", None}


def test_the_key_of_the_run(table: str) -> None:
    """Airflow gives the event without a key that of the run: it would be about a partition that may not have changed."""
    assert tell(table, "id", dag_run={"partition_key": "2"})[1] == {"1", "2", "3"}


def test_a_run_of_a_partition_that_does_not_change(table: Path) -> None:
    assert tell(table, "id", dag_run={"partition_key": "2026-11-25"})[1] == {"1", "2", "3"}


def test_a_commit_that_tells_nothing_does_not_say_so(table: Path) -> None:
    """A sensor passes over commits whose task tells of their partitions."""
    handle = start(table)
    staged = stage(handle, (1, 2, 3))[1]
    operator = commit(handle, staged, partition_events="id", outlets=[AssetAlias("any")])
    operator.execute(context(operator, states={"stage": "success"}))
    (entry,) = Path(table).glob("_delta_log/*.json")
    assert "airflow.partitionEvents" not in entry.read_text()


def test_many_keys_do_not_repeat_the_partitions() -> None:
    extra = {"partitions": [{"day": "1"}], "commits": [{"version": 1, "partitions": [{"day": "1"}]}]}
    assert with_keys(extra, ("1",)) == {**extra, "num_partition_keys": 1}
    bare = {"partitions": [], "commits": [{"version": 1, "partitions": []}]}
    assert with_keys(extra, tuple(map(str, range(21)))) == {**bare, "num_partition_keys": 21}
    assert with_keys(extra, ("many",)) == {**bare, "num_partition_keys": None}


def test_tasks_without_an_asset() -> None:
    """Refused where a task asks for events by itself; ``default_args`` are meant for tasks in general."""
    with DAG("asks", schedule=None) as dag:
        DeltaDeleteOperator(task_id="templated", table="/lake/{{ params.t }}", predicate="TRUE", partition_events=True)
        DeltaDeleteOperator.partial(task_id="mapped", predicate="TRUE", partition_events=True).expand(table=["/lake/t"])
        DeltaDeleteOperator(task_id="named", table="/lake/t", predicate="TRUE", partition_events=True)
    assert {problem.task_id for problem in dag_problems(dag) if "partition_events" in problem.message} == {"templated", "mapped"}
    asset = delta_asset("/lake/t")
    with DAG("own_outlet", schedule=None):
        delta_transaction("txn", table="/lake/{{ ds }}", commit_kwargs={"outlets": [asset]}, partition_events=True)
    with DAG("defaults", schedule=None, default_args={"partition_events": True}) as dag:
        DeltaDeleteOperator(task_id="templated", table="/lake/{{ params.t }}", predicate="TRUE")
    assert not dag_problems(dag)
    with DAG("of_kwargs", schedule=None), pytest.raises(DeltaIllegalArgumentException, match="partition_events"):
        delta_transaction("txn", table="/lake/{{ ds }}", commit_kwargs={"partition_events": True})


def test_a_publication_that_is_decided_is_not_refused(world: World, killed_at: Any) -> None:
    """The Dag file has changed since the commit was killed: no table may be left without what others show."""
    operator = world.dag.get_task("p.commit")
    handles, reports = leave_at(world, killed_at, PUTS.index("published") + 1, after=True)
    operator.partition_events = PartitionEvents(lambda _: 1 / 0, column="id")
    world.commit(handles, reports, states=SUCCEEDED)
    assert world.rows() == AFTER
    accessors = [world.context["outlet_events"][outlet] for outlet in operator.outlets]
    assert [accessor.partition_keys for accessor in accessors] == [{"many", None}] * 3


def test_a_publication_tells_of_each_table_that_has_an_outlet(world: World) -> None:
    operator = world.dag.get_task("p.commit")
    operator.partition_events, operator.outlets = PartitionEvents("id"), operator.outlets[:1]
    handles = world.begin()
    world.commit(handles, world.stage(handles), states=SUCCEEDED)
    assert world.context["outlet_events"][operator.outlets[0]].partition_keys == {"1", "2", None}
    entries = {name: (Path(world.table(name)) / "_delta_log").glob("0*.json") for name in NAMES}
    told = {name for name, found in entries.items() if any("airflow.partitionEvents" in entry.read_text() for entry in found)}
    assert told == {NAMES[0]}
