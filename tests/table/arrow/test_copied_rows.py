"""Rows that another writer has left, and that break a rule of their table, on Spark and in the worker: DELETE, UPDATE and MERGE
copy none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_delta.contract.merge import when_matched_delete, when_matched_update
from airflow_delta.exceptions import (
    CharVarcharLimitException,
    ConstraintViolationException,
    DeltaError,
    InvariantViolationException,
)
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.read.read_table import read_table
from airflow_delta.transaction import Operation
from support import readers
from support.actions import column
from support.feature_tables import create
from support.table import Table, WorkerTable

pytestmark = pytest.mark.spark

ROWS = pa.table({"id": [1, 2], "v": [1, None], "s": ["a", "long"], "twice": [2, 5]})
RULES: dict[str, tuple[type[DeltaError], str]] = {
    "check": (ConstraintViolationException, "CHECK constraint few (v < 5 OR s = 'a') is violated by a row with values"),
    "null": (InvariantViolationException, "NOT NULL column v would get a null"),
    "length": (CharVarcharLimitException, "Column s holds a string that is too long for varchar(3)"),
    "generated": (ConstraintViolationException, "Generated column twice must be id * 2"),
}
SOURCE = pa.table({"id": pa.array([1], pa.int64())})
MATCHED = {"condition": "target.id = source.id", "source": SOURCE}
OPERATIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "delete": (plan_delete, {"predicate": "id = 1"}),
    "update": (plan_update, {"predicate": "id = 1", "set": {"v": "v + 1"}}),
    "merge that updates": (plan_merge, {**MATCHED, "clauses": [when_matched_update({"v": "target.v + 1"})]}),
    "merge that deletes": (plan_merge, {**MATCHED, "clauses": [when_matched_delete()]}),
}


def tables(spark: Any, path: Path, rule: str, *more: pa.Table, **configuration: str) -> tuple[Table, Table]:
    """Return a table of each engine, with a row that breaks a rule that the table got afterwards."""
    here, there = WorkerTable(path / "worker"), Table(path / "spark", spark)
    configuration |= {f"delta.feature.{name}": "supported" for name in ("checkConstraints", "invariants", "generatedColumns")}
    create(here, column("id", "long"), column("v", "long"), column("s", "string"), column("twice", "long"), **configuration)
    for rows in (ROWS, *more):
        here.write(rows)
    txn = here.log().start_transaction()
    schema, properties = json.loads(txn.metadata.schema_string), dict(txn.metadata.configuration)
    if rule == "check":
        properties["delta.constraints.few"] = "v < 5 OR s = 'a'"
    elif rule == "null":
        schema["fields"][1]["nullable"] = False
    elif rule == "length":
        schema["fields"][2]["metadata"]["__CHAR_VARCHAR_TYPE_STRING"] = "varchar(3)"
    else:
        schema["fields"][3]["metadata"]["delta.generationExpression"] = "id * 2"
    changed = msgspec.structs.replace(txn.metadata, configuration=properties, schema_string=json.dumps(schema))
    txn.commit([changed], Operation("ADD CONSTRAINT"))
    there.copy_from(here)
    return here, there


def outcome(table: Table, operation: Any, arguments: dict[str, Any]) -> Any:
    arguments = dict(arguments)
    if table.spark is not None and "source" in arguments:
        arguments["source"] = "SELECT 1L AS id"
    try:
        table.run(operation, **arguments)
    except DeltaError as error:
        return error
    return readers._comparable(read_table(table.log()).to_table().to_pylist())


@pytest.mark.parametrize("feed", ["true", "false"], ids=["change data", "none"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_breaks_a_rule_is_not_copied(spark: Any, tmp_path: Path, rule: str, operation: str, feed: str) -> None:
    both = tables(spark, tmp_path, rule, **{"delta.enableChangeDataFeed": feed, "delta.enableDeletionVectors": "false"})
    kind, text = RULES[rule]
    for table in both:
        before = table.versions()
        error = outcome(table, *OPERATIONS[operation])
        assert type(error) is kind, f"{table.path.name}: {error}"
        assert text in str(error)
        assert table.versions() == before


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_it_stays_where_nothing_is_copied(spark: Any, tmp_path: Path, rule: str, operation: str) -> None:
    both = tables(spark, tmp_path, rule, **{"delta.enableDeletionVectors": "true"})
    found = [outcome(table, *OPERATIONS[operation]) for table in both]
    assert found[0] == found[1]
    assert len(found[0]) == (2 if "update" in operation else 1)


@pytest.mark.parametrize("vectors", ["true", "false"], ids=["deletion vectors", "copy on write"])
@pytest.mark.parametrize("rule", RULES)
def test_it_can_be_deleted_and_changed(spark: Any, tmp_path: Path, rule: str, vectors: str) -> None:
    sets = {"v": "4", "s": "'b'"} | ({"id": "1"} if rule == "generated" else {})
    configuration = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": vectors}
    for number, (operation, arguments) in enumerate(
        [(plan_delete, {"predicate": "id = 2"}), (plan_update, {"predicate": "id = 2", "set": sets})]
    ):
        both = tables(spark, tmp_path / str(number), rule, **configuration)
        check_same([outcome(table, operation, arguments) for table in both], rule)


@pytest.mark.parametrize("rule", RULES)
def test_it_is_compacted(spark: Any, tmp_path: Path, rule: str) -> None:
    both = tables(spark, tmp_path, rule, ROWS.slice(0, 1), ROWS.slice(0, 1))
    check_same([outcome(table, plan_optimize, {}) for table in both], rule)


def check_same(found: list[Any], rule: str) -> None:
    """Check that both engines have left the same rows; no file gets a null in a NOT NULL column, not even of change data."""
    if rule == "null" and isinstance(found[0], DeltaError):
        assert [type(error) for error in found] == 2 * [InvariantViolationException]
    else:
        assert not isinstance(found[0], DeltaError), found[0]
        assert found[0] == found[1]
