"""``@task.delta_stream`` in a Dag run, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime

import deltalake
import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.stream import DeltaStreamOperator

pytestmark = pytest.mark.airflow


def test_every_run_takes_what_has_arrived_since(run_dag, tables):
    first = run_dag("stream", datetime(2026, 1, 1, tzinfo=UTC))
    second = run_dag("stream", datetime(2026, 1, 2, tzinfo=UTC))
    assert (first.state, second.state) == ("success", "success")
    results = [run.xcom("events") for run in (first, second)]
    assert [result["version"] for result in results] == [0, 1]
    assert [[(batch["batchId"], batch["numRecords"]) for batch in result["batches"]] for result in results] == [
        [(0, 2)],
        [(1, 2)],
    ]
    assert results[0]["queryId"] == results[1]["queryId"]
    ((_, extra),) = second.events()
    assert (extra["version"], extra["operation"]) == (1, "STREAMING UPDATE")
    table = deltalake.DeltaTable(f"{tables}/stream")
    assert sorted(table.to_pyarrow_table().column("twice").to_pylist()) == [20, 22, 40, 42]
    tags = table.history(1)[0]["tags"]
    assert (tags["airflow.dagId"], tags["airflow.taskId"]) == ("stream", "events")


def test_the_function_gets_spark_only():
    with pytest.raises(DeltaIllegalArgumentException, match="transaction"):
        DeltaStreamOperator(task_id="s", table="t", checkpoint_location="c", python_callable=lambda spark, transaction: None)


def test_only_a_streaming_dataframe():
    operator = DeltaStreamOperator(task_id="s", table="t", checkpoint_location="c", python_callable=lambda spark: None)
    with pytest.raises(DeltaIllegalArgumentException, match="streaming DataFrame"):
        operator._streaming(None)
