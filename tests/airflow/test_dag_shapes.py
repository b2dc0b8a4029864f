"""Dags as users write them: outputs that are combined, Dag files that change while a run goes on, runs without a date."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest

from support import readers
from support.dag_runs import run_to_end, scheduler_dag
from support.slow import slow_except

pytestmark = pytest.mark.airflow


def ids(table: str) -> list[int]:
    return sorted(row["id"] for row in readers.rows(table))


@pytest.mark.parametrize("how", slow_except(["concat", "zip", "map"], "concat"))
def test_the_commit_takes_what_airflow_makes_of_outputs(run_dag, tables, how):
    run = run_dag(f"combined_{how}")
    assert run.state == "success"
    assert ids(f"{tables}/combined_{how}") == [1, 2, 3]


@pytest.mark.slow
def test_an_instance_that_a_function_leaves_out_is_missing(run_dag, tables, capfd):
    run = run_dag("combined_lost")
    assert run.state_of("commit") == "failed"
    assert "1 of 3 stages have not reported" in "".join(capfd.readouterr())
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/combined_lost")


@pytest.mark.slow
def test_a_stage_builds_on_combined_outputs(run_dag, tables):
    run = run_dag("combined_after")
    assert (run.state, len(run.xcom("txn.last")["after"])) == ("success", 3)
    assert ids(f"{tables}/combined_after") == [9]


def test_what_is_no_output_of_the_right_task_is_said(run_dag, tables, capfd):
    run = run_dag("wrong_outputs", None)
    said = " ".join("".join(capfd.readouterr()).split())
    assert run.state == "failed"
    assert "The task 'text' got something other than a transaction: str" in said
    assert "The task 'commit' got something other than a staged write: dict" in said
    assert "The function of the task 'txn.dated' cannot be called: missing a required argument: 'ds'" in said
    assert run.tries_of("txn.dated") == 1
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/wrong_outputs")


DAG = """
from datetime import datetime
import pyarrow as pa
from airflow.sdk import DAG, task
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator

def rows(number):
    return pa.table({{"id": pa.array([number], pa.int64())}})

with DAG("{dag_id}", schedule=None, start_date=datetime(2026, 1, 1)):
    start = DeltaStartTransactionOperator(task_id="start", table="{table}")

    def stage(name):
        return DeltaStageArrowOperator(task_id=name, python_callable=rows, op_args=[ord(name)], transaction=start.output)

    @task
    def gate(params):
        assert params.get("is_open")

    @task
    def look():
        return None

    @task
    def check():
        raise ValueError("refused")

    stages = [stage(name) for name in {stages!r}]
    commit = DeltaCommitOperator(task_id="commit", transaction=start.output, staged=[each.output for each in stages])
    stages >> gate() >> commit
    stages >> look() >> commit
    if {is_checked}:
        stages >> check() >> commit
"""


class ChangingDag:
    """A Dag file that changes while a run goes on: the worker has read it, the scheduler not yet."""

    def __init__(self, root: Path, dag_id: str) -> None:
        self.root, self.dag_id, self.table = root, dag_id, f"{root}/table"

    def bag(self, stages: str, *, is_checked: bool = False):
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        folder = self.root / f"dags-{len(list(self.root.iterdir()))}"
        folder.mkdir()
        (folder / "dags.py").write_text(
            DAG.format(dag_id=self.dag_id, table=self.table, stages=list(stages), is_checked=is_checked)
        )
        found = DagBag(dag_folder=str(folder))
        assert found.import_errors == {}
        DagBundlesManager().sync_bundles_to_db()
        sync_bag_to_db(found, "tests", None)
        return found

    def go_on(self, run, before, after, *task_ids: str):
        """Clear tasks of a run, and run them as they are in the new file."""
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import clear_task_instances
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == self.dag_id, DagRun.run_id == run.run_id))
            dag_run.dag, dag_run.conf = scheduler_dag(before.dags[self.dag_id]), {"is_open": True}
            clear_task_instances([ti for ti in dag_run.get_task_instances(session=session) if ti.task_id in task_ids], session)
            run_to_end(dag_run, after.dags[self.dag_id], session)
        return type(run)(dag_run)


@pytest.fixture
def changing(tmp_path, airflow_database, request) -> ChangingDag:
    return ChangingDag(tmp_path, request.node.name.replace("[", "_").rstrip("]"))


@pytest.mark.parametrize(
    ("stages", "is_checked", "said"),
    [
        ("ab", False, "1 of 2 stages have not reported"),
        pytest.param("b", False, "1 of 1 stages have not reported", marks=pytest.mark.slow),
        pytest.param("a", True, "not every task has succeeded: check", marks=pytest.mark.slow),
    ],
    ids=["added", "renamed", "check"],
)
def test_a_task_that_the_dag_file_has_since_stops_the_commit(run_dag, changing, capfd, stages, is_checked, said):
    before = changing.bag("a")
    run = run_dag(changing.dag_id, bag=before)
    assert run.state_of("commit") == "upstream_failed"
    run = changing.go_on(run, before, changing.bag(stages, is_checked=is_checked), "gate", "commit")
    assert run.state_of("commit") == "failed"
    told = " ".join("".join(capfd.readouterr()).split())
    assert said in told
    assert "(not in this run: the Dag file has it since)" in told
    assert not deltalake.DeltaTable.is_deltatable(changing.table)


def test_a_stage_that_is_renamed_after_a_check_is_not_checked(run_dag, clear_and_run, changing, capfd):
    run = run_dag(changing.dag_id, bag=changing.bag("a"))
    assert (run.state_of("look"), run.state_of("commit")) == ("success", "upstream_failed")
    renamed = changing.bag("b")
    run = clear_and_run(run, "gate", "commit", bag=renamed, is_open=True)
    assert (run.state_of("b"), run.state_of("gate"), run.state_of("commit")) == ("success", "success", "failed")
    assert "look has not seen run 1-" in "".join(capfd.readouterr())
    assert not deltalake.DeltaTable.is_deltatable(changing.table)
    run = clear_and_run(run, "look", "commit", bag=renamed)
    assert (run.state_of("commit"), ids(changing.table)) == ("success", [ord("b")])


def test_a_stage_that_the_dag_file_has_since_does_not_undo_a_commit(run_dag, changing):
    before = changing.bag("a")
    run = run_dag(changing.dag_id, bag=before, is_open=True)
    assert run.state == "success"
    run = changing.go_on(run, before, changing.bag("ab"), "commit")
    assert (run.state, run.xcom("commit")["committedBefore"]) == ("success", True)
    assert (deltalake.DeltaTable(changing.table).version(), ids(changing.table)) == (0, [ord("a")])
