"""Tables that the worker has changed: Delta Spark reads them, changes them too, and commits while the worker's work is open."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from delta_spark.support import assert_same_state, delta_log, sql_name
from support.mixed_histories import KINDS, Change, Keys, MixedTable, Row, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: dict[str, dict[str, bool]] = {
    "plain": {"vectors": False},
    "deletion vectors": {"vectors": True},
    "change data": {"vectors": False, "feed": True, "partitioned": True},
    "row ids": {"vectors": False, "tracked": True},
    "everything": {"vectors": True, "feed": True, "tracked": True, "mapped": True, "partitioned": True},
}


class JudgedTable(MixedTable):
    """A table of the worker that Delta Spark reads and changes."""

    def by_delta(self, change: Change) -> None:
        """Let Delta Spark carry out an operation, and judge its version."""
        read = self.latest
        self.note(f"Delta Spark: {change}")
        delta_log(self.spark, self.path)
        self.spark.sql(sql_of(change, sql_name(self.path)))
        self.judge(change, read, self.tables["worker"].versions()[-1])

    def check(self) -> None:
        """Check that Delta Spark finds the rows that there should be, and the state that we find."""
        assert not self.wrong, self.wrong
        delta_log(self.spark, self.path)
        columns = "id, v, p, _metadata.row_id" if self.tracked else "id, v, p"
        found = [tuple(row) for row in self.spark.sql(f"SELECT {columns} FROM {sql_name(self.path)}").collect()]
        assert counted(row[:3] for row in found) == counted(self.rows[self.latest])
        if self.tracked:
            assert {row[0]: row[3] for row in found} == self.ids


def sql_of(change: Change, name: str) -> str:
    """Return an operation as a statement."""
    rows = ", ".join(map(_values, change.source)) or "(NULL, NULL, NULL)"
    if change.kind == "append":
        return f"INSERT INTO {name} VALUES {rows}"
    if change.kind == "merge":
        clauses = ["WHEN MATCHED AND source.v IS NULL THEN DELETE"] if change.deletes_matched else []
        clauses += ["WHEN MATCHED THEN UPDATE SET v = source.v", "WHEN NOT MATCHED THEN INSERT *"]
        clauses += ["WHEN NOT MATCHED BY SOURCE AND target.p = 'c' THEN DELETE"] if change.deletes_others else []
        source = f"(SELECT * FROM VALUES {rows} AS s(id, v, p) WHERE id IS NOT NULL)"
        return f"MERGE INTO {name} target USING {source} source ON target.id = source.id {' '.join(clauses)}"
    return {
        "delete": f"DELETE FROM {name} WHERE {change.where}",
        "update": f"UPDATE {name} SET v = coalesce(v, 0) + 1000 WHERE {change.where}",
        "optimize": f"OPTIMIZE {name}",
        "reorg": f"REORG TABLE {name} APPLY (PURGE)",
    }[change.kind]


def _values(row: Row) -> str:
    key, value, part = row
    return f"({key}L, {'CAST(NULL AS BIGINT)' if value is None else f'{value}L'}, {'NULL' if part is None else repr(part)})"


def made(delta: SparkSession, path: Path, draw: random.Random, **setting: bool) -> JudgedTable:
    table = JudgedTable(delta, path, **setting)
    table.create(
        *([(key, draw.choice([None, key]), draw.choice(["a", "b", "c", None])) for key in range(at, at + 8)] for at in (0, 8, 16))
    )
    return table


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_reads_each_version_and_goes_on(delta: SparkSession, tmp_path: Path, setting: str) -> None:
    draw = random.Random(setting)
    table = made(delta, tmp_path / "table", draw, **SETTINGS[setting])
    keys = Keys(24)
    for number, kind in enumerate(draw.sample(KINDS, len(KINDS))):
        for by_worker in (True, False):
            change = Change.drawn(draw, kind, keys, 24)
            if by_worker:
                assert table.commit(table.open("worker", change))
            else:
                table.by_delta(change)
            table.check()
        if number == 3:
            table.tables["worker"].log().checkpoint()
    assert_same_state(table.tables["worker"].log(), delta, table.path)


@pytest.mark.parametrize("vectors", [True, False], ids=["deletion vectors", "copy on write"])
@pytest.mark.parametrize("mine", KINDS)
def test_it_commits_while_work_of_the_worker_is_open(delta: SparkSession, tmp_path: Path, mine: str, vectors: bool) -> None:
    draw = random.Random(f"{mine} {vectors}")
    table = made(delta, tmp_path / "table", draw, vectors=vectors, tracked=draw.random() < 0.5)
    keys = Keys(24)
    for theirs in KINDS:
        if vectors and "reorg" in (mine, theirs):  # there are rows to purge then
            table.by_delta(Change("delete", f"id = {keys.next - 3}", lambda row, key=keys.next - 3: row[0] == key))
        changes = [Change.drawn(draw, kind, keys, keys.next) for kind in (mine, theirs)]
        opened = table.open("worker", changes[0])
        table.by_delta(changes[1])
        table.commit(opened)
        table.check()
