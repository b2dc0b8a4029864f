"""Files read by Spark for a stage that loads them: awkward names, what does not fit, and files without rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from airflow_delta.log.storage.factory import store_for
from airflow_delta.spark.source_files import read_spark_files
from airflow_delta.table.positions.files.pattern import SourcePattern
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, find_source_files
from airflow_delta.table.stage.plan_create import plan_create
from support.readers import READERS
from support.table import Table

pytestmark = pytest.mark.spark

NAMES = ("plain", "with space", "per%cent", "per%20cent", "pl+us", "grüße", "q?x[1]{2}*", "h#sh", "a=b")
TABLE = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": False, "metadata": {"delta.columnMapping.id": 1}},
        {"name": "Name", "type": "string", "nullable": True, "metadata": {}},
        {"name": "day", "type": "date", "nullable": True, "metadata": {}},
        {"name": "price", "type": "decimal(10,2)", "nullable": True, "metadata": {}},
        {
            "name": "s",
            "type": {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]},
            "nullable": True,
            "metadata": {},
        },
    ],
}
HEADER = {"header": True}


@pytest.fixture
def read(spark, tmp_path):
    def rows(file_format: str, files: dict[str, Any], table: Any = TABLE, columns: tuple[str, ...] = (), **options: Any) -> list:
        for name, content in files.items():
            if isinstance(content, pa.Table):
                pq.write_table(content, tmp_path / name)
            else:
                (tmp_path / name).write_text(content)
        paths = [str(tmp_path / name) for name in sorted(files, key=lambda name: -Path(tmp_path / name).stat().st_size)]
        found = read_spark_files(spark, paths, file_format=file_format, options=options, table=table, columns=columns)
        return sorted((row.asDict(recursive=True) for row in found.collect()), key=repr)

    return rows


def test_awkward_names(spark, tmp_path):
    directory = tmp_path / "in a%20b"
    directory.mkdir()
    for number, name in enumerate(NAMES):
        (directory / f"{name}.csv").write_text(f"id\n{number}\n")
    (directory / "per cent.csv").write_text("id\n99\n")  # what %20 is not
    paths = [f"file://{directory}/{name}.csv" for name in NAMES]
    rows = read_spark_files(spark, paths, file_format="csv", options=HEADER, table=TABLE).collect()
    assert sorted(row.id for row in rows) == list(range(len(NAMES)))


def test_csv(read):
    found = read("csv", {"a.csv": 'ID,name,day,price,more\n1,"x, y",2026-01-02,1.50,z\n2,,,,\n'}, **HEADER)
    assert [str(value) for value in found[0].values()] == ["1", "x, y", "2026-01-02", "1.50", "z"]
    assert list(found[0]) == ["id", "Name", "day", "price", "more"], "named and typed as in the table"
    assert found[1] == {"id": 2, "Name": None, "day": None, "price": None, "more": None}


def test_csv_without_a_header(read):
    assert read("csv", {"a.csv": "1;x\n"}, columns=("id", "name"), delimiter=";") == [{"id": 1, "Name": "x"}]


@pytest.mark.slow
def test_csv_with_inferred_columns(read):
    found = read("csv", {"a.csv": "id,n\n1,2\n", "b.csv": "id,n\n1,2.5\n"}, inferSchema=True, **HEADER)
    assert [row["n"] for row in found] == [2.0, 2.5]


@pytest.mark.parametrize(
    "files",
    [
        {"a.csv": "id,name\n1,a,b\n"},
        pytest.param({"a.csv": "id\nx\n"}, marks=pytest.mark.slow),
        pytest.param({"a.csv": "id,name\n1\n"}, marks=pytest.mark.slow),
        pytest.param({"a.csv": "id\n99999999999999999999\n"}, marks=pytest.mark.slow),
        pytest.param({"a.csv": "id,name\n1,xxxx\n", "b.csv": "name,id\nx,2\n"}, marks=pytest.mark.slow),
    ],
    ids=["too many values", "no number", "too few values", "too large", "another header"],
)
def test_what_csv_does_not_drop(read, files):
    with pytest.raises(Exception, match=r"(?i)malformed|header|parse|FAILFAST"):
        read("csv", files, **HEADER)


def test_json(read):
    found = read(
        "json", {"a.json": '{"id": 1, "s": {"a": 1, "b": 2}, "more": [1]}\n{"id": 2, "Name": "n", "day": "2026-01-02"}\n'}
    )
    assert found[1] == {"Name": None, "day": None, "id": 1, "more": [1], "s": {"a": 1, "b": 2}}
    assert (found[0]["Name"], str(found[0]["day"])) == ("n", "2026-01-02")


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1, "s": {"a": "x"}}\n',
        *(pytest.param(text, marks=pytest.mark.slow) for text in ('{"id": "x"}\n', '{"id": 1\n', '{"id": 1.5}\n', "no\n")),
    ],
)
def test_what_json_does_not_drop(read, text):
    with pytest.raises(Exception, match=r"(?i)malformed|parse|FAILFAST"):
        read("json", {"a.json": '{"id": 5}\n', "b.json": text})


def test_parquet(read):
    files = {
        "a.parquet": pa.table({"id": pa.array([1], pa.int64())}),
        "b.parquet": pa.table({"id": pa.array([2], pa.int64()), "name": ["x"]}),
    }
    assert read("parquet", files) == [{"id": 1, "name": None}, {"id": 2, "name": "x"}]


def test_orc_and_text(spark, tmp_path):
    pyarrow.orc.write_table(pa.table({"id": pa.array([1], pa.int64())}), tmp_path / "a.orc")
    pyarrow.orc.write_table(pa.table({"id": pa.array([2], pa.int64()), "name": ["x"]}), tmp_path / "b.orc")
    (tmp_path / "a.txt").write_text("one,1\n\ntwo\n")
    orc = read_spark_files(spark, [str(tmp_path / n) for n in ("a.orc", "b.orc")], file_format="orc", options={}, table=TABLE)
    assert sorted(map(tuple, orc.collect())) == [(1, None), (2, "x")]
    text = read_spark_files(spark, [str(tmp_path / "a.txt")], file_format="text", options={}, table=TABLE)
    assert [row.asDict() for row in text.collect()] == [{"value": "one,1"}, {"value": ""}, {"value": "two"}]


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_a_file_without_rows(read, file_format):
    full = {"csv": "id\n1\n", "json": '{"id": 1}\n'}[file_format]
    assert read(file_format, {"a": full, "b": ""}, **(HEADER if file_format == "csv" else {})) == [{"id": 1}]
    assert read(file_format, {"a": "", "b": ""}, **(HEADER if file_format == "csv" else {})) == []


@pytest.mark.slow
@pytest.mark.parametrize("clustered", [True, False])
def test_into_a_table_that_computes_columns(spark, tmp_path, clustered):
    table = Table(tmp_path / "t", spark)
    fields = [
        {"name": "id", "type": "long", "nullable": False, "metadata": {}},
        {"name": "p", "type": "string", "nullable": True, "metadata": {}},
        {"name": "double", "type": "long", "nullable": True, "metadata": {"delta.generationExpression": "id * 2"}},
        {
            "name": "number",
            "type": "long",
            "nullable": True,
            "metadata": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False},
        },
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    if clustered:
        made = table.begin(schema=schema)
        table.publish(made, table.operate(made, plan_create, schema=schema, cluster_by=["id"]))
    source = tmp_path / "in"
    source.mkdir()
    for number in (1, 2):
        (source / f"{number}.csv").write_text(f"p,id\nx y,{number}\n,{number + 10}\n")
        handle = table.begin(schema=schema, **({} if clustered else {"partition_by": ["p"]}))
        pattern = SourcePattern.parse(f"{source}/*")
        found = find_source_files(table.view(handle), store_for(pattern.base), pattern, CopyIntoOptions())
        paths = [f"{source}/{file.path}" for file in found.files]
        assert len(paths) == 1
        rows = read_spark_files(spark, paths, file_format="csv", options=HEADER, table=json.loads(schema))
        staged = table.stage(handle, rows)
        table.publish(handle, dataclasses.replace(staged, loads=(found.load,)))
    rows = READERS["Polars"](table.uri, None).sort_by("id").to_pylist()
    assert [(row["id"], row["p"], row["double"]) for row in rows] == [
        (1, "x y", 2),
        (2, "x y", 4),
        (11, None, 22),
        (12, None, 24),
    ]
    assert len({row["number"] for row in rows} - {None}) == 4
