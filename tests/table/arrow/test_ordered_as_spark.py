"""Rows along the curves of ZORDER BY and of clustering, by the worker and on Spark: the same places, and the same tables."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.curves import range_bits, takes_hilbert
from airflow_delta.log.schema.types import StructType, struct_of
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.spark.zorder import _boundaries, _comparable, _hilbert_index, _interleaved, _range_of
from airflow_delta.table.arrow.data_schema import data_schema
from airflow_delta.table.arrow.rewrite.curve import Curve, CurveColumns
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_create import plan_create
from support import readers
from support.random_rows import random_rows, row_ids, statistics
from support.slow import slow_except
from support.table import Table, WorkerTable

pytestmark = pytest.mark.spark

EVERY_TYPE = """SELECT id, int(id) AS i, CAST(id % 7 AS TINYINT) AS small, id % 3 = 0 AS truth,
  CASE WHEN id % 11 = 0 THEN NULL WHEN id % 7 = 0 THEN double('NaN') WHEN id % 13 = 0 THEN double('Infinity')
    WHEN id % 17 = 0 THEN double('-Infinity') WHEN id % 5 = 0 THEN -0.0D ELSE id * 1.5D END AS d,
  CAST(element_at(array('NaN', '-0.0', '0.0'), int(id % 3 + 1)) AS FLOAT) AS f,
  CAST(concat(IF(id % 2 = 0, '', '-'), repeat('9', 23), lpad(id, 5, '0'), '.0123456789') AS DECIMAL(38, 10)) AS big,
  date_add(DATE'0001-01-05', int(id * 3700 % 3000000)) AS day,
  IF(id % 9 = 0, NULL, timestampadd(SECOND, id * 9999, TIMESTAMP'1899-12-31 23:59:59.123456')) AS at,
  IF(id % 8 = 0, NULL, CAST(timestampadd(HOUR, int(id), TIMESTAMP'2024-03-30 23:30:00') AS TIMESTAMP_NTZ)) AS local,
  IF(id % 4 = 0, NULL, named_struct('x y', IF(id % 5 = 0, NULL, concat(repeat('é', 130), id % 19)),
    'n', IF(id % 6 = 0, NULL, named_struct('k', int(id % 23))))) AS s,
  element_at(array('', concat('\\u0000', id), concat('"\\\\', id)), int(id % 3 + 1)) AS t,
  unhex(lpad(hex(id * 7919 % 65536), 4, '0')) AS bytes, 1 AS same FROM range(0, 3000, 1, 2)"""

COLUMNS = [
    *([("d",)], [("f",), ("big",)], [("at",), ("local",), ("s", "x y"), ("day",)], [("s", "n", "k"), ("t",), ("same",)]),
    *([("i",), ("small",), ("truth",), ("bytes",), ("id",)], [("same",)], [("bytes",), ("day",)]),
]


@pytest.mark.parametrize("hilbert", [False, True], ids=["z-curve", "hilbert"])
@pytest.mark.parametrize("paths", slow_except(COLUMNS, *COLUMNS[2:5]), ids=str)
def test_places_are_those_of_spark(spark: Any, tmp_path: Path, paths: list[tuple[str, ...]], hilbert: bool) -> None:
    from pyspark.sql import functions as sf

    spark.sql(EVERY_TYPE).coalesce(1).write.parquet(str(tmp_path / "rows"))
    rows = spark.read.parquet(str(tmp_path / "rows"))
    bits = range_bits(len(paths))
    index = _hilbert_index if takes_hilbert(len(paths), hilbert=hilbert) else _interleaved
    names = [f"key{number}" for number in range(len(paths))]
    keyed = rows.withColumns({name: _comparable(rows, path) for name, path in zip(names, paths, strict=True)})
    boundaries, types = _boundaries(keyed.select(*names), names, 1 << bits, 3000), dict(keyed.select(*names).dtypes)
    ids = [_range_of(sf.col(name), types[name], boundaries[name], bits) for name in names]
    expected = {row[0]: row[1] for row in keyed.select("id", index(ids, bits)).collect()}

    [file] = (tmp_path / "rows").glob("*.parquet")
    arrow = pq.ParquetFile(file).read()
    as_read = [(f, pa.timestamp("us", f.type.tz) if pa.types.is_timestamp(f.type) else f.type) for f in arrow.schema]
    arrow = arrow.cast(pa.schema([f.with_type(kind) for f, kind in as_read]))
    [batch] = arrow.combine_chunks().to_batches()
    schema: StructType = struct_of(data_schema(arrow.schema, whose="the test"))
    keys = CurveColumns(None, schema, paths).keys(batch)  # type: ignore[arg-type] # only for errors
    places = Curve(keys, hilbert=hilbert).places(keys)
    assert dict(zip(arrow.column("id").to_pylist(), places.to_pylist(), strict=True)) == expected


def by_file(table: Table) -> list[list[Any]]:
    """Return the values of ``id`` in each file, the file with the least places first."""
    snapshot = table.log().update()
    (name,) = (field.physical_name for field in snapshot.schema if field.name == "id")
    return [pq.ParquetFile(table.path / unquote(file.path)).read([name]).column(0).to_pylist() for file in snapshot.add_files()]


@pytest.mark.parametrize("seed", slow_except(range(8), 0, 1))
def test_ordered_tables_are_the_same(spark: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    clustered = draw.random() < 0.5
    configuration = {
        "delta.columnMapping.mode": draw.choice(["none", "name", "id"]),
        "delta.enableDeletionVectors": draw.choice(["true", "false"]),
        "delta.enableRowTracking": draw.choice(["true", "false"]),
        "delta.feature.timestampNtz": "supported",
    }
    tables = [WorkerTable(tmp_path / "worker"), Table(tmp_path / "spark", spark)]
    columns = draw.sample(["id", "p", "q", "d", "f", "dec", "t", "n", "s.x", "b"], draw.randint(1, 4))
    if clustered:
        columns = [name for name in columns if name != "b"] or ["id"]
        text = "id BIGINT, p STRING, q DATE, f FLOAT, d DOUBLE, dec DECIMAL(5,2), t TIMESTAMP, n TIMESTAMP_NTZ, "
        text += "s STRUCT<x: INT, y: STRING>, li ARRAY<BIGINT>, m MAP<STRING, INT>, b BINARY"
        tables[0].run(plan_create, schema=text, cluster_by=columns, properties=configuration)
    for number in range(12):
        rows = random_rows(draw)
        rows = rows.set_column(0, "id", pa.array([100 * number + at for at in range(rows.num_rows)]))
        begin = None if clustered else {"configuration": configuration}
        tables[0].write(rows, begin=begin if number == 0 else None)
    tables[0].run(plan_delete, predicate="id % 5 = 2")
    tables[1].copy_from(tables[0])
    before = readers._comparable(read_table(tables[0].log()).to_table().to_pylist())
    size = sum(file.size for file in tables[0].log().update().add_files()) // 4
    for table in tables:
        table.run(plan_optimize, max_file_size=size, **({} if clustered else {"z_order_by": columns}))
    snapshots = [table.log().update() for table in tables]
    for table, snapshot in zip(tables, snapshots, strict=True):
        assert readers._comparable(read_table(table.log()).to_table().to_pylist()) == before
        found = snapshot.add_files()
        assert len(found) == 4
        assert {file.clustering_provider for file in found} == {"liquid" if clustered else None}
        assert len({(file.tags or {}).get("ZCUBE_ID") for file in found}) == 1
        assert not any(file.deletion_vector for file in found)
        assert table.info(snapshot.version)["operationParameters"] == tables[0].info(snapshot.version)["operationParameters"]
    counts = [num_records(file.stats) or 0 for file in snapshots[0].add_files()]
    assert max(counts) - min(counts) <= max(6, sum(counts) // 20), "cut by all rows, not by a sample"
    assert statistics(snapshots[0]) == statistics(snapshots[1])
    if configuration["delta.enableRowTracking"] == "true":
        assert row_ids(tables[0], "id") == row_ids(tables[1], "id")
    if columns == ["id"]:
        for table in tables:
            ends = sorted((min(ids), max(ids)) for ids in by_file(table))
            assert all(high < low for (_, high), (low, _) in pairwise(ends))
