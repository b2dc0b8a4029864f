"""XCom is not believed: what a handle says is compared with the Dag file, and what it claims with the log."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import deltalake
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task

from airflow_delta import staging_path
from airflow_delta.exceptions import HandleMismatchException
from airflow_delta.operators.delete_update import DeltaTruncateOperator
from airflow_delta.operators.optimize import DeltaAutoCompactOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaStartTransactionOperator
from support.one_by_one import World
from support.running_tasks import context

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


def files(directory) -> set[str]:
    return {str(path) for path in Path(directory).rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path) -> World:
    return World(str(tmp_path / "table"))


def test_what_the_dag_file_says_is_let_through(world):
    handle, result = world.publish()
    assert (result["version"], world.run(world.abort, transaction=handle)["outcome"]) == (0, "committed")


@pytest.mark.parametrize("transaction_id", ["theirs", "random", "..", "../_delta_log", "a/../..", "", "%2e%2e"])
def test_another_id(world, tmp_path, transaction_id):
    """An id of the same table that is committed, of nobody, or that leads elsewhere."""
    other = World(str(tmp_path / "table"), run_id="another_run")
    theirs, _ = other.publish()
    mine = world.begin()
    forged = {"theirs": theirs["transactionId"], "random": str(uuid.uuid4())}.get(transaction_id, transaction_id)
    before = files(tmp_path / "table")
    world.refuses({**mine, "transactionId": forged})
    world.refuses({**mine, "transactionId": forged, "stagingPath": f"{mine['table']}/staged/{forged}"})
    assert files(tmp_path / "table") == before
    assert deltalake.DeltaTable(mine["table"]).version() == 0


def test_another_table(world, tmp_path):
    theirs, _ = World(str(tmp_path / "victim"), dag_id="a_dag").publish()
    before = files(tmp_path / "victim")
    world.refuses(theirs)  # of the same Dag, task and run: only the table is another
    mine = world.begin()
    moved = f"{theirs['table']}/staged/{mine['transactionId']}"
    world.refuses({**mine, "table": theirs["table"], "stagingPath": moved}, world.staged(mine))
    assert files(tmp_path / "victim") == before


@pytest.mark.parametrize(
    "forged",
    [
        {"deltaConnId": "the_other_lake"},
        {"appId": "somebody else's key"},
        {"appId": "a_dag/start/another_run/-1"},
        {"rerunPolicy": "replace"},
        {"stagingPath": "/elsewhere"},
    ],
    ids=str,
)
def test_another_connection_key_policy_or_path(world, forged):
    handle = world.begin()
    world.refuses({**handle, **forged}, world.staged(handle))
    assert not deltalake.DeltaTable.is_deltatable(handle["table"])


@pytest.mark.parametrize("app_id", ["a_dag/start/a_run/-1", "a_dag/start/a_run/never"])
def test_a_commit_that_is_only_claimed(world, app_id):
    """Version 999 of a key that the log does not hold: nobody skips, reports or deletes for it."""
    handle = world.begin()
    claim = {
        "table": handle["table"],
        "version": 999,
        "readVersion": -1,
        "transactionId": "x",
        "operation": "WRITE",
        "contract": 1,
    }
    forged = {**handle, "appId": app_id, "committed": claim}
    for definition in (world.stage, world.audit, world.commit):
        with pytest.raises(HandleMismatchException, match="holds no such key"):
            world.run(definition, transaction=forged, **({} if definition is world.stage else {"staged": []}))
    assert world.run(world.abort, transaction=forged)["outcome"] == "deleted"


def test_a_claimed_version_is_that_of_the_log(world):
    world.publish()
    again = world.begin()
    again["committed"]["version"] = 999
    again["committed"]["numFiles"] = 999
    staged = world.run(world.stage, transaction=again)
    result = world.run(world.commit, transaction=again, staged=staged)
    assert (staged["numFiles"], result["version"], result["committedBefore"]) == (1, 0, True)
    assert world.run(world.abort, transaction=again)["version"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"table": "{{ params.t }}"},
        {"transaction_key": "key of {{ run_id }}/{{ ti.task_id }}/{{ task.task_id }}/{{ ti.map_index }}"},
        {"transaction_key": "{{ task_instance_key_str }} {{ ti.task.task_id }}"},
        {"table": "{{ params.own }}", "params": {"own": "table of the start task"}},
        {"app_id": "loader", "txn_version": "{{ 20260101 }}"},
        {"rerun_policy": "{{ 'fail' }}"},
    ],
    ids=str,
)
def test_templates_are_rendered_by_each_task(tmp_path, options):
    table = f"{tmp_path}/{options.get('table', 'table')}"
    world = World(table, **{name: value for name, value in options.items() if name != "table"})
    handle, result = world.publish()
    assert result["version"] == 0
    assert world.run(world.abort, map_index=3, transaction=handle)["outcome"] == "committed"  # start is not expanded
    world.refuses({**handle, "table": f"{tmp_path}/other", "stagingPath": f"{tmp_path}/other/staged/{handle['transactionId']}"})
    world.refuses({**handle, "appId": "other"})


def test_a_key_that_a_template_has_made_a_number_of(tmp_path):
    world = World(str(tmp_path / "table"))
    handle = world.run(world.start, transaction_key=20260101)
    assert handle["appId"] == "20260101"


def test_start_tasks_that_are_expanded(tmp_path):
    with DAG("a_dag", schedule=None) as dag:
        start = DeltaStartTransactionOperator.partial(task_id="start").expand(table=[f"{tmp_path}/a", f"{tmp_path}/b"])
        abort = DeltaAbortOperator.partial(task_id="abort").expand(transaction=start.output)
    world = World(str(tmp_path / "unused"))
    world.dag = dag
    for name in ("a", "b", "c"):
        one = World(f"{tmp_path}/{name}")
        handle = one.begin()
        running = DeltaAbortOperator(task_id=abort.task_id, transaction=None)
        if name == "c":
            with pytest.raises(HandleMismatchException):
                world.run(running, transaction=handle)
        else:
            assert world.run(running, transaction=handle)["outcome"] == "deleted"


@pytest.mark.parametrize("varying", ["partition_by", "description"])
def test_many_expanded_start_tasks_are_compared_quickly(tmp_path, varying):
    """Each instance may have any of the values: not every combination of them is made."""
    tables = [{"table": f"{tmp_path}/t{number}", varying: f"c{number}"} for number in range(100)]
    with DAG("a_dag", schedule=None) as dag:
        start = DeltaStartTransactionOperator.partial(task_id="start").expand_kwargs(tables)
        abort = DeltaAbortOperator.partial(task_id="abort").expand(transaction=start.output)
    world = World(str(tmp_path / "unused"))
    world.dag = dag
    handle = World(tables[99]["table"]).begin()
    if varying == "partition_by":
        handle["partitionColumns"] = ["c99"]
    started = time.process_time()
    assert world.run(DeltaAbortOperator(task_id=abort.task_id, transaction=None), transaction=handle)["outcome"] == "deleted"
    assert time.process_time() - started < 5


def test_a_handle_that_another_task_hands_on(world, tmp_path):
    with world.dag:

        @task
        def hand_on(handle):
            return handle

        late = DeltaAbortOperator(task_id="late", transaction=hand_on(world.start.output))
        unknown = DeltaAbortOperator(task_id="unknown", transaction="{{ params.handle }}")
        named = DeltaAbortOperator(task_id="named", transaction="{{ params.handle }}", table=str(tmp_path / "table"))
    handle = world.begin()
    assert world.run(late, transaction=handle)["outcome"] == "deleted"
    theirs = World(str(tmp_path / "victim")).begin()
    for definition in (late, named):
        with pytest.raises(HandleMismatchException):
            world.run(definition, transaction=theirs)
    with pytest.raises(HandleMismatchException, match="pass table="):
        world.run(unknown, transaction=handle)
    assert world.run(named, transaction=handle)["outcome"] == "deleted"


def test_a_mapped_task_takes_the_transaction_that_it_is_mapped_over(world, tmp_path):
    """Not any other one that was begun upstream of it."""
    with world.dag:
        other = DeltaStartTransactionOperator(task_id="other", table=str(tmp_path / "other"))
        mapped = DeltaAbortOperator.partial(task_id="mapped").expand(transaction=[world.start.output])
        other >> mapped
    running = DeltaAbortOperator(task_id="mapped", transaction=None)
    with pytest.raises(HandleMismatchException):
        world.run(running, map_index=0, transaction=world.run(other))
    assert world.run(running, map_index=0, transaction=world.begin())["outcome"] == "deleted"


def test_a_result_of_another_table_is_not_compacted(world, tmp_path):
    """The task that compacts after a commit takes its table from the Dag file, too."""
    with world.dag:
        compact = DeltaAutoCompactOperator(task_id="compact", committed=world.commit.output)
        after_operation = DeltaAutoCompactOperator(
            task_id="after_operation",
            committed=DeltaTruncateOperator(task_id="truncate", table=str(tmp_path / "table")).output,
        )
    _, result = world.publish()
    _, theirs = World(str(tmp_path / "victim")).publish()
    for definition in (compact, after_operation):
        assert world.run(definition, committed=result) is None  # nothing is due
        with pytest.raises(HandleMismatchException, match=r"victim.*tasks that it comes from commit to"):
            world.run(definition, committed=theirs)
    with world.dag:
        unknown = DeltaAutoCompactOperator(task_id="unknown", committed="{{ params.result }}")
    with pytest.raises(HandleMismatchException, match="Pass table="):
        world.run(unknown, committed=result)


def test_a_job_is_sent_to_no_other_table(world, tmp_path):
    with world.dag:
        job = EmptyOperator(task_id="job")
        world.start >> job
    ti = context(job, params={"t": "t"})["ti"]
    handle = world.begin()
    assert staging_path(handle, ti).startswith(f"{tmp_path}/table/staged/")
    theirs = World(str(tmp_path / "victim")).begin()
    for forged in (theirs, {**handle, "stagingPath": "/etc"}):
        with pytest.raises(HandleMismatchException):
            staging_path(forged, ti)
