"""Row ids of rows that UPDATE, MERGE and overwrites write again, as Delta Spark reads them: the same for each key."""

from __future__ import annotations

from collections.abc import Collection
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
from airflow_delta.spark import merge_source
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from delta_spark.support import assert_same_state, delta_log, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VECTORS, MAPPING, FEED = "delta.enableDeletionVectors", "delta.columnMapping.mode", "delta.enableChangeDataFeed"
SETTINGS = {
    "copy on write, change data": {FEED: "true"},
    "deletion vectors": {VECTORS: "true"},
    "mapping by name, deletion vectors, change data": {VECTORS: "true", MAPPING: "name", FEED: "true"},
    "mapping by id": {MAPPING: "id"},
}
COLUMNS = "id LONG, v INT, s STRUCT<a: INT, b: INT>, p STRING, g INT GENERATED ALWAYS AS (v * 2)"


class Tracked:
    """A table with row tracking, and the ids that its rows are expected to have.

    Its files are mixed: Delta Spark has written both columns of row tracking into some, and some are without.
    """

    def __init__(self, delta: SparkSession, path: Path, properties: dict[str, str], columns: str = COLUMNS) -> None:
        self.delta, self.table, self.name = delta, Table(path, delta), sql_name(path)
        given = {"delta.enableRowTracking": "true", VECTORS: "false", **properties}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
        delta.sql(f"CREATE TABLE {self.name} ({columns}) USING delta PARTITIONED BY (p) TBLPROPERTIES ({listed})")

    def filled(self) -> Tracked:
        row = "id, CAST(id AS INT) v, named_struct('a', 1, 'b', 2) s, "
        self.delta.sql(f"INSERT INTO {self.name} (id, v, s, p) SELECT {row}'a b' FROM range(0, 10, 1, 1)")
        self.delta.sql(f"UPDATE {self.name} SET v = 100 WHERE id IN (1, 2)")
        self.table.write(f"SELECT {row}'c' p FROM range(10, 20, 1, 1)")
        self.expected = self.found()
        return self

    def found(self) -> dict[int, tuple[int, int]]:
        """Row id and row commit version by key, as Delta Spark reads them."""
        delta_log(self.delta, self.table.path)
        read = self.delta.sql(f"SELECT id, _metadata.row_id, _metadata.row_commit_version FROM {self.name}")
        found = {row[0]: (row[1], row[2]) for row in read.collect()}
        ids = [row_id for row_id, _version in found.values()]
        assert None not in ids
        assert len(set(ids)) == len(ids)
        return found

    def check(
        self,
        changed: Collection[int] = (),
        gone: Collection[int] = (),
        new: Collection[int] = (),
        *,
        preserved: str | None = "true",
        at: int | None = None,
    ) -> None:
        """Check the ids after the last commit.

        :param at: the version of changed and new rows; default: the last.
        """
        now, last = self.found(), self.table.versions()[-1]
        version = last if at is None else at
        highest = max(row_id for row_id, _ in self.expected.values())
        wanted = {
            key: (row_id, version if key in changed else old) for key, (row_id, old) in self.expected.items() if key not in gone
        }
        for key in new:
            assert now[key][0] > highest
            wanted[key] = (now[key][0], version)
        assert now == wanted
        self.expected = now
        assert (self.table.info(version).get("tags") or {}).get("delta.rowTracking.preserved") == preserved
        found = self.table.actions(version)
        assert "_row-" not in str([add.get("stats") for add in found.get("add", ())])
        assert "_row-" not in str([metadata["schemaString"] for metadata in found.get("metaData", ())])

    def values(self, key: int, columns: str = "v, s.a, s.b, g, p") -> tuple[Any, ...]:
        delta_log(self.delta, self.table.path)
        return tuple(self.delta.sql(f"SELECT {columns} FROM {self.name} WHERE id = {key}").collect()[0])


def merge(tracked: Tracked, source: str, clauses: Any, **options: Any) -> None:
    tracked.table.run(plan_merge, source=source, condition="target.id = source.id", clauses=clauses, **options)


@pytest.mark.parametrize("setting", SETTINGS)
def test_update_and_merge_of_every_kind(
    delta: SparkSession, tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if FEED not in SETTINGS[setting]:  # changed rows are shuffled
        monkeypatch.setattr(merge_source, "SMALL_CELLS", 0)
    it = Tracked(delta, tmp_path / "table", SETTINGS[setting]).filled()
    it.table.run(plan_update, set={"v": "v + 1", "p": "'moved'", "s.b": "7"}, predicate="id IN (2, 13)")
    it.check({2, 13})
    assert it.values(2) == (101, 1, 7, 202, "moved")
    source = "SELECT * FROM VALUES (3L, 33), (4L, 0), (1L, 11), (60L, 60) AS t(id, v)"
    clauses = [
        when_matched_update({"s.a": "source.v", "p": "'c'"}, "source.v > 11"),
        when_matched_delete("source.v = 0"),
        when_matched_update({"v": "source.v"}),
        when_not_matched_insert({"id": "source.id", "v": "source.v", "p": "'new'"}),
        when_not_matched_by_source_update({"v": "-1"}, "target.id IN (5, 15)"),
        when_not_matched_by_source_delete("target.id = 6"),
    ]
    merge(it, source, clauses)
    it.check({3, 1, 5, 15}, {4, 6}, {60})
    assert [it.values(key) for key in (3, 15)] == [(3, 33, 2, 6, "c"), (-1, 1, 2, -2, "c")]
    source = "SELECT id, 5 v, named_struct('a', 5, 'b', 5, 'c', 5) s, 'c' p, 'x' more FROM range(7, 8) UNION ALL "
    source += "SELECT 61L, 6, named_struct('a', 6, 'b', 6, 'c', 6), 'e', 'y'"
    merge(it, source, [when_matched_update(), when_not_matched_insert()], merge_schema=True)
    it.check({7}, (), {61})
    assert it.values(7, "v, s.a, s.c, g, p, more") == (5, 5, 5, 10, "c", "x")
    it.table.run(plan_update, set={"s.c": "9", "more": "'z'"}, predicate="s.a = 1 AND p = 'c'")
    it.check({key for key in it.expected if 10 <= key < 20 and key != 13})
    it.table.log().checkpoint()
    delta.sql(f"OPTIMIZE {it.name}")
    it.check()
    it.table.run(plan_delete, predicate="v = -1")
    it.check((), {5, 15})
    delta.sql(f"UPDATE {it.name} SET v = 0 WHERE id IN (8, 61)")
    it.check({8, 61})
    assert_same_state(it.table.log(), delta, it.table.path)
    if FEED in SETTINGS[setting]:
        changes = delta.sql(f"SELECT * FROM table_changes_by_path('{it.table.path}', 4)")
        assert changes.columns == ["id", "v", "s", "p", "g", "more", "_change_type", "_commit_version", "_commit_timestamp"]
        first = changes.where("id IN (2, 13) AND _commit_version = 4").select("id", "_change_type", "v", "s.b", "g", "p")
        assert sorted(map(tuple, first.collect())) == [
            (2, "update_postimage", 101, 7, 202, "moved"),
            (2, "update_preimage", 100, 2, 200, "a b"),
            (13, "update_postimage", 14, 7, 28, "moved"),
            (13, "update_preimage", 13, 2, 26, "c"),
        ]


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_others_commit_before(delta: SparkSession, tmp_path: Path, vectors: str) -> None:
    """First ids of new files move up; those that rows had do not."""
    it = Tracked(delta, tmp_path / "table", {VECTORS: vectors}, "id LONG, v INT, p STRING")
    for first in (0, 10):
        delta.sql(f"INSERT INTO {it.name} SELECT id, 1, 'p' FROM range({first}, {first + 10}, 1, 1)")
    it.expected = it.found()
    handle = it.table.begin()
    clauses = [when_matched_update({"v": "source.v"}), when_not_matched_insert()]
    source = "SELECT * FROM VALUES (3L, 9, 'p'), (12L, 9, 'p'), (50L, 9, 'q') AS t(id, v, p)"
    one = it.table.operate(
        handle, plan_merge, task_id="one", source=source, condition="target.id = source.id AND target.p = 'p'", clauses=clauses
    )
    two = it.table.operate(handle, plan_update, task_id="two", set={"v": "4"}, predicate="p = 'p' AND id = 15", after=[one])
    assert (one.keeps_row_ids, two.keeps_row_ids) == (True, False)  # the other may rewrite a file that is staged
    delta.sql(f"INSERT INTO {it.name} SELECT id, 1, 'other' FROM range(100, 105, 1, 1)")
    it.check((), (), range(100, 105), preserved=it.table.info(3).get("tags", {}).get("delta.rowTracking.preserved"))
    it.table.publish(handle, one)
    it.check({3, 12}, (), {50})
    assert it.expected[50][0] == 25, "above the ids of others"
    if vectors == "true":  # an OPTIMIZE moves the rows that are about to change
        handle = it.table.begin()
        one = it.table.operate(handle, plan_update, set={"v": "5"}, predicate="p = 'p' AND id IN (4, 12)")
        delta.sql(f"OPTIMIZE {it.name}")
        it.check()
        it.table.publish(handle, one)
        it.check({4, 12})
    assert_same_state(it.table.log(), delta, it.table.path)


def test_many_partitions_and_odd_names(delta: SparkSession, tmp_path: Path) -> None:
    it = Tracked(delta, tmp_path / "ta+ble ü%41", {}, "id LONG, v INT, p STRING")
    for first in (0, 20):
        delta.sql(
            f"INSERT INTO {it.name} SELECT /*+ COALESCE(1) */ id, 1, concat('a+b/%25=', id % 20) "
            f"FROM range({first}, {first + 20}, 1, 1)"
        )
    it.expected = it.found()
    it.table.run(plan_update, set={"v": "2"}, predicate="id % 2 = 0 AND v = 1")
    it.check(range(0, 40, 2))
    merge(it, "SELECT id, 3 v, 'p' p FROM range(0, 50, 5)", [when_matched_update(), when_not_matched_insert()])
    it.check(range(0, 40, 5), (), {40, 45})


def test_supported_but_not_enabled(delta: SparkSession, tmp_path: Path) -> None:
    properties = {"delta.enableRowTracking": "false", "delta.feature.rowTracking": "supported"}
    it = Tracked(delta, tmp_path / "table", properties, "id LONG, v INT, p STRING")
    delta.sql(f"INSERT INTO {it.name} SELECT id, 1, 'p' FROM range(0, 10, 1, 1)")
    result = it.table.run(plan_update, set={"v": "2"}, predicate="id = 3")
    assert "delta.rowTracking.preserved" not in (it.table.info(result.version).get("tags") or {})
    [add] = it.table.actions(result.version)["add"]
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (10, result.version)
    assert_same_state(it.table.log(), delta, it.table.path)


@pytest.mark.parametrize("setting", ["copy on write, change data", "mapping by name, deletion vectors, change data"])
def test_overwrites_of_some_rows(delta: SparkSession, tmp_path: Path, setting: str) -> None:
    """Rows that stay keep their ids, as those of the same statement on Delta Spark."""
    it = Tracked(delta, tmp_path / "table", SETTINGS[setting]).filled()
    row = "CAST(40 AS INT) v, named_struct('a', 1, 'b', 2) s, 'c' p"
    it.table.write(f"SELECT id, {row} FROM range(40, 42)", mode="overwrite", replace_where="v BETWEEN 3 AND 12 OR v = 40")
    it.check((), range(3, 13), {40, 41})
    it.table.write(f"SELECT 1L id, {row}", mode="overwrite", replace_on="t.id = s.id")
    new = it.found()[1]
    assert new[0] > it.expected.pop(1)[0]
    it.check((), (), {1})
    delta.sql(f"INSERT INTO {it.name} REPLACE WHERE id = 14 SELECT 14L, {row.replace('40', '14')}, 28")
    del it.expected[14]
    it.check((), (), {14}, preserved=it.table.info(it.table.versions()[-1]).get("tags", {}).get("delta.rowTracking.preserved"))
    assert_same_state(it.table.log(), delta, it.table.path)
