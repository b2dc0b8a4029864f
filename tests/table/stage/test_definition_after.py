"""What a stage is planned on is what the commit makes of the stages before it: columns and their physical names, properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.changes import AddColumns, Change, Column, RenameColumn, SetProperties
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.table.stage.plan_table import plan_alter, plan_create
from support.actions import column, schema
from support.table import Table

MAPPED = {"delta.columnMapping.mode": "name"}
ROWS = pa.table({"id": pa.array([1], pa.int32()), "p": ["x"]})
WIDE = pa.table({"id": pa.array([1 << 40]), "p": ["y"], "new": [1.5]})
OTHER = pa.table({"id": [2], "q": ["z"]})

Stage = Callable[[Table, TransactionHandle, list[StagedWrite]], StagedWrite]


def altered(*changes: Change) -> Stage:
    return lambda table, handle, after: table.operate(
        handle, plan_alter, task_id=f"alter_{len(after)}", changes=list(changes), after=after
    )


def created(schema: str, **more: Any) -> Stage:
    return lambda table, handle, after: table.operate(handle, plan_create, task_id="create", after=after, schema=schema, **more)


def written(rows: pa.Table, **more: Any) -> Stage:
    return lambda table, handle, after: table.stage(handle, rows, task_id=f"write_{len(after)}", after=after, **more)


def added(*names: str) -> AddColumns:
    return AddColumns([Column(name, "STRING") for name in names])


STAGES: dict[str, tuple[dict[str, Any] | None, list[Stage]]] = {
    "columns added by three stages": (
        {"configuration": MAPPED},
        [altered(added("a", "b")), altered(RenameColumn("a", "c")), altered(added("a")), written(ROWS)],
    ),
    "mapping begins": ({}, [altered(SetProperties(MAPPED)), altered(added("a")), altered(added("b"))]),
    "columns merged": ({}, [written(WIDE.drop(["id"]), merge_schema=True), altered(added("a"))]),
    "types widened": (
        {"configuration": {"delta.enableTypeWidening": "true"}, "partition_by": ["p"]},
        [written(WIDE, merge_schema=True), written(ROWS)],
    ),
    "columns replaced": (
        {"configuration": MAPPED, "partition_by": ["p"]},
        [written(WIDE, mode="overwrite", overwrite_schema=True, partition_by=["new"])] * 2,
    ),
    "a table replaced": (
        {"configuration": MAPPED},
        [created("id BIGINT, q STRING", mode="replace", partition_by=["q"], properties=MAPPED), written(OTHER)],
    ),
    "a new table": (
        None,
        [created("id BIGINT, q STRING", partition_by=["q"], properties=MAPPED), written(WIDE, merge_schema=True)],
    ),
    "not the columns that the start task gave a new table": (None, [created("id BIGINT, q STRING"), written(OTHER)]),
    "a new table with rows": (
        None,
        [written(ROWS, create="create", partition_by=["p"], properties=MAPPED), written(WIDE.drop(["id"]), merge_schema=True)],
    ),
    "rows make a table": (None, [written(ROWS, partition_by=["p"]), written(WIDE.drop(["id"]), merge_schema=True)]),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_leave_what_their_commit_makes(table: Table, name: str) -> None:
    existing, stages = STAGES[name]
    if existing is not None:
        table.write(ROWS, begin=existing)
    handle = table.begin(schema=schema(column("other")) if "start task" in name else None)
    after: list[StagedWrite] = []
    for stage in stages:
        after.append(stage(table, handle, after))
    left = table.view(handle, after=after).target
    table.publish(handle, *reversed(after))
    made = table.log().update().definition
    assert parse_schema(left.schema_string or "") == made.schema
    assert left.partition_columns == made.partition_columns
    highest = "delta.columnMapping.maxColumnId"  # of columns that rows add, the commit counts it
    assert {**left.configuration, highest: None} == {**made.configuration, highest: None}
    assert left.features == made.features
