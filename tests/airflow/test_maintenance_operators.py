"""The operators of VACUUM, RESTORE, FSCK, GENERATE and DROP FEATURE as Airflow's objects."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta import exceptions
from airflow_delta.operators.drop_feature import DeltaDropFeatureOperator, DeltaRemoveColumnMappingOperator
from airflow_delta.operators.generate import DeltaGenerateOperator
from airflow_delta.operators.repair import DeltaRepairTableOperator
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


def repair(uri, **options):
    return DeltaRepairTableOperator(task_id="repair", table=uri, **options)


@pytest.fixture
def broken(uri) -> str:
    """Without the older of the two files of four and one row."""
    deltalake.write_deltalake(uri, pa.table({"id": [2, 3, 4, 5]}), mode="append")
    [lost] = [path for path in map(unquote, deltalake.DeltaTable(uri).file_uris()) if pq.read_metadata(path).num_rows == 1]
    Path(lost).unlink()
    return uri


def test_repair_only_reports_unless_it_is_told_to(broken):
    found = execute(repair(broken))
    assert (found["dryRun"], found["numMissingFiles"], found["numMissingRecords"], found["version"]) == (True, 1, 1, 3)
    assert "1 of its 2 files are gone" in found["refusal"]
    assert execute(repair(broken, max_missing_share="0.6"))["refusal"] is None
    assert deltalake.DeltaTable(broken).version() == 3
    with pytest.raises(exceptions.DeltaFileNotFoundException, match=r"max_missing_share=0\.1"):
        execute(repair(broken, dry_run=False))
    operator = repair(broken, dry_run=False, max_missing_share="0.6", user_metadata="lost")
    result = execute(operator)
    assert (result["dryRun"], result["operation"], result["version"], result["paths"]) == (False, "FSCK", 4, found["paths"])
    assert (result["numMissingRecords"], result["appId"]) == (1, "a_dag/repair/a_run/-1")
    assert ids(broken) == [2, 3, 4, 5]
    again = execute(operator)
    assert (again["committedBefore"], again["paths"], again["numMissingRecords"]) == (True, found["paths"], 1)
    assert execute(repair(broken))["paths"] == []
    entry = deltalake.DeltaTable(broken).history(1)[0]
    assert (entry["operation"], entry["userMetadata"], entry["tags"]["airflow.taskId"]) == ("FSCK", "lost", "repair")


def test_a_repair_of_a_table_that_has_its_files(uri):
    result = execute(repair(uri, dry_run=False))
    assert (result["attempts"], result["version"], result["paths"], result["numMissingRecords"]) == (0, 2, [], 0)
    assert deltalake.DeltaTable(uri).version() == 2


@pytest.mark.parametrize("value", ["False", "", None, 0, "{{ params.dry_run }}"])
def test_a_dry_run_that_is_no_truth_value(uri, value):
    """A text would be true, and nothing false."""
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="dry_run"):
        repair(uri, dry_run=value)


@pytest.mark.parametrize("share", ["{{ params.nothing }}", "{{ params.text }}", "0", "2"])
def test_templates_of_a_repair_that_render_to_nothing(broken, share):
    operator = repair(broken, dry_run=False, max_missing_share=share)
    operator.render_template_fields({"params": {"nothing": None, "text": "many"}})
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="max_missing_share"):
        execute(operator)
    assert deltalake.DeltaTable(broken).version() == 3
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="max_missing_share must be a number, got None"):
        repair(broken, dry_run=False, max_missing_share=None)


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
    assert [f"file:{unquote(path)}" for path in deltalake.DeltaTable(uri).file_uris()] == [line]
    assert execute(operator)["version"] == 2
    with pytest.raises(exceptions.DeltaTableNotFoundException):
        execute(DeltaGenerateOperator(task_id="none", table=f"{uri}-x"))
    assert set(operator.template_fields) == {"table", "delta_conn_id"}


def test_vacuum_of_an_inventory(uri, tmp_path):
    (tmp_path / "table" / "orphan.parquet").write_bytes(b"1")
    row = {"path": f"{uri}/orphan.parquet", "length": 1, "isDir": False, "modificationTime": 1}
    files = str(tmp_path / "files")
    deltalake.write_deltalake(files, pa.Table.from_pylist([row]))
    given = {"table": uri, "retention_hours": 0, "retention_check": False}
    result = execute(DeltaVacuumOperator(task_id="vacuum", inventory=files, **given))
    assert (result["mode"], result["paths"]) == ("INVENTORY", ["orphan.parquet"])
    for nothing in ("", " ", 1):  # as a template may give it
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="inventory"):
            execute(DeltaVacuumOperator(task_id="vacuum", inventory=nothing, **given))
    with pytest.raises(exceptions.DeltaTableNotFoundException):
        execute(DeltaVacuumOperator(task_id="vacuum", inventory=str(tmp_path / "none"), **given))


def test_drop_feature(tmp_path):
    uri = str(tmp_path / "table")
    deltalake.write_deltalake(uri, pa.table({"id": [1]}), configuration={"delta.enableDeletionVectors": "true"})
    operator = DeltaDropFeatureOperator(task_id="drop", table=uri, feature="deletionVectors", user_metadata="for old clients")
    result = execute(operator)
    assert (result["operation"], result["version"]) == ("DROP FEATURE", 5)
    assert execute(operator)["attempts"] == 0
    entry = deltalake.DeltaTable(uri).history(1)[0]
    assert (entry["userMetadata"], entry["operationParameters"]["featureName"]) == ("for old clients", "deletionVectors")
    assert {"table", "feature"} <= set(operator.template_fields)
    for nothing in (None, "", " "):
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="feature"):
            execute(DeltaDropFeatureOperator(task_id="drop", table=uri, feature=nothing))
    assert execute(DeltaRemoveColumnMappingOperator(task_id="names", table=uri))["attempts"] == 0
