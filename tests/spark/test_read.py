"""Reading a table as a DataFrame from a scan plan: awkward paths, partition values and files."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.spark import read as reading
from airflow_delta.spark import read_scan_plan
from airflow_delta.staging.contract import ScanFile, ScanPlan

pytestmark = pytest.mark.spark

AWKWARD = ["plain", "with space", "per%cent", "per%25cent", "co:lon", "pl+us", "grüße", "中文", "a=b", "q?x[1]{2}*", "h#sh", None]


@pytest.fixture(params=["literals", "join"])
def way(request, monkeypatch):
    """Both ways of giving files their partition values."""
    monkeypatch.setattr(reading, "MAX_LITERAL_PARTITIONS", 1000 if request.param == "literals" else 0)


def field(name: str, data_type: str) -> dict:
    return {"name": name, "type": data_type, "nullable": True, "metadata": {}}


def plan(
    table: Path, files: list[ScanFile], *fields: dict, partition_columns: tuple[str, ...] = ("p",), predicate=None
) -> ScanPlan:
    return ScanPlan(
        transaction_id="t",
        table=f"file://{table}",
        read_version=1,
        schema_string=json.dumps({"type": "struct", "fields": list(fields)}),
        partition_columns=partition_columns,
        predicate=predicate,
        files=tuple(files),
    )


def write(table: Path, key: str, **columns: list) -> str:
    """Write a Parquet file under a storage key and return its path as a log has it."""
    path = table / key
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return quote(key, safe="/=+:")


@pytest.mark.parametrize("name", ["ta ble%20[x]{y}*ü", "plain:table"])
def test_partition_values_come_from_the_plan_whatever_the_paths_look_like(spark, tmp_path, way, name):
    table = tmp_path / name
    files = []
    # Hadoop cannot expand a pattern in a path with a colon; Spark itself never writes one into a path.
    values = [v for v in AWKWARD if "[" not in (name + (v or "")) or ":" not in (name + (v or ""))]
    for number, value in enumerate(values):
        directory = (value or "__HIVE_DEFAULT_PARTITION__").replace("/", "_")
        path = write(table, f"p=not{directory}/part {number}.parquet", id=[number])
        files.append(ScanFile(path=path, partition_values={"p": value}, size=1))
    found = read_scan_plan(spark, plan(table, files, field("p", "string"), field("id", "long"))).collect()
    assert {row["id"]: row["p"] for row in found} == dict(enumerate(values))
    assert list(found[0].asDict()) == ["p", "id"]


def test_partition_values_of_every_type(spark, tmp_path, way):
    values = {
        "byte": ("7", 7),
        "short": ("-3", -3),
        "integer": ("12", 12),
        "long": ("9000000000", 9000000000),
        "float": ("1.5", 1.5),
        "double": ("1.0E10", 1e10),
        "decimal(10,2)": ("3.50", "3.50"),
        "boolean": ("true", True),
        "date": ("2024-02-29", "2024-02-29"),
        "timestamp": ("2024-10-27T01:00:00.000001Z", "2024-10-27 02:00:00.000001"),
        "timestamp_ntz": ("2024-10-27 02:30:00", "2024-10-27 02:30:00"),
        "binary": ("ab", b"ab"),
        "string": ("x", "x"),
    }
    names = {data_type: f"c_{number}" for number, data_type in enumerate(values)}
    fields = [field("id", "long"), *(field(names[t], t) for t in values)]
    columns = tuple(names.values())
    files = [
        ScanFile(
            path=write(tmp_path, "a.parquet", id=[1]), partition_values={names[t]: v for t, (v, _) in values.items()}, size=1
        ),
        ScanFile(path=write(tmp_path, "b.parquet", id=[2]), partition_values=dict.fromkeys(columns), size=1),
    ]
    df = read_scan_plan(spark, plan(tmp_path, files, *fields, partition_columns=columns)).orderBy("id")
    text = {"decimal(10,2)", "date", "timestamp", "timestamp_ntz"}
    shown = df.select("id", *[df[names[t]].cast("string").alias(names[t]) if t in text else names[t] for t in values]).collect()
    assert [bytes(v) if isinstance(v, bytearray) else v for v in shown[0]][1:] == [expected for _, expected in values.values()]
    assert list(shown[1])[1:] == [None] * len(values)


def test_a_file_without_newer_columns_and_one_that_holds_the_partition_column(spark, tmp_path, way):
    files = [
        ScanFile(path=write(tmp_path, "old.parquet", id=[1]), partition_values={"p": "1"}, size=1),
        ScanFile(path=write(tmp_path, "new.parquet", ID=[2], extra=["x"], p=[99]), partition_values={"p": "2"}, size=1),
    ]
    found = read_scan_plan(spark, plan(tmp_path, files, field("id", "long"), field("p", "integer"), field("extra", "string")))
    assert sorted(map(tuple, found.collect())) == [(1, 1, None), (2, 2, "x")]


def test_the_predicate_is_applied_to_the_rows(spark, tmp_path, way):
    files = [ScanFile(path=write(tmp_path, f"{p}.parquet", id=[1, 2, 3]), partition_values={"p": p}, size=1) for p in ("a", "b")]
    found = read_scan_plan(
        spark, plan(tmp_path, files, field("id", "long"), field("p", "string"), predicate="p = 'b' AND id > 1")
    )
    assert sorted(map(tuple, found.collect())) == [(2, "b"), (3, "b")]


def test_files_by_absolute_uri_and_without_partitions(spark, tmp_path):
    write(tmp_path / "else where", "x.parquet", id=[5])
    uri = quote(f"file://{tmp_path}/else where/x.parquet", safe="/:")
    df = read_scan_plan(
        spark, plan(tmp_path, [ScanFile(path=uri, partition_values={}, size=1)], field("id", "long"), partition_columns=())
    )
    assert [row["id"] for row in df.collect()] == [5]


def test_a_plan_without_files_is_an_empty_dataframe_with_the_schema(spark, tmp_path):
    df = read_scan_plan(spark, plan(tmp_path, [], field("id", "long"), field("p", "date")))
    assert df.collect() == []
    assert df.dtypes == [("id", "bigint"), ("p", "date")]
