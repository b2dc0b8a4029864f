"""Tasks that load the files of a directory: Dag runs one after the other, and what is refused."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from deltalake import DeltaTable, write_deltalake

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    SchemaDriftException,
    SchemaMismatchException,
)
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from support import readers
from support.running_tasks import context
from support.watching import start

pytestmark = [pytest.mark.airflow]

DAYS = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 9)]
NO_ROWS = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})


@pytest.fixture
def source(tables) -> Path:
    path = Path(tables) / "copy_into_source"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for name in ("arrow", "stage", "function", "spark_csv", "spark_json", "spark_parquet"):
        shutil.rmtree(f"{tables}/copy_into_{name}", ignore_errors=True)
        if name not in ("stage", "function"):
            write_deltalake(f"{tables}/copy_into_{name}", NO_ROWS)
    return path


def put(path: Path, **columns: list[Any]) -> None:
    pq.write_table(pa.table(columns), path)


def rows(path: str) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"]) for row in readers.rows(path))


def test_a_task_alone(run_dag, clear_and_run, tables, source):
    put(source / "a.parquet", id=[1], name=["x"])
    first = run_dag("copy_into_arrow", DAYS[0])
    put(source / "b.parquet", name=["y"], id=[2])
    second = run_dag("copy_into_arrow", DAYS[1])
    third = run_dag("copy_into_arrow", DAYS[2])
    assert [run.state for run in (first, second, third)] == ["success"] * 3
    assert rows(f"{tables}/copy_into_arrow") == [(1, "x"), (2, "y")]
    assert DeltaTable(f"{tables}/copy_into_arrow").version() == 2, "the third run commits nothing"
    put(source / "c.parquet", id=[3], name=["z"])
    assert clear_and_run(second, "load").state == "success"
    assert rows(f"{tables}/copy_into_arrow") == [(1, "x"), (2, "y")], "its key is committed"
    assert clear_and_run(third, "load").state == "success"
    assert rows(f"{tables}/copy_into_arrow") == [(1, "x"), (2, "y"), (3, "z")], "it had committed nothing"


def test_a_stage(run_dag, tables, source):
    put(source / "a.parquet", id=[1], name=["x"])
    run = run_dag("copy_into_stage", DAYS[0])
    assert run.state == "success"
    (load,) = run.xcom("load.files")["loads"]
    assert (load["number"], load["numFiles"]) == (1, 1)
    skipped = run_dag("copy_into_stage", DAYS[1])
    assert (skipped.state_of("load.files"), skipped.state_of("load.commit")) == ("skipped", "skipped")
    assert run_dag("copy_into_stage", DAYS[2], force=True).state == "success"
    assert rows(f"{tables}/copy_into_stage") == [(1, "x"), (1, "x")]


def test_a_function_of_the_author(run_dag, clear_and_run, tables, source):
    """Each file once, whatever reads it: the same record, reruns and refusals as COPY INTO."""
    table = f"{tables}/copy_into_function"
    (source / "a.csv").write_text("id,name\n1,x\n")
    (source / "_hidden.csv").write_text("id,name\n9,y\n")
    first = run_dag("copy_into_function", DAYS[0])
    assert first.state == "success", first.tasks
    (load,) = first.xcom("load.files")["loads"]
    assert (load["number"], load["numFiles"]) == (1, 1)
    (source / "b.csv").write_text("more,name,id\n-,y,2\n")
    (source / "c.csv").write_text("id,name\n3,z\n")
    assert run_dag("copy_into_function", DAYS[1]).state == "success"
    assert rows(table) == [(1, "x"), (2, "y"), (3, "z")]
    third = run_dag("copy_into_function", DAYS[2])
    assert (third.state_of("load.files"), third.state_of("load.commit")) == ("skipped", "skipped")
    (source / "d.csv").write_text("id,name\n4,d\n")
    assert clear_and_run(first, "load.start").state == "success"
    assert len(rows(table)) == 3, "its key is committed"
    (source / "a.csv").write_text("id,name\n1,x\n1,y\n")
    assert run_dag("copy_into_function", DAYS[3]).state == "failed", "the table has the former rows of a.csv"
    assert run_dag("copy_into_function", DAYS[4], force=True).state == "success"
    assert [name for number, name in rows(table) if number in (1, 4)] == ["x", "x", "y", "d"]


def test_a_file_that_changes_while_a_function_reads_it(run_dag, tables, source, monkeypatch):
    (source / "a.csv").write_text("id,name\n1,x\n")
    monkeypatch.setenv("COPY_INTO_TOUCH", str(source / "a.csv"))
    run = run_dag("copy_into_function", DAYS[5])
    assert run.state == "failed"
    assert not Path(f"{tables}/copy_into_function/_delta_log/00000000000000000000.json").exists()


@pytest.mark.spark
@pytest.mark.slow
def test_on_spark(run_dag, tables, source, spark):
    for kind in ("csv", "json", "parquet"):
        (source / kind).mkdir()
    (source / "csv" / "a[1].csv").write_text('id,name\n1,"x"\n')
    (source / "json" / "a.json").write_text('{"id": 1, "name": "x"}\n')
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "name": ["x"]}), source / "parquet" / "a.parquet")
    run_dag("copy_into_spark", DAYS[0])
    (source / "csv" / "b.csv").write_text("id,name\n2,y\n")
    (source / "csv" / "_hidden.csv").write_text("id,name\n9,y\n")
    (source / "json" / "b.json").write_text('{"id": 2, "name": "y", "more": 1}\n')
    pq.write_table(pa.table({"name": ["y"], "more": ["z"], "id": pa.array([2], pa.int64())}), source / "parquet" / "b.parquet")
    run = run_dag("copy_into_spark", DAYS[1])
    assert run.state == "success", run.tasks
    run_dag("copy_into_spark", DAYS[2])
    for kind in ("csv", "json", "parquet"):
        assert rows(f"{tables}/copy_into_spark_{kind}") == [(1, "x"), (2, "y")]
        assert DeltaTable(f"{tables}/copy_into_spark_{kind}").version() == 2
    assert sorted(row["more"] or "" for row in readers.rows(f"{tables}/copy_into_spark_parquet")) == ["", "z"]


@pytest.mark.usefixtures("outside_of_the_task_runner")
class TestWhatIsRefused:
    @pytest.fixture
    def load(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(tmp_path)}))
        (tmp_path / "raw").mkdir()
        put(tmp_path / "raw" / "a.parquet", id=[1], name=["x"])
        write_deltalake(str(tmp_path / "facts"), NO_ROWS)

        def run(table: str = "facts", rendered: dict[str, Any] | None = None, **arguments: Any) -> Any:
            given = {"format": "parquet", "engine": "arrow", "source": "raw", **arguments}
            handle = start(str(tmp_path / table), transaction_key="mine", delta_conn_id="lake")
            operator = DeltaCopyIntoOperator(task_id="load", transaction=handle, delta_conn_id="lake", **given)
            for name, value in (rendered or {}).items():
                setattr(operator, name, value)
            return operator.execute(context(operator))

        return run

    def test_a_name_below_the_base_path(self, load):
        staged = load()
        assert (staged["numRecords"], staged["loads"][0]["numFiles"]) == (1, 1)

    def test_nothing_to_load(self, load):
        assert (load(source="none/*")["numRecords"], load(source="none/*")["loads"]) == (0, [])
        with pytest.raises(AirflowSkipException):
            load(source="none/*", skip_if_none=True)

    def test_no_table(self, load):
        with pytest.raises(DeltaTableNotFoundException, match="Create it first"):
            load("none")

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            ({"source": "None"}, "source must be a non-empty string"),
            ({"source": ""}, "source must be a non-empty string"),
            ({"pattern": "None"}, "pattern must be a non-empty string"),
            ({"source": "raw", "pattern": "[a"}, "without its"),
            ({"consumer": "None"}, "consumer must be"),
            ({"force": "None"}, "force must be true or false"),
            ({"modified_after": "None"}, "must be an ISO time"),
            ({"format": "xml"}, "format"),
            ({"engine": "duckdb"}, "engine"),
            ({"engine": "auto"}, "engine"),
            ({"source": "s3://user:secret@raw/x"}, "credentials"),
            ({"expected_schema": "id INT"}, "goes with schema_policy='strict'"),
            ({"schema_policy": "strict", "merge_schema": True}, "merge_schema would change it"),
        ],
    )
    def test_arguments(self, load, arguments, why):
        with pytest.raises(DeltaIllegalArgumentException, match=why):
            load(**arguments)

    @pytest.mark.parametrize("kind", ["csv", "json", "avro", "orc", "text"])
    def test_what_only_spark_reads(self, load, kind):
        with pytest.raises(DeltaUnsupportedOperationException, match=f"loads {kind}, which only Spark reads.*new_files="):
            load(format=kind)

    @pytest.mark.parametrize("given", [{"format_options": {"mergeSchema": True}}, {"columns": ["id"]}], ids=str)
    def test_options_of_spark(self, load, given):
        with pytest.raises(DeltaUnsupportedOperationException, match=f'has {next(iter(given))}, which go with engine="spark"'):
            load(**given)

    def test_a_column_that_the_table_does_not_have(self, load, tmp_path):
        put(tmp_path / "raw" / "a.parquet", id=[1], name=["x"], more=["y"])
        with pytest.raises(SchemaMismatchException):
            load()
        assert load(merge_schema=True)["numRecords"] == 1

    def test_a_strict_schema(self, load, tmp_path):
        put(tmp_path / "raw" / "a.parquet", id=[1])
        with pytest.raises(SchemaDriftException):
            load(schema_policy="strict")
        assert load()["numRecords"] == 1

    def test_only_what_was_modified_later(self, load):
        assert load(modified_after="2099-01-01")["loads"] == []
        assert load(modified_after="2001-01-01T00:00:00+00:00")["numRecords"] == 1


def read_them(new_files):
    return pa.concat_tables([pq.read_table(file.open()) for file in new_files])


@pytest.mark.usefixtures("outside_of_the_task_runner")
class TestWhatIsRefusedOfFunctions:
    @pytest.fixture
    def load(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(tmp_path)}))
        (tmp_path / "raw").mkdir()
        put(tmp_path / "raw" / "a.parquet", id=[1], name=["x"])
        write_deltalake(str(tmp_path / "facts"), NO_ROWS)

        def run(new_files: Any, function: Any = read_them, **arguments: Any) -> Any:
            handle = start(str(tmp_path / "facts"), transaction_key="mine", delta_conn_id="lake")
            operator = DeltaStageArrowOperator(
                task_id="load",
                transaction=handle,
                delta_conn_id="lake",
                python_callable=function,
                new_files=new_files,
                **arguments,
            )
            return operator.execute(context(operator))

        return run

    def test_a_name_below_the_base_path(self, load):
        staged = load("raw/*.parquet")
        assert (staged["numRecords"], staged["loads"][0]["numFiles"]) == (1, 1)

    def test_nothing_to_load(self, load):
        assert load("none/*", lambda new_files: 1 / 0)["loads"] == [], "the function is not called"
        with pytest.raises(AirflowSkipException):
            load({"none/*": {"skip_if_none": True}})

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("None", "source must be a non-empty string"),
            (["raw", "more"], "new_files"),
            ({"raw": {}, "more": {}}, "expected a source, or a mapping of one source to its options"),
            ({"raw": {"recursiv": True}}, "unknown ones: recursiv"),
            ({"raw": {"force": "None"}}, "force of the task 'load' must be true or false"),
            ("s3://user:secret@raw/x", "credentials"),
        ],
    )
    def test_arguments(self, load, given, why):
        with pytest.raises(DeltaIllegalArgumentException, match=why):
            load(given)

    def test_a_function_that_would_read_none_of_them(self, load):
        with pytest.raises(DeltaIllegalArgumentException, match="no parameter new_files"):
            load("raw", lambda: NO_ROWS)

    def test_rows_that_would_be_replaced(self, load):
        with pytest.raises(DeltaIllegalArgumentException, match='Use mode="append"'):
            load("raw", mode="overwrite")

    def test_a_parameter_of_the_authors_own(self, load):
        assert load(None, lambda new_files: NO_ROWS, op_kwargs={"new_files": ["a"]})["numRecords"] == 0
