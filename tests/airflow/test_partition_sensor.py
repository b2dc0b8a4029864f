"""Commits of other engines as events by partition: each once, whatever becomes of the task that tells them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from airflow_delta.contract.partition_events import PartitionEvents
from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException
from airflow_delta.sensors.partitions import DeltaPartitionSensor
from support.running_tasks import context

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")

DAYS = [dt.date(2026, 3, number) for number in (1, 2, 3)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    write(path, *DAYS[:2])
    return path


def write(table: Path, *days: dt.date) -> None:
    rows = pa.table({"day": list(days), "number": [day.day for day in days]})
    deltalake.write_deltalake(str(table), rows, mode="append", partition_by=["day"])


def tell(table: Path, run_id: str = "a_run", states: dict[str, str] | None = None, **options: Any) -> list[str]:
    """Return the keys of the events of a run."""
    sensor = DeltaPartitionSensor(task_id="changed", table=str(table), **{"wait": False, "changed_since": -1, **options})
    given = context(sensor, run_id=run_id, states=states)
    found = sensor.execute(given)
    accessor = given["outlet_events"][sensor.outlets[0]]
    assert sorted(found["keys"]) == sorted(accessor.partition_keys)
    assert accessor.extra["version"] == found["versions"][-1]
    return sorted(accessor.partition_keys)


def test_each_commit_is_told_once(table: Path) -> None:
    assert tell(table, "one") == ["2026-03-01", "2026-03-02"]
    write(table, DAYS[2])
    deltalake.DeltaTable(str(table)).optimize.compact()
    assert tell(table, "two") == ["2026-03-03"]
    with pytest.raises(AirflowSkipException, match="since version"):
        tell(table, "three")


def test_what_a_failed_task_found_is_told_by_the_next(table: Path) -> None:
    assert tell(table, "one") == ["2026-03-01", "2026-03-02"]
    write(table, DAYS[2])
    assert tell(table, "two", states={"changed": "failed"}) == ["2026-03-01", "2026-03-02", "2026-03-03"]
    # A retry, or a clear, of the task instance itself tells the same again.
    assert tell(table, "two", states={"changed": "running"}) == ["2026-03-01", "2026-03-02", "2026-03-03"]
    with pytest.raises(AirflowSkipException):
        tell(table, "three", states={"changed": "success"})


def test_a_date_beyond_year_9999_does_not_stop_it(tmp_path: Path) -> None:
    table = tmp_path / "far"
    for day in (20_000, 3_000_000, 20_001):
        rows = pa.table({"day": pa.array([day], pa.int32()).cast(pa.date32())})
        deltalake.write_deltalake(str(table), rows, mode="append")
    daily = {"partition_events": "{day:%Y-%m-%d}"}
    assert tell(table, "one", **daily) == ["2024-10-04", "2024-10-05", "many"]
    with pytest.raises(AirflowSkipException):
        tell(table, "two", **daily)


def test_from_now_on(table: Path) -> None:
    with pytest.raises(AirflowSkipException):
        tell(table, "one", changed_since=None)
    write(table, DAYS[2])
    assert tell(table, "two", changed_since=None) == ["2026-03-03"]


def test_keys_of_ones_own(table: Path) -> None:
    march_second = PartitionEvents(lambda values: f"{values['day']:%j}" if values["day"].day == 2 else None)
    assert tell(table, partition_events=march_second) == ["061"]


def test_it_waits_in_the_triggerer(table: Path) -> None:
    """The trigger begins where the sensor has looked; a commit that others tell of does not end the wait."""
    sensor = DeltaPartitionSensor(task_id="changed", table=str(table), deferrable=True)
    given = context(sensor)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(given)
    assert deferred.value.trigger.after_version == 0
    deltalake.DeltaTable(str(table)).optimize.compact()
    woken = DeltaPartitionSensor(task_id="changed", table=str(table), deferrable=True)
    with pytest.raises(TaskDeferred):
        woken.execute_complete(context(woken), {"status": "success"})
    write(table, DAYS[2])
    woken = DeltaPartitionSensor(task_id="changed", table=str(table), deferrable=True)
    assert woken.execute_complete(context(woken), {"status": "success"})["keys"] == ["2026-03-03"]
    with pytest.raises(DeltaIllegalArgumentException, match="no such thing"):
        woken.execute_complete(given, {"status": "error", "error": "DeltaIllegalArgumentException", "message": "no such thing"})


def test_what_is_left_is_told_next_time(table: Path) -> None:
    """Each event of a task has what is said of all its commits, so these are not without end."""
    for day in DAYS:
        write(table, day)
    two = PartitionEvents(max_keys=2)
    assert tell(table, "one", partition_events=two) == ["2026-03-01", "2026-03-02"]
    assert tell(table, "two", partition_events=two) == ["2026-03-03"]
    with pytest.raises(AirflowSkipException):
        tell(table, "three", partition_events=two)


def test_tables_may_share_an_outlet(table: Path, tmp_path: Path) -> None:
    other, lake = tmp_path / "other", [Asset("lake")]
    write(other, DAYS[2])
    assert tell(table, "one", outlets=lake) == ["2026-03-01", "2026-03-02"]
    assert tell(other, "one", outlets=lake) == ["2026-03-03"]
    with pytest.raises(AirflowSkipException):
        tell(table, "two", outlets=lake)


def test_it_needs_an_asset() -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="partition_events"):
        DeltaPartitionSensor.partial(task_id="changed").expand(table=["/lake/t", "/lake/u"])
    with pytest.raises(DeltaIllegalArgumentException, match="partition_events"):
        DeltaPartitionSensor(task_id="changed", table="/lake/t", outlets=[AssetAlias("any")])


def test_errors_of_looks_and_of_the_trigger_are_those_of_every_sensor(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"status": "error", "error": "VersionNotFoundException", "message": "gone", "table": "t", "version": 4}
    options: dict[str, Any] = {"task_id": "changed", "table": str(table), "deferrable": True}
    with pytest.raises(VersionNotFoundException, match="gone"):
        DeltaPartitionSensor(**options).execute_complete({}, event)
    with pytest.raises(AirflowSkipException):
        DeltaPartitionSensor(**options, never_fail=True).execute_complete({}, event)

    def fail(*_: Any) -> None:
        raise OSError("for a moment")

    monkeypatch.setattr("airflow_delta.hooks.delta.DeltaHook.get_log", fail)
    for more, error in (({}, OSError), ({"silent_fail": True}, TaskDeferred), ({"never_fail": True}, AirflowSkipException)):
        sensor = DeltaPartitionSensor(**options, **more)
        with pytest.raises(error):
            sensor.execute(context(sensor))


def test_a_preview_is_no_table_to_wait_for(table: Path) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="not a table to wait for"):
        tell(table / "staged" / "1" / "_preview", outlets=[Asset("raw")])
