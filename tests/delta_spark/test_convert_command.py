"""CONVERT TO DELTA beside Delta Spark's on a copy of the same Parquet files: schema, partition values, statistics, history."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.table.operations.convert import convert_to_delta
from delta_spark.support import assert_same_state, delta_rows
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = {"delta.setTransactionRetentionDuration": "interval 90 days"}
"""What tables that we create have, so that application ids of Dag runs do not add up for ever."""

EVERYTHING = (
    "SELECT id, CAST(id AS INT) i, CAST(id AS BYTE) y, CAST(id AS SHORT) sh, concat('x', repeat('y', 40), id) s, "
    "timestamp'2020-01-01 00:00:00.123456' t, timestamp_ntz'2020-01-01 00:00:00.123456' n, CAST(id + 0.5 AS DECIMAL(10, 2)) d, "
    "CAST(id AS DECIMAL(38, 10)) dd, array(1, 2) a, map('k', 1) m, named_struct('x', id, 'y', named_struct('z', 'b')) st, "
    "date'2020-01-01' dt, CAST(id + 1 AS FLOAT) f, CAST(id + 2 AS DOUBLE) db, id > 1 b, X'01' bin, "
    "IF(id % 2 = 0, CAST(null AS INT), 7) nu, IF(id % 2 = 0, 'a b/c%', null) p, date'2021-02-03' q FROM range(0, 4, 1, 1)"
)


def convert(table: Table, **options: Any) -> Any:
    return convert_to_delta(table.log(), transaction_key="convert", attempt="1-test", **options)


def entry(table: Table) -> dict[str, Any]:
    """Return the first log entry without what differs from run to run."""
    commit = table.actions(0)
    info, [metadata], [protocol] = commit["commitInfo"][0], commit["metaData"], commit["protocol"]
    names = ("operation", "operationParameters", "operationMetrics", "readVersion", "isolationLevel", "isBlindAppend")
    return {
        "info": {name: info.get(name) for name in names},
        "schema": json.loads(metadata["schemaString"]),
        "partitionColumns": metadata["partitionColumns"],
        "configuration": {k: v for k, v in metadata["configuration"].items() if OURS.get(k) != v},
        "protocol": {k: sorted(v) if isinstance(v, list) else v for k, v in protocol.items()},
        "files": {add["path"]: _plain(add) for add in commit["add"]},
    }


def _plain(add: dict[str, Any]) -> dict[str, Any]:
    stats = add.get("stats")
    kept = {k: v for k, v in add.items() if k not in ("path", "stats")}
    return kept if stats is None else {**kept, "stats": json.loads(stats, parse_float=Decimal)}


def sql(delta: SparkSession, table: Table, rest: str = "") -> None:
    delta.sql(f"CONVERT TO DELTA parquet.`{table.path}` {rest}")


def copies(delta: SparkSession, original: Path) -> tuple[Table, Table]:
    """Return two tables to be, with the same files at the same times."""
    both = Table(original.parent / f"{original.name} ours", delta), Table(original.parent / f"{original.name} theirs", delta)
    for table in both:
        shutil.copytree(original, table.path)
    return both


def test_what_spark_wrote(delta: SparkSession, tmp_path: Path) -> None:
    original = tmp_path / "p q"
    # As INT96, which is Spark's default, timestamps have no statistics in the footer: see _check_what_footers_tell.
    delta.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        delta.sql(EVERYTHING).write.partitionBy("p", "q").parquet(str(original))
    finally:
        delta.conf.unset("spark.sql.parquet.outputTimestampType")
    hidden = original / "_old" / "x.parquet"
    hidden.parent.mkdir()
    hidden.write_bytes(b"no Parquet file")
    ours, theirs = copies(delta, original)
    sql(delta, theirs, "PARTITIONED BY (p STRING, q DATE)")
    result = convert(ours, partition_schema="p STRING, q DATE")
    assert result.num_files == 2
    mine, judge = entry(ours), entry(theirs)
    assert mine == judge
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs.path)
    assert len(ours.rows()) == 4
    assert_same_state(None, delta, ours.path)
    # Once more: it is a table already.
    assert convert_to_delta(ours.log(), transaction_key="other", attempt="1-test").attempts == 0
    assert len(ours.versions()) == 1
    delta.sql(f"INSERT INTO delta.`{ours.path}` SELECT * FROM delta.`{theirs.path}`")
    assert len(ours.rows()) == 8
    # Without statistics, empty files stay, as they do in Delta.
    ours, theirs = copies(delta, original.rename(tmp_path / "none"))
    sql(delta, theirs, "NO STATISTICS PARTITIONED BY (p STRING, q DATE)")
    convert(ours, partition_schema={"p": "STRING", "q": "DATE"}, collect_stats=False)
    assert entry(ours) == entry(theirs)


def write(path: Path, columns: dict[str, Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


def test_what_others_wrote(delta: SparkSession, tmp_path: Path) -> None:
    original = tmp_path / "arrow"
    day = dt.datetime(2020, 1, 1, 2, 3, 4)
    columns = {
        "id": [1, 2],
        "i8": pa.array([1, None], pa.int8()),
        "u8": pa.array([1, 2], pa.uint8()),
        "u32": pa.array([1, 2], pa.uint32()),
        "u64": pa.array([1, 2], pa.uint64()),
        "ms": pa.array([day, day], pa.timestamp("ms")),
        "us": pa.array([day, day], pa.timestamp("us", "UTC")),
        "dec": pa.array([Decimal("1.5"), None], pa.decimal128(20, 2)),
        "list": pa.array([[1], [2, 3]]),
        "nested": pa.array([{"x": 1, "y": [{"z": "a"}]}, {"x": 2, "y": []}]),
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
        "fixed": pa.array([b"12", b"34"], pa.binary(2)),
        "dict": pa.array(["a", "b"]).dictionary_encode(),
        "large": pa.array(["a", None], pa.large_string()),
        "duration": pa.array([1, 2], pa.duration("us")),
        "null": pa.nulls(2),
    }
    write(original / "a.parquet", columns)
    write(original / "b c%.parquet", {"id": [7], "new": ["x"], "Dict": ["z"]})
    write(original / "empty.parquet", {"id": pa.array([], pa.int64())})
    write(original / "int96.parquet", {"old": pa.array([day], pa.timestamp("us"))}, use_deprecated_int96_timestamps=True)
    write(original / "narrow.parquet", {"u8": pa.array([5], pa.int8()), "i8": pa.array([6], pa.int32())})
    ours, theirs = copies(delta, original)
    sql(delta, theirs)
    convert(ours)
    mine, judge = entry(ours), entry(theirs)
    fields = [{f["name"].lower(): f for f in each.pop("schema")["fields"]} for each in (mine, judge)]
    for name, field in fields[0].items():  # the order of columns, and which spelling is the first, is that of the listing
        assert {**field, "name": name} == {**fields[1][name], "name": name}
    assert fields[0].keys() == fields[1].keys()
    _check_what_footers_tell(mine, judge)
    assert mine == judge
    select = f"SELECT {', '.join(f'`{name}`' for name in fields[0])} FROM delta.`{{}}`"
    assert sorted(map(str, delta.sql(select.format(ours.path)).collect())) == sorted(
        map(str, delta.sql(select.format(theirs.path)).collect())
    )
    assert_same_state(None, delta, ours.path)


def _check_what_footers_tell(mine: dict[str, Any], judge: dict[str, Any]) -> None:
    """Check that our statistics say nothing that Delta's do not; footers leave these out: bounds of INT96 and of unsigned
    numbers, nulls of columns that hold nothing else, nulls of lists and maps that may be empty."""
    missing = set()
    for path, file in mine["files"].items():
        ours, theirs = file.pop("stats"), judge["files"][path].pop("stats")
        assert ours["numRecords"] == theirs["numRecords"]
        for kind in ("minValues", "maxValues", "nullCount"):
            for column, value in theirs[kind].items():
                spelled = next((name for name in ours[kind] if name.lower() == column.lower()), None)
                if spelled is None:
                    if value != {}:  # Delta writes that for a struct none of whose fields has a bound
                        missing.add((kind, column))
                elif isinstance(value, dict):
                    assert ours[kind][spelled].items() <= value.items()
                else:
                    assert ours[kind][spelled] == value, (path, kind, column)
            assert {name.lower() for name in ours[kind]} <= {name.lower() for name in theirs[kind]}
    assert {column for _kind, column in missing} <= {"u8", "u32", "u64", "old", "null", "list", "map"}


def test_values_of_directories(delta: SparkSession, tmp_path: Path) -> None:
    original = tmp_path / "parts"
    write(original / "p=1" / "Flag=true" / "x=1.50" / "a.parquet", {"id": [1], "p": [1]})
    write(original / "P=2" / "flag=false" / "x=__HIVE_DEFAULT_PARTITION__" / "deeper" / "b.parquet", {"id": [2], "p": [2]})
    ours, theirs = copies(delta, original)
    sql(delta, theirs, "PARTITIONED BY (p INT, flag BOOLEAN, x DECIMAL(5,2))")
    convert(ours, partition_schema="p INT, flag BOOLEAN, x DECIMAL(5,2)")
    assert entry(ours) == entry(theirs)
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs.path)
    # 01 and 1 are one value: we write one text for it, since engines that compare texts would see two partitions. Delta keeps
    # the directory's.
    original = tmp_path / "zero"
    write(original / "p=01" / "a.parquet", {"id": [1]})
    ours, theirs = copies(delta, original)
    sql(delta, theirs, "PARTITIONED BY (p INT)")
    convert(ours, partition_schema="p INT")
    [mine], [judge] = entry(ours)["files"].values(), entry(theirs)["files"].values()
    assert (mine["partitionValues"], judge["partitionValues"]) == ({"p": "1"}, {"p": "01"})
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs.path)


def test_both_refuse(delta: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "types" / "a.parquet", {"id": [1]})
    write(tmp_path / "types" / "b.parquet", {"id": ["x"]})
    write(tmp_path / "parted" / "p=x" / "a.parquet", {"id": [1]})
    write(tmp_path / "nanos" / "a.parquet", {"at": pa.array([1], pa.timestamp("ns"))}, version="2.6")
    write(tmp_path / "time" / "a.parquet", {"at": pa.array([1], pa.time64("us"))})
    write(tmp_path / "text" / "a.parquet", {"id": [1]})
    (tmp_path / "text" / "README").write_text("no Parquet file")
    (tmp_path / "nothing").mkdir()
    cases: list[tuple[str, str, Any, type[Exception]]] = [
        ("types", "", None, SchemaMismatchException),
        ("parted", "", None, DeltaAnalysisException),
        ("parted", "PARTITIONED BY (q STRING)", "q STRING", DeltaAnalysisException),
        ("parted", "PARTITIONED BY (p STRING, q INT)", "p STRING, q INT", DeltaAnalysisException),
        ("parted", "PARTITIONED BY (p INT)", "p INT", DeltaAnalysisException),
        ("nanos", "", None, DeltaAnalysisException),
        ("time", "", None, DeltaAnalysisException),
        ("text", "", None, DeltaAnalysisException),
        ("nothing", "", None, Exception),
    ]
    for name, clause, partitions, error in cases:
        table = Table(tmp_path / name, delta)
        with pytest.raises(error):
            convert(table, partition_schema=partitions)
        assert not list(table.path.glob("_delta_log/*.json")), name
        with pytest.raises(Exception, match=r"."):
            sql(delta, table, clause)
