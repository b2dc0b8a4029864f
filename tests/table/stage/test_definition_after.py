"""What a stage is planned on is what the commit makes of the stages before it: columns and their physical names, properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.changes import AddColumns, Change, ChangeColumn, Column, DropColumns, RenameColumn, SetProperties
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaIllegalStateException, DeltaUnsupportedTableFeatureException, StageConflictException
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from support.actions import column, schema
from support.readers import READERS
from support.table import Table

ASKED = {"delta.columnMapping.mode": "name", "delta.feature.allowColumnDefaults": "supported"}
MAPPED = {"delta.columnMapping.mode": "name"}
ROWS = pa.table({"id": pa.array([1], pa.int32()), "p": ["x"], "n": pa.array([1], pa.int8())})
WIDE = pa.table({"id": pa.array([1 << 40]), "p": ["y"], "new": [1.5]})
WIDENING = {"delta.enableTypeWidening": "true"}
NEW = WIDE.drop(["id"])
OTHER = pa.table({"id": [2], "q": ["z"]})

IDENTITY = {"delta__identity__start": 10, "delta__identity__step": -5, "delta__identity__allowExplicitInsert": False}
COUNTED = schema(column("k", "long", **IDENTITY), column("id"), column("p", "string"), column("n", "byte"))

Stage = Callable[[Table, TransactionHandle, list[StagedWrite]], StagedWrite]


def altered(*changes: Change) -> Stage:
    return lambda table, handle, after: table.operate(
        handle, plan_alter, task_id=f"alter_{len(after)}", changes=list(changes), after=after
    )


def created(schema: str, **more: Any) -> Stage:
    return lambda table, handle, after: table.operate(handle, plan_create, task_id="create", after=after, schema=schema, **more)


def written(rows: pa.Table, **more: Any) -> Stage:
    return lambda table, handle, after: table.stage(handle, rows, task_id=f"write_{len(after)}", after=after, **more)


def numbers(kind: pa.DataType) -> pa.Table:
    return pa.table({"n": pa.array([1], kind)})


def replaced(rows: pa.Table, **more: Any) -> Stage:
    return written(rows, mode="overwrite", overwrite_schema=True, **more)


def added(*names: str) -> AddColumns:
    return AddColumns([Column(name, "STRING") for name in names])


STAGES: dict[str, tuple[dict[str, Any] | None, list[Stage]]] = {
    "columns added by three stages": (
        {"configuration": MAPPED},
        [altered(added("a", "b")), altered(RenameColumn("a", "c")), altered(added("a")), written(ROWS)],
    ),
    "mapping begins": ({}, [altered(SetProperties(MAPPED)), altered(added("a")), altered(added("b"))]),
    "a column added, dropped and added again": (
        {"configuration": MAPPED},
        [written(NEW, merge_schema=True), altered(DropColumns(("new",))), written(NEW, merge_schema=True)],
    ),
    "a column added and renamed, and another of its name": (
        {"configuration": MAPPED},
        [written(NEW, merge_schema=True), altered(RenameColumn("new", "old")), written(NEW, merge_schema=True)],
    ),
    "columns merged": ({}, [written(NEW, merge_schema=True), altered(added("a"))]),
    "types widened": (
        {"configuration": WIDENING, "partition_by": ["p"]},
        [written(WIDE, merge_schema=True), written(ROWS)],
    ),
    "types widened twice": (
        {"configuration": WIDENING},
        [written(numbers(pa.int32()), merge_schema=True), written(numbers(pa.int64()), merge_schema=True)],
    ),
    "types widened by ALTER and by rows": (
        {"configuration": WIDENING},
        [altered(ChangeColumn("n", "INT")), written(numbers(pa.int64()), merge_schema=True)],
    ),
    "identity values": ({"schema": COUNTED}, [written(ROWS), written(ROWS), written(WIDE.drop(["id"]), merge_schema=True)]),
    "identity values of a column that is renamed": (
        {"schema": COUNTED, "configuration": MAPPED},
        [written(ROWS), altered(RenameColumn("k", "number")), written(ROWS), altered(DropColumns(("number",)))],
    ),
    "columns replaced": (
        {"configuration": MAPPED, "partition_by": ["p"]},
        [replaced(WIDE, partition_by=["new"])] * 2,
    ),
    "columns replaced, and fewer once more": (
        {"configuration": MAPPED},
        [
            replaced(WIDE, partition_by=["p"]),
            replaced(WIDE.drop(["p"]), partition_by=["id"]),
            replaced(WIDE.drop(["new"]), partition_by=["p"]),
        ],
    ),
    "a table replaced": (
        {"configuration": MAPPED},
        [created("id BIGINT, q STRING", mode="replace", partition_by=["q"], properties=ASKED), written(OTHER)],
    ),
    "a new table": (
        None,
        [created("id BIGINT, q STRING", partition_by=["q"], properties=MAPPED), written(WIDE, merge_schema=True)],
    ),
    "not the columns that the start task gave a new table": (None, [created("id BIGINT, q STRING"), written(OTHER)]),
    "rows replace the columns that the start task gave a new table": (None, [replaced(OTHER)]),
    "rows replace the columns of a new table": (None, [written(ROWS, partition_by=["p"]), replaced(OTHER, partition_by=["q"])]),
    "a new table with rows": (
        None,
        [written(ROWS, create="create", partition_by=["p"], properties=MAPPED), written(NEW, merge_schema=True)],
    ),
    "rows make a table": (None, [written(ROWS, partition_by=["p"]), written(NEW, merge_schema=True)]),
}


GIVEN = {name: schema(column("other")) for name in STAGES if "start task" in name}
"""Columns that the start task gives a new table."""


@pytest.mark.parametrize("name", STAGES)
def test_stages_leave_what_their_commit_makes(table: Table, name: str) -> None:
    existing, stages = STAGES[name]
    if existing is not None:
        table.write(ROWS, begin=existing)
    handle = table.begin(schema=GIVEN.get(name))
    after: list[StagedWrite] = []
    for stage in stages:
        after.append(stage(table, handle, after))
    left = table.view(handle, after=after).target
    table.publish(handle, *reversed(after))
    made = table.log().update().definition
    assert parse_schema(left.schema_string or "") == made.schema
    assert left.partition_columns == made.partition_columns
    assert left.configuration == made.configuration
    assert left.features == made.features


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("name", ["new", "other"])
def test_a_column_shows_nothing_of_one_that_the_same_transaction_has_dropped(table: Table, mode: str, name: str) -> None:
    table.write(ROWS, begin={"configuration": {"delta.columnMapping.mode": mode}})
    handle = table.begin()
    first = written(NEW, merge_schema=True)(table, handle, [])
    dropped = altered(DropColumns(("new",)))(table, handle, [first])
    last = written(NEW.rename_columns(["p", name]), merge_schema=True)(table, handle, [first, dropped])
    table.publish(handle, first, dropped, last)
    seen = sorted(read_table(table.log(), columns=[name]).to_table().column(0).to_pylist(), key=repr)
    assert seen == [1.5, None, None]
    assert sorted(READERS["Polars"](table.uri, None).column(name).to_pylist(), key=repr) == seen


def test_an_empty_table_can_be_set_not_null(table: Table) -> None:
    table.publish(table.begin(schema=schema(column("id"))))
    handle = table.begin()
    table.publish(handle, altered(ChangeColumn("id", nullable=False))(table, handle, []))
    assert not table.log().update().schema.fields[0].nullable


def test_stages_on_top_of_each_other_give_an_identity_column_one_value_once(table: Table) -> None:
    table.write(ROWS, begin={"schema": COUNTED, "configuration": MAPPED})
    handle = table.begin()
    first, other = (table.stage(handle, ROWS, task_id=task_id) for task_id in ("first", "other"))
    renamed = altered(RenameColumn("k", "number"))(table, handle, [first])
    last = table.stage(handle, ROWS, task_id="last", after=[first, renamed])
    with pytest.raises(StageConflictException):
        table.publish(handle, first, other)
    table.publish(handle, last, renamed, first)
    table.write(ROWS)
    assert sorted(read_table(table.log()).to_table().column("number").to_pylist()) == [-5, 0, 5, 10]


FEED = {**MAPPED, "delta.enableChangeDataFeed": "true"}
REFUSED: dict[str, tuple[type[Exception], dict[str, Any] | None, dict[str, Any], list[Stage]]] = {
    "a type that the table must be given by name": (
        DeltaUnsupportedTableFeatureException,
        {},
        {},
        [written(pa.table({"id": pa.array([1], pa.int32()), "at": pa.array([0], pa.timestamp("us"))}), merge_schema=True)],
    ),
    "the feed of a new table with mapped columns": (DeltaIllegalStateException, None, {"configuration": FEED}, [written(ROWS)]),
    "the feed of columns that are renamed under new rows": (
        DeltaIllegalStateException,
        {"configuration": FEED, "schema": schema(column("id"), column("p", "string"), column("n", "byte"))},
        {},
        [altered(RenameColumn("n", "m")), written(ROWS.drop(["n"]))],
    ),
    "the feed of new rows whose columns are renamed": (
        DeltaIllegalStateException,
        {"configuration": FEED, "schema": schema(column("id"), column("p", "string"), column("n", "byte"))},
        {},
        [written(ROWS), altered(RenameColumn("n", "m"))],
    ),
    "other columns than CREATE TABLE names": (StageConflictException, None, {}, [created("id INT, p STRING"), replaced(OTHER)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_stage_is_refused_whose_metadata_its_commit_would_refuse(table: Table, name: str) -> None:
    error, existing, begin, stages = REFUSED[name]
    if existing is not None:
        table.publish(table.begin(**{"schema": schema(column("id")), **existing}))
    handle = table.begin(**begin)
    after: list[StagedWrite] = []
    for stage in stages[:-1]:
        after.append(stage(table, handle, after))
    with pytest.raises(error):
        stages[-1](table, handle, after)


def test_identity_values_go_with_columns_that_rows_replace(table: Table) -> None:
    handle = table.begin(schema=COUNTED)
    first = written(ROWS)(table, handle, [])
    table.publish(handle, first, replaced(OTHER)(table, handle, [first]))
    assert table.rows() == [(2, "z")]
