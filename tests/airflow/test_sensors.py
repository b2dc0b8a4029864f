"""Waiting for a version: whole Dag runs in every mode, then the arguments and the state, one by one."""

from __future__ import annotations

import threading
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from airflow_delta.table.observe.commit_summary import commit_summary
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from support import tables as by_hand
from support.running_tasks import context, pushed
from support.slow import slow_except
from support.state_store import TaskStateStore
from support.versions import MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")

MODES = ("poke", "reschedule", "deferrable")
DAY = datetime(2026, 3, 1, tzinfo=UTC)


class WhileItWaits:
    """Something that is done as soon as the sensor of a Dag run has looked at the table in vain."""

    def __init__(self, path: Path, action) -> None:
        self._thread = threading.Thread(target=self._run, args=(Path(f"{path}.looked"), action))

    @staticmethod
    def _run(marker: Path, action) -> None:
        until = time.monotonic() + 240
        while not marker.exists() and time.monotonic() < until:
            time.sleep(0.05)
        action()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_) -> None:
        self._thread.join()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "table"


@pytest.mark.airflow
@pytest.mark.parametrize("mode", slow_except(MODES, "deferrable"))
class TestDagRuns:
    @pytest.fixture
    def run(self, run_dag, mode, path, request):
        # A run of its own for each test: the run id is made of the date.
        day = DAY + timedelta(days=zlib.crc32(request.node.name.encode()) % 3000)
        return lambda **conf: run_dag(f"sensor_{mode}", day, table=str(path), **conf)

    @pytest.mark.slow
    def test_the_next_commit(self, run, path):
        """What was there when the sensor first looked does not count, nor does a commit without data change."""
        by_hand.table_with_commits(path, 2)

        def commits():
            by_hand.write_commit(path, 3, by_hand.info("OPTIMIZE"), by_hand.add("3.parquet", data_change=False))
            by_hand.append(path, 4)

        with WhileItWaits(path, commits):
            found = run()
        assert found.state == "success"
        commit = found.xcom("wait")
        expected = commit_summary(DeltaLog.for_table(str(path)), 4).to_dict()
        assert {key: commit[key] for key in expected} == expected
        assert {key: commit[key] for key in commit.keys() - expected.keys()} == {
            "observed_version": 4,
            "table": str(path),
            "table_identity": by_hand.TABLE_ID,
            "dedupe_key": f"{by_hand.TABLE_ID}/4",
        }
        assert found.xcom("read") == [4, 4]

    @pytest.mark.slow
    def test_the_first_commit_that_matches(self, run, path):
        by_hand.create_table(path, partition_columns=["part"])
        for version, (operation, part) in enumerate([("WRITE", "x"), ("MERGE", "x"), ("MERGE", "y"), ("MERGE", "y")], start=1):
            by_hand.write_commit(path, version, by_hand.info(operation), by_hand.add(f"{version}.parquet", part=part))
        found = run(after_version=0, operation="MERGE", partitions="part = :part", part="y")
        assert found.state == "success"
        commit = found.xcom("wait")
        assert (commit["version"], commit["observed_version"], commit["partitions"]) == (3, 4, [{"part": "y"}])

    def test_a_version(self, run, path):
        by_hand.table_with_commits(path, 2)
        with WhileItWaits(path, lambda: by_hand.append(path, 3)):
            found = run(version=3)
        assert (found.state, found.xcom("wait")["version"]) == ("success", 3)

    @pytest.mark.slow
    def test_a_table_that_is_not_there_yet(self, run, path):
        with WhileItWaits(path, lambda: by_hand.create_table(path, by_hand.add("0.parquet"))):
            found = run()
        assert (found.state, found.xcom("wait")["version"]) == ("success", 0)

    def test_what_was_cleaned_up_is_an_error(self, run, path):
        by_hand.table_with_commits(path, 12)
        by_hand.write_checkpoint_by_hand(path, 10, [by_hand.protocol(), by_hand.metadata()])
        for version in range(8):
            by_hand.commit_path(path, version).unlink()
        found = run(after_version=3)
        assert (found.state, found.state_of("wait"), found.xcom("wait")) == ("failed", "failed", None)


def sensor(path, **kwargs) -> DeltaTableVersionSensor:
    arguments = {"poke_interval": 0, "timeout": 0, "deferrable": False, **kwargs}
    return DeltaTableVersionSensor(task_id="wait", table=str(path), **arguments)


def look(path, store, **kwargs):
    """One look of a task that is started anew each time, as one in the mode reschedule is."""
    found = sensor(path, mode="reschedule", **kwargs).poke({"task_state_store": store})
    return found.xcom_value["version"] if found.is_done else None


def execute(operator, **given):
    running = context(operator, **given)
    return operator.execute(running), pushed(running)


class TestState:
    def test_the_first_version_is_remembered(self, path):
        by_hand.table_with_commits(path, 2)
        store = TaskStateStore()
        assert look(path, store) is None
        assert store.kept["delta_table_version"]["version"] == 2
        by_hand.append(path, 3)
        by_hand.append(path, 4)
        assert look(path, store) == 3
        assert look(path, store) == 3  # a retry, or a clear: the same answer

    def test_what_was_looked_at_in_vain_may_be_cleaned_up(self, path):
        by_hand.table_with_commits(path, 2)
        store = TaskStateStore()
        assert look(path, store, operation="MERGE") is None
        for version in range(3, 13):
            by_hand.append(path, version)
        assert look(path, store, operation="MERGE") is None
        by_hand.write_checkpoint_by_hand(path, 12, [by_hand.protocol(), by_hand.metadata()])
        for version in range(12):
            by_hand.commit_path(path, version).unlink()
        by_hand.write_commit(path, 13, by_hand.info("MERGE"), by_hand.add("13.parquet"))
        assert look(path, store, operation="MERGE") == 13

    @pytest.mark.parametrize("other", [{"operation": "WRITE"}, {"partitions": "part = 'x'"}, {"data_change_only": False}])
    def test_it_says_nothing_about_other_conditions(self, path, other):
        by_hand.create_table(path, partition_columns=["part"])
        store = TaskStateStore()
        assert look(path, store) is None
        by_hand.write_commit(path, 1, by_hand.add("1.parquet", part="x"))
        assert look(path, store, **other) is None
        assert store.kept["delta_table_version"]["version"] == 1

    def test_a_baseline_without_a_table_counts_everything(self, path):
        store = TaskStateStore()
        assert look(path, store) is None
        by_hand.create_table(path, by_hand.add("0.parquet"))
        assert look(path, store) == 0

    def test_reschedule_without_a_store_is_refused(self, path):
        by_hand.create_table(path)
        with pytest.raises(DeltaIllegalArgumentException, match="task state store"):
            execute(sensor(path, mode="reschedule"), task_state_store=None)


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            ({"version": 1, "after_version": 1}, "cannot be combined with"),
            ({"version": "1", "operation": "WRITE"}, "cannot be combined with"),
            ({"version": 1, "partitions": "part = 'x'"}, "cannot be combined with"),
            ({"version": -1}, "at least 0"),
            ({"after_version": "-2"}, "at least -1"),
            ({"after_version": "latest"}, "whole number"),
        ],
    )
    def test_refused(self, path, arguments, what):
        by_hand.create_table(path)
        with pytest.raises(DeltaIllegalArgumentException, match=what):
            execute(sensor(path, **arguments))

    def test_a_missing_table_can_be_an_error(self, path):
        with pytest.raises(DeltaTableNotFoundException, match="fail_if_missing"):
            execute(sensor(path, fail_if_missing=True))

    def test_templated(self):
        named = {"table", "delta_conn_id", "version", "after_version", "operation", "partitions", "parameters"}
        assert named <= set(DeltaTableVersionSensor.template_fields)

    def test_mapped(self):
        from airflow.sdk import DAG

        with DAG("d", schedule=None):
            mapped = DeltaTableVersionSensor.partial(task_id="wait", mode="reschedule").expand(table=["a", "b"])
        if MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS:
            assert mapped.partial_kwargs["retry_policy"] is not None


class TestDeferral:
    def test_a_version_that_is_there_needs_no_triggerer(self, path):
        by_hand.table_with_commits(path, 2)
        result, told = execute(sensor(path, deferrable=True, after_version=0))
        assert (result["version"], told) == (1, {"delta_table_version": 1})

    def test_the_trigger_waits_for_the_same(self, path):
        by_hand.create_table(path, partition_columns=["part"])
        operator = sensor(path, deferrable=True, operation="MERGE", partitions="part = 'x'", poke_interval=7, timeout=600)
        with pytest.raises(TaskDeferred) as deferred:
            execute(operator)
        trigger = deferred.value.trigger
        assert isinstance(trigger, DeltaTableVersionTrigger)
        assert (deferred.value.timeout, deferred.value.method_name) == (timedelta(seconds=600), "execute_complete")
        kwargs = trigger.serialize()[1]
        assert (kwargs["after_version"], kwargs["table_id"], kwargs["single_event"]) == (0, by_hand.TABLE_ID, True)
        assert (kwargs["operation"], kwargs["partitions"], kwargs["poll_interval"]) == (["MERGE"], "part = 'x'", 7.0)

    @pytest.mark.parametrize(
        ("arguments", "looked_before", "after"), [({}, False, None), ({"after_version": "2"}, False, 2), ({}, True, 1)]
    )
    def test_a_first_look_that_fails_silently_changes_nothing(self, path, monkeypatch, arguments, looked_before, after):
        """Neither is what was there before taken for new, nor is the version forgotten that is known already."""
        by_hand.table_with_commits(path, 1)
        store = TaskStateStore()
        if looked_before:
            assert look(path, store) is None
        by_hand.append(path, 2)
        by_hand.append(path, 3)

        def fail(*_):
            raise OSError("for a moment")

        monkeypatch.setattr("airflow_delta.sensors.delta.DeltaHook.get_log", fail)
        operator = sensor(path, deferrable=True, silent_fail=True, **arguments)
        with pytest.raises(TaskDeferred) as deferred:
            execute(operator, task_state_store=store)
        assert deferred.value.trigger.after_version == after

    def test_a_first_look_that_fails_silently_after_the_present_is_known(self, path, monkeypatch):
        by_hand.table_with_commits(path, 2)

        def fail(*_):
            raise OSError("for a moment")

        monkeypatch.setattr("airflow_delta.table.observe.watch.first_match", fail)
        with pytest.raises(TaskDeferred) as deferred:
            execute(sensor(path, deferrable=True, silent_fail=True), task_state_store=None)
        assert (deferred.value.trigger.after_version, deferred.value.trigger.table_id) == (2, by_hand.TABLE_ID)

    def test_an_error_of_the_trigger_is_raised_as_what_it_was(self, path):
        event = {"status": "error", "error": "VersionNotFoundException", "message": "gone", "table": "t", "version": 4}
        with pytest.raises(VersionNotFoundException, match="gone") as raised:
            sensor(path).execute_complete({}, event)
        assert (raised.value.table, raised.value.version) == ("t", 4)

    def test_the_trigger_s_answer_is_the_result(self, path):
        by_hand.table_with_commits(path, 2)
        commit, _ = execute(sensor(path, after_version=0))
        waiting = sensor(path)
        running = context(waiting)
        assert waiting.execute_complete(running, {"status": "success", "commit": commit}) == commit
        assert pushed(running) == {"delta_table_version": 1}
