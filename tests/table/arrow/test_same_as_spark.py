"""The same rows, staged on Spark and by the worker: the same table."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.exceptions import ConstraintViolationException, DeltaError
from airflow_delta.table.operations.statistics import compute_statistics
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_create import plan_create
from support import readers
from support.random_rows import START, frame_of, random_rows, statistics
from support.table import Table

pytestmark = pytest.mark.spark


CONFIGURATIONS: list[dict[str, str]] = [
    {"delta.feature.timestampNtz": "supported"},
    {"delta.columnMapping.mode": "name"},
    {"delta.columnMapping.mode": "id", "delta.enableDeletionVectors": "true"},
]


def with_arrow(table: Table, rows: pa.Table, begin: dict[str, Any], **options: Any) -> None:
    table.write(rows, begin=begin, spark_table_uri=table.uri, **options)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_rows_make_the_same_table(spark: Any, tmp_path: Path, seed: int):
    draw = random.Random(seed)
    begin = {"partition_by": draw.choice([[], ["p"], ["q", "p"], ["n"], ["t"]]), "configuration": CONFIGURATIONS[seed % 3]}
    tables = {name: Table(tmp_path / name, spark) for name in ("spark", "arrow")}
    for step in range(3):
        rows = random_rows(draw)
        mode = "append" if step == 0 else draw.choice(["append", "overwrite"] + (["dynamic"] if begin["partition_by"] else []))
        tables["spark"].write(frame_of(spark, rows), begin=begin, mode=mode)
        with_arrow(tables["arrow"], rows, begin, mode=mode)
    snapshots = {name: table.log().update() for name, table in tables.items()}
    kinds = {name: [(f.name, str(f.data_type), f.nullable) for f in snapshot.schema] for name, snapshot in snapshots.items()}
    assert kinds["arrow"] == kinds["spark"]
    found = {name: comparable(read_table(table.log()).to_table()) for name, table in tables.items()}
    assert found["arrow"] == found["spark"]
    assert comparable(readers.READERS["Polars"](tables["arrow"].uri, None)) == found["arrow"]
    partitions = {
        name: sorted({json.dumps(file.partition_values) for file in snapshot.add_files()}) for name, snapshot in snapshots.items()
    }
    if CONFIGURATIONS[seed % 3].get("delta.columnMapping.mode") is None:
        assert partitions["arrow"] == partitions["spark"]
    assert statistics(snapshots["arrow"]) == statistics(snapshots["spark"])


def comparable(rows: pa.Table) -> list[str]:
    return readers._comparable(rows.to_pylist())


NAN = float("nan")
NUMBERS = pa.table(
    {
        "d": pa.array([NAN, 1.0, 0.5]),
        "f": pa.array([1.0, None, NAN], pa.float32()),
        "s": pa.array([{"x": NAN, "y": None}, None, {"x": 1.0, "y": 2.0}], pa.struct([("x", pa.float64()), ("y", pa.float32())])),
    }
)


@pytest.mark.parametrize("mode", ["none", "id"])
def test_spark_finds_nan_among_the_rows(spark: Any, tmp_path: Path, mode: str):
    """To Spark it is the greatest number, and Arrow leaves it out of the bounds in a footer."""
    table = Table(tmp_path / "table", spark)
    columns = "d DOUBLE NOT NULL, f FLOAT, s STRUCT<x: DOUBLE, y: FLOAT>"
    table.run(plan_create, schema=columns, properties={"delta.columnMapping.mode": mode})
    with_arrow(table, pa.concat_tables([NUMBERS.slice(1, 1), NUMBERS]), {})
    conditions = ("d > 2", "d = double('NaN')", "f >= 2", "s.x > 1", "s.x <=> double('NaN')", "s.y > 3", "d < 1", "f IS NULL")
    counts = {condition: len(table.read(table.begin(), condition)) for condition in conditions}
    assert list(counts.values()) == [1, 1, 1, 1, 1, 0, 1, 2], counts
    (file,) = table.log().update().add_files()
    assert json.loads(file.stats)["numRecords"] == 4


@pytest.mark.parametrize("rows", [NUMBERS, NUMBERS.slice(1, 1), pa.concat_tables([NUMBERS, NUMBERS.slice(0, 1)])], ids=str)
def test_statistics_of_numbers_are_those_of_spark(spark: Any, tmp_path: Path, rows: pa.Table):
    found = []
    for engine in ("spark", "arrow"):
        table = Table(tmp_path / engine, spark)
        table.run(plan_create, schema="d DOUBLE NOT NULL, f FLOAT, s STRUCT<x: DOUBLE, y: FLOAT>")
        if engine == "arrow":
            with_arrow(table, rows, {})
        else:
            table.write(frame_of(spark, rows).coalesce(1))
        (file,) = table.log().update().add_files()
        assert compute_statistics(table.log()).attempts == 0, "computed anew, they are the same"
        found.append({name: members for name, members in json.loads(file.stats).items() if members})
    assert found[0] == found[1]


@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_an_empty_string_of_a_partition_is_null_to_constraints(spark: Any, tmp_path: Path, engine: str):
    """As in Delta (``Empty2Null``): the log cannot tell one from the other."""
    table = Table(tmp_path / "table", spark)
    properties = {"delta.constraints.known": "p IS NOT NULL"}
    table.run(plan_create, schema="id BIGINT, p STRING", partition_by=["p"], properties=properties)

    def write(*values: str) -> None:
        rows = pa.table({"id": pa.array(range(len(values))), "p": pa.array(values)})
        with_arrow(table, rows, {}) if engine == "arrow" else table.write(frame_of(spark, rows))

    with pytest.raises(ConstraintViolationException, match="known"):
        write("a", "")
    write("a", " ")
    assert {row["p"] for row in readers.rows(table.path)} == {"a", " "}


GIVEN = {
    "long": pa.array([1], pa.int64()),
    "short": pa.array([1], pa.int16()),
    "double": pa.array([1.5]),
    "float": pa.array([1.5], pa.float32()),
    "string": pa.array(["1"]),
    "boolean": pa.array([True]),
    "date": pa.array([dt.date(2024, 1, 1)]),
    "timestamp": pa.array([START]),
    "timestamp_ntz": pa.array([START.replace(tzinfo=None)]),
    "decimal": pa.array([Decimal("1.50")], pa.decimal128(4, 2)),
    "binary": pa.array([b"1"]),
}
ONLY_SPARK = {("double", "string"), ("float", "string"), ("decimal", "string"), ("timestamp_ntz", "string")}
"""Casts to strings that Spark spells in its own way."""


@pytest.mark.slow
def test_what_fits_a_column_on_spark_fits_it_here(spark: Any, tmp_path: Path):
    schema = "l BIGINT, i INT, d DOUBLE, f FLOAT, s STRING, b BOOLEAN, dt DATE, t TIMESTAMP, n TIMESTAMP_NTZ, "
    schema += "dec DECIMAL(12,4), x BINARY"
    begin = {"configuration": {"delta.feature.timestampNtz": "supported"}}
    on_spark, here = Table(tmp_path / "spark", spark), Table(tmp_path / "arrow", spark)
    for table in (on_spark, here):
        table.write(spark.createDataFrame([], schema), begin=begin)
    for kind, values in GIVEN.items():
        for column in schema.replace("(12,4)", "").split(", "):
            name = column.split()[0]
            rows = pa.table({name: values})
            outcomes = []
            for write in (
                lambda rows=rows: on_spark.write(frame_of(spark, rows)),
                lambda rows=rows: with_arrow(here, rows, {}),
            ):
                try:
                    write()
                    outcomes.append("fits")
                except DeltaError as error:
                    outcomes.append(type(error).__name__)
            only_spark = (kind, "string" if name == "s" else "") in ONLY_SPARK
            assert outcomes[1] == ("SchemaMismatchException" if only_spark else outcomes[0]), (kind, column, outcomes)
    # A date is midnight in UTC here, and in the session's zone on Spark.
    found = [read_table(table.log(), where="s IS NULL").to_table().drop_columns("t") for table in (here, on_spark)]
    assert comparable(found[0]) == comparable(found[1])
