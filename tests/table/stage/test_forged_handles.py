"""A handle says whose transaction it is, and on which version of which table. What the table is, its log says.

Handles that differ from the log are refused (``tests/airflow/test_forged_handles.py``). Here that check is taken out: even then,
no plan, staged write, commit, audit, diff or read follows the handle.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.audit import VIEWS
from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.scd2 import HistoryArguments
from airflow_delta.exceptions import (
    AppendOnlyException,
    ConstraintViolationException,
    HandleMismatchException,
    InvariantViolationException,
)
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.arrow.table_rows import table_rows
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.limit_checks import statistics_checks
from airflow_delta.table.effects.diff import staged_diff
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.merge.scd2 import history_columns, plan_history
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.table.stage.scan import plan_scan
from airflow_delta.table.stage.stage_view import SparkWork, StageView, open_stage
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.stage.write.collect import collect_files, collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.transaction import Operation
from support.actions import column, schema
from support.table import Table

COLUMNS = schema(
    column("id", "long", False),
    column("text", "string"),
    column("day", "date"),
    column("valid_from", "timestamp"),
    column("valid_to", "timestamp"),
    column("is_current", "boolean"),
)
OTHER = schema(column("other", "string"), column("day", "string"))
PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.targetFileSize": "64mb",
    "delta.dataSkippingNumIndexedCols": "2",
    "delta.autoOptimize.optimizeWrite": "true",
}
FORGERIES: dict[str, dict[str, Any]] = {
    "configuration": {"configuration": {}},
    "rules": {"configuration": {"delta.appendOnly": "true", "delta.columnMapping.mode": "name"}},
    "schema": {"schema_string": OTHER},
    "no schema": {"schema_string": None},
    "partitioning": {"partition_columns": ()},
    "features": {"features": ()},
    "all": {"configuration": {}, "schema_string": OTHER, "partition_columns": ("other",), "features": (), "name": "x"},
}


@pytest.fixture
def table(tmp_path) -> Table:
    """A partitioned table with a CHECK constraint, deletion vectors and a change data feed; two versions with rows."""
    table = Table(tmp_path / "table")
    table.publish(table.begin(schema=COLUMNS, partition_by=("day",), configuration=PROPERTIES))
    txn = table.log().start_transaction()
    rules = {**txn.metadata.configuration, "delta.constraints.positive": "id > 0"}
    txn.commit([msgspec.structs.replace(txn.metadata, configuration=rules)], Operation("ADD CONSTRAINT"))
    for first in (1, 3):
        handle = table.begin()
        table.publish(handle, arrow(table, handle, rows(first, first + 1)))
    return table


@pytest.fixture
def _trusted(monkeypatch) -> None:
    """Let every handle through, as if its XCom had been checked by nobody."""
    monkeypatch.setattr("airflow_delta.table.stage.view.check_handle", lambda handle, snapshot: None)


def rows(*ids: int | None) -> pa.Table:
    days = pa.array(["2026-01-01"] * len(ids)).cast(pa.date32())
    return pa.table({"id": pa.array(ids, pa.int64()), "text": ["a"] * len(ids), "day": days})


def view(table: Table, handle: TransactionHandle, **options: Any) -> StageView:
    """Return the view of one attempt, which always has the same name."""
    return open_stage(table.log(), handle, task_id="stage", attempt="1-0123abcd", **options)


def arrow(table: Table, handle: TransactionHandle, data: pa.Table, **options: Any) -> StagedWrite:
    stage = view(table, handle)
    request = plan_stage(stage, **options)
    return collect_stage(stage, request, stage_arrow(table.log(), data, request))


def files(stage: StageView) -> StagedWrite:
    """Stage a file that another job has written."""
    directory = Path(stage.handle.staging_path, "job", "day=2026-01-01")
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(9).drop(["day"]), directory / "part-0.parquet")
    return collect_files(stage, path="job", rows_checked=True)


MERGE = [when_matched_update(), when_not_matched_insert()]
STAGES: dict[str, Callable[[StageView], Any]] = {
    "append": plan_stage,
    "overwrite": lambda stage: plan_stage(stage, mode="overwrite"),
    "overwrite_schema": lambda stage: plan_stage(stage, mode="overwrite", overwrite_schema=True),
    "dynamic": lambda stage: plan_stage(stage, mode="dynamic"),
    "merge_schema": lambda stage: plan_stage(stage, merge_schema=True),
    "replace_where": lambda stage: plan_stage(stage, mode="overwrite", replace_where="id > 2"),
    "replace_partition": lambda stage: plan_stage(stage, mode="overwrite", replace_where="day = '2026-01-01'"),
    "replace_using": lambda stage: plan_stage(stage, mode="overwrite", replace_using=["id"]),
    "replace_on": lambda stage: plan_stage(stage, mode="overwrite", replace_on="t.id = s.id"),
    "strict": lambda stage: plan_stage(stage, schema_policy="strict"),
    "read": lambda stage: plan_stage(stage, read="id > 1"),
    "rearranged": lambda stage: plan_stage(stage, mode="overwrite", data_change=False),
    "files": files,
    "delete": lambda stage: plan_delete(stage, predicate="id = 1"),
    "delete_partition": lambda stage: plan_delete(stage, predicate="day = '2026-01-01'"),
    "update": lambda stage: plan_update(stage, set={"text": "'b'"}, predicate="id = 1"),
    "merge": lambda stage: plan_merge(stage, condition="source.id = target.id", clauses=MERGE),
    "history": lambda stage: plan_history(
        stage, HistoryArguments(columns=history_columns(stage, keys=["id"]), effective_at="at")
    ),
    "truncate": plan_truncate,
    "optimize": plan_optimize,
    "z_order": lambda stage: plan_optimize(stage, z_order_by=["id"]),
    "reorg": lambda stage: plan_reorg(stage),
    "alter": lambda stage: plan_alter(stage, [{"change": "SetProperties", "properties": {"a": "b"}}]),
    "not_null": lambda stage: plan_alter(stage, [{"change": "ChangeColumn", "column": "text", "nullable": False}]),
    "create": lambda stage: plan_create(stage, schema="id LONG", mode="create_if_not_exists"),
    "replace_table": lambda stage: plan_create(stage, schema="id LONG", mode="create_or_replace"),
    "as_select": lambda stage: plan_stage(stage, create="create_or_replace", cluster_by=["id"]),
    "scan": lambda stage: plan_scan(stage, "id > 1 AND day > '2025-01-01'"),
    "rows": lambda stage: [row for batch in table_rows(stage, "id > 1") for row in batch.to_pylist()],
}


def outcome(plan: Callable[[StageView], Any], stage: StageView) -> Any:
    """Return what a stage asks of Spark, or what it stages, without what differs between two runs anyway."""
    found = plan(stage)
    if isinstance(found, SparkWork):
        found = found.request
    if not hasattr(found, "to_dict"):
        return found
    value = json.loads(json.dumps(found.to_dict()))
    value.get("metrics", {}).pop("executionTimeMs", None)
    for name in ("id", "createdTime"):
        value.get("definition", {}).get("metaData", {}).pop(name, None)
    for action in value.get("actions", ()):
        action.get("add", {}).pop("modificationTime", None)
    return value


@pytest.mark.usefixtures("_trusted")
@pytest.mark.parametrize("kind", STAGES)
def test_a_stage_does_what_the_log_says(table: Table, kind: str) -> None:
    handle = table.begin()
    wanted = outcome(STAGES[kind], view(table, handle))
    for name, fields in FORGERIES.items():
        forged = replace(handle, **fields)
        assert outcome(STAGES[kind], view(table, forged)) == wanted, name


@pytest.mark.usefixtures("_trusted")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_rows_keep_the_rules_of_the_log(table: Table, forgery: str) -> None:
    forged = replace(table.begin(), **FORGERIES[forgery])
    with pytest.raises(ConstraintViolationException):
        arrow(table, forged, rows(-1))
    with pytest.raises(InvariantViolationException):
        arrow(table, forged, rows(None))


@pytest.mark.usefixtures("_trusted")
def test_a_table_that_only_takes_appends_takes_only_appends(tmp_path) -> None:
    table = Table(tmp_path / "table")
    table.publish(table.begin(schema=COLUMNS, configuration={"delta.appendOnly": "true"}))
    forged = replace(table.begin(), configuration={}, features=())
    for kind in ("overwrite", "delete", "truncate", "replace_table"):
        with pytest.raises(AppendOnlyException):
            STAGES[kind](view(table, forged))


@pytest.mark.usefixtures("_trusted")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_commit_audit_and_diff_judge_by_the_log(table: Table, forgery: str) -> None:
    handle = table.begin()
    forged = replace(handle, **FORGERIES[forgery])
    more = {"mode": "overwrite", "replace_where": "day = '2026-01-01'"}
    staged = arrow(table, handle, rows(7, 8), **more)
    assert json.loads(staged.actions[-1]["add"]["stats"])["numRecords"] == 2

    checks = statistics_checks(
        max_null_fraction={"id": 0}, value_range={"id": {"min": 7, "max": 8}}, partitions="day = '2026-01-01'"
    )
    sides = [AuditedTable(table.log(), one, [staged]) for one in (handle, forged)]
    found = [checks.run(side) for side in sides]
    assert found[0] == found[1]
    scans = [[side.scan(name).to_dict() for name in VIEWS] for side in sides]
    assert scans[0] == scans[1]
    honest, by_forged = (staged_diff(side, keys=["id"]) for side in sides)
    assert honest == by_forged
    assert by_forged.schema_changes == []

    before = table.log().snapshot
    result = table.publish(forged, staged)
    after = table.log().snapshot
    assert (result.version, after.metadata, after.protocol) == (before.version + 1, before.metadata, before.protocol)
    assert {row[0] for row in table.rows()} == {7, 8}


@pytest.mark.usefixtures("_trusted")
def test_an_alteration_is_committed_on_what_the_log_says(table: Table) -> None:
    handle = table.begin()
    forged = replace(handle, **FORGERIES["all"])
    staged = plan_alter(view(table, forged), [{"change": "SetProperties", "properties": {"a": "b"}}])
    assert isinstance(staged, StagedWrite)
    before = table.log().snapshot.metadata
    table.publish(forged, staged)
    assert table.log().snapshot.metadata == msgspec.structs.replace(before, configuration={**before.configuration, "a": "b"})


@pytest.mark.parametrize("forgery", FORGERIES)
def test_such_a_handle_is_refused(table: Table, forgery: str) -> None:
    handle = table.begin()
    forged = replace(handle, **FORGERIES[forgery])
    staged = arrow(table, handle, rows(5))
    for refused in (
        lambda: view(table, forged),
        lambda: view_of(table.log(), forged, [staged]),
        lambda: AuditedTable(table.log(), forged, [staged]),
        lambda: table.publish(forged, staged),
    ):
        with pytest.raises(HandleMismatchException):
            refused()
