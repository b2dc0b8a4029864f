"""The operators of VACUUM, RESTORE and GENERATE as Airflow's objects."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_delta import exceptions
from airflow_delta.operators.generate import DeltaGenerateOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from support import readers
from support.running_tasks import context

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


@pytest.fixture
def uri(tmp_path) -> str:
    uri = str(tmp_path / "table")
    for value in range(2):
        deltalake.write_deltalake(uri, pa.table({"id": [value]}), mode="append")
    deltalake.DeltaTable(uri).delete("id = 0")
    return uri


def execute(operator):
    return operator.execute(context(operator))


def ids(uri):
    return sorted(row["id"] for row in readers.rows(uri))


def test_restore(uri):
    operator = DeltaRestoreOperator(task_id="restore", table=uri, version="1", user_metadata="oops")
    result = execute(operator)
    assert (result["version"], result["operation"], result["appId"]) == (3, "RESTORE", "a_dag/restore/a_run/-1")
    assert ids(uri) == [0, 1]
    assert execute(operator)["committedBefore"]
    entry = deltalake.DeltaTable(uri).history(1)[0]
    assert (entry["operation"], entry["userMetadata"]) == ("RESTORE", "oops")
    assert {"version", "timestamp"} <= set(operator.template_fields)


def test_vacuum(uri):
    result = execute(DeltaVacuumOperator(task_id="vacuum", table=uri, dry_run=True))
    assert (result["numFiles"], result["dryRun"], result["mode"]) == (0, True, "FULL")
    with pytest.raises(exceptions.VacuumRetentionPeriodTooShortException):
        execute(DeltaVacuumOperator(task_id="vacuum", table=uri, retention_hours="0"))
    result = execute(DeltaVacuumOperator(task_id="vacuum", table=uri, retention_hours="0", retention_check=False, max_paths=0))
    assert (result["numFiles"], result["paths"]) == (1, [])
    history = deltalake.DeltaTable(uri).history(2)
    assert [entry["operation"] for entry in history] == ["VACUUM END", "VACUUM START"]
    assert ids(uri) == [1]
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="retention_hours"):
        execute(DeltaVacuumOperator(task_id="vacuum", table=uri, retention_hours="x"))


def test_generate(uri):
    operator = DeltaGenerateOperator(task_id="manifests", table=uri)
    assert execute(operator) == {
        "table": uri, "version": 2, "location": f"{uri}/_symlink_format_manifest", "numManifests": 1,
    }  # fmt: skip
    [line] = (Path(uri) / "_symlink_format_manifest" / "manifest").read_text().splitlines()
    assert [f"file:{path}" for path in deltalake.DeltaTable(uri).file_uris()] == [line]
    assert execute(operator)["version"] == 2
    with pytest.raises(exceptions.DeltaTableNotFoundException):
        execute(DeltaGenerateOperator(task_id="none", table=f"{uri}-x"))
    assert set(operator.template_fields) == {"table", "delta_conn_id"}
