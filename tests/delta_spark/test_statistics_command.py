"""COMPUTE STATS beside Delta Spark's ``StatisticsCollection.recompute`` on a copy of the table."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_delta.table.operations.statistics import compute_statistics
from delta_spark.support import assert_same_state, delta_log, delta_rows, jvm, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INFO = ("operation", "operationMetrics", "readVersion", "isolationLevel", "isBlindAppend")


def recompute(delta: SparkSession, table: Table, predicate: str | None = None) -> None:
    spark, packages = delta._jsparkSession, jvm(delta)
    package = packages.org.apache.spark.sql.delta.stats
    collection = getattr(getattr(package, "StatisticsCollection$"), "MODULE$")
    predicates = getattr(collection, "recompute$default$4")()
    if predicate is not None:
        parsed = spark.sessionState().sqlParser().parseExpression(predicate)
        predicates = packages.org.apache.spark.api.python.PythonUtils.toSeq([parsed])
    none = packages.scala.Option.empty()
    collection.recompute(spark, delta_log(delta, table.path), none, predicates, getattr(collection, "recompute$default$5")())


def files(table: Table, version: int) -> dict[str, Any]:
    found = {}
    for add in table.actions(version)["add"]:
        stats = json.loads(add["stats"], parse_float=Decimal)
        # Delta writes {} for a struct none of whose fields has a bound, we nothing.
        kept = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in stats.items()}
        found[add["path"]] = {**add, "stats": kept}
    return found


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != {}}


def info(table: Table, version: int) -> dict[str, Any]:
    return {name: table.info(version).get(name) for name in INFO}


def test_files_without_statistics(delta: SparkSession, tmp_path: Path) -> None:
    theirs, ours = Table(tmp_path / "theirs", delta), Table(tmp_path / "ours", delta)
    name = sql_name(theirs.path)
    delta.sql(
        f"CREATE TABLE {name} (id LONG, p STRING, t ARRAY<INT>, d DOUBLE, s STRUCT<x: STRING>) USING delta PARTITIONED BY (p)"
    )
    delta.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        delta.sql(
            f"INSERT INTO {name} VALUES (1, 'a', array(1), 1.5, struct('x')), (2, 'a', array(2), 3, null), "
            "(3, 'b', array(1), 2, struct(repeat('z', 50))), (7, 'a', array(3), null, struct(null))"
        )
    finally:
        delta.conf.unset("spark.databricks.delta.stats.collect")
    delta.sql(f"ALTER TABLE {name} ADD COLUMN n INT")
    shutil.copytree(theirs.path, ours.path)
    recompute(delta, theirs, "p = 'a'")
    compute_statistics(ours.log(), predicate="p = 'a'")
    # Delta writes the predicate as its expression's toString has it.
    assert ours.info(3)["operationParameters"] == {"predicate": "[\"p = 'a'\"]"}
    assert theirs.info(3)["operationParameters"] == {"predicate": '["(\'p = a)"]'}
    assert info(ours, 3) == info(theirs, 3)
    assert files(ours, 3) == files(theirs, 3)
    # Delta commits all files again, we those whose statistics changed.
    recompute(delta, theirs)
    result = compute_statistics(ours.log())
    assert result.num_files == 1
    assert ours.info(4)["operationParameters"] == theirs.info(4)["operationParameters"]
    assert info(ours, 4) == info(theirs, 4)
    assert files(ours, 4).items() <= files(theirs, 4).items()
    assert compute_statistics(ours.log()).attempts == 0
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs.path)
    assert_same_state(ours.log(), delta, ours.path)


def test_deletion_vectors(delta: SparkSession, tmp_path: Path) -> None:
    """Delta refuses tables with deletion vectors, since it would count live rows; footers tell of all rows, as they must."""
    table = Table(tmp_path / "table", delta)
    name = sql_name(table.path)
    delta.sql(f"CREATE TABLE {name} (id LONG) USING delta TBLPROPERTIES ('delta.enableDeletionVectors'='true')")
    delta.sql(f"INSERT INTO {name} SELECT id FROM range(0, 10, 1, 1)")
    delta.sql(f"INSERT INTO {name} SELECT id FROM range(10, 20, 1, 1)")
    delta.sql(f"DELETE FROM {name} WHERE id IN (0, 5)")
    expected = {add.path: json.loads(add.stats or "{}") for add in table.log().update().add_files()}
    assert compute_statistics(table.log()).attempts == 0  # they are the same already
    for path in (table.path / "_delta_log").iterdir():  # as a writer without statistics would have left them
        if path.name.endswith(".json"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines:
                if "add" in line:
                    records = json.loads(line["add"]["stats"])["numRecords"]
                    loose = {"tightBounds": False} if "deletionVector" in line["add"] else {}
                    line["add"]["stats"] = json.dumps({"numRecords": records, **loose})
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        elif path.is_file():
            path.unlink()
    assert compute_statistics(table.log(), only_missing=True).num_files == 2
    assert {add.path: json.loads(add.stats or "{}") for add in table.log().update().add_files()} == expected
    assert len(delta_rows(delta, table.path)) == 18
    assert_same_state(None, delta, table.path)
