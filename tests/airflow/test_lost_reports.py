"""Stages that build on others whose reports are no longer in XCom: cleared, cleaned up, or lost by a backend."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner

from airflow_delta import delta_transaction
from airflow_delta.exceptions import StagingException
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from support.running_tasks import context


def rows() -> pa.Table:
    return pa.table({"id": pa.array([7], pa.int64())})


@pytest.fixture
def run(tmp_path, outside_of_the_task_runner):
    """Runs a task as Airflow does: its arguments are the XComs of the tasks before."""
    dag = DAG("a_dag", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
    schema = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
    with dag, delta_transaction("t", table=str(tmp_path / "table"), outlets=[], schema=schema):
        first = DeltaStageArrowOperator(task_id="first", python_callable=rows)
        DeltaStageArrowOperator(task_id="second", python_callable=rows, after=[first.output])

    def one(task_id: str, **states: str):
        operator = dag.task_dict[task_id].prepare_for_execution()
        running = context(operator, states={**dict.fromkeys(dag.task_dict, "success"), **states})
        for name in operator.template_fields:
            setattr(operator, name, operator.render_template(getattr(operator, name), running))
        result = operator.execute(running)
        task_runner.SUPERVISOR_COMMS.xcoms["a_run", task_id, -1, "return_value"] = result
        return result

    return one


def lose(task_id: str) -> None:
    del task_runner.SUPERVISOR_COMMS.xcoms["a_run", task_id, -1, "return_value"]


def test_the_table_is_what_an_earlier_stage_leaves(run):
    run("t.start")
    run("t.first")
    assert len(run("t.second")["after"]) == 1


def test_a_lost_report_is_not_nothing(run):
    run("t.start")
    run("t.first")
    lose("t.first")
    with pytest.raises(StagingException, match=r"builds on t\.first, which succeeded .* no longer in XCom"):
        run("t.second")


def test_a_skipped_stage_left_nothing(run):
    run("t.start")
    assert run("t.second", **{"t.first": "skipped"})["after"] == []


def test_a_lost_handle(run):
    run("t.start")
    lose("t.start")
    with pytest.raises(StagingException, match="got no transaction"):
        run("t.first")
