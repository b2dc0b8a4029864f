"""MERGE: Delta Spark runs the statement on one copy of a table, we on the other."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.exceptions import DeltaUnsupportedOperationException, SchemaMismatchException
from airflow_delta.table.operations.merge.plan import plan_merge
from delta_spark.support import changes, delta_history, delta_rows, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id BIGINT, v INT, s STRING, ts TIMESTAMP, p STRING"
ROWS = """SELECT id, CAST(id * 2 AS INT) AS v, CASE WHEN id % 7 <> 3 THEN concat('s', id) END AS s,
    timestampadd(HOUR, CAST(id AS INT), TIMESTAMP'2024-03-31 00:30:00') AS ts,
    CASE WHEN id < 10 THEN 'a b/c%20=ü' WHEN id < 20 THEN 'b' END AS p FROM range({}, {}, 1, 1)"""

TABLES: dict[str, Mapping[str, str]] = {
    "cow": {"delta.enableDeletionVectors": "false"},
    "cow, cdf": {"delta.enableDeletionVectors": "false", "delta.enableChangeDataFeed": "true"},
    "dv, cdf, mapped": {
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.columnMapping.mode": "name",
    },
}


@dataclass(frozen=True)
class Merge:
    source: str
    on: str
    sql: str
    clauses: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)


def source(ids: str, more: str = "") -> str:
    return (
        f"SELECT id, CAST(-id AS INT) AS v, concat('n', id) AS s, TIMESTAMP'2020-01-01 00:00:00' AS ts, "
        f"CASE WHEN id < 20 THEN 'b' WHEN id % 2 = 0 THEN 'c' END AS p{more} FROM VALUES {ids} AS t(id)"
    )


UPSERT = [when_matched_update(), when_not_matched_insert()]

MERGES = [
    Merge(
        source("(11L), (12L), (31L), (32L)"),
        "t.id = s.id",
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        UPSERT,
    ),
    # The partition in the condition, null-safe: few files, also those without a value.
    Merge(
        source("(15L), (16L), (25L), (40L), (41L)"),
        "t.id = s.id AND t.p <=> s.p AND t.v < 100",
        "WHEN MATCHED AND s.id = 15 THEN DELETE WHEN MATCHED AND t.v > 0 THEN UPDATE SET v = t.v + s.v, t.s = upper(s.s) "
        "WHEN NOT MATCHED AND s.id <> 41 THEN INSERT (id, v, p) VALUES (s.id, s.v * 10, 'd')",
        [
            when_matched_delete("s.id = 15"),
            when_matched_update({"v": "t.v + s.v", "t.s": "upper(s.s)"}, "t.v > 0"),
            when_not_matched_insert({"id": "s.id", "v": "s.v * 10", "p": "'d'"}, "s.id <> 41"),
        ],
    ),
    # A row that several conditions could take; rows that match, and no clause wants; null in a condition.
    Merge(
        source("(1L), (2L), (3L), (17L), (50L), (51L)"),
        "t.id = s.id",
        "WHEN MATCHED AND t.s IS NULL THEN DELETE WHEN MATCHED AND t.s < 's17' THEN UPDATE SET s = 'x' "
        "WHEN NOT MATCHED AND s.id = 50 THEN INSERT * WHEN NOT MATCHED AND s.p = 'zzz' THEN INSERT (id) VALUES (1)",
        [
            when_matched_delete("t.s IS NULL"),
            when_matched_update({"s": "'x'"}, "t.s < 's17'"),
            when_not_matched_insert(None, "s.id = 50"),
            when_not_matched_insert({"id": "1"}, "s.p = 'zzz'"),
        ],
    ),
    # Nothing but new rows, of a source that has rows twice.
    Merge(source("(4L), (70L), (70L), (NULL)"), "t.id = s.id", "WHEN NOT MATCHED THEN INSERT *", [when_not_matched_insert()]),
    Merge(source("(71L)"), "false", "WHEN NOT MATCHED THEN INSERT *", [when_not_matched_insert()]),
    # A delete without condition may find its rows twice; whole files go.
    Merge(
        source("(20L), (20L), (21L), (22L), (23L), (24L), (25L), (26L), (27L), (28L), (29L)"),
        "t.id = s.id",
        "WHEN MATCHED THEN DELETE",
        [when_matched_delete()],
    ),
    Merge(
        source("(0L), (80L)", ", id * 1.5D AS extra"),
        "t.id = s.id",
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        UPSERT,
        {"merge_schema": True},
    ),
    Merge(
        "SELECT * FROM {t} WHERE id = 1",
        "t.id = s.id",
        "WHEN MATCHED THEN UPDATE SET v = s.v + 1",
        [when_matched_update({"v": "s.v + 1"})],
    ),
    Merge(
        source("(1L)", ", 0D AS extra") + " WHERE id > 5",
        "t.id = s.id",
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *",
        [when_matched_delete(), when_not_matched_insert()],
    ),
    Merge(source("(1000L)"), "t.id = s.id", "WHEN MATCHED THEN DELETE", [when_matched_delete()]),
    Merge(
        source("(4L), (5L), (60L)", ", 1D AS extra"),
        "t.id = s.id",
        "WHEN MATCHED THEN UPDATE SET v = 44 WHEN NOT MATCHED THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 6 THEN DELETE "
        "WHEN NOT MATCHED BY SOURCE AND t.p = 'b' THEN UPDATE SET v = t.v + 1000",
        [
            when_matched_update({"v": "44"}),
            when_not_matched_insert(),
            when_not_matched_by_source_delete("t.id = 6"),
            when_not_matched_by_source_update({"v": "t.v + 1000"}, "t.p = 'b'"),
        ],
    ),
    Merge(
        source("(8L)"),
        "t.id = s.id",
        "WHEN NOT MATCHED BY SOURCE THEN DELETE",
        [when_not_matched_by_source_delete()],
    ),
]

COPYING = {"numOutputRows", "numTargetRowsCopied", "numTargetFilesRemoved"}
"""With NOT MATCHED BY SOURCE Delta rewrites the files of all rows without a match, we those in which a clause changes one."""

WRITING = {"numTargetFilesAdded", "numTargetBytesAdded", "numTargetBytesRemoved", "numTargetChangeFilesAdded"}
"""How many files rows are written to depends on how they are shuffled, and we shuffle less."""


def tables(delta: SparkSession, tmp_path: Path, properties: Mapping[str, str]) -> tuple[Table, Path]:
    theirs = tmp_path / "theirs"
    given = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
    delta.sql(f"CREATE TABLE {sql_name(theirs)} ({COLUMNS}) USING DELTA PARTITIONED BY (p) TBLPROPERTIES ({given})")
    for first in (0, 10, 20):
        delta.sql(f"INSERT INTO {sql_name(theirs)} {ROWS.format(first, first + 10)}")
    return copied(delta, theirs), theirs


def copied(delta: SparkSession, theirs: Path) -> Table:
    """Return a copy of Delta Spark's table, in a place that no session has seen before."""
    return Table(shutil.copytree(theirs, theirs.parent / f"ours-{uuid.uuid4()}"), delta)


def run_ours(table: Table, merge: Merge) -> None:
    table.run(
        plan_merge,
        source=merge.source.format(t=sql_name(table.path)),
        condition=merge.on,
        clauses=merge.clauses,
        source_alias="s",
        target_alias="t",
        **merge.options,
    )


def run_theirs(delta: SparkSession, path: Path, merge: Merge) -> None:
    evolution = "WITH SCHEMA EVOLUTION " if merge.options.get("merge_schema") else ""
    text = merge.source.format(t=sql_name(path))
    delta.sql(f"MERGE {evolution}INTO {sql_name(path)} t USING ({text}) s ON {merge.on} {merge.sql}")


# Half of them for copy on write, which test_random_commands.py judges as well.
@pytest.mark.parametrize(("name", "merges"), [("cow, cdf", MERGES[1::2]), ("dv, cdf, mapped", MERGES)], ids=["cow", "dv"])
def test_merges(delta: SparkSession, tmp_path: Path, name: str, merges: list[Merge]) -> None:
    ours, theirs = tables(delta, tmp_path, TABLES[name])
    failures = []
    for merge in merges:
        before = max(delta_history(delta, theirs, 1))
        run_theirs(delta, theirs, merge)
        run_ours(ours, merge)
        if max(delta_history(delta, theirs, 1)) == before:
            # Delta leaves no trace of a MERGE that changes nothing; our `txn` action tells a rerun that it is done.
            assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)
            ours = copied(delta, theirs)
            continue
        lines = [f"{name}: {merge.sql}"]
        lines += differing("rows", delta_rows(delta, ours.path), delta_rows(delta, theirs))
        left_out = WRITING | COPYING if "BY SOURCE" in merge.sql else WRITING
        mine, other = entry(delta, ours.path, left_out), entry(delta, theirs, left_out)
        lines += [f"{k}: ours {mine.get(k)} delta {other.get(k)}" for k in {**mine, **other} if mine.get(k) != other.get(k)]
        if "cdf" in name:
            lines += differing("changes", changes(delta, ours.path), changes(delta, theirs))
        if len(lines) > 1:
            failures.append("\n   ".join(lines))
        # The next one finds the same rows in the same files: what is copied depends on it.
        ours = copied(delta, theirs)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("clause", ["WHEN MATCHED THEN UPDATE SET v = 1", "WHEN MATCHED AND s.v = -1 THEN UPDATE SET v = 1"])
def test_several_source_rows_for_one_row_of_the_table(delta: SparkSession, tmp_path: Path, clause: str) -> None:
    ours, theirs = tables(delta, tmp_path, TABLES["cow"])
    rows = "SELECT id, CAST(v AS INT) AS v FROM VALUES (1L, -1), (1L, -2) AS t(id, v)"
    condition = "s.v = -1" if " AND " in clause else None
    merge = Merge(rows, "t.id = s.id", clause, [when_matched_update({"v": "1"}, condition)])
    with pytest.raises(Exception, match="DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"):
        run_theirs(delta, theirs, merge)
    with pytest.raises(DeltaUnsupportedOperationException, match="DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"):
        run_ours(ours, merge)
    assert len(ours.versions()) == 4


def test_update_star_keeps_fields_that_the_source_lacks(delta: SparkSession, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    inner = "STRUCT<a: INT, b: INT>"
    delta.sql(f"CREATE TABLE {sql_name(theirs)} (id BIGINT, s {inner}, d STRUCT<x: {inner}, y: INT>) USING DELTA")
    old = "(0, named_struct('a', 1, 'b', 2)), (1, NULL), (2, named_struct('a', 1, 'b', NULL)), (3, named_struct('a', 1, 'b', 4))"
    delta.sql(f"INSERT INTO {sql_name(theirs)} SELECT id, s, named_struct('x', s, 'y', 3) FROM VALUES {old} AS t(id, s)")
    ours = copied(delta, theirs)
    rows = (
        "SELECT id, s, IF(id = 3, NULL, named_struct('x', s)) AS d "
        "FROM (SELECT id, IF(id < 3, NULL, named_struct('a', 7, 'c', 9)) AS s FROM range(5))"
    )
    merge = Merge(
        rows, "t.id = s.id", "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *", UPSERT, {"merge_schema": True}
    )
    strict = Merge(rows, merge.on, merge.sql, UPSERT)
    with pytest.raises(Exception, match="DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION"):
        run_theirs(delta, theirs, strict)
    with pytest.raises(SchemaMismatchException, match="s to lacks the fields b"):
        run_ours(ours, strict)
    run_theirs(delta, theirs, merge)
    run_ours(ours, merge)
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)


def differing(what: str, ours: list[str], theirs: list[str]) -> list[str]:
    if ours == theirs:
        return []
    return [f"{what}: only ours {[r for r in ours if r not in theirs]}, only Delta's {[r for r in theirs if r not in ours]}"]


def entry(delta: SparkSession, path: Path, left_out: set[str]) -> dict[str, Any]:
    """Return the newest entry of the history, without times, files that depend on shuffles, and ids of attributes."""
    [record] = delta_history(delta, path, 1).values()
    metrics = {k: v for k, v in (record["operationMetrics"] or {}).items() if not k.endswith("Ms") and k not in left_out}
    parameters = {}
    for name, text in record["operationParameters"].items():
        value = json.loads(text)
        # Delta writes conditions with the ids of Spark's attributes.
        parameters[name] = len(value) if name == "predicate" else [{**c, "predicate": "predicate" in c} for c in value]
    return {"operation": record["operation"], **parameters, **metrics}
