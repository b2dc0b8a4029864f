"""Delta Spark before and after every put of a publication, and in flight over it: never blocked, never lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.transaction import Operation
from delta_spark.jvm import JvmTransaction, exception_name
from publication.foreign import KINDS, NAMES, PUTS, World, run_at
from publication.lake import LakeTable
from publication.points import over

POINTS = tuple(put for put in PUTS if put not in ("plan second", "plan third"))
"""Between two puts of plans nothing looks at a log."""


class DeltaSpark:
    """Delta Spark, by SQL; each statement reads the newest version."""

    def __init__(self, spark: Any, table: LakeTable) -> None:
        self._spark, self._name = spark, f"delta.`{table.path}`"

    def sql(self, statement: str) -> None:
        self._spark.sql(statement.format(table=self._name)).collect()

    def append(self, ids: Iterable[int], part: str = "a") -> None:
        self.sql("INSERT INTO {table} VALUES " + ", ".join(f"('{part}', {number}L)" for number in ids))

    def delete(self, predicate: str) -> None:
        self.sql("DELETE FROM {table} WHERE " + predicate)

    def overwrite(self, ids: Iterable[int]) -> None:
        self.sql("INSERT OVERWRITE {table} VALUES " + ", ".join(f"('a', {number}L)" for number in ids))

    def change_metadata(self) -> None:
        self.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 40 days')")


@pytest.fixture
def engine(delta: Any) -> Callable[[LakeTable], DeltaSpark]:
    return lambda table: DeltaSpark(delta, table)


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_at_each_put_is_never_lost(kind: str, engine: Callable[[LakeTable], DeltaSpark], tmp_path: Path) -> None:
    """Before it on the table of the put, after it on the next one, which is looked at next."""
    ends: dict[str, int] = {}
    for point in POINTS:
        own = NAMES.index(point.rpartition(" ")[2])
        for number, when in ((own, "before"), ((own + 1) % len(NAMES), "after")):
            end = run_at(tmp_path / f"{point} {when} {number}", engine, number, point, when, kind)
            ends[end] = ends.get(end, 0) + 1
    print(kind, ends)


STATEMENTS = {
    "blind append": ("INSERT INTO {table} VALUES ('b', 500L)", "undone", None),
    "append of rows read": ("INSERT INTO {table} SELECT part, id + 500 FROM {table} WHERE part = 'b'", "undone", "WRITE"),
    "DELETE": ("DELETE FROM {table} WHERE id = 101", "undone", "DELETE"),
    "UPDATE": ("UPDATE {table} SET id = id + 500 WHERE part = 'b'", "undone", "UPDATE"),
    "MERGE": (
        "MERGE INTO {table} t USING (SELECT 'b' AS part, 101L AS id) s ON t.part = s.part AND t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET id = 500",
        "undone",
        "MERGE",
    ),
    "UPDATE of the rows": ("UPDATE {table} SET id = id + 500 WHERE part = 'a'", "split", None),
    "overwrite": ("INSERT OVERWRITE {table} VALUES ('a', 98L)", "split", None),
    "ALTER": ("ALTER TABLE {table} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 40 days')", "split", None),
}
"""What Delta Spark does to the first table when it is published, the outcome, and what the error lists."""


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_was_built_on_rows_that_are_taken_back_is_listed(
    name: str, engine: Callable[[LakeTable], DeltaSpark], tmp_path: Path
) -> None:
    statement, outcome, operation = STATEMENTS[name]
    world = World.made(tmp_path)

    def visit(when: str, at: str) -> None:
        if (when, at) == ("after", "published first"):
            world.interfere(0, lambda: engine(world.tables[0]).sql(statement))
            world.interfere(1, lambda: engine(world.tables[1]).append([99]))

    assert world.publish(visit) == outcome
    world.check("overwrite" if outcome == "split" else name)
    assert world.dirty_reads == ([] if operation is None else [(world.tables[0].uri, 3, operation)])


@pytest.mark.parametrize("point", [put for put in POINTS if not put.startswith("plan")])
@pytest.mark.parametrize("reads", [False, True], ids=["append", "delete"])
def test_a_transaction_in_flight_over_a_put(reads: bool, point: str, delta: Any, tmp_path: Path) -> None:
    """It begins before the put and commits after it: over an intent it is never refused; else Delta's own rules decide."""
    world = World.made(tmp_path)
    number = NAMES.index(point.rpartition(" ")[2])
    table, said = world.tables[number], []

    def begin() -> JvmTransaction:
        txn = JvmTransaction(delta, str(table.path))
        if reads:
            txn.filter_files("part = 'b'")
        return txn

    def end(txn: JvmTransaction) -> None:
        world.interfere(number, lambda: said.append(_commit(txn, table, reads)))

    world.publish(over(point, begin, end))
    if point.startswith("intent") or not reads:
        assert said == ["committed"]
    assert world.outcome in ("published", "undone")
    world.check("append")


def _commit(txn: JvmTransaction, table: LakeTable, reads: bool) -> str:
    """Commit a row, or remove the files of partition ``b``; return what Delta says."""
    if reads:
        snapshot = DeltaLog.for_table(table.uri).snapshot_at(txn.read_version)
        paths = snapshot.files("part = 'b'", columns=["path"]).column("path").to_pylist()
        actions = [file.remove(1, data_change=True) for file in snapshot.files_at(set(paths)).values()]
    else:
        staging = LakeTable(table.path.with_name(f"{table.path.name}-staging"))
        staging.fill([99], part="b")
        [data] = (staging.path).rglob("*.parquet")
        target = table.path / "part=b" / data.name
        target.write_bytes(data.read_bytes())
        [path] = DeltaLog.for_table(staging.uri).snapshot.files(columns=["path"]).column("path").to_pylist()
        actions = list(DeltaLog.for_table(staging.uri).snapshot.files_at({path}).values())
    try:
        txn.commit(actions, Operation.delete([]) if reads else Operation.write("Append"))
    except Exception as error:
        return exception_name(error)
    return "committed"
