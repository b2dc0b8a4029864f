"""Templates: which parameters are rendered, and that the docstrings say so."""

from __future__ import annotations

from datetime import datetime

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_delta.decorators.delta_merge import delta_merge_task
from airflow_delta.decorators.delta_stage import delta_stage_task
from airflow_delta.decorators.delta_stream import delta_stream_task
from airflow_delta.log import DeltaLog
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.tasks.commit.commit_part import CommitPart
from support.running_tasks import context
from support.task_classes import documented, task_classes

CLASSES = task_classes()


def test_all_tasks_are_looked_at():
    assert len(CLASSES) > 30


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_docstrings_say_what_is_templated(kind):
    renamed = {"merge_source": "source", "copy_source": "source"}  # a callable source is none for a template
    fields = {renamed.get(name, name) for name in kind.template_fields}
    assert {name: name in fields for name in documented(kind)} == documented(kind)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_no_field_is_rendered_twice(kind):
    assert len(set(kind.template_fields)) == len(kind.template_fields)


@pytest.mark.parametrize(
    ("decorator", "arguments"),
    [
        (delta_stage_task, {"transaction": {}}),
        (delta_merge_task, {"table": "/t", "condition": "true"}),
        (delta_stream_task, {"table": "/t", "checkpoint_location": "/c"}),
    ],
)
def test_what_comes_from_elsewhere_is_no_template(decorator, arguments):
    """Text of another task, or of a parameter of the run, reaches the function as it is, whatever braces it has."""
    with DAG("templates", schedule=None, start_date=datetime(2026, 1, 1)) as dag:

        @decorator(**arguments)
        def function(spark, text): ...

        operator = function("{{ params.text }}").operator
    operator.render_template_fields({"params": {"text": "{{ 1 + 1 }}"}}, jinja_env=dag.get_template_env())
    assert operator.op_args == ("{{ 1 + 1 }}",)


def test_the_connection_of_a_submitted_job():
    operator = DeltaStageSparkSubmitOperator(
        task_id="t", application="a.py", transaction={}, spark_conn_id="spark-{{ params.at }}"
    )
    operator.render_template_fields({"params": {"at": "night"}})
    assert operator._conn_id == "spark-night"


@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_the_timeout_of_transactions_as_text(tmp_path):
    """Of a VACUUM, as of the maintenance task: what a template gives is text."""
    deltalake.write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    operator = DeltaVacuumOperator(task_id="t", table=str(tmp_path), transaction_timeout_hours="{{ params.hours }}")
    operator.render_template_fields({"params": {"hours": 48}})
    operator.pre_execute({})
    result = operator.run(DeltaLog.for_table(str(tmp_path)), operator.hold(CommitPart), context(operator))
    assert result["numLiveTransactions"] == 0
