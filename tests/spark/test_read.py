"""Reading a table as a DataFrame from a scan plan: awkward paths, partition values and files."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.payloads import ScanFile, ScanPlan
from airflow_delta.contract.spark_paths import normal_form_of_metadata
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.schema.partition_values import parse_partition_value, serialize_partition_value
from airflow_delta.log.schema.types import parse_type
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.spark import read as reading
from airflow_delta.spark import read_scan_plan
from airflow_delta.table.stage.scan import check_partition_values
from support.actions import add
from support.slow import slow_except

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


CHAR_QUESTIONS = {
    "c = 'ab'": [1, 2],
    "c = 'ab '": [1, 2],
    "c = 'ab    '": [1, 2],
    "c <> 'ab'": [3, 4],
    "c < 'ab'": [4],
    "c >= 'ab'": [1, 2, 3],
    "c <=> 'ab'": [1, 2],
    "NOT (c <=> 'ab ')": [3, 4, 5],
    "c IN ('ab', 'x     ')": [1, 2],
    "c NOT IN ('ab')": [3, 4],
    "c IS NULL": [5],
}


@pytest.mark.parametrize("partitioned", slow_except([True, False], True))
def test_char_columns_are_compared_as_spark_does_here_and_there(spark, tmp_path, way, partitioned):
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import parse_schema
    from airflow_delta.table.read.row_filter import selected

    values = ["ab", "ab ", "abc", "a\t", None]
    char = {**field("c", "string"), "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}}
    columns = [field("id", "long"), char]
    if partitioned:
        files = [
            ScanFile(path=write(tmp_path, f"{at}.parquet", id=[at + 1]), partition_values={"c": text}, size=1)
            for at, text in enumerate(values)
        ]
    else:
        files = [ScanFile(path=write(tmp_path, "f.parquet", id=[1, 2, 3, 4, 5], c=values), partition_values={}, size=1)]
    schema = parse_schema(json.dumps({"type": "struct", "fields": columns}))
    batch = pa.record_batch({"id": [1, 2, 3, 4, 5], "c": values})
    for text, wanted in CHAR_QUESTIONS.items():
        predicate = Predicate.parse(text, schema, ["c"] if partitioned else [])
        asked = plan(tmp_path, files, *columns, partition_columns=("c",) if partitioned else (), predicate=predicate.text)
        assert sorted(row.id for row in read_scan_plan(spark, asked).collect()) == wanted, text
        assert batch.filter(selected(predicate, batch)).column("id").to_pylist() == wanted, text
        if partitioned:
            assert [at + 1 for at, value in enumerate(values) if predicate.matches_partition({"c": value})] == wanted, text
    for text in ("c BETWEEN 'ab' AND 'ab'", "c LIKE 'ab'"):  # Spark compares these with the filled up value only
        assert Predicate.parse(text, schema).text == f"({text})"
        asked = plan(tmp_path, files, *columns, partition_columns=("c",) if partitioned else (), predicate=f"({text})")
        two_comparisons = spark.version < "4" and "BETWEEN" in text  # Spark 3.5 makes it what it does not compare so
        assert sorted(row.id for row in read_scan_plan(spark, asked).collect()) == ([1, 2] if two_comparisons else [])


def test_an_empty_partition_value_is_null(spark, tmp_path, way):
    """Protocol, "Partition Value Serialization": whatever the type, and whichever engine reads it."""
    files = [
        ScanFile(path=write(tmp_path, f"{at}.parquet", id=[at]), partition_values={"p": text, "n": number}, size=1)
        for at, (text, number) in enumerate([("", ""), (None, None), ("a", "1")])
    ]
    fields = [field("id", "long"), field("p", "string"), field("n", "integer")]
    for predicate in ("p IS NULL", "n IS NULL", "p <=> NULL AND NOT (n <=> 1)"):
        found = read_scan_plan(spark, plan(tmp_path, files, *fields, partition_columns=("p", "n"), predicate=predicate))
        assert sorted((row.id, row.p, row.n) for row in found.collect()) == [(0, None, None), (1, None, None)]
    assert read_scan_plan(spark, plan(tmp_path, files, *fields, partition_columns=("p", "n"), predicate="p = ''")).collect() == []


LETTERS = {
    "integer": "0123456789+- _.eL",
    "double": "0123456789+-.eE_dNnaIift ",
    "decimal(5,2)": "0123456789+-.eE_ ",
    "boolean": "truefalsTRUEFALS1y ",
    "date": "0123456789-/TW ",
    "timestamp_ntz": "0123456789-: .T",
}
SEEDS = {
    "integer": ["1", "-12", "2147483647"],
    "double": ["1.5", "-1.5E10", "NaN", "Infinity", "-inf"],
    "decimal(5,2)": ["1.25", "999.99", "-0.5", "1E+1"],
    "boolean": ["true", "false"],
    "date": ["2024-01-31", "0001-01-01", "9999-12-31"],
    "timestamp_ntz": ["2024-01-31 10:20:30", "2024-01-31 10:20:30.123456"],
}


def damaged(some: random.Random, text: str, letters: str) -> str:
    """Return a text with up to two letters replaced, added or left out."""
    for _ in range(some.randrange(3)):
        at = some.randrange(len(text) + 1)
        text = text[:at] + some.choice(["", *letters]) + text[at + some.randrange(2) :]
    return text


@pytest.mark.parametrize("kind", LETTERS)
def test_partition_texts_that_are_read_mean_what_delta_spark_makes_of_them(spark, kind):
    """Delta Spark casts them as Spark does without ANSI mode, and reads null where that cannot be."""
    some = random.Random(26)
    texts = sorted({damaged(some, some.choice(SEEDS[kind]), LETTERS[kind]) for _ in range(1500)} - {""})
    data_type = parse_type(kind)
    read = {}
    for text in texts:
        with contextlib.suppress(DeltaAnalysisException):
            read[text] = parse_partition_value(text, data_type)
    name = {"integer": "int"}.get(kind, kind)
    cast = f"try_cast(text AS {name})"
    if kind in ("date", "timestamp_ntz"):  # years that Python does not have
        cast = f"CAST({cast} AS STRING)"
        read = {text: serialize_partition_value(value, data_type) for text, value in read.items()}
    rows = spark.createDataFrame([(text,) for text in texts], "text string").selectExpr("text", f"{cast} AS value").collect()
    theirs = {row.text: row.value for row in rows}
    assert {text: (value, theirs[text]) for text, value in read.items() if not same(value, theirs[text])} == {}
    assert set(SEEDS[kind]) <= set(read)
    assert len(read) < len(texts) * 0.9


def same(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)


def test_a_scan_with_a_partition_value_that_readers_read_differently_is_refused(tmp_path):
    columns = {"type": "struct", "fields": [field("id", "long"), field("p", "integer")]}
    with pytest.raises(DeltaAnalysisException, match=r"Data file f of table t version 3 cannot be read: .*'1_000' of column 'p'"):
        check_partition_values(
            [add("f", p="1_000")],
            TableDefinition.of_rows(json.dumps(columns), ["p"]),
            uri="t",
            version=3,
        )


SPELLED = (
    "file:/lake/t/a.parquet", "file:///lake/t/a.parquet", "/lake/t/a.parquet", "s3a://lake/t/a.parquet", "file:/lake/a:b//c",
    "abfss://c@account.dfs.core.windows.net/t/a", "hdfs://name:8020/t/p=1/a", "file:/lake/t+1/p=a%2520b/a",
    "file:/lake/t%20%5B1%5D/p=%C3%A9/a", "s3a://lake/100%25/a",
)  # fmt: skip


def test_names_of_files_get_the_normal_form_on_spark_too(spark):
    for names in ([name for name in SPELLED if "%" not in name], SPELLED):
        known = [normal_form_of_metadata(name) for name in names]
        df = spark.createDataFrame([(name,) for name in names], f"{reading.FILE_COLUMN} STRING")
        assert [row[0] for row in df.select(reading.normal_form_of_names(known)).collect()] == known
