"""Table properties in templates: numbers and booleans of a run are text to the table, in every kind of Dag."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.convert import DeltaConvertOperator
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from support.running_tasks import context

MAKE = {
    "start": lambda **p: DeltaStartTransactionOperator(task_id="t", table="/t", **p),
    "create": lambda **p: DeltaCreateTableOperator(task_id="t", table="/t", schema="id INT", **p),
    "clone": lambda **p: DeltaCloneOperator(task_id="t", table="/t", source="/s", **p),
    "convert": lambda **p: DeltaConvertOperator(task_id="t", table="/t", **p),
    "stage": lambda **p: DeltaStageFilesOperator(task_id="t", table="/t", path="x", **p),
}


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
@pytest.mark.parametrize("make", MAKE)
def test_templated_numbers_and_booleans_are_text(make, native):
    params = {"days": 30, "version": "1.10", "feed": "true", "on": True, "all": {"my.days": 30, "delta.appendOnly": True}}
    given = {
        "my.days": "{{ params.days }}",
        "my.version": "{{ params.version }}",
        "my.note": "{{ params.days | string }}",
        "delta.enableChangeDataFeed": "{{ params.feed }}",
        "delta.logRetentionDuration": "interval {{ params.days }} days",
    }
    assert rendered(MAKE[make], given, params, native) == {
        "my.days": "30",
        "my.version": "1.10",
        "my.note": "30",
        "delta.enableChangeDataFeed": "true",
        "delta.logRetentionDuration": "interval 30 days",
    }
    if native:
        whole = {"my.days": "30", "delta.appendOnly": "true"}
        assert rendered(MAKE[make], "{{ params.all }}", params, native) == whole
        assert rendered(MAKE[make], '{"my.days": {{ params.days }}, "delta.appendOnly": true}', params, native) == whole


def rendered(make, properties, params, native):
    with DAG("properties", schedule=None, params=params, render_template_as_native_obj=native):
        task = make(properties=properties)
    given = context(task)
    task.render_template_fields(given)
    task.pre_execute(given)
    return task.properties
