"""What Spark says it wrote must be what the worker finds; what is missing is never empty."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import StagedFileException, StagingException
from airflow_delta.spark import stage_dataframe
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.spark.written_files import check_read_back, written_files
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.stage_view import StageView
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from support.table import Table

pytestmark = pytest.mark.spark

ROWS = "SELECT id, CAST(id % 2 AS STRING) AS p FROM range(0, 20, 1, 2)"
CHANGES = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
MERGE: dict[str, Any] = {
    "condition": "t.id = s.id",
    "target_alias": "t",
    "source_alias": "s",
    "clauses": [when_matched_update(), when_not_matched_insert()],
}


def staged(table: Table, handle: Any, rows: str, **options: Any) -> tuple[StageView, StageRequest, StageReport]:
    stage = table.view(handle, task_id="s")
    request = plan_stage(stage, **options)
    return stage, request, stage_dataframe(table.spark, table.spark.sql(rows), request)


def test_an_overwrite_whose_files_the_worker_does_not_find_keeps_the_table(table, tmp_path):
    table.write(ROWS, begin={"partition_by": ["p"]})
    handle, before = table.begin(), table.rows()
    elsewhere = f"file://{tmp_path}/elsewhere"
    with pytest.raises(StagedFileException) as caught:
        table.stage(handle, "SELECT 1L AS id, 'x' AS p", mode="overwrite", spark_table_uri=elsewhere)
    assert elsewhere in str(caught.value)  # both places
    assert f"{table.uri}/staged/{handle.transaction_id}" in str(caught.value)
    assert (caught.value.table, caught.value.version) == (table.uri, 0)
    assert table.rows() == before


def test_no_rows_are_said_to_be_none(table):
    table.write(ROWS, begin={"partition_by": ["p"]})
    handle = table.begin()
    stage, request, report = staged(table, handle, "SELECT 1L AS id, 'x' AS p WHERE false", mode="overwrite")
    assert report.written == {report.directories[0]: {"numFiles": 0, "numRows": 0, "numBytes": 0}}
    assert report.path == request.path
    for damaged in (replace(report, written={}), replace(report, directories=())):  # an older version; nothing at all
        with pytest.raises(StagingException, match=r"does not say how many rows|names no directory"):
            collect_stage(stage, request, damaged)
    table.publish(handle, collect_stage(stage, request, report))
    assert table.rows() == []


def test_files_that_appear_or_change_are_found(table):
    handle = table.begin()
    stage, request, report = staged(table, handle, ROWS)
    directory = table.path / request.directory / report.directories[0]
    one, two = sorted(directory.glob("*.parquet"))
    shutil.copy(one, directory / "again.parquet")
    with pytest.raises(StagedFileException, match=r"20 rows in 2 files .* finds 3 files"):
        collect_stage(stage, request, report)
    (directory / "again.parquet").rename(two)
    with pytest.raises(StagedFileException):
        collect_stage(stage, request, report)


@pytest.mark.parametrize(
    ("properties", "plan", "arguments"),
    [
        (CHANGES, plan_delete, {"predicate": "id IN (3, 15)"}),
        (VECTORS, plan_delete, {"predicate": "id IN (3, 15)"}),
        (VECTORS | CHANGES, plan_update, {"predicate": "id IN (3, 15)", "set": {"p": "'z'"}}),
        (VECTORS, plan_merge, MERGE),
        ({}, plan_optimize, {}),
    ],
)
def test_every_directory_of_an_operation_must_be_there(table, tmp_path, properties, plan, arguments):
    table.write(ROWS, begin={"configuration": properties})
    handle = table.begin()
    work = plan(table.view(handle, task_id="t"), **arguments)
    request = work.request
    source = table.spark.sql("SELECT 3L AS id, 'z' AS p UNION ALL SELECT 77L, 'z'") if plan is plan_merge else None
    report = run_operation(table.spark, request, source)
    assert set(report.written) == {
        *report.directories,
        *report.copied_directories,
        *report.change_directories,
        *report.vector_directories,
    }
    assert all(said["numRows"] and said["numFiles"] and said["numBytes"] for said in report.written.values())
    for name in report.written:
        (table.path / request.directory / name).rename(tmp_path / "away")
        with pytest.raises(StagedFileException, match=f"{name}, the worker finds 0 files"):
            work.collect(request, report)
        (tmp_path / "away").rename(table.path / request.directory / name)
    table.publish(handle, work.collect(request, report))


def test_spark_tells_itself_when_its_executors_write_elsewhere(table):
    _stage, request, report = staged(table, table.begin(), ROWS)
    [name] = report.directories
    shutil.rmtree(table.path / request.directory / name)
    with pytest.raises(StagedFileException, match=r"wrote 20 rows to .*reads 0 there .* must see the same files"):
        written_files(table.spark, request, {name: 20})
    with pytest.raises(StagedFileException):
        check_read_back(3, 2, "path", request)
    assert written_files(table.spark, request, {name: 20}, [".p"])[name]["numFiles"] is None  # Spark lists no such directory
