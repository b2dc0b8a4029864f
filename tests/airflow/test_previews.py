"""Previews in Dag runs on a real Airflow: what is staged is checked as a table, then published or not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import delta_asset
from airflow_delta.contract.staging_directory import kept_until
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.preview import DeltaPreviewOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from airflow_delta.table.observe.commit_summary import commit_summary
from support import readers

pytestmark = pytest.mark.airflow


@pytest.mark.slow
def test_a_check_reads_the_rows_before_they_are_published(run_dag, tables):
    path = f"{tables}/seen"
    deltalake.write_deltalake(path, pa.table({"id": [1, 2]}))
    run = run_dag("seen_before", datetime(2026, 1, 1, tzinfo=UTC))
    assert run.state == "success"
    preview = run.xcom("txn.preview")
    assert (preview["only"], preview["version"], preview["readVersion"], preview["alreadyCommitted"]) == ("table", 1, 0, False)
    assert (preview["numFiles"], preview["numAddedFiles"], preview["numAddedRecords"], preview["numRemovedFiles"]) == (2, 1, 2, 0)
    assert run.xcom("txn.check") == [1, 2, 3, 4] == sorted(row["id"] for row in readers.rows(path))
    assert run.xcom("txn.changes")["changes"] == {"insert": 2}
    assert run.xcom("txn.commit")["version"] == preview["version"]
    records = commit_summary(DeltaLog.for_table(path), 1).checks.checks
    assert {check.version for check in records if check.kind == "preview"} == {preview["baseVersion"]} == {0}
    # keep_preview=1
    kept = [until for file in Path(preview["path"]).parents[1].iterdir() if (until := kept_until(str(file))) is not None]
    assert len(kept) == 1
    assert (Path(run.xcom("txn.changes")["path"]) / "_delta_log").exists()

    # A rerun of the same key has nothing to show.
    again = run_dag("seen_before", datetime(2026, 1, 1, tzinfo=UTC)).xcom("txn.preview")
    assert (again["alreadyCommitted"], again["path"], again["version"], again["baseVersion"]) == (True, path, 1, None)

    refused = run_dag("seen_before", datetime(2026, 1, 2, tzinfo=UTC), ids=[13])
    assert refused.state == "failed"
    assert [row["id"] for row in readers.rows(path)].count(13) == 0
    assert not Path(refused.xcom("txn.preview")["path"]).exists()  # the abort has deleted it


@pytest.mark.slow
def test_each_task_has_a_preview_of_its_own(run_dag, tables):
    run = run_dag("by_stage")
    assert run.state == "success"
    assert (run.xcom("txn.ids_of_first"), run.xcom("txn.ids_of_second")) == ([1], [2])
    assert [run.xcom("txn.ids_of_each", index) for index in range(2)] == [[1], [2]]
    paths = [run.xcom("txn.of_first")["path"], *(run.xcom("txn.each", index)["path"] for index in range(2))]
    assert [Path(path).parent.name for path in paths] == ["txn.of_first", "txn.each.0", "txn.each.1"]
    assert not any(Path(path).exists() for path in paths)  # the commit has deleted them
    assert sorted(row["id"] for row in readers.rows(f"{tables}/by_stage")) == [1, 2]


def test_after_a_conflict_it_stays_until_the_abort_with_the_files_that_collided(run_dag, tables):
    path = f"{tables}/collides"
    deltalake.write_deltalake(path, pa.table({"id": [1, 2]}))
    (removed,) = (action.path for action in DeltaLog.for_table(path).update().add_files())
    run = run_dag("collides")
    assert run.state == "failed"
    looked = json.loads(Path(f"{tables}/looked.json").read_text())
    assert looked["rows"] == [3, 4]
    assert run.xcom("txn.preview")["baseVersion"] == 0
    assert (looked["conflict"]["winningVersion"], looked["conflict"]["winningCommit"]["operation"]) == (1, "DELETE")
    assert {"path": removed, "change": "removed"} in looked["conflict"]["files"]
    assert not Path(run.xcom("txn.preview")["path"]).exists()
    assert [row["id"] for row in readers.rows(path)] == [2]


@pytest.mark.slow
def test_the_page(run_dag, tables):
    """The Dags of docs/previews.md, and what their checks say of rows that they refuse."""
    for dag_id, group, table in (
        ("orders_checked_by_duckdb", "orders", "previewed_orders"),
        ("prices_checked_by_polars", "prices", "previewed_prices"),
    ):
        if dag_id.endswith("duckdb") and not readers.HAS_DUCKDB:
            continue
        run = run_dag(dag_id, datetime(2026, 1, 1, tzinfo=UTC))
        assert run.state == "success"
        assert run.xcom(f"{group}.preview")["numAddedRecords"] == len(readers.rows(f"{tables}/{table}"))
        # The same rows again: each order twice; each price replaced by itself.
        again = run_dag(dag_id, datetime(2026, 1, 2, tzinfo=UTC))
        assert again.state == ("failed" if group == "orders" else "success")
        assert DeltaLog.for_table(f"{tables}/{table}").update().version == (0 if group == "orders" else 1)
    assert again.xcom("prices.preview")["changes"] == {"delete": 2, "insert": 2}


def test_it_is_neither_an_asset_nor_waited_for():
    path = "/lake/orders/staged/2d052b73-525b-4e31-92cb-2e783eadb3b1/_preview/txn.preview/1-0a1b2c3d"
    with pytest.raises(DeltaIllegalArgumentException, match="so it is not an asset"):
        delta_asset(path)
    sensor = DeltaTableVersionSensor(task_id="wait", table=f"{path}/")
    with pytest.raises(DeltaIllegalArgumentException, match="is the preview of a transaction, not a table to wait for"):
        sensor._check_arguments({})


def test_the_group_has_it_only_if_asked():
    with DAG("one", schedule=None), delta_transaction("txn", table="/lake/t") as txn:
        DeltaStageFilesOperator(task_id="stage", path="rows")
        with pytest.raises(DeltaIllegalArgumentException, match="has no preview"):
            _ = txn.preview
    with DAG("other", schedule=None), delta_transaction("other", table="/lake/t", preview="changes", keep_preview=2) as txn:
        stage = DeltaStageFilesOperator(task_id="stage", path="rows")
    preview = txn.preview.operator
    assert (preview.only, txn.commit.keep_preview) == ("changes", 2)
    assert preview.upstream_task_ids == {"other.start", stage.task_id}
    assert preview.task_id in txn.commit.upstream_task_ids & txn.abort.upstream_task_ids
    assert preview.outlets == []


def test_words_are_checked_with_the_dag():
    with pytest.raises(DeltaIllegalArgumentException, match=r"only must be one of table, changes, got 'change'\. Did you mean"):
        DeltaPreviewOperator(task_id="preview", only="change")
