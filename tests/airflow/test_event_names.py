"""Events of templated tables: under the name that the Dag gave the table; and runs that commit more than once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import commits_of_events, delta_asset
from airflow_delta.assets.events import event_extra, events_extra
from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.decorators.delta_merge import delta_merge_task
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.convert import DeltaConvertOperator
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaTruncateOperator, DeltaUpdateOperator
from airflow_delta.operators.drop_feature import DeltaDropFeatureOperator, DeltaRemoveColumnMappingOperator
from airflow_delta.operators.generate import DeltaGenerateOperator
from airflow_delta.operators.merge import DeltaMergeOperator, DeltaMergePySparkOperator
from airflow_delta.operators.optimize import DeltaAutoCompactOperator, DeltaOptimizeOperator, DeltaReorgOperator
from airflow_delta.operators.repair import DeltaRepairTableOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.row_tracking import DeltaEnableRowTrackingOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.statistics import DeltaComputeStatisticsOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.tasks.commit.commit_part import CommitPart
from support.running_tasks import context


@pytest.fixture(autouse=True)
def _the_lake(monkeypatch, tmp_path, outside_of_the_task_runner):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", f'{{"conn_type": "delta", "host": "{tmp_path}"}}')


def run(operator):
    running = context(operator)
    return operator.execute(running), running["outlet_events"]


def named(events):
    """URI of the asset and extra of what was told by the alias."""
    return [(event.dest_asset_key.uri, event.extra) for event in events[ALIAS].asset_alias_events]


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
    ((uri, extra),) = named(events)
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
    ((uri, _),) = named(events)
    assert uri == "delta://connection/lake/other"


SOME = {"task_id": "t", "table": "orders", "delta_conn_id": "lake"}
STREAM = {"python_callable": lambda: None, "checkpoint_location": "/checkpoint"}
ALONE = [
    # operator that commits by itself, its parameters, and whether readers of the table see what it does
    (DeltaScd2MergeOperator, {"source": "SELECT 1", "keys": "id", "effective_at": "at"}, True),
    (DeltaMergeOperator, {"source": "SELECT 1", "condition": "target.id = source.id"}, True),
    (DeltaMergePySparkOperator, {"python_callable": lambda: None, "condition": "target.id = source.id"}, True),
    (DeltaDeleteOperator, {"predicate": "id = 1"}, True),
    (DeltaUpdateOperator, {"set": {"id": "1"}}, True),
    (DeltaTruncateOperator, {}, True),
    (DeltaCreateTableOperator, {"schema": "id BIGINT"}, True),
    (DeltaAlterTableOperator, {"changes": [{"set_comment": "x"}]}, True),
    (DeltaRestoreOperator, {"version": 0}, True),
    (DeltaRepairTableOperator, {"dry_run": False}, True),
    (DeltaRepairTableOperator, {}, False),
    (DeltaCloneOperator, {"source": "other"}, True),
    (DeltaConvertOperator, {}, True),
    (DeltaCopyIntoOperator, {"source": "/raw", "format": "csv"}, True),
    (DeltaStreamOperator, STREAM, True),
    (DeltaOptimizeOperator, {}, False),
    (DeltaReorgOperator, {}, False),
    (DeltaAutoCompactOperator, {}, False),
    (DeltaVacuumOperator, {}, False),
    (DeltaComputeStatisticsOperator, {}, False),
    (DeltaDropFeatureOperator, {"feature": "deletionVectors"}, False),
    (DeltaRemoveColumnMappingOperator, {}, False),
    (DeltaEnableRowTrackingOperator, {}, False),
    (DeltaGenerateOperator, {}, False),
]


class TestTheAssetOfATaskThatCommitsByItself:
    @pytest.mark.parametrize(("operator", "more", "emits"), ALONE, ids=lambda value: getattr(value, "__name__", None))
    def test_by_default_it_is_the_tables(self, operator, more, emits):
        assert operator(**SOME, **more).outlets == ([delta_asset("orders", "lake")] if emits else [])

    @pytest.mark.parametrize(
        ("table", "conn_id", "uris"),
        [
            ("s3a://lake/t/", None, ["delta://s3/lake/t"]),
            ("t", None, ["delta://connection/delta_default/t"]),
            ("s3://lake/t", "{{ params.c }}", ["delta://s3/lake/t"]),
            ("t", "{{ params.c }}", []),
            ("{{ params.t }}", "lake", []),
            ("s3://key:secret@lake/t", None, []),  # the task refuses it
            (None, None, []),
        ],
    )
    def test_a_templated_name_has_none(self, table, conn_id, uris):
        task = DeltaTruncateOperator(task_id="t", table=table, delta_conn_id=conn_id)
        assert [asset.uri for asset in task.outlets] == uris

    def test_given_outlets_replace_it(self):
        with DAG("d", schedule=None, default_args={"outlets": [ALIAS]}):
            assert DeltaTruncateOperator(**SOME).outlets == [ALIAS]
            assert DeltaTruncateOperator(**SOME | {"task_id": "quiet"}, outlets=[]).outlets == []
        with DAG("d", schedule=None, default_args={"outlets": []}):
            assert DeltaRestoreOperator(**SOME, version=0).outlets == []
            assert DeltaStreamOperator(**SOME | {"task_id": "s"}, **STREAM).outlets == []

    def test_of_a_stage_the_commit_emits(self, handle):
        with DAG("d", schedule=None) as dag, delta_transaction("t", table="orders", delta_conn_id="lake"):
            DeltaTruncateOperator(task_id="found", table="orders", delta_conn_id="lake")
            DeltaDeleteOperator(task_id="own", table="orders", predicate="id = 1", outlets=[ALIAS])
        assert [dag.get_task(f"t.{name}").outlets for name in ("found", "own")] == [[], [ALIAS]]
        assert dag.get_task("t.commit").outlets == [delta_asset("orders", "lake")]
        assert DeltaTruncateOperator(**SOME, transaction=handle).outlets == []

    def test_a_mapped_task_has_none(self):
        with DAG("d", schedule=None):
            mapped = DeltaDeleteOperator.partial(**SOME).expand(predicate=["id = 1"])

            @delta_merge_task(table="orders", delta_conn_id="lake", condition="target.id = source.id")
            def merged(number): ...

            decorated = merged.expand(number=[1]).operator
        assert (mapped.outlets, decorated.outlets) == ([], [])
        assert mapped.unmap({"predicate": "id = 1"}).outlets == []
        assert decorated.unmap({"op_kwargs": {"number": 1}}).outlets == []

    def test_only_a_commit_is_an_event(self):
        outlet = delta_asset("orders", "lake")
        create = DeltaCreateTableOperator(**SOME, schema="id BIGINT", mode="create_if_not_exists")
        _, events = run(create)
        assert (create.outlets, events[outlet].extra["version"]) == ([outlet], 0)
        again = DeltaCreateTableOperator(**SOME, schema="id BIGINT", mode="create_if_not_exists")
        assert (again.outlets, dict(run(again)[1]), again.outlets) == ([outlet], {}, [])
        given = DeltaCreateTableOperator(**SOME, schema="id BIGINT", mode="create_if_not_exists", outlets=[outlet])
        run(given)
        assert given.outlets == [outlet]

    def test_a_commit_of_an_earlier_attempt_that_has_left_the_log_is_one(self):
        task, events = DeltaTruncateOperator(**SOME), OutletEventAccessors()
        left = replace(result(6), operation="", transaction_id="", committed_before=True)
        CommitPart.of(task).emit({"outlet_events": events}, left)
        assert events[delta_asset("orders", "lake")].extra["version"] == 6

    def test_a_stream_without_new_batches_is_none(self):
        stream = DeltaStreamOperator(**SOME, **STREAM)
        assert stream.outlets == [delta_asset("orders", "lake")]
        stream._report({"outlet_events": OutletEventAccessors()}, "/t", "query", [])
        assert stream.outlets == []


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
        events = OutletEventAccessors()
        stream._report({"outlet_events": events}, "/t", "query", [result(1), result(2)])
        assert [commit["version"] for commit in events[outlet].extra["commits"]] == [1, 2]
        ((uri, extra),) = named(events)
        assert (uri, extra["version"]) == (outlet.uri, 2)
