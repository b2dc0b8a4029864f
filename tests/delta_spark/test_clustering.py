"""OPTIMIZE of clustered tables beside Delta Spark's: files, cubes, history, file skipping; each goes on after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.table.operations.optimize.plan import select_for_optimize
from delta_spark.pair import Pair
from delta_spark.support import delta_rows
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def pair(tmp_path: Path, delta: SparkSession) -> Pair:
    return Pair(delta, tmp_path)


def marks(pair: Pair, path: Path) -> list[tuple[str, str]]:
    """Return provider and columns of the files that the latest commit added; each of them is in a cube."""
    adds = pair.actions(path)["add"]
    assert all(add["tags"]["ZCUBE_ID"] for add in adds)
    return [(add["clusteringProvider"], add["tags"]["ZCUBE_ZORDER_BY"]) for add in adds]


def version(path: Path) -> int:
    return Table(path).versions()[-1]


def taken(pair: Pair, path: Path) -> int:
    return len(pair.actions(path)["remove"])


def test_each_goes_on_where_the_other_stops(pair: Pair) -> None:
    rows = "SELECT /*+ COALESCE(1) */ id, IF(id % 7 = 0, NULL, id % 10), named_struct('x', string(id)) FROM range({}, {})"
    pair.sql(
        "CREATE TABLE {t} (id LONG, `v 1` LONG, s STRUCT<x: STRING>) USING delta CLUSTER BY (id, `v 1`, s.x) "
        "TBLPROPERTIES (delta.columnMapping.mode = 'name', delta.enableDeletionVectors = true)"
    )
    for start in (0, 100, 200):
        pair.sql("INSERT INTO {t} " + rows.format(start, start + 100))
    pair.sql("DELETE FROM {t} WHERE id % 10 = 3 AND id < 100")
    pair.copy()
    pair.delta("OPTIMIZE {t}")
    pair.run(select_for_optimize)
    pair.assert_same()
    assert marks(pair, pair.ours) == marks(pair, pair.theirs) == [("liquid", '["id","`v 1`","s.x"]')]

    before = version(pair.ours)
    pair.sql("OPTIMIZE {t}")
    assert version(pair.ours) == before, "Delta Spark finds our cube as it should be"
    pair.sql("INSERT INTO {t} " + rows.format(300, 310))
    pair.sql("OPTIMIZE {t}")
    assert taken(pair, pair.ours) == 2, "and takes it along"
    pair.sql("INSERT INTO {t} " + rows.format(310, 320))
    pair.run(select_for_optimize)
    assert taken(pair, pair.ours) == 2, "so do we"

    pair.sql("ALTER TABLE {t} RENAME COLUMN `v 1` TO v")
    assert pair.run(select_for_optimize).version is None, "the cube names the column's former name"
    assert pair.run(select_for_optimize, full=True).metrics["numRemovedFiles"] == 1
    assert marks(pair, pair.ours) == [("liquid", '["id","v","s.x"]')]
    before = version(pair.ours)
    pair.sql("OPTIMIZE {t} FULL")
    assert version(pair.ours) == before
    pair.sql("ALTER TABLE {t} CLUSTER BY (v)")
    pair.sql("INSERT INTO {t} " + rows.format(320, 330))
    pair.run(select_for_optimize)
    assert taken(pair, pair.ours) == 1
    pair.sql("OPTIMIZE {t} FULL")
    assert taken(pair, pair.ours) == 2, "our cubes of other columns and of these"
    assert len(delta_rows(pair.spark, pair.ours)) == 320


FILES = 20
POINTS = 60


def test_files_are_skipped_as_in_the_layout_of_delta_spark(pair: Pair) -> None:
    pair.sql("CREATE TABLE {t} (id LONG, v LONG, pad STRING) USING delta CLUSTER BY (id, v)")
    pair.sql(
        "INSERT INTO {t} SELECT /*+ REPARTITION(4) */ pmod(xxhash64(id), 10000), pmod(xxhash64(id, 1), 10000), md5(string(id)) "
        "FROM range(40000)"
    )
    limit = sum(file.size for file in DeltaLog.for_table(str(pair.ours)).snapshot.add_files()) // FILES
    pair.copy()
    pair.delta("OPTIMIZE {t}", optimize_maxFileSize=limit)
    pair.run(select_for_optimize, max_file_size=limit)
    mine, other = pair.last(pair.ours), pair.last(pair.theirs)
    assert mine["operationParameters"] == other["operationParameters"]
    assert mine["operationMetrics"]["numAddedFiles"] == other["operationMetrics"]["numAddedFiles"] == str(FILES)
    assert delta_rows(pair.spark, pair.ours) == delta_rows(pair.spark, pair.theirs)

    def touched(path: Path, column: str) -> int:
        snapshot = DeltaLog.for_table(str(path)).snapshot
        values = (n * 10_000 // POINTS for n in range(POINTS))
        found: list[Any] = [Predicate.parse(f"{column} = {value}", snapshot.schema, ()) for value in values]
        return sum(len(snapshot.add_files(predicate)) for predicate in found)

    counts = {column: (touched(pair.ours, column), touched(pair.theirs, column)) for column in ("id", "v")}
    assert all(ours <= 1.2 * theirs for ours, theirs in counts.values()), json.dumps(counts)
    assert all(ours < 0.5 * FILES * POINTS for ours, _ in counts.values()), json.dumps(counts)
