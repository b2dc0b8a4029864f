"""MERGE in a whole Dag run: ``@task.delta_merge``, and a submitted one."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


# The garbage collector warns of a pipe that is still open, as Airflow's SparkSubmitHook leaves it.
@pytest.mark.slow
def test_merges_of_a_function_and_of_a_source_with_a_connection(run_dag, tables, spark, monkeypatch, tmp_path):
    from airflow_delta.table.stage.write import job_runs
    from airflow_delta.tasks.spark import properties as spark_properties

    # The separator can only come from the connection; the reader of CSV does not mind what it does not know.
    options = {"sep": "#", "vault.password": "hunter2-hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_LANDING", json.dumps({"conn_type": "generic", "extra": {"spark_options": options}}))
    Path(tables).mkdir(exist_ok=True)
    Path(tables, "merges-42.csv").write_text("id#v\n9#42\n10#42\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.airflow_delta.test.default kept")
    requests, files = [], []
    put, make = job_runs.put_request, spark_properties.tempfile.mkstemp
    monkeypatch.setattr(job_runs, "put_request", lambda log, request: requests.append(request.to_dict()) or put(log, request))
    monkeypatch.setattr(spark_properties.tempfile, "mkstemp", lambda **named: files.append(made := make(**named)) or made)
    table = Table(Path(tables) / "merges", spark)
    table.write("SELECT id, id AS v FROM range(10)")
    run = run_dag("merges")
    gc.collect()
    assert run.state == "success"
    assert [run.xcom(name)["version"] for name in ("doubled", "submitted")] == [1, 2]
    assert run.xcom("submitted")["operation"] == "MERGE"
    assert table.rows() == sorted([*((i, i) for i in range(8)), (8, 16), (9, 42), (10, 42)], key=repr)
    assert [request["arguments"]["source"]["conn_id"] for request in requests if "source" in request["arguments"]] == ["landing"]
    assert "hunter2" not in json.dumps(requests)
    assert [Path(path).exists() for _, path in files if path.endswith(".properties")] == [False]
    held = [path for path in Path(tables, "merges").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert held == []


def test_the_file_of_secret_properties_is_for_this_user_only(tmp_path):
    from airflow_delta.tasks.spark.properties import properties_file

    given = tmp_path / "own.conf"
    given.write_text("spark.executor.memory 1g")
    with properties_file({"spark.a.secret": "abc="}, str(given)) as path:
        assert path is not None
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert Path(path).read_text() == "spark.executor.memory 1g\nspark.a.secret abc=\n"
    assert not Path(path).exists()
    with properties_file({}, str(given)) as path:
        assert path == str(given)


CONNECTIONS = [
    ({"conn_type": "postgres", "host": "h", "port": 5432, "schema": "db"}, "jdbc:postgresql://h:5432/db"),
    ({"conn_type": "mssql", "host": "h", "schema": "db"}, "jdbc:sqlserver://h;databaseName=db"),
    ({"conn_type": "jdbc", "host": "jdbc:h2:mem:x"}, "jdbc:h2:mem:x"),
    ({"conn_type": "generic", "extra": {"spark_options": {"url": "jdbc:x"}}}, "jdbc:x"),
]


@pytest.mark.parametrize(("connection", "url"), CONNECTIONS)
def test_options_of_a_connection(monkeypatch, connection, url):
    from airflow_delta.tasks.spark.source_options import source_options

    hidden: list[object] = []
    monkeypatch.setattr("airflow_delta.tasks.spark.source_options.mask_secret", hidden.append)
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({**connection, "login": "me", "password": "hush-hush"}))
    assert source_options("db", "jdbc") == {"url": url, "user": "me", "password": "hush-hush"}
    assert "hush-hush" in hidden
    assert source_options("db", "csv").keys() <= {"url"}


@pytest.mark.parametrize("odd", ["[1]", '"x"', '{"a": {"b": 1}}'])
def test_options_of_a_connection_that_make_no_sense(monkeypatch, odd):
    from airflow_delta.tasks.spark.source_options import source_options

    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "generic", "extra": {"spark_options": json.loads(odd)}}))
    with pytest.raises(DeltaIllegalArgumentException, match="spark_options"):
        source_options("db", "csv")


SECRET_OPTIONS = {"parquet.encryption.key.list": "k:hush-hush"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: merge(source={"format": "jdbc", "options": {"password": "hush-hush"}}),
        lambda: merge(source="SELECT * FROM csv.`s3a://u:hush-hush@b/x`"),
        lambda: merge(source="SELECT 1", options=SECRET_OPTIONS),
        lambda: DeltaDeleteOperator(task_id="t", table="t", predicate="true", write_options=SECRET_OPTIONS),
        lambda: DeltaUpdateOperator(task_id="t", table="t", set={"a": "1"}, write_options=SECRET_OPTIONS),
        lambda: DeltaStageSparkSubmitOperator(task_id="t", application="x", write_options=SECRET_OPTIONS),
        lambda: DeltaStagePySparkOperator(task_id="t", python_callable=lambda: None, write_options=SECRET_OPTIONS),
        lambda: DeltaStreamOperator(
            task_id="t", python_callable=lambda: None, table="t", checkpoint_location="c", write_options=SECRET_OPTIONS
        ),
    ],
)
def test_secrets_in_a_dag_file_are_refused_when_it_is_parsed(make):
    """Airflow stores the fields of a task before the task runs."""
    with pytest.raises(DeltaIllegalArgumentException, match="onnection") as raised:
        make()
    assert "hush-hush" not in str(raised.value)


def merge(**arguments):
    return DeltaMergeOperator(task_id="merged", table="t", condition="true", **arguments)


def test_the_conf_of_a_task_is_masked_by_its_names(monkeypatch):
    hidden: list[object] = []
    monkeypatch.setattr("airflow_delta.tasks.spark.properties.mask_secret", hidden.append)
    conf = {
        "spark.hadoop.fs.s3a.secret.key": "hush-hush",
        "spark.executor.memory": "1g",
        "spark.x.password": "{{ conn.x.password }}",
    }
    merge(source="SELECT 1", spark_submit={"conf": conf}, config_kwargs={"spark.hadoop.fs.s3a.access.key": "the-key"})
    assert hidden == ["the-key", "hush-hush"]


def test_a_function_as_source(spark):
    """Airflow calls what it finds in a template field: the function must not be in one."""
    operator = DeltaMergeOperator(task_id="merged", table="t", condition="true", source=lambda session: session.range(1))
    operator.render_template_fields({})
    assert operator.source(spark, None).collect() == [(0,)]
