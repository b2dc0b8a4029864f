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
    for name in ("arrow", "stage", "spark_csv", "spark_json", "spark_parquet"):
        shutil.rmtree(f"{tables}/copy_into_{name}", ignore_errors=True)
        if name != "stage":
            write_deltalake(f"{tables}/copy_into_{name}", NO_ROWS)
    return path


def rows(path: str) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"]) for row in readers.rows(path))


def test_a_task_alone(run_dag, clear_and_run, tables, source):
    (source / "a.csv").write_text("id,name\n1,x\n")
    first = run_dag("copy_into_arrow", DAYS[0])
    (source / "b.csv").write_text("name,id\ny,2\n")
    second = run_dag("copy_into_arrow", DAYS[1])
    third = run_dag("copy_into_arrow", DAYS[2])
    assert [run.state for run in (first, second, third)] == ["success"] * 3
    assert rows(f"{tables}/copy_into_arrow") == [(1, "x"), (2, "y")]
    assert DeltaTable(f"{tables}/copy_into_arrow").version() == 2, "the third run commits nothing"
    (source / "c.csv").write_text("id,name\n3,z\n")
    assert clear_and_run(second, "load").state == "success"
    assert rows(f"{tables}/copy_into_arrow") == [(1, "x"), (2, "y")], "its key is committed"
    assert clear_and_run(third, "load").state == "success"
    assert rows(f"{tables}/copy_into_arrow") == [(1, "x"), (2, "y"), (3, "z")], "it had committed nothing"


def test_a_stage(run_dag, tables, source):
    (source / "a.csv").write_text("id,name\n1,x\n")
    run = run_dag("copy_into_stage", DAYS[0])
    assert run.state == "success"
    (load,) = run.xcom("load.files")["loads"]
    assert (load["number"], load["numFiles"]) == (1, 1)
    skipped = run_dag("copy_into_stage", DAYS[1])
    assert (skipped.state_of("load.files"), skipped.state_of("load.commit")) == ("skipped", "skipped")
    assert run_dag("copy_into_stage", DAYS[2], force=True).state == "success"
    assert rows(f"{tables}/copy_into_stage") == [(1, "x"), (1, "x")]


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
        (tmp_path / "raw" / "a.csv").write_text("id,name\n1,x\n")
        write_deltalake(str(tmp_path / "facts"), NO_ROWS)

        def run(table: str = "facts", rendered: dict[str, Any] | None = None, **arguments: Any) -> Any:
            given = {"format": "csv", "format_options": {"header": True}, "engine": "arrow", "source": "raw", **arguments}
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
            ({"force": "None"}, "force of the task 'load' must be true or false"),
            ({"modified_after": "None"}, "must be an ISO time"),
            ({"format": "xml"}, "format"),
            ({"engine": "duckdb"}, "engine"),
            ({"source": "s3://user:secret@raw/x"}, "credentials"),
            ({"expected_schema": "id INT"}, "goes with schema_policy='strict'"),
            ({"schema_policy": "strict", "merge_schema": True}, "merge_schema would change it"),
        ],
    )
    def test_arguments(self, load, arguments, why):
        with pytest.raises(DeltaIllegalArgumentException, match=why):
            load(**arguments)

    def test_avro_without_spark(self, load):
        with pytest.raises(DeltaUnsupportedOperationException, match="avro"):
            load(format="avro")

    def test_a_column_that_the_table_does_not_have(self, load, tmp_path):
        (tmp_path / "raw" / "a.csv").write_text("id,name,more\n1,x,y\n")
        with pytest.raises(SchemaMismatchException):
            load()
        assert load(merge_schema=True)["numRecords"] == 1

    def test_a_strict_schema(self, load, tmp_path):
        (tmp_path / "raw" / "a.csv").write_text("id\n1\n")
        with pytest.raises(SchemaDriftException):
            load(schema_policy="strict")
        assert load()["numRecords"] == 1

    def test_only_what_was_modified_later(self, load):
        assert load(modified_after="2099-01-01")["loads"] == []
        assert load(modified_after="2001-01-01T00:00:00+00:00")["numRecords"] == 1
