"""What ``spark-submit`` gets for a table on S3: its URI, the credentials of its connection, the extra of the Spark connection.

Operator, hook, connection and store are real; ``spark-submit`` is a program that notes how it was called and stages a few rows.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import DeltaIllegalArgumentException, MissingSparkConnectorException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.start.begin import begin
from airflow_delta.tasks.spark.runner import SparkRunner
from support.programs import python_program
from support.running_tasks import context

pytestmark = pytest.mark.s3

SECRETS = ("very-secret", "hunter2")
SPARK_SUBMIT = """\
import io, json, os, pathlib, sys
import boto3, pyarrow as pa, pyarrow.parquet as pq

files = [value for name, value in zip(sys.argv, sys.argv[1:]) if name == "--properties-file"]
called = {{"argv": sys.argv[1:], "mode": None, "properties": {{}}, "path": files[0] if files else None}}
if files:
    called["mode"] = oct(os.stat(files[0]).st_mode & 0o777)
    lines = pathlib.Path(files[0]).read_text().splitlines()
    called["properties"] = dict(line.split(None, 1) for line in lines)
pathlib.Path({called!r}).write_text(json.dumps(called))
if pathlib.Path({failure!r}).exists():
    sys.exit(pathlib.Path({failure!r}).read_text())
conf = dict(value.split("=", 1) for name, value in zip(sys.argv, sys.argv[1:]) if name == "--conf")
given = called["properties"]
client = boto3.client(
    "s3", region_name="us-east-1", endpoint_url=given.get("spark.hadoop.fs.s3a.bucket.lake.endpoint", {endpoint!r}),
    aws_access_key_id="the-key", aws_secret_access_key="very-secret",
)
key = conf["spark.airflow_delta.request"].removeprefix("s3a://lake/")
request = json.loads(client.get_object(Bucket="lake", Key=key)["Body"].read())
directory, body = key.rpartition("/")[0], io.BytesIO()
pq.write_table(pa.table({{"id": pa.array([1, 2, 3], pa.int64())}}), body)
client.put_object(Bucket="lake", Key=directory + "/run/part-0.parquet", Body=body.getvalue())
schema = {{"type": "struct", "fields": [{{"name": "id", "type": "long", "nullable": True, "metadata": {{}}}}]}}
report = {{
    "contract": 1, "transactionId": request["transactionId"], "stage": request["stage"], "attempt": request["attempt"],
    "written": {{"run": {{"numFiles": 1, "numRows": 3, "numBytes": len(body.getvalue())}}}},
    "directories": ["run"], "schemaString": json.dumps(schema),
}}
client.put_object(Bucket="lake", Key=directory + "/reports/part-00000.txt", Body=json.dumps(report).encode())
"""


@pytest.fixture
def lake(s3_lake, monkeypatch, tmp_path, outside_of_the_task_runner):
    """A bucket, connections to it and to Spark, and a program that stands for Spark."""
    extra = {"spark.ui.enabled": False, "spark.kafka.password": "hunter2", "deploy-mode": "client"}
    made = SimpleNamespace(
        endpoint=s3_lake.endpoint,
        called=tmp_path / "called.json",
        failure=tmp_path / "failure",
        own=tmp_path / "own.conf",
        define=s3_lake.define,
    )
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "spark", "host": "local[1]", "extra": extra}))
    names = {"called": str(made.called), "failure": str(made.failure), "endpoint": made.endpoint}
    program = python_program(tmp_path / "bin" / "spark-submit", SPARK_SUBMIT.format(**names))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return made


def submit_stage(**kwargs):
    """Stage by ``DeltaStageSparkSubmitOperator``."""
    handle = begin(DeltaHook("lake").get_log("t"), transaction_key="a", delta_conn_id="lake")
    operator = DeltaStageSparkSubmitOperator(
        task_id="stage",
        transaction=handle.to_dict(),
        application="job.py",
        package_uri="/p.zip",
        spark_conn_id="cluster",
        **kwargs,
    )
    return operator.execute(context(operator))["numRecords"]


def submit_operation(conf=None, properties_file=None, **kwargs):
    """Submit work as operations with ``spark_submit=`` do."""
    log = DeltaHook("lake").get_log("t")
    handle = begin(log, transaction_key="a", delta_conn_id="lake")
    request = plan_stage(open_stage(log, handle, task_id="stage", attempt=new_attempt()))
    given = {"conf": conf or {}, **({"properties_file": properties_file} if properties_file else {})}
    runner = SparkRunner(spark_conn_id="cluster", spark_submit=given, package_uri="/p.zip", **kwargs)
    runner.task = SimpleNamespace(dag_id="d", task_id="t", log=logging.getLogger("test"), is_cancelled=False)
    report = runner.run(log, request)
    return report.written["run"]["numRows"]


SUBMIT = pytest.mark.parametrize("submit", [submit_stage, submit_operation])
OWN_KEYS = {"access.key": "the-key", "secret.key": "very-secret", "endpoint.region": "us-east-1"}


@SUBMIT
def test_the_credentials_are_in_a_file_that_goes_away(lake, submit, caplog):
    caplog.set_level(logging.INFO)
    assert submit() == 3
    called = json.loads(lake.called.read_text())
    assert called["mode"] == "0o600"
    assert not Path(called["path"]).exists()
    assert [secret for secret in SECRETS if secret in " ".join(called["argv"])] == []
    assert [secret for secret in SECRETS if secret in caplog.text] == []
    properties = called["properties"]
    for name, value in {**OWN_KEYS, "endpoint": lake.endpoint, "path.style.access": "true"}.items():
        assert properties[f"spark.hadoop.fs.s3a.bucket.lake.{name}"] == properties[f"spark.hadoop.fs.s3a.{name}"] == value
    assert properties["spark.ui.enabled"] == "false"
    assert properties["spark.kafka.password"] == "hunter2"
    assert "deploy-mode" not in properties


@SUBMIT
def test_spark_gets_the_uri_that_it_opens(lake, submit):
    submit()
    argv = json.loads(lake.called.read_text())["argv"]
    [request] = [text for text in argv if text.startswith("spark.airflow_delta.request=")]
    assert request.startswith("spark.airflow_delta.request=s3a://lake/t/staged/")
    assert argv[argv.index("--py-files") + 1] == "/p.zip"


def test_the_log_says_where_spark_writes(lake, caplog):
    caplog.set_level(logging.INFO)
    submit_operation()
    assert any("writing to s3a://lake/t/staged/" in record.getMessage() for record in caplog.records)


@SUBMIT
def test_the_authors_properties_file_and_conf_win(lake, submit):
    lake.own.write_text("spark.ui.enabled true\nspark.hadoop.fs.s3a.endpoint http://other\nspark.own 1")
    assert submit(properties_file=str(lake.own), conf={"spark.test.x": "1"}) == 3
    properties = json.loads(lake.called.read_text())["properties"]
    assert properties["spark.ui.enabled"] == "true"
    assert properties["spark.own"] == "1"
    assert properties["spark.hadoop.fs.s3a.endpoint"] == "http://other"
    assert "spark.hadoop.fs.s3a.access.key" not in properties  # what they say of S3 in general stays theirs
    assert properties["spark.hadoop.fs.s3a.bucket.lake.access.key"] == "the-key"
    assert lake.own.read_text().endswith("spark.own 1")


@pytest.mark.slow
@SUBMIT
@pytest.mark.parametrize("place", ["task", "connection"])
def test_spark_may_have_credentials_of_its_own(lake, submit, place):
    if place == "connection":
        lake.define(spark_credentials="own")
    assert submit(**({"spark_credentials": "own"} if place == "task" else {})) == 3
    properties = json.loads(lake.called.read_text())["properties"]
    assert [name for name in properties if "fs.s3a" in name] == []
    assert properties["spark.kafka.password"] == "hunter2"


@SUBMIT
def test_a_missing_connector_is_named(lake, submit):
    lake.failure.write_text(
        "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"
    )
    with pytest.raises(MissingSparkConnectorException, match=r"org\.apache\.hadoop:hadoop-aws:\d.*docs/how-to/s3\.md"):
        submit()
    called = json.loads(lake.called.read_text())
    assert not Path(called["path"]).exists()


@pytest.mark.slow
@SUBMIT
@pytest.mark.parametrize("own", [None, "a:b:1"])
def test_the_connections_packages_are_added_to_sparks(lake, submit, monkeypatch, own):
    from airflow_delta.spark.connectors import coordinate, hadoop_version

    lake.define(spark_packages="auto")
    if own:
        spark = {"conn_type": "spark", "host": "local[1]", "extra": {"spark.jars.packages": own}}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(spark))
    assert submit() == 3
    connector = coordinate("s3a", hadoop_version())
    packages = json.loads(lake.called.read_text())["properties"]["spark.jars.packages"]
    assert packages == (f"{own},{connector}" if own else connector)


def test_packages_of_a_session_are_refused_here(lake):
    with pytest.raises(DeltaIllegalArgumentException, match="this work is submitted"):
        submit_operation(spark_packages="auto")
