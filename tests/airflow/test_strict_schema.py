"""``schema_policy="strict"``: the schema as a contract, in every kind of stage; the drift in the error, an event and an XCom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import RetryAction
from airflow.sdk.definitions._internal import contextmanager

from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaDriftException, SchemaMismatchException
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator, DeltaStageSparkSubmitOperator
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.spark import delta_stage
from airflow_delta.table.stage.write.job_runs import put_request, read_report
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.tasks.stage.schema_drift import DRIFT_KEY, EVENT
from airflow_delta.tasks.stage.write_options import WriteOptions
from airflow_delta.transaction import events
from support.running_tasks import context, pushed
from support.table import Table
from support.watching import commit, start

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("outside_of_the_task_runner")]

SCHEMA = "id BIGINT, amount DOUBLE, about STRUCT<x: INT>"
GOOD = "SELECT named_struct('x', 1) AS about, id, CAST(0.5 AS DOUBLE) AS amount FROM range(3)"
DRIFTED = "SELECT CAST(id AS INT) AS id, named_struct('x', 1L) AS about, 'n' AS note FROM range(3)"
DIFFERENCES = {
    ("type", "id", "bigint", "int"),
    ("missing", "amount", "double", None),
    ("type", "about.x", "int", "bigint"),
    ("new", "note", None, "string"),
}


@pytest.fixture
def heard():
    found: list[tuple[str, str, Any]] = []

    def listen(name, table, data):
        found.append((name, table, data))

    events.add_listener(listen, only=(EVENT,))
    yield found
    events.remove_listener(listen)


@pytest.fixture(scope="module")
def original(tmp_path_factory, spark) -> Table:
    found = Table(tmp_path_factory.mktemp("original") / "t", spark)
    found.write(GOOD)
    return found


@pytest.fixture
def table(tmp_path, spark, original) -> Table:
    found = Table(tmp_path / "t", spark)
    found.copy_from(original)
    return found


def run(operator, monkeypatch) -> tuple[Any, dict[str, Any]]:
    running = context(operator)
    monkeypatch.setattr(contextmanager, "_CURRENT_CONTEXT", [running])
    return running["ti"], operator.execute(running)


def told(differences) -> set[tuple[Any, ...]]:
    return {tuple(each[name] for name in ("kind", "column", "expected", "given")) for each in differences}


def pyspark(handle, sql, **options):
    return DeltaStagePySparkOperator(
        task_id="rows", python_callable=lambda spark: spark.sql(sql), transaction=handle, schema_policy="strict", **options
    )


def sql_stage(handle, sql, **options):
    return DeltaStageSqlOperator(task_id="rows", sql=sql, transaction=handle, schema_policy="strict", **options)


def files_of(handle, arrow: pa.Table, **options):
    directory = Path(handle["stagingPath"].removeprefix("file://")) / "rows"
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(arrow, directory / "part-0.parquet")
    return DeltaStageFilesOperator(task_id="rows", path="rows", transaction=handle, schema_policy="strict", **options)


def files(handle, sql, **options):
    def column(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind)

    about = lambda kind: pa.struct([pa.field("x", kind)])  # noqa: E731
    if sql == GOOD:
        data = {"id": ([1], pa.int64()), "amount": ([0.5], pa.float64()), "about": ([{"x": 1}], about(pa.int32()))}
    else:
        data = {"id": ([1], pa.int32()), "about": ([{"x": 1}], about(pa.int64())), "note": (["n"], pa.string())}
    return files_of(handle, pa.table({name: column(name, *value) for name, value in data.items()}), **options)


@pytest.mark.parametrize("kind", [pyspark, sql_stage, files])
def test_every_kind_of_stage(table, heard, monkeypatch, kind):
    handle = start(table.uri, transaction_key="drifted")
    operator = kind(handle, DRIFTED)
    running = context(operator)
    monkeypatch.setattr(contextmanager, "_CURRENT_CONTEXT", [running])
    with pytest.raises(SchemaDriftException) as raised:
        operator.execute(running)
    assert told(raised.value.differences) == DIFFERENCES
    assert raised.value.version == 0
    assert FINAL_ERRORS.evaluate(raised.value, 1, 3).action is RetryAction.FAIL
    ((name, where, data),) = heard
    assert (name, where, told(data["differences"]), data["taskId"]) == (EVENT, table.uri, DIFFERENCES, "rows")
    assert pushed(running)[DRIFT_KEY] == {"table": table.uri, "version": 0, "differences": list(raised.value.differences)}
    if kind is not files:
        assert list(Path(handle["stagingPath"].removeprefix("file://")).rglob("*.parquet")) == [], "before anything is written"

    handle = start(table.uri, transaction_key="good")
    operator = commit(handle, run(kind(handle, GOOD), monkeypatch)[1])
    assert operator.execute(context(operator))["version"] == 1
    assert len(heard) == 1


def test_the_report_of_an_application(table):
    """The error and its differences come back through the report, where the request said what to expect."""
    handle = table.begin()
    view = table.view(handle)
    request = plan_stage(view, schema_policy="strict")
    stage = delta_stage(table.spark, table.spark.read.text(put_request(view.log, request), wholetext=True).first()[0])
    with pytest.raises(SchemaDriftException):
        stage.write(table.spark.sql(DRIFTED))
    with pytest.raises(SchemaDriftException, match="on the cluster") as raised:
        read_report(view.log, request)
    assert told(raised.value.differences) == DIFFERENCES


@pytest.mark.slow
def test_spark_submit(table, tmp_path, monkeypatch, heard):
    """A real one: what the application refuses on its side is told as if it had been refused here."""
    application = tmp_path / "application.py"
    application.write_text(
        "from pyspark.sql import SparkSession\n"
        "from airflow_delta.spark import delta_stage\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"delta_stage(spark).write(spark.sql({DRIFTED!r}))\n"
    )
    handle = start(table.uri, transaction_key="submitted")
    operator = DeltaStageSparkSubmitOperator(
        task_id="rows", application=str(application), transaction=handle, schema_policy="strict", durable=False
    )
    running = context(operator)
    with pytest.raises(SchemaDriftException) as raised:
        operator.execute(running)
    assert told(raised.value.differences) == DIFFERENCES
    assert told(pushed(running)[DRIFT_KEY]["differences"]) == DIFFERENCES
    assert len(heard) == 1


def test_an_expected_schema_of_ones_own(tmp_path, spark, table, monkeypatch):
    """For a new table, for columns that the write adds, and for a write that replaces the schema."""
    new = start(str(tmp_path / "new"), transaction_key="k")
    with pytest.raises(SchemaDriftException, match=r"new column note"):
        run(sql_stage(new, DRIFTED, expected_schema=SCHEMA), monkeypatch)
    assert run(sql_stage(new, GOOD, expected_schema=SCHEMA), monkeypatch)[1]["numRecords"] == 3

    handle = start(table.uri, transaction_key="k")
    wider = f"{GOOD.replace('SELECT', 'SELECT current_date() AS day,')}"
    accepted = {"expected_schema": f"{SCHEMA}, day DATE", "merge_schema": True}
    assert run(sql_stage(handle, wider, **accepted), monkeypatch)[1]["numRecords"] == 3
    with pytest.raises(SchemaDriftException, match=r"new column other \(int\)"):
        run(sql_stage(handle, wider.replace("SELECT", "SELECT 1 AS other,"), **accepted), monkeypatch)
    with pytest.raises(SchemaMismatchException, match=r"day .* is not in the table"):
        run(sql_stage(handle, wider, expected_schema=f"{SCHEMA}, day DATE"), monkeypatch)
    replaced = {"mode": "overwrite", "overwrite_schema": True, "expected_schema": {"type": "struct", "fields": []}}
    with pytest.raises(SchemaDriftException):
        run(sql_stage(handle, GOOD, **replaced), monkeypatch)


def test_without_it_rows_are_cast(table, monkeypatch):
    handle = start(table.uri, transaction_key="k")
    operator = DeltaStageSqlOperator(task_id="rows", sql="SELECT 1 AS id", transaction=handle)
    assert run(operator, monkeypatch)[1]["numRecords"] == 1


REFUSED = [
    ({"merge_schema": True}, "would change"),
    ({"mode": "overwrite", "overwrite_schema": True}, "would change"),
    ({"create": "create_or_replace"}, "would change"),
    ({"expected_schema": "id BIGINT", "schema_policy": "enforce"}, "goes with"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_contradictions_are_refused_when_the_dag_is_parsed(options, says):
    with pytest.raises(DeltaIllegalArgumentException, match=says):
        DeltaStageSqlOperator(task_id="rows", sql=GOOD, **{"schema_policy": "strict", **options})


@pytest.mark.parametrize(("options", "says"), [REFUSED[0], REFUSED[1], REFUSED[3], ({"schema_policy": "x"}, "'x'; it is one of")])
def test_contradictions_are_refused_when_the_write_is_planned(table, options, says):
    with pytest.raises(DeltaIllegalArgumentException, match=says):
        plan_stage(table.view(table.begin()), **{"schema_policy": "strict", **options})


def test_nothing_to_compare_with(tmp_path, monkeypatch):
    handle = start(str(tmp_path / "none"), transaction_key="k")
    with pytest.raises(DeltaIllegalArgumentException, match="nothing to compare"):
        run(sql_stage(handle, GOOD), monkeypatch)


def test_a_policy_that_does_not_exist_is_refused_when_the_dag_is_parsed():
    with pytest.raises(DeltaIllegalArgumentException, match="Did you mean 'strict'"):
        DeltaStageSqlOperator(task_id="rows", sql=GOOD, schema_policy="strickt")
    assert WriteOptions().schema_policy == "enforce"
