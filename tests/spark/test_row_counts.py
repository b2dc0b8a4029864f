"""Wrong statistics of another writer: rows that the log counts wrongly, or calls null, are neither lost nor missed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.changes import ChangeColumn
from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from airflow_delta.exceptions import RowCountMismatchException
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.operations.statistics import compute_statistics
from airflow_delta.table.stage.plan_alter import plan_alter
from support.actions import column
from support.feature_tables import create
from support.slow import slow_except
from support.table import Table

pytestmark = pytest.mark.spark

DV = {"delta.enableDeletionVectors": "true"}
CDF = {"delta.enableChangeDataFeed": "true"}
MERGE = {"source": "SELECT 1L id, 9 v", "condition": "target.id = source.id"}
REWRITES: dict[str, tuple[Any, dict[str, Any]]] = {
    "delete": (plan_delete, {"predicate": "id = 1"}),
    "update": (plan_update, {"predicate": "id = 1", "set": {"v": "7"}}),
    "merge delete": (plan_merge, {**MERGE, "clauses": [when_matched_delete()]}),
    "upsert": (plan_merge, {**MERGE, "clauses": [when_matched_update(), when_not_matched_insert()]}),
    "optimize": (plan_optimize, {"min_file_size": 1 << 30}),
}


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "ta ble", spark)


def rows(table: Table) -> list[tuple[Any, ...]]:
    return table.read(table.begin())


@pytest.fixture(scope="module")
def originals(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Table]:
    """Return tables of two files of three rows; each is made once, to be copied."""

    @functools.cache
    def original(**configuration: str) -> Table:
        table = Table(tmp_path_factory.mktemp("original") / "ta ble", spark)
        create(table, column("id", "long"), column("v", "integer"), **configuration)
        for first in (0, 3):
            table.write(f"SELECT id, CAST(id AS INT) v FROM range({first}, {first + 3}, 1, 1)")
        return table

    return original


@pytest.fixture
def made(originals: Callable[..., Table], table: Table) -> Callable[..., None]:
    """Make a table of two files of three rows, the first of which claims another number."""

    def make(claimed: int, **configuration: str) -> None:
        table.copy_from(originals(**configuration))
        path = table.path / "_delta_log" / f"{1:020}.json"
        path.write_text(re.sub(r'(\\"numRecords\\":)\d+', rf"\g<1>{claimed}", path.read_text()))
        for checksum in (table.path / "_delta_log").glob("*.crc"):
            checksum.unlink()

    return make


@pytest.mark.parametrize("operation", REWRITES)
@pytest.mark.parametrize(
    ("configuration", "claimed"),
    slow_except([({}, 1), (DV, 1), (CDF, 1), (DV, 4)], (DV, 1)),
    ids=["copies", "vectors", "change data", "too many"],
)
def test_no_row_is_lost(table, made, configuration, claimed, operation):
    made(claimed, **configuration)
    [wrong] = [add["path"] for add in table.actions(1)["add"]]
    plan, arguments = REWRITES[operation]
    with pytest.raises(RowCountMismatchException) as caught:
        table.run(plan, **arguments)
    assert f"{wrong} of table" in str(caught.value)
    assert f"has 3 rows by its Parquet footer, and {claimed} by the log" in str(caught.value)
    assert (len(rows(table)), len(table.versions())) == (6, 3)
    compute_statistics(table.log())  # the way out that the message names
    table.run(plan, **arguments)
    assert len(rows(table)) == (5 if "delete" in operation else 6)


@pytest.mark.parametrize("configuration", [{}, DV], ids=["copies", "vectors"])
def test_a_count_below_zero_is_none(table, made, configuration):
    made(-1, **configuration)
    table.run(plan_delete, predicate="id = 1")
    assert [row[0] for row in rows(table)] == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"replace_where": "id = 1"}, {"replace_using": ["id"]}], ids=str)
def test_overwrites_keep_the_other_rows(table, made, options):
    made(1)
    with pytest.raises(RowCountMismatchException):
        table.write("SELECT 1L id, 5 v", mode="overwrite", **options)
    assert len(rows(table)) == 6


# -- statistics that contradict themselves --------------------------------------------------------------------------------------


@pytest.fixture
def contradictory(table: Table) -> Table:
    """Return a table as delta-rs up to 1.6.1 writes it: a value named ``item`` counts as null in all rows."""
    create(table, column("item", "long"), column("v", "integer"))
    table.write("SELECT id AS item, CAST(id AS INT) v FROM range(0, 3, 1, 1)")
    path = table.path / "_delta_log" / f"{1:020}.json"
    path.write_text(path.read_text().replace('\\"nullCount\\":{\\"item\\":0', '\\"nullCount\\":{\\"item\\":3'))
    assert '\\"item\\":3' in path.read_text()
    return table


def _merge_item(action: Any) -> dict[str, Any]:
    condition = "target.item = source.item AND target.item = 1"
    return {"source": "SELECT 1L item, 9 v", "condition": condition, "clauses": [action, when_not_matched_insert()]}


@pytest.mark.parametrize(
    ("plan", "arguments", "expected"),
    [
        (plan_delete, {"predicate": "item = 1"}, [(0, 0), (2, 2)]),
        (plan_update, {"predicate": "item IS NOT NULL AND item = 1", "set": {"v": "9"}}, [(0, 0), (1, 9), (2, 2)]),
        (plan_merge, _merge_item(when_matched_update()), [(0, 0), (1, 9), (2, 2)]),
    ],
    ids=["delete", "update", "merge"],
)
def test_rows_that_the_log_calls_null_are_found(contradictory, plan, arguments, expected):
    contradictory.run(plan, **arguments)
    assert rows(contradictory) == expected


def test_rows_that_the_log_calls_null_are_replaced_and_read(contradictory):
    assert contradictory.read(contradictory.begin(), "item = 1") == [(1, 1)]
    contradictory.write("SELECT 1L item, 9 v", mode="overwrite", replace_where="item = 1")
    assert rows(contradictory) == [(0, 0), (1, 9), (2, 2)]


def test_not_null_asks_the_rows(contradictory):
    contradictory.run(plan_alter, changes=[ChangeColumn("item", nullable=False)])
    assert contradictory.log().update().schema.find("item").nullable is False
