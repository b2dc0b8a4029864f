"""VACUUM at the level of files: what it keeps, and that it never touches a transaction that may still be published."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedTableFeatureException,
    TransactionAbortedException,
    VacuumRetentionPeriodTooShortException,
)
from airflow_delta.log import AddFile
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG
from airflow_delta.log.actions.moved_rows import file_of_record
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from support.actions import add, as_json, remove
from support.table import Table
from support.tables import commit_path
from transaction.row_table import RowTable

DAY = 24 * HOUR
NOTHING = {"retention_hours": 0, "retention_check": False}


def later(hours: float = 1):
    return lambda: int(time.time() * 1000 + hours * HOUR)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of three one-file commits; the fourth removes two of them."""
    path = tmp_path / "table"
    for value in range(3):
        write_deltalake(path, rows(value), mode="append")
    DeltaTable(path).delete("id < 2")
    return Table(path)


def rows(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def write(path: Path, *values: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # a name that is no UTF-8 as well
        pq.write_table(rows(*values), file)
    return path


def age(path: Path, milliseconds: int) -> None:
    then = time.time() - milliseconds / 1000
    os.utime(path, (then, then))


def files(table: Table) -> set[str]:
    return {str(p.relative_to(table.path)) for p in table.path.rglob("*") if p.is_file() and "_delta_log" not in p.parts}


def stage(table: Table, handle: TransactionHandle, *values: int, name: str = "rows"):
    return table.stage_rows(handle, values, task_id=name)


def test_deletes_what_no_version_within_the_retention_needs(table):
    before = files(table)
    assert vacuum(table.log()).num_files == 0  # everything is young
    found = vacuum(table.log(), **NOTHING, dry_run=True, clock=later())
    assert found.num_files == 2
    assert found.num_bytes == sum((table.path / path).stat().st_size for path in found.paths)
    assert files(table) == before
    done = vacuum(table.log(), **NOTHING, clock=later())
    assert done.paths == found.paths
    assert files(table) == before - set(done.paths)
    assert table.rows() == [(2,)]
    start, end = (table.info(version) for version in (len(table.versions()) - 2, table.versions()[-1]))
    assert start["operation"] == "VACUUM START"
    assert start["operationParameters"] == {
        "retentionCheckEnabled": False,
        "defaultRetentionMillis": 7 * DAY,
        "specifiedRetentionMillis": 0,
    }
    assert start["operationMetrics"] == {"numFilesToDelete": "2", "sizeOfDataToDelete": str(done.num_bytes)}
    assert end["operationParameters"] == {"status": "COMPLETED"}
    assert end["operationMetrics"] == {"numDeletedFiles": "2", "numVacuumedDirectories": "1"}


def test_tombstones_within_the_retention_keep_their_files(table):
    write(table.path / "orphan.parquet", 9)
    eight_days = later(8 * 24)
    # Old by their own time; but of the removed ones the tombstones are young.
    for path in files(table):
        age(table.path / path, 30 * DAY)
    assert vacuum(table.log()).paths == ("orphan.parquet",)
    assert vacuum(table.log(), dry_run=True, clock=eight_days).num_files == 2
    assert vacuum(table.log(), retention_hours=9 * 24, dry_run=True, clock=eight_days).num_files == 0


def test_hidden_names_and_directories(table):
    kept = ["_hidden/a.parquet", ".b", "_c.parquet", "d/_e", "_symlink_format_manifest/manifest"]
    gone = ["_change_data/cdc.parquet", "_delta_index/x", "deletion_vector_x.bin", "f/g/h.parquet", "100%25 ä#.parquet"]
    for name in kept + gone:
        write(table.path / name, 1)
    (table.path / "empty/inner").mkdir(parents=True)
    elsewhere = table.path.parent / "elsewhere"
    write(elsewhere / "x.parquet", 1)
    (table.path / "link").symlink_to(elsewhere)
    found = vacuum(table.log(), **NOTHING, clock=later())
    assert {path for path in found.paths if not path.startswith("part-")} == {*gone, "empty", "empty/inner"}
    assert found.num_directories == 2
    assert set(kept) <= files(table)
    assert (elsewhere / "x.parquet").exists()
    assert not (table.path / "empty").exists()
    assert (table.path / "f/g").is_dir()  # emptied now, deleted next time, as Delta does
    assert vacuum(table.log(), **NOTHING, clock=later()).num_directories >= 2
    assert not (table.path / "f").exists()


def test_special_characters_and_absolute_paths(tmp_path):
    """Paths in the log are URL-encoded, or absolute: inside of the table they are kept, outside nobody looks."""
    path = tmp_path / "ta ble"
    strange = pa.table({"id": [1, 2, 3], "p": ["a b/c", "50%", "ü=:?#"]})
    write_deltalake(path, strange, partition_by=["p"])
    table = Table(path)
    first = path / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    inside, outside = write(path / "in side.parquet", 4), write(tmp_path / "source/out.parquet", 5)
    for file in (f"{inside.as_uri()}", outside.as_uri()):
        add = {"path": file, "partitionValues": {"p": "x"}, "size": 1, "modificationTime": 1, "dataChange": True}
        lines.append({"add": add})
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = files(table)
    write(path / "p=x/orphan.parquet", 1)
    assert vacuum(table.log(), **NOTHING, clock=later()).paths == ("p=x/orphan.parquet",)
    assert files(table) == before
    assert outside.exists()


def test_the_table_has_two_names(table, tmp_path):
    """A symbolic link: what the log names absolutely by the one is found by the other."""
    link = tmp_path / "link"
    link.symlink_to(table.path)
    (table.path / "inner").symlink_to(table.path / "real")
    paths = [write(table.path / name, 1) for name in ("a.parquet", "b.parquet", "real/c.parquet")]
    names = [f"file:{link}/a.parquet", f"FILE://{paths[1]}", f"file://localhost{table.path}/inner/c.parquet"]
    table.put_foreign(4, *(as_json(add(name)) for name in names))
    vacuum(table.log(), **NOTHING, clock=later())
    assert all(path.exists() for path in paths)
    orphan = write(table.path / "d.parquet", 1)
    vacuum(Table(link).log(), **NOTHING, clock=later())
    assert all(path.exists() for path in paths)
    assert not orphan.exists()


def test_names_that_are_no_utf8_or_begin_with_dots(tmp_path):
    path = tmp_path / "table"
    write_deltalake(path, rows(1), mode="append")
    first = path / "_delta_log" / f"{0:020}.json"
    field = '{\\"name\\":\\"..p\\",\\"type\\":\\"string\\",\\"nullable\\":true,\\"metadata\\":{}}'
    text = first.read_text().replace('"partitionColumns":[]', '"partitionColumns":["..p"]')
    first.write_text(text.replace('\\"fields\\":[', f'\\"fields\\":[{field},'))
    kept = [write(path / name, 1) for name in ("b\udcff.parquet", "..p=1/x.parquet", "50%25.parquet")]
    Table(path).put_foreign(1, as_json(add("b%FF.parquet")), as_json(add("..p=1/x.parquet")), as_json(add("50%25.parquet")))
    vacuum(Table(path).log(), **NOTHING, clock=later())
    assert all(file.exists() for file in kept)


def test_keys_on_object_stores():
    from airflow_delta.log.storage.factory import store_for
    from airflow_delta.log.storage.table_paths import keys_to_keep, relative_key

    store = store_for("s3://bucket/a/table")
    for path in ("x y", "./x y", "s3a://bucket/a/table/x y", "S3N://bucket/a/table/x y", "/a/table/x y"):
        assert relative_key(store, path) == "x y", path
    for path in ("../x", "s3://other/a/table/x", "s3://bucket/a/tables/x", "/a/tables/x", "file:/a/table/x", "s3://bucket/x"):
        assert relative_key(store, path) is None, path
    assert "d//x%20y" in keys_to_keep(store, "d//x%20y")
    assert "d//x y" in keys_to_keep(store, "d//x%20y")
    azure = store_for("az://container/a/table")
    for path in ("abfss://container@account.dfs.core.windows.net", "https://account.blob.core.windows.net/container"):
        assert "x" in keys_to_keep(azure, f"{path}/a/table/x")


@pytest.mark.parametrize("root", ["s3://bucket/a/table", "abfss://c@account.dfs.core.windows.net/a/table", "hdfs://node/a/table"])
def test_values_in_absolute_paths_are_no_credentials(root):
    from airflow_delta.log.storage.factory import store_for
    from airflow_delta.log.storage.table_paths import keys_to_keep, relative_key

    store = store_for(root)
    for key in ("p=?sig=x/f", "p=?X-Amz-Signature=x/f", "p=user:password@host/f", "p=a#b/f"):
        for place in (root, "/a/table"):
            assert relative_key(store, f"{place}/{key}") == key
            assert key in keys_to_keep(store, quote(f"{place}/{key}", safe="/:@"))


def test_another_table_in_a_directory_of_this_one(table):
    write_deltalake(table.path / "d/clone", rows(1), mode="append")
    DeltaTable(table.path / "d/clone").delete()
    orphan = write(table.path / "d/x.parquet", 1)
    before = files(Table(table.path / "d/clone"))
    found = vacuum(table.log(), **NOTHING, clock=later(), dry_run=True)
    assert not any(path.startswith("d/clone") for path in found.paths)
    vacuum(table.log(), **NOTHING, clock=later())
    assert files(Table(table.path / "d/clone")) == before
    assert not orphan.exists()


def test_a_retention_above_the_property(table):
    """Checkpoints leave out tombstones that are older than the property; the commits still have them."""
    removed = set(vacuum(table.log(), **NOTHING, clock=later(), dry_run=True).paths)
    assert len(removed) == 2
    for path in files(table):
        age(table.path / path, 60 * DAY)
    last = table.path / "_delta_log" / f"{3:020}.json"
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    then = int(time.time() * 1000) - 10 * DAY
    for line in lines:
        line.get("remove", {}).update(deletionTimestamp=then)
    last.write_text("".join(json.dumps(line) + "\n" for line in lines))
    age(last, 10 * DAY)
    for version in range(3):
        age(table.path / "_delta_log" / f"{version:020}.json", 20 * DAY)
    DeltaTable(table.path).create_checkpoint()
    vacuum(table.log(), retention_hours=15 * 24)
    assert removed <= files(table)
    vacuum(table.log())
    assert not removed & files(table)


def test_hidden_partition_directories_are_vacuumed(tmp_path):
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"_p": [1, 2], "id": [1, 2]}), partition_by=["_p"])
    write(path / "_p=1/orphan.parquet", 1)
    assert vacuum(Table(path).log(), **NOTHING, clock=later()).paths == ("_p=1/orphan.parquet",)


# -- transactions ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["staged", "published"])
def test_never_a_file_of_a_live_transaction(table, between):
    handle = table.begin()
    staged = stage(table, handle, 10, 11)
    if between == "published":  # another transaction, from begin to commit, and VACUUM after it
        other = table.begin()
        table.publish(other, stage(table, other, 20))
    done = vacuum(table.log(), **NOTHING, clock=later())
    assert done.num_live_transactions == 1
    assert not any(handle.transaction_id in path for path in done.paths)
    table.publish(handle, staged)
    assert {(10,), (11,), (2,)} <= set(table.rows())


def test_scans_and_empty_stages_of_a_live_transaction_stay(table):
    handle = table.begin()
    scan = Path(handle.staging_path) / "_scans/1/request.json"
    scan.parent.mkdir(parents=True)
    scan.write_text("{}")
    empty = table.path / "staged/another/stage/1-0"
    empty.mkdir(parents=True)
    vacuum(table.log(), **NOTHING, clock=later())
    assert scan.exists()
    assert empty.is_dir()


def test_leftovers_of_a_committed_transaction_go(table):
    handle = table.begin()
    staged = stage(table, handle, 10)
    retried = write(Path(handle.staging_path) / "rows/first-try/part-0.parquet", 10)
    hidden = Path(handle.staging_path) / "_scans/1/x.json"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("{}")
    table.publish(handle, staged)
    assert vacuum(table.log()).num_files == 0  # young
    assert retried.exists()
    vacuum(table.log(), **NOTHING, clock=later())
    assert not retried.exists()
    assert not hidden.exists()
    assert set(table.rows()) == {(2,), (10,)}


def test_a_committed_transaction_whose_files_all_left_the_table_is_known_by_its_id(table):
    handle = table.begin()
    table.publish(handle, stage(table, handle, 10))
    DeltaTable(table.path).delete()
    done = vacuum(table.log(), **NOTHING, clock=later())
    assert done.num_live_transactions == 0
    assert not (table.path / "staged" / handle.transaction_id).exists()
    assert table.rows() == []


def test_an_aborted_transaction_goes_but_for_its_marker(table):
    handle = table.begin()
    staged = stage(table, handle, 10)
    marker = Path(handle.staging_path) / "_commit-alive"
    marker.write_text("{}")
    assert table.abort(handle).outcome == "marked"
    assert vacuum(table.log(), **NOTHING, clock=later()).num_live_transactions == 1  # its commit may be alive
    marker.unlink()
    vacuum(table.log(), **NOTHING, clock=later())
    left = {path.name for path in Path(handle.staging_path).rglob("*")}
    assert "_aborted" in left
    assert not {name for name in left if name.endswith(".parquet")}
    with pytest.raises(TransactionAbortedException):
        table.publish(handle, staged)


def test_a_transaction_that_nobody_will_publish_goes_after_the_timeout(table):
    handle = table.begin()
    stage(table, handle, 10)
    young = write(Path(handle.staging_path) / "other/part-0.parquet", 1)
    six_days, eight_days = later(6 * 24), later(8 * 24)
    assert vacuum(table.log(), **NOTHING, clock=six_days).num_live_transactions == 1
    assert vacuum(table.log(), **NOTHING, transaction_timeout_hours=240, clock=eight_days).num_live_transactions == 1
    age(young, -3 * DAY)  # still being written
    assert vacuum(table.log(), **NOTHING, clock=eight_days).num_live_transactions == 1
    age(young, 0)
    assert vacuum(table.log(), **NOTHING, clock=eight_days).num_live_transactions == 0
    assert {path.name for path in Path(handle.staging_path).iterdir()} == {
        "_aborted",
        "_commit-0",
    }  # for a commit that comes late
    vacuum(table.log(), **NOTHING, clock=later(16 * 24))
    assert not Path(handle.staging_path).exists()


def test_an_abandoned_transaction_is_named_once(table, caplog):
    handle = table.begin()
    stage(table, handle, 10)
    assert vacuum(table.log(), **NOTHING, clock=later(6 * 24)).abandoned == ()
    tried = vacuum(table.log(), **NOTHING, dry_run=True, clock=later(8 * 24))
    done = vacuum(table.log(), **NOTHING, clock=later(8 * 24))
    (abandoned,) = done.abandoned
    assert tried.abandoned == done.abandoned
    assert (abandoned.transaction_id, abandoned.stages, abandoned.num_files) == (handle.transaction_id, ("rows",), 1)
    assert done.to_dict()["abandonedTransactions"] == [abandoned.to_dict()]
    assert any(f"gave up the abandoned transaction {handle.transaction_id} (1 files" in text for text in caplog.messages)
    assert vacuum(table.log(), **NOTHING, clock=later(9 * 24)).abandoned == ()


def test_transactions_that_ended_are_not_abandoned(table):
    committed, aborted = table.begin(), table.begin()
    table.publish(committed, stage(table, committed, 10))
    DeltaTable(table.path).delete()
    stage(table, aborted, 11)
    (Path(aborted.staging_path) / "_commit-alive").write_text("{}")  # its files stay
    assert table.abort(aborted).outcome == "marked"
    done = vacuum(table.log(), **NOTHING, clock=later(8 * 24))
    assert not (table.path / "staged" / committed.transaction_id).exists()
    assert done.abandoned == ()


def test_who_cannot_be_looked_up_is_not_called_abandoned(table):
    """The log does not reach back to the staged files: they may be leftovers of a commit."""
    handle = table.begin()
    age(write(Path(handle.staging_path) / "rows/part-0.parquet", 10), 20 * DAY)
    log = table.log()
    log.checkpoint(log.update())
    commit_path(table.path, 0).unlink()
    done = vacuum(table.log(), **NOTHING, clock=later(8 * 24))
    assert not Path(handle.staging_path, "rows").exists()
    assert done.abandoned == ()


def test_change_data_that_was_staged_long_before_its_commit(tmp_path):
    """A transaction may wait for days; readers of its changes have the retention from its commit on."""
    path = tmp_path / "table"
    write_deltalake(path, rows(1), mode="append", configuration={"delta.enableChangeDataFeed": "true"})
    table = Table(path)
    change = write(path / "staged/0c7d7a4e-5d4b-4a3c-9b3e-111111111111/rows/1-0/cdc.parquet", 1)
    data = write(change.parent / "data.parquet", 1)
    age(change, 10 * DAY)
    age(data, 10 * DAY)
    name = str(change.relative_to(path))
    info = {"timestamp": int(time.time() * 1000), "operation": "UPDATE", "txnId": "0c7d7a4e-5d4b-4a3c-9b3e-111111111111"}
    cdc = {"path": name, "partitionValues": {}, "size": change.stat().st_size, "dataChange": False}
    Table(path).put_foreign(1, {"commitInfo": info}, as_json(add(str(data.relative_to(path)))), {"cdc": cdc})
    vacuum(table.log())
    assert change.exists()
    vacuum(table.log(), clock=later(8 * 24))
    assert not change.exists()
    assert data.exists()


def test_committed_between_listing_and_snapshot(table, monkeypatch):
    """The files are listed first: a transaction that commits after that is in the version whose files are kept."""
    from airflow_delta.table.operations.vacuum import run as module

    handle = table.begin()
    staged = stage(table, handle, 10)
    listed = module.list_table

    def commit_then(*args, **options):
        found = listed(*args, **options)
        table.publish(handle, staged)
        return found

    monkeypatch.setattr(module, "list_table", commit_then)
    vacuum(table.log(), **NOTHING, clock=later())
    assert (10,) in table.rows()


def test_restored_before_the_first_delete(table, monkeypatch):
    """RESTORE brings files back that were found to be too old; one that comes after VACUUM START finds its version taken."""
    from airflow_delta.table.operations.vacuum import run as module

    found = module._find

    def then_restored(*args, **options):
        result = found(*args, **options)
        restore(table.log(), version=1, transaction_key="restore", attempt="1-0")
        return result

    monkeypatch.setattr(module, "_find", then_restored)
    assert vacuum(table.log(), **NOTHING, clock=later()).num_files == 0
    assert table.rows() == [(0,), (1,)]


# -- lite ------------------------------------------------------------------------------------------------------------------------


def test_lite_deletes_what_the_log_removed(table):
    write(table.path / "orphan.parquet", 1)
    handle = table.begin()
    staged = stage(table, handle, 10)
    assert vacuum(table.log(), lite=True).num_files == 0
    done = vacuum(table.log(), **NOTHING, lite=True, clock=later())
    assert done.num_files == 2
    assert done.mode == "LITE"
    assert (table.path / "orphan.parquet").exists()
    info = json.loads((table.path / "_delta_log/_last_vacuum_info").read_text())
    assert info == {"latestCommitVersionOutsideOfRetentionWindow": done.version}
    assert vacuum(table.log(), **NOTHING, lite=True, clock=later()).num_files == 0
    table.publish(handle, staged)
    DeltaTable(table.path).delete()
    assert vacuum(table.log(), **NOTHING, lite=True, clock=later()).num_files == 2
    assert table.rows() == []


@pytest.mark.parametrize("lite", [True, False])
def test_records_of_moved_rows_go_with_the_retention(tmp_path, lite):
    table = RowTable(tmp_path / "table")
    for number in range(2):
        table.append({"id": number})
    table.compact(recorded=True)
    [record] = table.root.rglob("moved-rows-*.json")
    vacuum(table.log(), lite=lite)
    assert record.exists()
    vacuum(table.log(), **NOTHING, lite=lite, clock=later(200))
    assert not record.exists()
    assert len(table.rows()) == 2


def test_a_record_that_is_none_of_ours_is_never_deleted():
    def named(path: str) -> AddFile:
        tag = {"path": path, "offset": 0, "sizeInBytes": 1, "crc32": 1}
        return AddFile(
            path="a",
            partition_values={},
            size=1,
            modification_time=1,
            data_change=False,
            tags={MOVED_ROWS_TAG: json.dumps(tag)},
        )

    assert file_of_record(named("staged/x/optimize/1-a/moved-rows-1.json")) == "staged/x/optimize/1-a/moved-rows-1.json"
    for path in ("a.parquet", "staged/x/a.parquet", "moved-rows-1", "staged/../moved-rows-1", "_delta_log/moved-rows-1", ""):
        assert file_of_record(named(path)) is None


def test_lite_needs_the_log_since_the_last_vacuum(table):
    DeltaTable(table.path).create_checkpoint()
    (table.path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(DeltaIllegalStateException, match="DELTA_CANNOT_VACUUM_LITE"):
        vacuum(table.log(), **NOTHING, lite=True, clock=later())
    vacuum(table.log(), **NOTHING, clock=later())
    assert vacuum(table.log(), **NOTHING, lite=True, clock=later()).num_files == 0


def test_lite_follows_no_remove_out_of_the_table(table, tmp_path):
    """Whatever a commit says that it removed: nothing goes that a full VACUUM would not find."""
    path = table.path
    for other in (tmp_path / "elsewhere", path / "nested", path / "d/nested", path / "staged/t/nested"):
        write_deltalake(other, rows(1))
        write(other / "x.parquet", 1)
        write(other / "_delta_log/x.parquet", 1)
    (path / "link").symlink_to(tmp_path / "elsewhere")
    (path / "d/link").symlink_to(tmp_path / "elsewhere")
    live = table.begin()
    staged = stage(table, live, 10)
    [file] = [action["add"]["path"] for action in staged.actions]
    hidden = ["_hidden/x.parquet", "d/_hidden/x.parquet", ".x", "_x.parquet", "_delta_log/x.parquet"]
    for name in hidden:
        write(path / name, 1)
    nested = [f"{d}/{f}" for d in ("nested", "d/nested", "staged/t/nested") for f in ("x.parquet", "_delta_log/x.parquet")]
    away = ["link/x.parquet", "d/link/x.parquet", "link/_delta_log/00000000000000000000.json", "link", "d/link"]
    outside = ["../elsewhere/x.parquet", "d/../../elsewhere/x.parquet", "%2e%2e/elsewhere/x.parquet"]
    outside += [f"{tmp_path}/elsewhere/x.parquet", f"file://{tmp_path}/elsewhere/x.parquet", "d/../link/x.parquet"]
    log = [f"_delta_log/{0:020}.json", f"nested/_delta_log/{0:020}.json", f"d/../_delta_log/{0:020}.json"]
    gone = ["d/gone.parquet", f"{path}/gone too.parquet", "_change_data/x.parquet"]
    for name in ("d/gone.parquet", "gone too.parquet", "_change_data/x.parquet", "young.parquet"):
        write(path / name, 1)
    age(path / "young.parquet", -2 * HOUR)
    directories = ["d", "nested", f"staged/{live.transaction_id}"]
    names = [*hidden, *nested, *away, *outside, *log, *gone, file, "young.parquet", *directories]
    vector = {"storageType": "p", "pathOrInlineDv": f"file://{tmp_path}/elsewhere/x.parquet", "offset": 1, "sizeInBytes": 1}
    last = as_json(remove("gone.parquet"))
    last["remove"]["deletionVector"] = {**vector, "cardinality": 1}
    Table(path).put_foreign(4, *(as_json(remove(name)) for name in names), last)
    before = {str(p) for p in tmp_path.rglob("*")}
    full = set(vacuum(table.log(), **NOTHING, clock=later(), dry_run=True).paths)
    done = vacuum(table.log(), **NOTHING, lite=True, clock=later())
    assert {path for path in done.paths if not path.startswith("part-")} == {
        "d/gone.parquet",
        "gone too.parquet",
        "_change_data/x.parquet",
    }
    assert set(done.paths) <= full
    assert before - {str(p) for p in tmp_path.rglob("*")} == {str(path / name) for name in done.paths}
    table.publish(live, staged)
    assert set(table.rows()) == {(2,), (10,)}


# -- refusals --------------------------------------------------------------------------------------------------------------------


def test_refusals(table, tmp_path):
    with pytest.raises(VacuumRetentionPeriodTooShortException, match=r"DELTA_VACUUM_RETENTION_PERIOD_TOO_SHORT.*168 hours"):
        vacuum(table.log(), retention_hours=167)
    vacuum(table.log(), retention_hours=168, logging_enabled=False)
    with pytest.raises(DeltaIllegalArgumentException, match="NEGATIVE"):
        vacuum(table.log(), retention_hours=-1, retention_check=False)
    write(tmp_path / "no table/x.parquet", 1)
    with pytest.raises(DeltaTableNotFoundException):
        vacuum(Table(tmp_path / "no table").log(), **NOTHING, clock=later())
    assert (tmp_path / "no table/x.parquet").exists()
    assert len(table.versions()) == 4


def test_unknown_features_are_refused(table):
    before = files(table)
    line = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}}
    (table.path / "_delta_log" / f"{4:020}.json").write_text(json.dumps(line) + "\n")
    with pytest.raises(DeltaUnsupportedTableFeatureException):
        vacuum(table.log(), **NOTHING, clock=later())
    assert files(table) == before


def test_a_failed_delete_is_recorded(table, monkeypatch):
    log = table.log()

    def fail(_paths):
        raise OSError("no")

    monkeypatch.setattr(log.store, "delete", fail)
    with pytest.raises(OSError, match="no"):
        vacuum(log, **NOTHING, clock=later())
    assert table.info(table.versions()[-1])["operationParameters"] == {"status": "FAILED"}


# -- object stores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_on_s3():
    """Keys in every spelling, another table in the prefix, a live transaction, markers of directories."""
    import boto3

    from airflow_delta.log import DeltaLog
    from stores.locked_moto import s3_server

    with s3_server() as endpoint:
        secrets = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=endpoint, **secrets)
        client.create_bucket(Bucket="lake")
        options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "aws_allow_http": "true"}
        log = DeltaLog.for_table("s3://lake/a b/t", {**options, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"})
        schema = json.dumps({"type": "struct", "fields": [{"name": "_p", "type": "string", "nullable": True, "metadata": {}}]})
        metadata = {"id": "1", "format": {"provider": "parquet", "options": {}}, "schemaString": schema, "configuration": {}}
        lines = [
            {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "WRITE"}},
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": {**metadata, "partitionColumns": ["_p"]}},
            as_json(add("_p=50%2525/x%20y+%C3%BC.parquet")),
            as_json(add("s3a://lake/a%20b/t/absolute.parquet")),
            as_json(add("/a%20b/t/without%23scheme.parquet")),
            as_json(add("s3://other/a%20b/elsewhere.parquet")),
        ]
        kept = {
            "_p=50%25/x y+ü.parquet",
            "absolute.parquet",
            "without#scheme.parquet",
            "clone/_delta_log/00000000000000000000.json",
            "clone/part.parquet",
            "staged/11111111-1111-1111-1111-111111111111/_scans/1/x",
            "_hidden/x",
        }
        gone = {"orphan 50%25.parquet", "_p=1/orphan.parquet", "_change_data/x", "elsewhere.parquet"}
        for key in kept | gone:
            client.put_object(Bucket="lake", Key=f"a b/t/{key}", Body=b"1")
        log.store.put_if_absent(f"_delta_log/{0:020}.json", "".join(json.dumps(line) + "\n" for line in lines).encode())
        done = vacuum(log, **NOTHING, clock=later())
        assert set(done.paths) == gone
        assert done.num_live_transactions == 1
        left = {status.path for status in log.store.list_recursive("")}
        assert {path for path in left if not path.startswith("_delta_log/")} == kept


# -- what is committed while files are deleted -----------------------------------------------------------------------------------


def before_first_delete(log, monkeypatch, action) -> list:
    """Have something happen after VACUUM has decided what to delete, right before it deletes the first file."""
    delete, done = log.store.delete, []

    def delete_then(paths):
        if not done:
            done.append(None)
            done[0] = action()
        delete(paths)

    monkeypatch.setattr(log.store, "delete", delete_then)
    return done


def test_a_commit_whose_files_are_being_deleted_is_refused(table, monkeypatch):
    handle = table.begin()
    staged = stage(table, handle, 10)
    log = table.log()

    def publish():
        with pytest.raises(TransactionAbortedException, match="VACUUM gave it up"):
            table.publish(handle, staged)
        return True

    done = before_first_delete(log, monkeypatch, publish)
    vacuum(log, clock=later(30 * 24))
    assert done == [True]
    assert table.rows() == [(2,)]
    left = {path.name for path in Path(handle.staging_path).rglob("*") if path.is_file()}
    assert left == {"_aborted", "_commit-0"}
    vacuum(table.log(), clock=later(60 * 24))
    assert not Path(handle.staging_path).exists()


@pytest.mark.parametrize("lost", ["nothing", "listing"])
def test_a_commit_that_has_begun_keeps_its_files_from_the_deletion(table, monkeypatch, lost):
    """Its transaction has been idle for long, and VACUUM decides before the commit begins, or sees no marker of it."""
    import airflow_delta.table.commit.publish as publishing
    from airflow_delta.table.operations.vacuum import run as module

    handle = table.begin()
    staged = stage(table, handle, 10)
    age(Path(handle.staging_path) / "rows/part-0.parquet", 30 * DAY)
    real, results = publishing.check_staged_files, []

    def vacuum_in_between(*arguments):
        real(*arguments)
        if lost == "listing":
            listed = module.list_table

            def without_markers(*args, **options):
                found = listed(*args, **options)
                found.files = [status for status in found.files if not status.name.startswith("_commit")]
                return found

            monkeypatch.setattr(module, "list_table", without_markers)
        results.append(vacuum(table.log(), retention_hours=0, retention_check=False, transaction_timeout_hours=0))

    monkeypatch.setattr(publishing, "check_staged_files", vacuum_in_between)
    table.publish(handle, staged)
    assert len(results) == 1
    assert set(table.rows()) == {(2,), (10,)}


@pytest.mark.parametrize("lite", [True, False])
def test_files_that_come_back_between_two_batches_stay(table, monkeypatch, lite):
    from airflow_delta.table.operations.vacuum import delete as module

    monkeypatch.setattr(module, "_BATCH", 1)
    log = table.log()
    delete, removed = log.store.delete, [line["path"] for line in table.actions(3)["remove"]]

    def delete_then_restore(paths):
        delete(paths)
        if not kept:
            kept.extend(path for path in removed if path not in paths)
            table.put_foreign(len(table.versions()), *(as_json(add(name)) for name in kept))

    kept: list[str] = []
    monkeypatch.setattr(log.store, "delete", delete_then_restore)
    done = vacuum(log, **NOTHING, lite=lite, clock=later(), logging_enabled=False)
    assert len(kept) == 1
    assert (done.num_files, (table.path / kept[0]).exists()) == (1, True)
