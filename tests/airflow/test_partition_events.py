"""The events of a commit by partition, task by task: what is refused before anything is written, and what a retry tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.assets.delta import delta_asset
from airflow_delta.contract.partition_events import PartitionEvents
from airflow_delta.exceptions import DeltaIllegalArgumentException
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
    """Airflow gives the event without a key that of the run: one of the keys does not come twice."""
    assert tell(table, "id", dag_run={"partition_key": "2"})[1] == {"1", "2", "3"}
