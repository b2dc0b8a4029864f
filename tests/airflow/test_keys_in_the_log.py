"""Whole runs whose key, or whose rows, are in the log already: by another run, or under another name of the task."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support import readers
from support.dag_runs import Run, run_to_end, scheduler_dag
from support.slow import slow_except

pytestmark = pytest.mark.airflow

DAY, NEXT_DAY = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

FILE = """
from datetime import datetime

import pyarrow as pa
from airflow.sdk import CronPartitionTimetable, dag, task

from airflow_delta import delta_transaction
"""

DAG = """
@dag("{dag_id}", schedule={schedule}, start_date=datetime(2026, 1, 1), params={{"batch": None}})
def the_dag():
    {groups}


the_dag()
"""

GROUP = """
    with delta_transaction("{group}", table="{table}", {options}):

        @task.delta_stage(engine="arrow", mode="append")
        def rows():
            return pa.table({{"id": pa.array([1, 2], pa.int64())}})

        rows()
"""


class Place:
    """A Dag file that changes, and its table."""

    def __init__(self, root: Path, dag_id: str) -> None:
        self.root, self.dag_id, self.table = root, dag_id, f"{root}/table"

    def bag(self, *groups: str, schedule: str = "None", **options):
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        text = ""
        for group in groups:
            chosen = {name: value[group] if isinstance(value, dict) else value for name, value in options.items()}
            given = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
            text += GROUP.format(group=group, table=self.table, options=given)
        folder = self.root / f"dags-{len(list(self.root.iterdir()))}"
        folder.mkdir()
        (folder / "dags.py").write_text(FILE + DAG.format(dag_id=self.dag_id, schedule=schedule, groups=text.strip()))
        found = DagBag(dag_folder=str(folder))
        assert found.import_errors == {}
        DagBundlesManager().sync_bundles_to_db()
        sync_bag_to_db(found, "tests", None)
        return found

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in readers.rows(self.table))


@pytest.fixture
def place(tmp_path, airflow_database, request) -> Place:
    return Place(tmp_path, request.node.name.replace("[", "_").rstrip("]"))


def warning_of(run, task_id: str) -> str | None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_delta.airflow_internals.database import of_latest_tries

    with create_session() as session:
        row = session.scalar(
            of_latest_tries(select(XComModel)).where(
                XComModel.dag_id == run.dag_id,
                XComModel.run_id == run.run_id,
                XComModel.task_id == task_id,
                XComModel.key == "delta_key_warning",
            )
        )
        return None if row is None else XComModel.deserialize_value(row)


def test_a_renamed_group_does_not_publish_twice(run_dag, clear_and_run, place):
    run = run_dag(place.dag_id, bag=place.bag("txn"))
    assert (run.state, place.ids()) == ("success", [1, 2])
    renamed = clear_and_run(run, bag=place.bag("load"))
    assert (renamed.state_of("load.start"), renamed.tries_of("load.start")) == ("failed", 1)
    assert place.ids() == [1, 2]
    allowed = clear_and_run(
        renamed,
        *(f"load.{name}" for name in ("start", "rows", "commit", "abort", "watcher")),
        bag=place.bag("load", transaction_key=f"{place.dag_id}/txn/{{{{ run_id }}}}/-1"),
    )
    assert (allowed.state_of("load.commit"), place.ids()) == ("success", [1, 2])


@pytest.mark.slow
def test_a_group_that_is_added_publishes(run_dag, clear_and_run, place):
    run = run_dag(place.dag_id, bag=place.bag("txn"))
    more = clear_and_run(run, bag=place.bag("txn", "more"))
    assert (more.state_of("more.commit"), place.ids()) == ("success", [1, 1, 2, 2])


@pytest.mark.parametrize("way_out", slow_except([{"key_check": "off"}, {"rerun_policy": "append"}], {"key_check": "off"}))
def test_a_renamed_group_that_is_other_work(run_dag, clear_and_run, place, way_out):
    run = run_dag(place.dag_id, bag=place.bag("txn"))
    more = clear_and_run(run, bag=place.bag("load", **way_out))
    assert (more.state_of("load.commit"), place.ids()) == ("success", [1, 1, 2, 2])


@pytest.mark.slow
def test_a_key_that_is_changed_in_the_dag_file(run_dag, clear_and_run, place):
    run = run_dag(place.dag_id, bag=place.bag("txn"))
    tasks = [f"txn.{name}" for name in ("start", "rows", "commit", "abort", "watcher")]
    changed = clear_and_run(run, *tasks, bag=place.bag("txn", transaction_key="orders/{{ ts }}"))
    assert (changed.state_of("txn.start"), place.ids()) == ("failed", [1, 2])


@pytest.mark.parametrize("check", slow_except(["warn", "fail", "off"], "warn"))
def test_a_key_that_an_earlier_run_used(run_dag, place, check):
    bag = place.bag("txn", transaction_key="orders", key_check=check)
    first = run_dag(place.dag_id, DAY, bag=bag)
    second = run_dag(place.dag_id, NEXT_DAY, bag=bag)
    assert place.ids() == [1, 2]
    assert second.state_of("txn.start") == ("failed" if check == "fail" else "success")
    if check != "warn":
        assert warning_of(second, "txn.start") is None
        return
    said = warning_of(second, "txn.start")
    assert f"task 'txn.commit' in run {first.run_id!r} of Dag {place.dag_id!r}" in said
    assert second.xcom("txn.start")["committed"]["committedBy"]["runId"] == first.run_id
    assert second.xcom("txn.commit")["committedBy"]["taskId"] == "txn.commit"
    assert warning_of(first, "txn.start") is None


@pytest.mark.parametrize(
    ("of_first", "of_second", "refused"),
    slow_except(
        [
            ({"logical_date": DAY}, {"logical_date": NEXT_DAY}, True),
            ({"logical_date": DAY, "end": NEXT_DAY}, {"logical_date": NEXT_DAY, "end": NEXT_DAY}, True),
            ({"run_type": "asset_triggered"}, {"run_type": "asset_triggered"}, True),
            ({"partition_key": "2026-01-01"}, {"partition_key": "2026-01-02"}, True),
            ({"partition_key": "2026-01-01"}, {"partition_key": "2026-01-01", "run_type": "backfill"}, False),
            ({"logical_date": DAY}, {"logical_date": NEXT_DAY, "run_type": "manual"}, False),
        ],
        ({"run_type": "asset_triggered"}, {"run_type": "asset_triggered"}, True),
    ),
)
def test_a_key_that_a_run_scheduled_for_something_else_used(place, of_first, of_second, refused):
    partitioned = "CronPartitionTimetable('0 0 * * *', timezone='UTC')" if "partition_key" in of_first else "None"
    bag = place.bag("txn", transaction_key="orders", schedule=partitioned)
    first, second = (scheduled(place.dag_id, bag, **of) for of in (of_first, of_second))
    assert (first.state_of("txn.commit"), second.state_of("txn.start")) == ("success", "failed" if refused else "success")
    assert second.state == ("failed" if refused else "success")
    assert place.ids() == [1, 2]


def scheduled(dag_id: str, bag, *, logical_date=None, end=None, run_type="scheduled", partition_key=None) -> Run:
    """Run a Dag as the scheduler, or a backfill, makes its runs."""
    from airflow.timetables.base import DataInterval
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    with create_session() as session:
        dag_run = scheduler_dag(bag.dags[dag_id]).create_dagrun(
            run_id=f"{run_type}__{uuid.uuid4()}",
            run_after=logical_date or NEXT_DAY,
            logical_date=logical_date,
            data_interval=None if logical_date is None else DataInterval(logical_date, end or logical_date),
            run_type=DagRunType(run_type),
            triggered_by=DagRunTriggeredByType.TEST,
            state="running",
            partition_key=partition_key,
            session=session,
        )
        run_to_end(dag_run, bag.dags[dag_id], session)
        return Run(dag_run)


def test_a_cleared_run_finds_its_own_key_without_a_word(run_dag, clear_and_run, place):
    bag = place.bag("txn", transaction_key="orders", key_check="fail")
    run = run_dag(place.dag_id, bag=bag)
    again = clear_and_run(run, *(f"txn.{name}" for name in ("start", "rows", "commit", "abort", "watcher")), bag=bag)
    assert (again.state, place.ids(), warning_of(again, "txn.start")) == ("success", [1, 2], None)


@pytest.mark.slow
def test_two_tasks_of_a_run_with_one_key(run_dag, place):
    keys = {"one": "orders/{{ run_id }}", "two": "orders/{{ dag_run.run_id }}"}  # the Dag file shows only equal texts
    run = run_dag(place.dag_id, bag=place.bag("one", "two", transaction_key=keys))
    assert (run.state, place.ids()) == ("success", [1, 2])
    # Both have begun when the first one commits.
    said = [text for group in ("one", "two") if (text := warning_of(run, f"{group}.commit")) is not None]
    assert len(said) == 1
    assert f"in run {run.run_id!r}" in said[0]


def test_a_key_without_a_value_fails_at_once(run_dag, place):
    run = run_dag(place.dag_id, bag=place.bag("txn", transaction_key="orders/{{ params.batch }}"))
    assert (run.state_of("txn.start"), run.tries_of("txn.start")) == ("failed", 1)
    assert not Path(place.table).exists()
