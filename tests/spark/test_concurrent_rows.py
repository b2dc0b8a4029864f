"""Stages of two transactions on Spark, the second of which commits after the first: who conflicts, and what is in the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.merge import when_matched_update, when_not_matched_by_source_delete, when_not_matched_insert
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.transaction import CommitPolicy
from support.actions import column
from support.feature_tables import create
from support.table import Table

pytestmark = pytest.mark.spark

UPSERT = [when_matched_update({"v": "source.v"}), when_not_matched_insert()]
Staged = tuple[TransactionHandle, StagedWrite]


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    """Ids 0 to 9 in one file, v = 0."""
    table = Table(tmp_path / "table", spark)
    create(table, column("id", "long"), column("v", "integer"), **{"delta.enableDeletionVectors": "true"})
    table.write("SELECT id, 0 v FROM range(0, 10, 1, 1)")
    return table


def delete(table: Table, predicate: str) -> Staged:
    handle = table.begin()
    return handle, table.operate(handle, plan_delete, predicate=predicate)


def update(table: Table, predicate: str) -> Staged:
    handle = table.begin()
    return handle, table.operate(handle, plan_update, predicate=predicate, set={"v": "7"})


def merge(table: Table, *ids: int, clauses: Any = UPSERT) -> Staged:
    source = f"SELECT * FROM VALUES {', '.join(f'({number}, 9)' for number in ids)} AS s(id, v)"
    handle = table.begin()
    arguments: dict[str, Any] = {"condition": "target.id = source.id", "clauses": clauses}
    return handle, table.operate(handle, plan_merge, source=source, **arguments)


def replaced(table: Table, *ids: int) -> Staged:
    handle = table.begin()
    rows = f"SELECT * FROM VALUES {', '.join(f'({number}L, 5)' for number in ids)} AS s(id, v)"
    return handle, table.stage(handle, rows, mode="overwrite", replace_using=["id"])


OURS: dict[str, Callable[[Table], Staged]] = {
    "DELETE": lambda table: delete(table, "id = 1"),
    "UPDATE": lambda table: update(table, "id = 1"),
    "MERGE": lambda table: merge(table, 1, 100),
}
THEIRS: dict[str, Callable[[Table], Staged]] = {
    "DELETE": lambda table: delete(table, "id IN (2, 3)"),
    "UPDATE": lambda table: update(table, "id IN (2, 3)"),
    "MERGE": lambda table: merge(table, 2, 3, 200),
}
AFTER = {"DELETE": {}, "UPDATE": {2: 7, 3: 7}, "MERGE": {2: 9, 3: 9, 200: 9}}
MINE: dict[str, dict[int, int]] = {"DELETE": {}, "UPDATE": {1: 7}, "MERGE": {1: 9, 100: 9}}


@pytest.mark.slow
@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("ours", OURS)
def test_different_rows_of_one_file(table: Table, ours: str, theirs: str) -> None:
    mine, other = OURS[ours](table), THEIRS[theirs](table)
    table.publish(*other)
    result = table.publish(*mine)
    assert "rows" in result.resolved
    untouched = {number: 0 for number in range(10) if number not in (1, 2, 3)}
    assert dict(table.rows()) == untouched | AFTER[theirs] | MINE[ours]


@pytest.mark.parametrize("ours", OURS)
def test_the_same_row(table: Table, ours: str) -> None:
    mine, other = OURS[ours](table), delete(table, "id < 2")
    table.publish(*other)
    with pytest.raises(DeltaConcurrentModificationException):
        table.publish(*mine)


def test_level_delta(table: Table) -> None:
    mine, other = delete(table, "id = 1"), delete(table, "id = 2")
    table.publish(*other)
    with pytest.raises(DeltaConcurrentModificationException):
        table.publish(*mine, policy=CommitPolicy(conflict_detection="delta"))


@pytest.mark.parametrize(
    "clauses", [pytest.param(UPSERT, marks=pytest.mark.slow), [when_not_matched_insert()]], ids=["upsert", "insert"]
)
def test_a_row_that_kept_a_merge_from_inserting(table: Table, clauses: Any) -> None:
    """Row 5 is there, so it is not inserted; a DELETE that is committed first would have it inserted."""
    clauses = (
        [when_matched_update({"v": "source.v"}, condition="target.v > 0"), when_not_matched_insert()]
        if len(clauses) == 2
        else clauses
    )
    mine, other = merge(table, 5, 50, clauses=clauses), delete(table, "id = 5")
    table.publish(*other)
    with pytest.raises(DeltaConcurrentModificationException):
        table.publish(*mine)
    mine, other = merge(table, 6, 60, clauses=clauses), delete(table, "id = 7")
    table.publish(*other)
    assert table.publish(*mine).resolved


@pytest.mark.slow
def test_a_merge_that_deletes_by_source_reads_everything(table: Table) -> None:
    mine, other = merge(table, 1, clauses=[when_not_matched_by_source_delete("target.id > 7")]), merge(table, 300)
    table.publish(*other)
    with pytest.raises(DeltaConcurrentModificationException):
        table.publish(*mine)


@pytest.mark.slow
def test_rows_that_an_overwrite_replaces_by_key(table: Table) -> None:
    mine, other = replaced(table, 400, 401), merge(table, 300)
    table.publish(*other)
    assert table.publish(*mine).resolved == {"statistics": "2"}
    assert len(table.rows()) == 13
    mine, other = replaced(table, 500), merge(table, 500)
    table.publish(*other)
    with pytest.raises(DeltaConcurrentModificationException):
        table.publish(*mine)


@pytest.mark.slow
def test_keys_in_a_file(table: Table) -> None:
    """Two thousand keys, which are more than travel in XCom, between those of the winner."""
    handle = table.begin()
    arguments: dict[str, Any] = {"condition": "target.id = source.id", "clauses": UPSERT}
    staged = table.operate(handle, plan_merge, source="SELECT id * 2 + 1000 AS id, 9 AS v FROM range(2000)", **arguments)
    (key,) = staged.reads.keys
    assert key.file is not None
    table.publish(*merge(table, 1001, 2001))
    assert table.publish(handle, staged).resolved == {"keys": "2"}
    assert not (table.path / key.file.path).exists()
    assert len(table.rows()) == 2012
