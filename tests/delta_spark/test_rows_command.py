"""DELETE, UPDATE and TRUNCATE: Delta Spark runs the statements on one copy of a table, we on the other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.operations.rewrite.update import plan_update
from delta_spark.support import delta_history, delta_rows, differences, open_log, rows_of, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id BIGINT, v INT, s STRUCT<x: INT, y: STRING>, ts TIMESTAMP, p STRING"
ROWS = """SELECT id, CAST(CASE WHEN id % 10 = 9 THEN NULL ELSE id * 2 END AS INT) AS v,
    named_struct('x', CAST(id AS INT), 'y', concat('y', id)) AS s,
    timestampadd(HOUR, CAST(id AS INT), TIMESTAMP'2024-03-31 00:30:00') AS ts,
    CASE WHEN id < 10 THEN 'a b/c%20=ü' WHEN id < 20 THEN 'b' END AS p FROM range(0, 30, 1, 1)"""

TABLES: dict[str, Mapping[str, str]] = {
    "copy on write": {"delta.enableDeletionVectors": "false"},
    "deletion vectors, column mapping": {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
}

# Each changes at most one file of a partition: which files Spark reads, and so writes, in one task is another matter with
# another reader.
STATEMENTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("DELETE FROM {t} WHERE {predicate}", plan_delete, {"predicate": "id % 4 = 1 AND p = 'b'"}),
    ("DELETE FROM {t} WHERE {predicate}", plan_delete, {"predicate": "id BETWEEN 10 AND 14 OR id IN (0, 2, 25)"}),
    (
        "UPDATE {t} SET {set} WHERE {predicate}",
        plan_update,
        {"set": {"p": "concat(p, '!')", "v": "'7'"}, "predicate": "v IS NULL"},
    ),
    (
        "UPDATE {t} SET {set} WHERE {predicate}",
        plan_update,
        {
            "set": {"ts": "TIMESTAMP'2020-01-01 00:00:00'", "s": "NULL", "v": "v + 1"},
            "predicate": "ts < '2024-03-31 05:00:00' AND id > 2",
        },
    ),
    ("UPDATE {t} SET {set} WHERE {predicate}", plan_update, {"set": {"s.x": "v"}, "predicate": "s IS NULL"}),
    ("UPDATE {t} SET {set} WHERE {predicate}", plan_update, {"set": {"v": "0"}, "predicate": "p = 'b!'"}),
    ("DELETE FROM {t} WHERE {predicate}", plan_delete, {"predicate": "p = 'b'"}),
    ("DELETE FROM {t} WHERE {predicate}", plan_delete, {"predicate": "id = 19"}),  # all rows of a file
    ("TRUNCATE TABLE {t}", plan_truncate, {}),
]


@pytest.mark.parametrize("name", TABLES)
def test_statements(delta: SparkSession, tmp_path: Path, name: str) -> None:
    ours, theirs = Table(tmp_path / "ours", delta), tmp_path / "theirs"
    properties = ", ".join(f"'{key}'='{value}'" for key, value in {**TABLES[name], "delta.enableChangeDataFeed": "true"}.items())
    delta.sql(f"CREATE TABLE {sql_name(theirs)} ({COLUMNS}) USING DELTA PARTITIONED BY (p) TBLPROPERTIES ({properties})")
    delta.sql(f"INSERT INTO {sql_name(theirs)} {ROWS}")
    shutil.copytree(theirs, ours.path)
    for sql, plan, arguments in STATEMENTS:
        assigned = ", ".join(f"{column} = {value}" for column, value in arguments.get("set", {}).items())
        delta.sql(sql.format(t=sql_name(theirs), predicate=arguments.get("predicate"), set=assigned))
        ours.run(plan, **arguments)
        if plan is plan_truncate:
            continue
        assert statistics(ours.path) == statistics(theirs), (name, sql, arguments)
    before_last = len(STATEMENTS)
    assert delta_rows(delta, ours.path, before_last) == delta_rows(delta, theirs, before_last) != []
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs) == []
    assert changes(delta, ours.path) == changes(delta, theirs)
    mine, other = history(delta, ours.path), history(delta, theirs)
    assert differences(mine, other) == [], name
    check_predicates(delta, ours.path)


def changes(delta: SparkSession, path: Path) -> list[str]:
    """Return the changes that the statements made."""
    df = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(str(path))
    return rows_of(df.drop("_commit_timestamp"))


def statistics(path: Path) -> list[tuple[Any, ...]]:
    """Return the statistics of the active files, and how many rows a vector marks."""
    found = []
    for file in open_log(path).update().add_files():
        stats = json.loads(file.stats or "{}")
        for bounds in ("minValues", "maxValues"):  # Delta keeps an empty object for a struct without bounds
            stats[bounds] = {column: value for column, value in stats.get(bounds, {}).items() if value != {}}
        # The names of column mapping are those of the table, which both have.
        found.append((file.deletion_vector.cardinality if file.deletion_vector else 0, json.dumps(stats, sort_keys=True)))
    return sorted(found)


def history(delta: SparkSession, path: Path) -> dict[str, Any]:
    """Return the operations with their metrics.

    Left out: times; bytes of written files, because the footers of another writer differ; removed bytes, which Delta does
    not count where it uses deletion vectors, even of files that it removes; change data files of an UPDATE, in which Delta mixes
    rows before and after, and which are two jobs here.
    """
    found = {}
    for version, record in delta_history(delta, path).items():
        metrics = {k: v for k, v in (record["operationMetrics"] or {}).items() if not k.endswith(("Ms", "Bytes"))}
        if record["operation"] == "UPDATE":
            metrics.pop("numAddedChangeFiles")
        found[str(version)] = {"operation": record["operation"], **metrics}
    return found


def check_predicates(delta: SparkSession, path: Path) -> None:
    """Check our predicates: Delta records the text of a resolved plan (``(p#12 = b)``), we the normal form that was evaluated."""
    recorded = [(delta_history(delta, path)[version]["operationParameters"] or {}).get("predicate") for version in (2, 4, 10)]
    assert recorded == ["[\"(id % 4 = 1) AND `p` = 'b'\"]", '["`v` IS NULL"]', None]


@pytest.mark.parametrize("vectors", ["false", "true"], ids=["copies", "vectors"])
def test_a_value_that_the_log_calls_null(delta: SparkSession, tmp_path: Path, vectors: str) -> None:
    """As delta-rs up to 1.6.1 writes a column named ``item`` beside a list: as many nulls as rows, and right bounds."""
    ours, theirs = Table(tmp_path / "ours", delta), tmp_path / "theirs"
    properties = f"'delta.enableDeletionVectors'='{vectors}'"
    delta.sql(f"CREATE TABLE {sql_name(theirs)} (item BIGINT, v INT) USING DELTA TBLPROPERTIES ({properties})")
    delta.sql(f"INSERT INTO {sql_name(theirs)} SELECT id, CAST(id AS INT) FROM range(0, 6, 1, 1)")
    path = theirs / "_delta_log" / f"{1:020}.json"
    forged = path.read_text().replace('\\"nullCount\\":{\\"item\\":0', '\\"nullCount\\":{\\"item\\":6')
    assert forged != path.read_text()
    path.write_text(forged)
    for other in (theirs / "_delta_log").glob("*.crc"):
        other.unlink()
    shutil.copytree(theirs, ours.path)
    for sql, plan, arguments in (
        ("DELETE FROM {t} WHERE {predicate}", plan_delete, {"predicate": "item = 1"}),
        ("UPDATE {t} SET v = 9 WHERE {predicate}", plan_update, {"predicate": "item = 2", "set": {"v": "9"}}),
    ):
        delta.sql(sql.format(t=sql_name(theirs), predicate=arguments["predicate"]))
        ours.run(plan, **arguments)
        assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)
    assert [tuple(row) for row in ours.read(ours.begin())] == [(0, 0), (2, 9), (3, 3), (4, 4), (5, 5)]
