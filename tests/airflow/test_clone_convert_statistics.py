"""CONVERT, COMPUTE STATS and CLONE as tasks of a Dag run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.table import Table

pytestmark = pytest.mark.airflow


@pytest.mark.slow
def test_a_run_and_the_same_run_again(run_dag, tables):
    for p, ids in (("x", [1, 2]), ("y", [3])):
        directory = Path(tables) / "converted" / f"p={p}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"id": ids}), directory / "a.parquet")
    run = run_dag("convert_and_clone")
    assert run.state == "success"
    source, clone = Table(Path(tables) / "converted"), Table(Path(tables) / "cloned")
    assert [run.xcom(task)["operation"] for task in ("convert", "statistics", "clone")] == ["CONVERT", "COMPUTE STATS", "CLONE"]
    assert run.xcom("statistics")["numFiles"] == 1
    assert source.rows() == [(1, "x"), (2, "x"), (3, "y")]
    info = clone.info(0)
    assert info["operationParameters"]["sourceVersion"] == 0
    assert info["userMetadata"] == "of a test"
    assert info["tags"]["airflow.taskId"] == "clone"
    assert clone.actions(0)["metaData"][0]["configuration"]["a"] == "c"
    again = run_dag("convert_and_clone")  # the same run, as after clearing it
    assert again.state == "success"
    assert again.xcom("convert")["committedBefore"]
    assert again.xcom("clone")["committedBefore"]
    assert again.xcom("statistics")["attempts"] == 0
    assert (len(source.versions()), len(clone.versions())) == (2, 1)
