"""Statistics of our files beside those that Delta Spark writes for the same rows."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from support.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

COLUMNS = (
    "b BYTE, i INT, l BIGINT, f FLOAT, d DOUBLE, dc DECIMAL(38,10), t STRING, bo BOOLEAN, bi BINARY, day DATE, at TIMESTAMP, "
    "ntz TIMESTAMP_NTZ, s STRUCT<x: INT, y: STRUCT<z: STRING, w: ARRAY<INT>>>, ar ARRAY<INT>, m MAP<STRING, INT>, n INT"
)
FULL = (
    "SELECT {k}Y AS b, {k} AS i, {k}L << 40 AS l, CAST({k}.5 AS FLOAT) AS f, {k}.25D AS d, "
    "CAST('{k}2345678901234567890.0123456789' AS DECIMAL(38,10)) AS dc, {text} AS t, true AS bo, X'0{k}' AS bi, "
    "DATE'196{k}-02-03' AS day, TIMESTAMP'196{k}-02-03 04:05:06.789999' AS at, "
    "TIMESTAMP_NTZ'200{k}-02-03 04:05:06.789999' AS ntz, "
    "named_struct('x', {k}, 'y', named_struct('z', {text}, 'w', array({k}))) AS s, array({k}) AS ar, map('k', {k}) AS m, "
    "CAST(NULL AS INT) AS n"
)
TEXTS = (
    "'short'",
    "repeat('a', 40)",
    "concat(repeat('é', 31), 'éé', 'z')",
    "concat(repeat('a', 32), '\\u007f', 'b')",
    "concat(repeat('b', 31), '😀', '😀')",
    "concat(repeat('c', 32), '\\udbff\\udfff', 'x')",
    "''",
)


def only_stats(table: Table, version: int) -> dict[str, Any]:
    [add] = table.actions(version)["add"]
    return _moments(json.loads(add["stats"], parse_float=Decimal))


def _moments(value: Any) -> Any:
    """Return statistics with instants as instants: Delta writes them with the offset of its session."""
    if isinstance(value, dict):
        return {
            key: dt.datetime.fromisoformat(item) if key == "at" and isinstance(item, str) else _moments(item)
            for key, item in value.items()
        }
    return value


def both(
    delta: SparkSession, tmp_path: Path, rows: str, columns: str = COLUMNS, **properties: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return our statistics and Delta's for the same rows in one file."""
    ours, theirs = Table(tmp_path / "ours", delta), Table(tmp_path / "theirs", delta)
    listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
    for table in (ours, theirs):
        delta.sql(f"CREATE TABLE delta.`{table.uri}` ({columns}) USING delta" + (f" TBLPROPERTIES ({listed})" if listed else ""))
    df = delta.sql(rows).coalesce(1)
    df.write.format("delta").mode("append").save(theirs.uri)
    ours.write(df)
    return only_stats(ours, 1), only_stats(theirs, 1)


@pytest.mark.parametrize("text", TEXTS)
def test_every_type(delta: SparkSession, tmp_path: Path, text: str) -> None:
    rows = " UNION ALL ".join([FULL.format(k=1, text=text), FULL.format(k=7, text=text)])
    ours, theirs = both(delta, tmp_path, rows, **{"delta.feature.timestampNtz": "supported"})
    assert ours == theirs


def test_nulls(delta: SparkSession, tmp_path: Path) -> None:
    nothing = ", ".join(f"CAST(NULL AS {column.strip().partition(' ')[2]}) AS {column.split()[0]}" for column in _columns())
    rows = f"{FULL.format(k=1, text=TEXTS[0])} UNION ALL SELECT {nothing}"
    ours, theirs = both(
        delta, tmp_path, rows, **{"delta.enableDeletionVectors": "true", "delta.feature.timestampNtz": "supported"}
    )
    assert ours["tightBounds"] is theirs["tightBounds"] is True
    # A footer does not tell null lists and maps from empty ones: unknown is left out.
    for path in (("ar",), ("m",), ("s", "y", "w")):
        nulls = theirs["nullCount"]
        for name in path[:-1]:
            nulls = nulls[name]
        assert nulls.pop(path[-1]) == 1
    assert ours == theirs


def _columns() -> list[str]:
    parts, depth, start = [], 0, 0
    for at, char in enumerate(COLUMNS):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(COLUMNS[start:at])
            start = at + 1
    return [*parts, COLUMNS[start:]]


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.dataSkippingNumIndexedCols": "0"},
        {"delta.dataSkippingNumIndexedCols": "3"},
        {"delta.dataSkippingNumIndexedCols": "-1"},
        {"delta.dataSkippingStatsColumns": "s.y, `i`"},
        {"delta.dataSkippingStatsColumns": "s.x,t", "delta.dataSkippingNumIndexedCols": "1"},
        {"delta.columnMapping.mode": "name", "delta.dataSkippingNumIndexedCols": "13"},
    ],
    ids=str,
)
def test_indexed_columns(delta: SparkSession, tmp_path: Path, properties: dict[str, str]) -> None:
    if "delta.columnMapping.mode" in properties:
        table = Table(tmp_path / "mapped", delta)
        delta.sql(
            f"CREATE TABLE delta.`{table.uri}` (i INT, s STRUCT<x: INT, y: STRING>, ar ARRAY<INT>, t STRING) USING delta "
            "TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.dataSkippingNumIndexedCols'='4')"
        )
        rows = delta.sql("SELECT 1 AS i, named_struct('x', 1, 'y', 'a') AS s, array(1) AS ar, 'b' AS t").coalesce(1)
        rows.write.format("delta").mode("append").save(table.uri)
        table.write(rows)
        assert only_stats(table, 2) == only_stats(table, 1)
        return
    rows = FULL.format(k=1, text=TEXTS[0])
    ours, theirs = both(delta, tmp_path, rows, **properties, **{"delta.feature.timestampNtz": "supported"})
    assert ours == theirs


def test_floats_that_are_no_numbers(delta: SparkSession, tmp_path: Path) -> None:
    """NaN is above every number to Spark: no bound of ours may leave it out; Delta writes it as text."""
    rows = "SELECT * FROM VALUES (DOUBLE('NaN'), 1D), (2D, DOUBLE('Infinity')), (-0D, 0D) AS t(d, e)"
    ours, theirs = both(delta, tmp_path, rows, "d DOUBLE, e DOUBLE")
    assert "d" not in ours["maxValues"]
    assert "e" not in ours["maxValues"]
    assert ours["nullCount"] == theirs["nullCount"]


def test_names_with_dots_beside_structs(delta: SparkSession, tmp_path: Path) -> None:
    columns = "`a.b` BIGINT, a STRUCT<b: BIGINT, `c.d`: BIGINT, c: STRUCT<d: BIGINT>>, `l.list.element` BIGINT, l ARRAY<BIGINT>"
    row = "named_struct('b', id + 100, 'c.d', id + 200, 'c', named_struct('d', id + 300)) a"
    ours, theirs = both(delta, tmp_path, f"SELECT id `a.b`, {row}, id + 400 `l.list.element`, array(id) l FROM range(3)", columns)
    assert ours == theirs
    table = Table(tmp_path / "theirs", delta)
    for predicate, ids in (("`a.b` = 1", [1]), ("a.b = 101", [1]), ("a.`c.d` = 201", [1]), ("a.c.d > 301", [2]), ("a.b = 1", [])):
        assert [r[0] for r in table.read(table.begin(), predicate)] == ids, predicate
