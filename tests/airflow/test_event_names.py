"""Events of templated tables: under the name that the Dag gave the table; and runs that commit more than once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import Asset, AssetAlias

from airflow_delta.assets.delta import commits_of_events, delta_asset, event_extra, events_extra
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.staging.contract import CommitResult, TransactionHandle


@pytest.fixture(autouse=True)
def _outside_of_the_task_runner(monkeypatch, tmp_path):
    from airflow.sdk.bases.operator import ExecutorSafeguard

    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", f'{{"conn_type": "delta", "host": "{tmp_path}"}}')


class Events(dict):
    """Stands for the outlet events of a task's context."""

    def __missing__(self, outlet):
        said = self[outlet] = SimpleNamespace(extra={}, added=[])
        said.add = lambda asset, *, extra: said.added.append((asset.uri, extra))
        return said


def run(operator):
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id=operator.task_id, map_index=-1, try_number=1)
    ti.get_task_states = lambda **_: {"r": {"stage": "success"}}
    events = Events()
    context = {"ti": ti, "dag": SimpleNamespace(task_dict={}), "task": operator, "outlet_events": events}
    return operator.execute(context), events


ALIAS = AssetAlias("tables")


@pytest.fixture
def handle(tmp_path):
    start = DeltaStartTransactionOperator(task_id="start", table="sales/orders", delta_conn_id="lake")
    return run(start)[0]


def commit(tmp_path, handle):
    directory = tmp_path / "sales" / "orders" / "staged" / handle["transactionId"] / "rows"
    directory.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), directory / "part-0.parquet")
    staged, _ = run(DeltaStageFilesOperator(task_id="stage", transaction=handle, path="rows"))
    _, events = run(DeltaCommitOperator(task_id="commit", transaction=handle, staged=staged, outlets=[ALIAS]))
    ((uri, extra),) = events[ALIAS].added
    assert extra["table"] == str(tmp_path / "sales/orders")
    return uri


def test_the_handle_carries_the_name(handle, tmp_path):
    assert (handle["givenTable"], handle["table"]) == ("sales/orders", str(tmp_path / "sales/orders"))


def test_an_alias_names_the_asset_that_a_static_outlet_is(handle, tmp_path):
    assert commit(tmp_path, handle) == delta_asset("sales/orders", "lake").uri == "delta://connection/lake/sales/orders"


def test_a_handle_of_an_earlier_version_of_the_provider(handle, tmp_path):
    del handle["givenTable"]
    assert TransactionHandle.from_dict(handle).given_table is None
    assert commit(tmp_path, handle) == delta_asset(str(tmp_path / "sales/orders")).uri


def test_a_task_that_is_a_transaction_of_its_own():
    create = DeltaCreateTableOperator(
        task_id="create", table="other", delta_conn_id="lake", schema="id BIGINT", outlets=[ALIAS, Asset(uri="delta://s3/b/t")]
    )
    _, events = run(create)
    ((uri, _),) = events[ALIAS].added
    assert uri == "delta://connection/lake/other"


def result(version, partitions=0):
    return CommitResult(
        table="/t",
        table_id="id",
        version=version,
        read_version=version - 1,
        transaction_id="x",
        operation="STREAMING UPDATE",
        partitions=tuple({"p": str(number)} for number in range(partitions)),
    )


class TestSeveralCommits:
    @staticmethod
    def seen(*extras):
        return [commit["version"] for commit in commits_of_events(SimpleNamespace(extra=extra) for extra in extras)]

    def test_the_last_one_is_told_as_ever(self):
        assert events_extra([result(3)]) == events_extra([result(3)]) | {"version": 3}
        assert "commits" not in events_extra([result(3)])
        extra = events_extra([result(3), result(4)])
        assert extra["version"] == 4
        assert [commit["version"] for commit in extra["commits"]] == [3, 4]

    def test_a_consumer_sees_each_once(self):
        run_one, run_two = events_extra([result(1), result(2)]), events_extra([result(2), result(3), result(5)])
        assert self.seen(run_two, run_one, events_extra([result(7)])) == [1, 2, 3, 5, 7]
        assert self.seen({"from_trigger": True, "payload": run_one}, run_one) == [1, 2]

    def test_events_that_say_nothing_of_commits(self):
        assert self.seen({}, {"commits": "many"}, {"commits": []}, {"commits": [1, {"version": "x"}]}, None) == []

    @pytest.mark.parametrize(
        "nothing",
        [
            replace(result(6), operation="", attempts=0),  # a DELETE that found no row: the version that it read
            replace(result(6), operation="", transaction_id="", committed_before=True),  # the latest one, which contains it
        ],
    )
    def test_a_version_that_is_not_its_commit_is_no_news(self, nothing):
        assert event_extra(nothing)["dedupe_key"] is None
        assert self.seen(event_extra(nothing), event_extra(result(3))) == [3]
        assert self.seen(events_extra([result(2), nothing])) == [2]
        assert self.seen(event_extra(replace(result(6), committed_before=True))) == [6]

    def test_very_many_partitions_are_only_counted(self):
        extra = events_extra([result(version, partitions=100) for version in range(20)])
        assert len(extra["partitions"]) == 100
        assert {(len(commit["partitions"]), commit["num_partitions"]) for commit in extra["commits"]} == {(0, 100)}

    def test_of_a_streaming_task(self, tmp_path):
        outlet = delta_asset("events", "lake")
        stream = DeltaStreamOperator(
            task_id="stream",
            python_callable=lambda: None,
            table="events",
            delta_conn_id="lake",
            checkpoint_location=str(Path(tmp_path, "checkpoint")),
            outlets=[outlet, ALIAS],
        )
        events = Events()
        stream._report({"outlet_events": events}, "/t", "query", [result(1), result(2)])
        assert [commit["version"] for commit in events[outlet].extra["commits"]] == [1, 2]
        ((uri, extra),) = events[ALIAS].added
        assert (uri, extra["version"]) == (outlet.uri, 2)
