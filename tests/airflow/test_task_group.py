"""What ``delta_transaction`` makes of the tasks inside it: read off the Dag, nothing runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum

import attrs
import pytest
from airflow.sdk import DAG, AssetAlias, ObjectStoragePath, TaskGroup, XComArg, task, task_group

from airflow_delta import delta_transaction
from airflow_delta.decorators.delta_stage import delta_stage_task
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.stage import DeltaStageFilesOperator, DeltaStageSparkSubmitOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator


@pytest.fixture
def dag():
    with DAG("a_dag", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        yield dag


def sources(value) -> set[str]:
    return {task.task_id for task, _ in XComArg.iter_xcom_references(value)}


def before(dag, task_id) -> set[str]:
    return dag.get_task(task_id).upstream_task_ids


def test_start_stages_checks_commit_abort(dag):
    @task
    def sensor():
        """Stands alone in the group; the commit waits for it nevertheless."""

    @task
    def audit(staged):
        """Between stage and commit."""

    with delta_transaction("t", table="/lake/t"):
        sensor()
        one = DeltaStageFilesOperator(task_id="one")
        audit(one.output)
        DeltaStageFilesOperator.partial(task_id="two").expand(path=["a", "b"])

    assert {name: before(dag, f"t.{name}") for name in ("start", "sensor", "one", "audit", "two")} == {
        "start": set(),
        "sensor": {"t.start"},
        "one": {"t.start"},
        "audit": {"t.one"},
        "two": {"t.start"},
    }
    assert before(dag, "t.commit") == {"t.start", "t.sensor", "t.one", "t.audit", "t.two"}
    assert before(dag, "t.abort") == {"t.start", "t.one", "t.two", "t.commit"}
    assert sources(dag.get_task("t.commit").staged) == {"t.one", "t.two"}
    assert sources(dag.get_task("t.one").transaction) == {"t.start"}
    assert sources(dag.get_task("t.two").partial_kwargs["transaction"]) == {"t.start"}


def test_what_is_a_teardown_and_nothing_is_a_setup(dag):
    # Clearing a stage must not begin a new transaction: that is what Airflow does with setups.
    with delta_transaction("t", table="/lake/t"):
        DeltaStageFilesOperator(task_id="stage")
    assert {t.task_id: t.on_failure_fail_dagrun for t in dag.tasks if t.is_teardown} == {"t.abort": False, "t.watcher": True}
    assert before(dag, "t.watcher") == {"t.abort"}
    assert [t.task_id for t in dag.tasks if t.is_setup] == []
    assert dag.get_task("t.commit").trigger_rule == "all_success"


def test_what_comes_after_the_group_waits_for_the_commit(dag):
    @task
    def report(result=None):
        """Downstream."""

    with delta_transaction("t", table="/lake/t") as txn:
        DeltaStageFilesOperator(task_id="stage")
    txn >> report.override(task_id="after_group")()
    report(txn.result)
    assert before(dag, "after_group") == before(dag, "report") == {"t.commit"}


def test_stages_in_inner_groups_belong_to_the_transaction(dag):
    with delta_transaction("t", table="/lake/t"):

        @task_group
        def inner():
            DeltaStageFilesOperator(task_id="stage")

        inner()
    assert sources(dag.get_task("t.commit").staged) == {"t.inner.stage"}
    assert sources(dag.get_task("t.inner.stage").transaction) == {"t.start"}


def test_a_stage_of_another_transaction_stays_with_it(dag):
    with delta_transaction("outer", table="/lake/outer"):
        DeltaStageFilesOperator(task_id="mine")
        with delta_transaction("inner", table="/lake/inner"):
            DeltaStageFilesOperator(task_id="stage")
    assert sources(dag.get_task("outer.commit").staged) == {"outer.mine"}
    assert sources(dag.get_task("outer.inner.commit").staged) == {"outer.inner.stage"}


def test_a_group_without_a_stage_is_refused(dag):
    with pytest.raises(DeltaIllegalArgumentException, match="'t' has no stages"), delta_transaction("t", table="/lake/t"):
        pass


def test_a_group_with_the_stages_of_another_only_is_refused(dag):
    said = r"'outer' has no stages of its own: those inside belong to 'outer\.part\.inner'\. Transactions do not nest"
    with pytest.raises(DeltaIllegalArgumentException, match=said), delta_transaction("outer", table="/lake/t"):  # noqa: SIM117
        with TaskGroup("part"), delta_transaction("inner", table="/lake/t"):
            DeltaStageFilesOperator(task_id="stage")


def test_an_error_inside_the_block_is_not_hidden(dag):
    with pytest.raises(ZeroDivisionError), delta_transaction("t", table="/lake/t"):
        1 / 0  # noqa: B018


def test_arguments_reach_the_tasks(dag):
    with delta_transaction(
        "t",
        table="/lake/t",
        partition_by=["day"],
        delta_conn_id="lake",
        transaction_key="{{ ds }}",
        rerun_policy="fail",
        properties={"delta.appendOnly": "true"},
        stage_kwargs={"mode": "dynamic"},
        commit_kwargs={"retries": 7, "max_commit_attempts": 3},
        default_args={"retries": 2},
    ):
        DeltaStageFilesOperator(task_id="stage")
        DeltaStageFilesOperator(task_id="own", mode="overwrite")
    start, stage, commit = (dag.get_task(f"t.{name}") for name in ("start", "stage", "commit"))
    assert (start.table, start.partition_by, start.delta_conn_id) == ("/lake/t", ("day",), "lake")
    assert (start.transaction_key, start.rerun_policy, start.properties) == ("{{ ds }}", "fail", {"delta.appendOnly": "true"})
    assert (stage.mode, dag.get_task("t.own").mode) == ("dynamic", "overwrite")
    assert (start.retries, stage.retries, commit.retries, commit.max_commit_attempts) == (2, 2, 7, 3)


def test_what_the_stages_are_given_is_not_the_commits(dag):
    """Else a trigger rule of the stages would have the commit publish what an audit has refused."""
    with delta_transaction(
        "t", table="/lake/t", stage_kwargs={"trigger_rule": "all_done", "retries": 5}, default_args={"owner": "me"}
    ) as txn:
        stage = DeltaStageFilesOperator(task_id="stage")
    own = (txn.start, txn.commit)
    assert [(t.trigger_rule, t.retries, t.owner) for t in own] == [("all_success", 0, "me")] * 2
    assert (stage.trigger_rule, stage.retries, stage.owner) == ("all_done", 5, "me")


OUTLETS = [
    # table, connection, URIs of the assets of the commit
    ("s3a://lake/t/", "delta_default", ["delta://s3/lake/t"]),
    ("/lake/a b", "delta_default", ["delta://file/lake/a%20b"]),
    ("t", "lake", ["delta://connection/lake/t"]),
    ("s3://lake/{{ params.t }}", "delta_default", []),
    ("t", "{{ params.c }}", []),
    ("s3://lake/t", "{{ params.c }}", ["delta://s3/lake/t"]),
]


@pytest.mark.parametrize(("table", "conn", "uris"), OUTLETS)
def test_the_asset_of_the_table(dag, table, conn, uris):
    with delta_transaction("t", table=table, delta_conn_id=conn):
        DeltaStageFilesOperator(task_id="stage")
    assert [asset.uri for asset in dag.get_task("t.commit").outlets] == uris


def test_own_outlets(dag):
    with delta_transaction("t", table="/lake/t", outlets=[AssetAlias("mine")]):
        DeltaStageFilesOperator(task_id="stage")
    assert dag.get_task("t.commit").outlets == [AssetAlias("mine")]


def test_the_decorator_as_a_function_and_without_a_group(dag):
    start = DeltaStartTransactionOperator(task_id="start", table="/lake/t")

    @delta_stage_task(transaction=start.output, mode="overwrite")
    def first(spark, day, *, table, scale=2): ...

    stage = first("2026-01-01").operator
    assert (stage.operator_name, stage.mode, before(dag, "first")) == ("@task.delta_stage", "overwrite", {"start"})
    assert stage.op_args == ("2026-01-01",)

    mapped = first.override(task_id="mapped").partial(scale=3).expand(day=["a", "b"]).operator
    assert mapped.is_mapped
    assert before(dag, "mapped") == {"start"}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), (("x", "y", "z"), {}), (("x",), {"spark": 1}), (("x",), {"day": "x"})],
)
def test_wrong_arguments_fail_when_the_dag_is_parsed(dag, args, kwargs):
    @task.delta_stage
    def stage(spark, day, scale=1): ...

    with pytest.raises(TypeError):
        stage(*args, **kwargs)


def test_a_dag_with_every_stage_can_be_serialised(dag):
    from airflow.serialization.serialized_objects import DagSerialization

    with delta_transaction("t", table="/lake/t"):
        DeltaStageSparkSubmitOperator(task_id="submit", application="job.py", read="id > 1")
        DeltaStageFilesOperator.partial(task_id="files").expand(path=["a"])

        @task.delta_stage
        def stage(spark, n): ...

        stage.expand(n=[1, 2])
    copy = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert {t.task_id: t.upstream_task_ids for t in copy.tasks} == {t.task_id: t.upstream_task_ids for t in dag.tasks}


def test_two_groups_of_one_name_are_refused(dag):
    from airflow.sdk.exceptions import DuplicateTaskIdFound

    with delta_transaction("t", table="/lake/t"):
        DeltaStageFilesOperator(task_id="stage")
    with pytest.raises(DuplicateTaskIdFound):
        delta_transaction("t", table="/lake/t")


class TestKeyOfAnExpandedGroup:
    """Refused when the Dag is parsed: what would let one instance skip the work of another."""

    @staticmethod
    def expand(values, **kwargs):
        with DAG("expanded", schedule=None):

            @task_group
            def part(value):
                with delta_transaction("txn", **{"table": "/lake/t", **kwargs}):
                    DeltaStageFilesOperator(task_id="stage", path="rows")

            part.expand(value=values)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"transaction_key": "load"},
            {"transaction_key": "load/{{ data_interval_start | ds }}"},
            {"transaction_key": "load/{{ run_id }}", "table": "/lake/{{ params.name }}"},
            {"app_id": "load", "txn_version": 1},
        ],
    )
    def test_one_key_for_all_instances(self, kwargs):
        with pytest.raises(DeltaIllegalArgumentException, match=r"All instances .* would have the same transaction key"):
            self.expand([1, 2], **kwargs)

    def test_values_that_have_no_text(self):
        with pytest.raises(DeltaIllegalArgumentException, match=r"no stable text form .*Pass transaction_key"):
            self.expand([object(), object()])

    @pytest.mark.parametrize(
        "kwargs",
        [
            {},
            {"transaction_key": "load/{{ ti.map_index }}"},
            {"transaction_key": "load/{{ task_instance.xcom_pull('names') }}"},
            {"transaction_key": "load", "table": "/lake/{{ ti.map_index }}"},
        ],
    )
    def test_keys_that_may_differ(self, kwargs):
        self.expand([1, {"day": datetime(2026, 1, 1)}], **kwargs)


@dataclass
class Slice:
    day: date
    files: list[ObjectStoragePath]


@attrs.define
class Part:
    kind: Enum
    of: Slice


def test_values_of_types_that_airflow_hands_on():
    """What XCom may hold is what a group may be expanded over, paths of files above all."""
    from airflow_delta.tasks.keys.mapped_value import value_name

    def named(path: str, day: int) -> str:
        files = [ObjectStoragePath(path, conn_id="lake")]
        return value_name({"part": Part(Enum("Kind", ["RAW"]).RAW, Slice(date(2026, 1, day), files))}, "task")

    assert named("s3://a/b", 1) == named("s3://a/b", 1)
    assert len({named("s3://a/b", 1), named("s3://a/c", 1), named("s3://a/b", 2)}) == 3
    path = ObjectStoragePath("s3://a/b", conn_id="lake")
    assert value_name({"file": path}, "task") != value_name({"file": path / "c"}, "task")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"day": "2026-01-01"}, "day=2026-01-01"),
        ({"text": "two words"}, None),
        ({"region": "emea"}, "region=emea"),
        ({"number": 7}, "number=7"),
        ({"flag": True}, None),
        ({"word": "true"}, None),
        ({"number": "7"}, None),
        ({"a": 1, "b": 2}, None),
    ],
)
def test_the_name_of_a_mapped_value(value, name):
    from airflow_delta.tasks.keys.mapped_value import value_name

    found = value_name(value, "task")
    assert found == name if name else len(found.partition("=")[2]) == 32
    assert found == value_name(dict(reversed(value.items())), "task")
