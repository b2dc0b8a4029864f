"""OPTIMIZE, ZORDER BY and REORG beside Delta Spark's, on copies of the same table: files chosen, rows, history, file skipping."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.table.operations.optimize.auto_compaction import compact_on_request
from airflow_delta.table.operations.optimize.plan import plan_optimize, select_for_optimize
from airflow_delta.table.operations.optimize.reorg import select_for_purge
from airflow_delta.transaction import CommitPolicy
from delta_spark.pair import Pair, statistics
from delta_spark.support import delta_history, delta_rows, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def pair(tmp_path: Path, delta: SparkSession) -> Pair:
    return Pair(delta, tmp_path)


def test_bins_of_partitions(pair: Pair) -> None:
    pair.sql(
        "CREATE TABLE {t} (id LONG, `p%1` STRING, d DATE) USING delta PARTITIONED BY (`p%1`, d) "
        "TBLPROPERTIES (delta.appendOnly = true)"
    )
    for n in (5, 400):
        pair.sql(f"INSERT INTO {{t}} SELECT /*+ REPARTITION(3, id) */ id, 'a b%', DATE'2020-01-01' FROM range({n})")
    pair.sql("INSERT INTO {t} SELECT /*+ REPARTITION(2, id) */ id, IF(id < 9, 'alone', NULL), NULL FROM range(8, 14)")
    sizes = sorted(f.size for f in DeltaLog.for_table(str(pair.ours)).snapshot.add_files())
    limit = sizes[-1] * 2
    pair.copy()
    pair.delta("OPTIMIZE {t}", optimize_maxFileSize=limit, optimize_minFileSize=limit)
    result = pair.run(select_for_optimize, max_file_size=limit)
    assert result.num_bins > 1
    assert result.num_skipped > 0
    pair.assert_same()


def test_predicate_and_deletion_vectors(pair: Pair) -> None:
    pair.sql(
        "CREATE TABLE {t} (id LONG, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES (delta.enableDeletionVectors = true)"
    )
    for start in (0, 100, 200):
        pair.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, id % 2 FROM range({start}, {start + 100})")
    pair.sql("DELETE FROM {t} WHERE id % 10 = 3 AND id < 200")
    pair.copy()
    # Nothing is small: only those with many deleted rows count, in partition 1.
    pair.delta("OPTIMIZE {t} WHERE p = 1", optimize_minFileSize=0)
    result = pair.run(select_for_optimize, where="p = 1", min_file_size=0)
    assert result.metrics["numDeletionVectorsRemoved"] == 2
    # Delta records the predicate as it has parsed it, we as it was written.
    assert pair.last(pair.ours)["operationParameters"]["predicate"] == json.dumps(["p = 1"])
    assert pair.last(pair.theirs)["operationParameters"]["predicate"] == json.dumps(["('p = 1)"])
    ours, theirs = pair.actions(pair.ours), pair.actions(pair.theirs)
    assert {r["path"] for r in ours["remove"]} == {r["path"] for r in theirs["remove"]}
    assert delta_rows(pair.spark, pair.ours) == delta_rows(pair.spark, pair.theirs)
    assert statistics(ours) == statistics(theirs)


def test_reorg_purges_deleted_rows_and_dropped_columns(pair: Pair) -> None:
    pair.sql(
        "CREATE TABLE {t} (id INT, s STRUCT<a: INT, b: INT>, gone STRING, `p x` STRING) USING delta "
        "PARTITIONED BY (`p x`) TBLPROPERTIES "
        "(delta.columnMapping.mode = 'id', delta.enableDeletionVectors = true)"
    )
    for n in (1, 2):
        pair.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, named_struct('a', id, 'b', 2), 'x', 'p{n}' FROM range(5)")
    pair.sql("ALTER TABLE {t} DROP COLUMN gone")
    pair.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, named_struct('a', id, 'b', 2), 'p3' FROM range(5)")
    pair.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, named_struct('a', id, 'b', 2), 'p4' FROM range(5)")
    pair.sql("DELETE FROM {t} WHERE id = 2 AND `p x` = 'p3'")
    pair.copy()
    pair.delta("REORG TABLE {t} APPLY (PURGE)")
    result = pair.run(select_for_purge)
    assert (result.num_bins, result.num_skipped) == (3, 1)
    pair.assert_same()
    assert pair.run(select_for_purge).version is None
    pair.sql("ALTER TABLE {t} DROP COLUMN s.b")
    assert pair.run(select_for_purge).num_bins == 4


def test_row_ids_stay(pair: Pair) -> None:
    pair.sql("CREATE TABLE {t} (id INT, p STRING) USING delta TBLPROPERTIES (delta.enableRowTracking = true)")
    for n in range(3):
        pair.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id + {n * 10}, 'p' FROM range(10)")
    pair.sql("DELETE FROM {t} WHERE id = 4")

    def ids() -> list[Any]:
        text = f"SELECT id, _metadata.row_id AS r, _metadata.row_commit_version AS v FROM {sql_name(pair.ours)} ORDER BY id"
        return [tuple(row) for row in pair.spark.sql(text).collect()]

    before = ids()
    pair.copy()
    pair.delta("OPTIMIZE {t}")
    pair.run(select_for_optimize)
    pair.assert_same()
    [info], [other] = pair.actions(pair.ours)["commitInfo"], pair.actions(pair.theirs)["commitInfo"]
    assert info["tags"]["delta.rowTracking.preserved"] == other["tags"]["delta.rowTracking.preserved"] == "true"
    assert ids() == before
    pair.sql("INSERT INTO {t} VALUES (99, 'p')")
    before = ids()
    pair.run(select_for_optimize)
    assert ids() == before, "ids that are written in the file already"


RANGES = 20


def test_zorder_skips_as_many_files(pair: Pair) -> None:
    pair.sql("CREATE TABLE {t} (x LONG, name STRING, at TIMESTAMP, pad STRING) USING delta")
    pair.sql(
        "INSERT INTO {t} SELECT /*+ REPARTITION(4) */ pmod(hash(id), 100000), "
        "concat('n', lpad(pmod(hash(id, 1), 10000), 5, '0')), "
        "IF(id % 50 = 0, NULL, timestamp_seconds(1600000000 + pmod(hash(id, 2), 1000000))), md5(string(id)) FROM range(20000)"
    )
    total = sum(f.size for f in DeltaLog.for_table(str(pair.ours)).snapshot.add_files())
    limit = total // 16
    pair.copy()
    pair.delta("OPTIMIZE {t} ZORDER BY (x, name, at)", optimize_maxFileSize=limit)
    result = pair.run(select_for_optimize, z_order_by=["x", "name", "at"], max_file_size=limit)
    assert result.version is not None
    mine, other = pair.last(pair.ours), pair.last(pair.theirs)
    assert mine["operationParameters"] == other["operationParameters"]
    assert mine["operationMetrics"]["numAddedFiles"] == other["operationMetrics"]["numAddedFiles"] == "16"
    assert delta_rows(pair.spark, pair.ours) == delta_rows(pair.spark, pair.theirs)

    def touched(path: Path, column: str, literal: Any, span: int) -> int:
        snapshot = DeltaLog.for_table(str(path)).snapshot
        count = 0
        for n in range(RANGES):
            start = n * span // RANGES
            text = f"{column} >= {literal(start)} AND {column} < {literal(start + span // RANGES)}"
            count += len(snapshot.add_files(Predicate.parse(text, snapshot.schema, ())))
        return count

    for column, literal, span in (
        ("x", str, 100_000),
        ("name", lambda n: f"'n{n:05}'", 10_000),
        ("at", lambda n: f"timestamp_seconds({1_600_000_000 + n})", 1_000_000),
    ):
        if column == "at":  # our predicates know literals only
            literal = lambda n: f"TIMESTAMP'{pair.spark.sql(f'SELECT timestamp_seconds({1_600_000_000 + n})').first()[0]}'"  # noqa: E731
        ours, theirs = touched(pair.ours, column, literal, span), touched(pair.theirs, column, literal, span)
        assert ours <= 1.5 * theirs, (column, ours, theirs)
        assert ours < 0.7 * 16 * RANGES, (column, ours)


def test_zorder_of_partitions_with_batches(pair: Pair) -> None:
    pair.sql(
        "CREATE TABLE {t} (x INT, y DOUBLE, b BOOLEAN, dec DECIMAL(20, 3), bin BINARY, day DATE, n TIMESTAMP_NTZ, p INT) "
        "USING delta PARTITIONED BY (p)"
    )
    pair.sql(
        "INSERT INTO {t} SELECT id, IF(id % 7 = 0, double('NaN'), id / 3), id % 2 = 0, id, encode(string(id), 'utf-8'), "
        "date_add(DATE'2020-01-01', int(id)), TIMESTAMP_NTZ'2020-01-01 00:00:00', id % 2 FROM range(400)"
    )
    before = delta_rows(pair.spark, pair.ours)
    size = max(f.size for f in DeltaLog.for_table(str(pair.ours)).snapshot.add_files())
    columns = ["x", "y", "b", "dec", "bin", "day", "n"]
    result = pair.run(select_for_optimize, z_order_by=columns, max_file_size=size // 2, batch_size=1)
    assert [commit.operation for commit in result.commits] == ["OPTIMIZE", "OPTIMIZE"]
    assert result.metrics["numAddedFiles"] > 2
    assert delta_rows(pair.spark, pair.ours) == before


def test_append_and_delete_meanwhile(pair: Pair) -> None:
    pair.sql("CREATE TABLE {t} (id LONG) USING delta TBLPROPERTIES (delta.enableDeletionVectors = true)")
    for start in (0, 10):
        pair.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id FROM range({start}, {start + 10})")
    pair.run(select_for_optimize, before=lambda: pair.sql("INSERT INTO {t} VALUES (77)"))
    assert pair.last(pair.ours)["operation"] == "OPTIMIZE"
    # A new protocol is a conflict, and none of the files matters to it: committed again.
    pair.run(select_for_optimize, before=lambda: pair.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableTypeWidening = true)"))
    assert pair.last(pair.ours)["operation"] == "OPTIMIZE"
    pair.sql("INSERT INTO {t} VALUES (78)")
    # Delta Spark's OPTIMIZE would fail; ours marks the row in the file that it was moved to.
    result = pair.run(select_for_optimize, before=lambda: pair.sql("DELETE FROM {t} WHERE id = 5"))
    assert [commit.resolved for commit in result.commits] == [{"rows": "8"}]
    assert sorted(int(row.split("=")[1]) for row in delta_rows(pair.spark, pair.ours)) == [*range(5), *range(6, 20), 77, 78]


def test_as_a_stage_of_a_transaction(pair: Pair, table: Table) -> None:
    for n in range(3):
        table.write(f"SELECT {n} AS id, 'a' AS p", begin={"partition_by": ["p"]} if n == 0 else None)
    handle = table.begin()
    appended = table.stage(handle, "SELECT 9 AS id, 'a' AS p", task_id="append")
    optimized = table.operate(handle, plan_optimize, task_id="optimize", after=(appended,))
    result = table.publish(handle, appended, optimized)
    assert (result.num_files, result.num_removed_files) == (2, 3), "what the append staged stays a file of its own"
    assert [row[0] for row in table.rows()] == [0, 1, 2, 9]
    handle = table.begin()
    assert table.publish(handle, table.operate(handle, plan_optimize)).num_files == 1
    handle = table.begin()
    table.write("SELECT 10 AS id, 'b' AS p")
    handle = table.begin()
    staged = table.operate(handle, plan_optimize)
    assert staged.num_files == 0, "a file of each partition"
    table.write("SELECT 11 AS id, 'b' AS p")
    handle = table.begin()
    staged = table.operate(handle, plan_optimize)
    table.write("SELECT 12 AS id, 'b' AS p")  # what others add does not matter
    result = table.publish(handle, staged)
    assert (result.operation, result.num_files, result.num_removed_files) == ("OPTIMIZE", 1, 2)
    assert [row[0] for row in table.rows()] == [0, 1, 10, 11, 12, 2, 9]
    assert delta_history(pair.spark, table.path, 1)[result.version]["operationParameters"]["auto"] == "false"


def test_auto_compaction_after_the_commit(pair: Pair, table: Table) -> None:
    pair.sql(
        "CREATE TABLE {t} (id INT, p INT) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')"
    )
    pair.copy()
    table.path = pair.ours
    work = partial(run_operation, pair.spark)
    policy = CommitPolicy(auto_compact_min_files=3, on_auto_compact=compact_on_request(table.log(), work))
    for n in range(3):
        handle = table.begin()
        result = table.publish(handle, table.stage(handle, f"SELECT {n} AS id, 1 AS p"), policy=policy)
        pair.delta(f"INSERT INTO {{t}} SELECT {n} AS id, 1 AS p", autoCompact_minNumFiles=3)
    assert result.auto_compaction is not None
    assert result.auto_compaction["partitions"] == [{"p": "1"}]
    mine, other = pair.last(pair.ours), pair.last(pair.theirs)
    assert mine["operationParameters"].keys() == other["operationParameters"].keys()
    for name in ("zOrderBy", "clusterBy", "auto"):
        assert mine["operationParameters"][name] == other["operationParameters"][name], name
    assert (mine["operation"], mine["version"]) == (other["operation"], other["version"]) == ("OPTIMIZE", 4)
    assert mine["operationMetrics"]["numRemovedFiles"] == other["operationMetrics"]["numRemovedFiles"] == "3"
    # Delta records its own casts, we the values as they stand in the log.
    assert mine["operationParameters"]["predicate"] == json.dumps(["((`p` <=> '1'))"])
    assert other["operationParameters"]["predicate"] == json.dumps(["('p <=> cast(1 as int))"])
