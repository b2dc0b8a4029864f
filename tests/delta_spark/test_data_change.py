"""Random chains of stages in one transaction: Delta Spark's change data feed and its stream tell what the chain did, no more."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.exceptions import StageConflictException
from airflow_delta.spark.changes import read_change_plan
from airflow_delta.spark.read import read_scan_plan
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.scan import plan_scan
from delta_spark.support import open_log, rows_of, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHAINS = int(os.environ.get("AIRFLOW_DELTA_CHAINS", "1"))
"""Random chains for each kind of table."""

Row = tuple[int, str, int]
STEPS = ("append", "append", "delete", "delete partition", "update", "merge", "optimize", "zorder", "reorg", "same rows")
TABLES = {
    "copy on write": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "feed": {"delta.enableChangeDataFeed": "true"},
    "feed and vectors": {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"},
}
CASES: list[tuple[str, list[str] | int]] = [
    ("copy on write", ["append", "append", "optimize"]),
    ("copy on write", ["optimize", "delete", "append"]),
    ("feed", ["append", "same rows", "zorder", "append"]),
    ("feed and vectors", ["delete", "optimize"]),
    *((kind, number) for kind in TABLES for number in range(CHAINS)),
]
"""Chains of which every file said the same once, and seeds of random ones."""


class Chain:
    """Stages of one transaction, each after all before, and what they ought to make of the rows."""

    def __init__(self, table: Table, rows: list[Row], choice: random.Random) -> None:
        self.table, self.choice = table, choice
        self.handle = table.begin()
        self.before, self.rows = list(rows), list(rows)
        self.touched: set[int] = set()
        self.removed = False
        self.staged: list[Any] = []
        self.done: list[str] = []
        self.ids = itertools.count(1000)

    def run(self, step: str) -> None:
        """Stage a step; one that is refused when it is planned is left out."""
        stage: Callable[[], Any] = getattr(self, step.replace(" ", "_"))
        try:
            staged, then = stage()
        except StageConflictException:
            self.done.append(f"no {step}")
            return
        self.staged.append(staged)
        then()
        self.done.append(step)

    def _operate(self, plan: Any, **options: Any) -> Any:
        return self.table.operate(self.handle, plan, task_id=f"stage-{len(self.staged)}", after=tuple(self.staged), **options)

    def _write(self, rows: Any, **options: Any) -> Any:
        return self.table.stage(self.handle, rows, task_id=f"stage-{len(self.staged)}", after=tuple(self.staged), **options)

    def _change(self, change: Callable[[Row], Row | None]) -> None:
        changed = [(row, change(row)) for row in self.rows]
        self.touched |= {row[0] for row, after in changed if row != after}
        self.removed |= any(row != after and row[0] < 1000 for row, after in changed)
        self.rows = [after for _, after in changed if after is not None]

    def append(self) -> Any:
        first = next(self.ids) * 10
        rows = [(first + n, "ab"[n % 2], n) for n in range(self.choice.randint(1, 3))]
        staged = self._write(self.table.spark.createDataFrame(rows, "id BIGINT, p STRING, v BIGINT").coalesce(1))

        def then() -> None:
            self.rows += rows
            self.touched |= {row[0] for row in rows}

        return staged, then

    def delete(self) -> Any:
        n = self.choice.randint(3, 4)
        staged = self._operate(plan_delete, predicate=f"id % {n} = 1")
        return staged, lambda: self._change(lambda row: None if row[0] % n == 1 else row)

    def delete_partition(self) -> Any:
        return self._operate(plan_delete, predicate="p = 'b'"), lambda: self._change(lambda row: None if row[1] == "b" else row)

    def update(self) -> Any:
        n = self.choice.randint(2, 4)
        staged = self._operate(plan_update, set={"v": "v + 100"}, predicate=f"id % {n} = 0")
        return staged, lambda: self._change(lambda row: (*row[:2], row[2] + 100) if row[0] % n == 0 else row)

    def merge(self) -> Any:
        ids = [self.choice.randint(0, 9), next(self.ids) * 10]
        source = " UNION ALL ".join(f"SELECT {id_}L AS id, 'a' AS p, -1L AS v" for id_ in ids)
        kinds = [("matched", "update"), ("notMatched", "insert")]
        clauses = [{"kind": k, "action": a, "set": {"v": "source.v"} if a == "update" else None} for k, a in kinds]
        staged = self._operate(plan_merge, source=source, condition="target.id = source.id", clauses=clauses)

        def then() -> None:
            known = {row[0] for row in self.rows}
            self._change(lambda row: (*row[:2], -1) if row[0] in ids else row)
            self.rows += [(id_, "a", -1) for id_ in ids if id_ not in known]
            self.touched |= set(ids)

        return staged, then

    def optimize(self) -> Any:
        return self._operate(plan_optimize), lambda: None

    def zorder(self) -> Any:
        return self._operate(plan_optimize, z_order_by=["v", "id"]), lambda: None

    def reorg(self) -> Any:
        return self._operate(plan_reorg), lambda: None

    def same_rows(self) -> Any:
        options = {"mode": "overwrite", "replace_where": f"p = '{self.choice.choice('ab')}'", "data_change": False}
        plan = plan_scan(self.table.view(self.handle, after=tuple(self.staged)), str(options["replace_where"]))
        return self._write(read_scan_plan(self.table.spark, plan).coalesce(1), **options), lambda: None


@pytest.mark.parametrize(("kind", "steps"), CASES, ids=[f"{kind}: {steps}" for kind, steps in CASES])
def test_chains(delta: SparkSession, tmp_path: Path, kind: str, steps: list[str] | int) -> None:
    choice = random.Random(f"{kind} {steps}")
    table = Table(tmp_path / "table", delta)
    listed = ", ".join(f"'{key}'='{value}'" for key, value in TABLES[kind].items())
    delta.sql(
        f"CREATE TABLE {sql_name(table.path)} (id BIGINT, p STRING, v BIGINT) USING delta PARTITIONED BY (p)"
        + (f" TBLPROPERTIES ({listed})" if listed else "")
    )
    for start in (0, 5):
        table.write(f"SELECT id, IF(id % 2 = 0, 'a', 'b') AS p, id AS v FROM range({start}, {start + 5})")
    if isinstance(steps, int):
        steps = [choice.choice(STEPS) for _ in range(choice.randint(2, 4))]
    chain = Chain(table, [(n, "ab"[n % 2], n) for n in range(10)], choice)
    for step in steps:
        chain.run(step)
    if chain.staged:
        version = table.publish(chain.handle, *chain.staged).version  # what was planned, the commit takes
        check(delta, table, chain, version, feed="feed" in kind)


def check(delta: SparkSession, table: Table, chain: Chain, version: int, *, feed: bool) -> None:
    """Compare rows, stream and feed of the version with the chain."""
    found = sorted(map(tuple, delta.sql(f"SELECT id, p, v FROM {sql_name(table.path)}").collect()))
    assert found == sorted(chain.rows), chain.done
    came = Counter(chain.rows) - Counter(chain.before)
    streamed = stream(delta, table, version, ignoreChanges="true")
    assert came <= streamed <= Counter(chain.rows), (chain.done, "rows lost, or read that are not there", streamed)
    commit = table.actions(version)
    gone = any(remove["dataChange"] for remove in commit.get("remove", []))
    assert gone == chain.removed, chain.done
    if not gone:
        assert stream(delta, table, version) == came, (chain.done, "an append")
    if feed:
        reader = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
        changes = reader.option("endingVersion", version).load(str(table.path))
        ours = read_change_plan(delta, plan_changes(open_log(table.path), starting_version=version, ending_version=version))
        assert rows_of(ours) == rows_of(changes), chain.done
        net: Counter[Row] = Counter()
        for change in changes.collect():
            assert change.id in chain.touched, (chain.done, "a row that nobody changed", change)
            net[(change.id, change.p, change.v)] += -1 if change._change_type in ("delete", "update_preimage") else 1
        expected = Counter(chain.rows)
        expected.subtract(chain.before)
        assert +net == +expected, chain.done
        assert -net == -expected, chain.done


def stream(delta: SparkSession, table: Table, version: int, **options: str) -> Counter[Row]:
    """Return the rows that a stream reads of one version."""
    where = table.path.parent / f"checkpoint-{version}-{len(options)}"
    rows: list[Row] = []
    reader = delta.readStream.format("delta").option("startingVersion", version).options(**options)
    query = (
        reader.load(str(table.path))
        .writeStream.option("checkpointLocation", str(where))
        .foreachBatch(lambda df, _: rows.extend(map(tuple, df.select("id", "p", "v").collect())))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return Counter(rows)
