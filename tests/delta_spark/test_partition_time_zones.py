"""TIMESTAMP partitions without a time zone, as delta-rs writes them: one reading, that of Delta Spark in the same session."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from delta_spark.support import delta_rows, sql_name
from support.table import Table, put_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONES = ["UTC", "Europe/Berlin", "America/New_York"]
TIMES = [
    "2020-07-01 00:00:00",
    "2020-03-29 02:30:00",  # no such time in Berlin
    "2020-10-25 02:30:00",  # twice in Berlin
    "2020-11-01 01:30:00",  # twice in New York
    None,
]


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, delta: SparkSession) -> Iterator[str]:
    before = delta.conf.get("spark.sql.session.timeZone")
    delta.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    delta.conf.set("spark.sql.session.timeZone", before or "UTC")


def create(path: Path, configuration: dict[str, str | None] | None = None) -> None:
    moments = [None if text is None else dt.datetime.fromisoformat(f"{text}+00:00") for text in TIMES]
    rows = pa.table(
        {
            "id": pa.array(range(3 * len(moments)), pa.int64()),
            "v": pa.array([0] * 3 * len(moments), pa.int32()),
            "ts": pa.array([m for m in moments for _ in range(3)], pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(path, rows, partition_by=["ts"], configuration=configuration)


def by_delta_rs(path: Path) -> dict[int, Any]:
    return {row["id"]: row["ts"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()}


def texts(table: Table) -> set[str | None]:
    return {file.partition_values["ts"] for file in table.log().update().add_files()}


def test_operations(delta: SparkSession, tmp_path: Path, zone: str) -> None:
    ours, theirs = Table(tmp_path / "ours", delta), tmp_path / "theirs"
    create(ours.path)
    shutil.copytree(ours.path, theirs)
    before, spelled = by_delta_rs(ours.path), texts(ours)
    assert "2020-07-01 00:00:00.000000" in spelled

    def same() -> None:
        assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)
        rows = ours.read(ours.begin())
        assert [r[0] for r in sorted(rows)] == sorted(by_delta_rs(ours.path))

    def kept(*changed: int) -> None:
        """What other readers see of rows that were only copied does not depend on the session that copied them."""
        after = by_delta_rs(ours.path)
        assert {i: t for i, t in after.items() if i not in changed} == {i: before[i] for i in after if i not in changed}

    # Rows are found where Delta Spark finds them.
    hour = {"UTC": "07-01 00", "Europe/Berlin": "06-30 22", "America/New_York": "07-01 04"}[zone]
    midnight = f"TIMESTAMP'2020-{hour}:00:00 UTC'"
    late = "ts > TIMESTAMP'2020-10-25 00:45:00 UTC'"
    predicate = f"(ts = {midnight} AND id % 3 = 0) OR id = 4 OR ({late} AND id % 3 = 1)"
    ours.run(plan_delete, predicate=predicate)
    delta.sql(f"DELETE FROM {sql_name(theirs)} WHERE {predicate}")
    kept()
    assert texts(ours) == spelled
    predicate = f"ts = {midnight}"
    ours.run(plan_update, set={"v": "v + 1"}, predicate=predicate)  # partition columns alone
    delta.sql(f"UPDATE {sql_name(theirs)} SET v = v + 1 WHERE {predicate}")
    kept()
    if zone != "Europe/Berlin":  # the rest asks the same of the other operations
        same()
        return
    source = f"SELECT {midnight} ts, CAST(id AS BIGINT) id, 9 v FROM VALUES (1), (100) AS s(id)"
    on = "t.ts = s.ts AND t.id = s.id"
    ours.run(
        plan_merge,
        source=source,
        condition=on,
        clauses=[when_matched_update(), when_not_matched_insert()],
        source_alias="s",
        target_alias="t",
    )
    statement = f"MERGE INTO {sql_name(theirs)} t USING ({source}) s ON {on} WHEN MATCHED THEN UPDATE SET *"
    delta.sql(f"{statement} WHEN NOT MATCHED THEN INSERT *")
    same()
    kept(100)
    ours.run(plan_optimize)
    new = f"SELECT 200L id, 5 v, {midnight} ts"
    ours.write(new, mode="overwrite", replace_where=predicate)
    delta.sql(new).write.format("delta").mode("overwrite").option("replaceWhere", predicate).save(str(theirs))
    same()
    kept(200)
    # What needs no zone is decided without Spark, what does is Spark's.
    handle = ours.begin()
    far = ours.operate(handle, plan_delete, predicate="ts < '2020-06-01'")
    assert isinstance(far, StagedWrite)
    ours.publish(handle, far)
    delta.sql(f"DELETE FROM {sql_name(theirs)} WHERE ts < TIMESTAMP'2020-06-01 00:00:00 UTC'")
    same()


def test_the_change_data_feed_of_a_range(delta: SparkSession, tmp_path: Path) -> None:
    """Some partitions are in the range whatever the zone, of others Spark decides: the feed tells of both."""
    ours, theirs = Table(tmp_path / "ours", delta), tmp_path / "theirs"
    create(ours.path, {"delta.enableChangeDataFeed": "true"})
    shutil.copytree(ours.path, theirs)
    predicate = "ts >= '2020-10-25T01:00:00Z'"
    rows = "SELECT 100L id, 5 v, TIMESTAMP'2021-01-01 00:00:00' ts"
    ours.write(rows, mode="overwrite", replace_where=predicate)
    delta.sql(rows).write.format("delta").mode("overwrite").option("replaceWhere", predicate).save(str(theirs))
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)

    def feed(path: Path) -> list[Any]:
        changes = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(str(path))
        return sorted(map(tuple, changes.select("id", "v", "ts", "_change_type").collect()))

    assert feed(ours.path) == feed(theirs) != []


def test_what_needs_a_zone_and_has_none(delta: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path / "table", delta)
    create(table.path)
    before = by_delta_rs(table.path)
    with pytest.raises(DeltaAnalysisException, match="time zone of the reader"):
        table.write("SELECT 1L id, 1 v, TIMESTAMP'2020-07-01 00:00:00' ts", mode="dynamic")
    handle = table.begin()
    finished = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([1], pa.int32())})
    put_rows(handle, finished, "finished", part="ts=2020-07-01 00%3A00%3A00")
    with pytest.raises(DeltaAnalysisException, match="time zone of the reader"):
        table.stage_files(handle, path="finished", mode="overwrite", replace_where="ts = '2020-07-01 00:00:00'")
    table.write("SELECT 1L id, 1 v, TIMESTAMP'2021-07-01 00:00:00' ts", mode="dynamic")
    assert by_delta_rs(table.path).items() >= (before.items() - {(1, before[1])})
