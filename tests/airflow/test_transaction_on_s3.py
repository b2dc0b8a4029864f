"""A whole transaction on an S3 emulator: the options of the connection reach the store, the log and the staged files."""

from __future__ import annotations

import io
import json
import os

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator, DeltaStartTransactionOperator
from support.running_tasks import context

pytestmark = pytest.mark.s3

REGION = "us-east-1"


@pytest.fixture
def lake(s3_lake):
    """The client of a bucket of its own, to which there is a connection."""
    return s3_lake.client


def run(operator, **states):
    return operator.execute(context(operator, states=states))


def test_start_stage_commit_abort(lake, outside_of_the_task_runner):
    good, text = DeltaHook("lake").test_connection()
    assert good, text
    assert text.startswith("s3://lake can be listed (")
    assert "read and written with these credentials; the store refuses to overwrite" in text

    handle = run(DeltaStartTransactionOperator(task_id="start", table="bronze/t", delta_conn_id="lake"))
    assert (handle["table"], handle["readVersion"], handle["deltaConnId"]) == ("s3://lake/bronze/t", -1, "lake")
    assert "very-secret" not in json.dumps(handle)

    body = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int64())}), body)
    prefix = handle["stagingPath"].removeprefix("s3://lake/")
    lake.put_object(Bucket="lake", Key=f"{prefix}/rows/part-0.parquet", Body=body.getvalue())

    staged = run(DeltaStageFilesOperator(task_id="stage", transaction=handle, path="rows"))
    result = run(DeltaCommitOperator(task_id="commit", transaction=handle, staged=staged), stage="success")
    assert (result["version"], result["numRecords"]) == (0, 3)
    assert run(DeltaAbortOperator(task_id="abort", transaction=handle))["outcome"] == "committed"

    options = {**DeltaHook("lake").storage_options("s3://lake/bronze/t"), "aws_allow_http": "true"}
    table = deltalake.DeltaTable("s3://lake/bronze/t", storage_options=options)
    assert sorted(table.to_pyarrow_table().column("id").to_pylist()) == [1, 2, 3]


def test_a_wrong_bucket_fails_the_connection_test(lake, monkeypatch):
    connection = json.loads(os.environ["AIRFLOW_CONN_LAKE"])
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({**connection, "host": "s3://nowhere"}))
    good, message = DeltaHook("lake").test_connection()
    assert not good
    assert "very-secret" not in message
