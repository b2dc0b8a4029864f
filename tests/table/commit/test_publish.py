"""What a commit refuses, recognises and leaves behind. Files come from PyArrow, as any job may write them; no Spark."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.payloads import ManifestRef, StagedWrite
from airflow_delta.exceptions import (
    CommitCancelledException,
    CommitStateUnknownException,
    ConcurrentAppendException,
    ConcurrentTransactionException,
    ContractVersionException,
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    ForeignTransactionException,
    InvariantViolationException,
    LocationNotWritableException,
    ManifestException,
    MetadataChangedException,
    MissingStageException,
    NonEmptyLocationException,
    PathOutsideTableException,
    ProtocolChangedException,
    ReplaceWhereMismatchException,
    SchemaMismatchException,
    StageConflictException,
    StagedFileException,
    StagingException,
    TransactionAbortedException,
    TransactionAlreadyCommittedException,
    VersionNotFoundException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, write_deletion_vectors
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.table.arrow.table_rows import table_rows
from airflow_delta.table.commit import commit as commit_stages
from airflow_delta.table.commit import publish as publishing
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.write.job_runs import put_request
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.transaction import CommitPolicy, events
from support.actions import add, as_json, column, protocol, schema
from support.table import Table, put_rows
from support.tables import write_commit


def job(handle, name: str = "out", part: str = "a", **columns: list) -> str:
    """Any job that writes Parquet under the staging path."""
    put_rows(handle, pa.table(columns) if columns else [1, 2], name, part=f"p={part}")
    return name


def staged(table: Table, handle, name: str = "out", *, part: str = "a", task_id: str | None = None, **options) -> StagedWrite:
    return table.stage_rows(handle, [1, 2], name, part=f"p={part}", task_id=task_id or name, **options)


@pytest.fixture
def filled(table):
    handle = table.begin(partition_by=["p"])
    table.publish(handle, staged(table, handle))
    return table


# -- files that another job wrote -----------------------------------------------------------------------------------------------


def test_parquet_of_any_job_becomes_part_of_the_table(filled):
    assert filled.rows() == [(1, "a"), (2, "a")]
    [add] = filled.actions(0)["add"]
    assert json.loads(add["stats"]) == {"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}}
    assert add["path"].startswith("staged/")
    assert add["size"] == (filled.path / add["path"]).stat().st_size


def test_hidden_files_and_files_without_rows_are_left_alone(filled):
    handle = filled.begin()
    name = job(handle)
    job(handle, id=pa.array([], pa.int64()))
    directory = Path(handle.staging_path) / name / "p=a"
    for hidden in ("_SUCCESS", ".0.parquet.crc", "_committed_1.parquet"):
        (directory / hidden).write_bytes(b"x")
    assert filled.stage_files(handle, path=name).num_files == 1


@pytest.mark.parametrize(
    ("prepare", "error", "says"),
    [
        (lambda d: (d / "p=a" / "bad.parquet").write_bytes(b"no parquet"), StagedFileException, "bad.parquet"),
        (
            lambda d: (d / "_temporary").mkdir() or (d / "_temporary" / "x.parquet").write_bytes(b""),
            StagedFileException,
            "still running or died",
        ),
        (lambda d: pq.write_table(pa.table({"id": [1]}), d / "flat.parquet"), StagedFileException, "partition column p"),
        (lambda d: pq.write_table(pa.table({"id": ["x"]}), d / "p=a" / "x.parquet"), SchemaMismatchException, "column id"),
        (lambda d: pq.write_table(pa.table({"id": [1], "n": [1]}), d / "p=a" / "n.parquet"), SchemaMismatchException, "n"),
    ],
    ids=["corrupt", "unfinished", "unpartitioned", "disagreeing", "new column"],
)
def test_files_that_cannot_be_part_of_the_table_are_refused(filled, prepare, error, says):
    handle = filled.begin()
    name = job(handle)
    prepare(Path(handle.staging_path) / name)
    with pytest.raises(error, match=says):
        filled.stage_files(handle, path=name)


def test_files_of_a_narrower_type_are_refused(filled):
    handle = filled.begin()
    name = job(handle, id=pa.array([1], pa.int32()))
    with pytest.raises(SchemaMismatchException, match="column id: expected bigint, got int"):
        filled.stage_files(handle, path=name)


@pytest.mark.parametrize("path", ["/etc", "s3://other/place", "../../elsewhere", "file:///etc"])
def test_files_outside_the_staging_path_are_refused(filled, path):
    with pytest.raises(StagingException, match="staging path"):
        filled.stage_files(filled.begin(), path=path)


def test_files_in_another_partition_than_replace_where_selects_are_refused(filled):
    handle = filled.begin()
    with pytest.raises(ReplaceWhereMismatchException, match=r"\[p=a\]"):
        staged(filled, handle, mode="overwrite", replace_where="p = 'b'")


def test_nulls_of_finished_files_in_a_not_null_column_are_refused(table):
    handle = table.begin(partition_by=["p"], schema=schema(column("id", "long", False), column("p", "string")))
    name = job(handle, id=pa.array([1, None], pa.int64()))
    with pytest.raises(InvariantViolationException, match="NOT NULL column id"):
        table.stage_files(handle, path=name)


# -- payloads that are not what they should be ----------------------------------------------------------------------------------


def test_a_not_null_struct_needs_the_word_of_the_job(table):
    inner = {"type": "struct", "fields": [column("x", "long")]}
    table.publish(table.begin(schema=schema(column("s", inner, False), column("p", "string")), partition_by=["p"]))
    handle = table.begin()
    name = job(handle, s=pa.array([{"x": 1}, {"x": None}], pa.struct([("x", pa.int64())])))
    with pytest.raises(DeltaIllegalArgumentException, match=r"NOT NULL column s.*rows_checked"):
        table.stage_files(handle, path=name)
    table.publish(handle, table.stage_files(handle, path=name, rows_checked=True))


def test_finished_files_with_another_schema_need_not_keep_to_the_lengths_of_the_old_one(table):
    limited = {**column("t", "string"), "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}}
    table.publish(table.begin(schema=schema(limited, column("p", "string")), partition_by=["p"]))
    handle = table.begin()
    name = job(handle, t=["long text"])
    with pytest.raises(DeltaIllegalArgumentException, match="length of t"):
        table.stage_files(handle, path=name)
    table.publish(handle, table.stage_files(handle, path=name, mode="overwrite", overwrite_schema=True))


def test_a_staged_write_of_another_execution_of_start_is_refused(filled):
    old = filled.begin()
    write = staged(filled, old)
    with pytest.raises(ForeignTransactionException, match=old.transaction_id):
        filled.publish(filled.begin(), write)


def test_another_contract_number_is_refused(filled):
    handle = filled.begin()
    payload = staged(filled, handle).to_dict() | {"contract": 99}
    with pytest.raises(ContractVersionException, match="99"):
        filled.publish(handle, payload)


@pytest.mark.parametrize("expected", [{("out", -1): "success", ("out", 0): None}, {("out", -1): None, ("other", -1): "failed"}])
def test_a_stage_that_did_not_report_is_an_error_never_a_partial_commit(filled, expected):
    handle = filled.begin()
    with pytest.raises(MissingStageException, match=r"1 of 2 stages .* (out\[0\] \(not run\)|other \(failed\))"):
        filled.publish(handle, staged(filled, handle), expected=expected)
    assert len(filled.versions()) == 1


def test_a_report_that_comes_twice_is_refused(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    with pytest.raises(StageConflictException, match="more than once"):
        filled.publish(handle, write, write.to_dict())


def test_two_stages_that_list_one_file_are_refused(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    with pytest.raises(StageConflictException, match="is staged by two stages"):
        filled.publish(handle, write, replace(write, task_id="second", stage="second"))


@pytest.mark.parametrize(
    ("damage", "says"), [(Path.unlink, "is gone"), (lambda path: path.write_bytes(b"short"), "5 bytes")], ids=["gone", "size"]
)
def test_a_listed_file_that_is_gone_or_has_another_size_is_refused(filled, damage, says):
    handle = filled.begin()
    write = staged(filled, handle)
    damage(filled.path / write.actions[0]["add"]["path"])
    with pytest.raises(StagedFileException, match=says):
        filled.publish(handle, write)
    assert len(filled.versions()) == 1


def test_a_listed_file_outside_the_staging_path_is_refused(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    stolen = filled.actions(0)["add"][0]
    for path in (stolen["path"], f"d/e/{write.stage}"):
        with pytest.raises(StagingException, match="not under its staging path"):
            filled.publish(handle, replace(write, actions=({"add": {**stolen, "path": path}},)))


@pytest.mark.parametrize("what", ["file", "directory", "path"])
def test_links_are_not_published(filled, tmp_path, what):
    """Neither a link to a file nor one to a directory; and none that takes the place of a file later."""
    outside = tmp_path / "outside"
    outside.mkdir()
    pq.write_table(pa.table({"id": pa.array([99], pa.int64())}), outside / "x.parquet")
    handle = filled.begin()
    path = job(handle)
    directory = filled.path / f"staged/{handle.transaction_id}"
    if what == "file":
        (directory / path / "p=a/y.parquet").symlink_to(outside / "x.parquet")
    elif what == "directory":
        (directory / path / "p=x").symlink_to(outside)
    else:
        path = "link"
        (directory / "link").symlink_to(outside)
    with pytest.raises((StagedFileException, PathOutsideTableException), match="link"):
        filled.stage_files(handle, path=path)


def test_a_link_in_the_place_of_a_staged_file_is_not_published(filled, tmp_path):
    handle = filled.begin()
    write = staged(filled, handle)
    file = filled.path / write.actions[0]["add"]["path"]
    file.rename(tmp_path / "elsewhere.parquet")
    file.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(StagedFileException, match="is a symbolic link"):
        filled.publish(handle, write)
    file.unlink()
    file.parent.rename(tmp_path / "directory")
    (tmp_path / "elsewhere.parquet").rename(tmp_path / "directory" / file.name)
    file.parent.symlink_to(tmp_path / "directory")
    with pytest.raises(PathOutsideTableException, match="symbolic link"):
        filled.publish(handle, write)
    assert len(filled.versions()) == 1


# -- where a table is created --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["raw/1.json", "raw/2.json", "raw/3.json", "raw/4.json"], r"\(raw/[^,]*, [^,]*, [^,]*, \.\.\.\)"),
        (["raw/1.json", "raw/2.json", "raw/3.json"], r"\(raw/[^,]*, [^,]*, raw/\d.json\)"),
        (["part-0.parquet", "_SUCCESS"], "part-0.parquet.*Choose another location.*DeltaConvertOperator"),
        ([".p=1/x.csv"], ".p=1/x.csv"),
        (["staged/raw.json"], "staged/raw.json"),
        (["staged/2024/raw.json"], "staged/2024/"),
        (["other/_delta_log/00000000000000000000.json", "other/x.parquet"], "other/x.parquet"),
    ],
)
def test_no_table_is_made_of_a_folder_that_holds_other_files(table, names, says):
    for name in names:
        (table.path / name).parent.mkdir(parents=True, exist_ok=True)
        (table.path / name).write_bytes(b"PAR1 and so on")
    with pytest.raises(NonEmptyLocationException, match=says):
        table.begin()
    with pytest.raises(NonEmptyLocationException):
        clone_table(table.log(), filled_beside(table).log(), transaction_key="clone", attempt="1-a")
    assert not (table.path / "_delta_log").exists()


@pytest.mark.parametrize("name", ["raw.json", "staged/2024/raw.parquet", "staged/2024.parquet/raw", "file.csv", "short.parquet"])
@pytest.mark.parametrize("outside", [False, True])
def test_conversion_is_only_named_where_files_are_parquet(table, tmp_path, name, outside):
    """By their first bytes; by their names, where these cannot be read (a link that leads out of the table)."""
    (tmp_path / "file").write_bytes(b"PA" if name == "short.parquet" else b"{}")
    (table.path / name).parent.mkdir(parents=True)
    if outside:
        (table.path / name).symlink_to(tmp_path / "file")
    else:
        (tmp_path / "file").rename(table.path / name)
    with pytest.raises(NonEmptyLocationException) as raised:
        table.begin()
    assert ("DeltaConvertOperator" in str(raised.value)) == (outside and name == "short.parquet")


def filled_beside(table) -> Table:
    source = Table(table.path.parent / "source")
    handle = source.begin(partition_by=["p"])
    source.publish(handle, staged(source, handle))
    return source


def test_hidden_and_staged_files_do_not_keep_a_table_from_being_created(table):
    for name in ("_SUCCESS", ".DS_Store", "_hidden/x.parquet", "empty/.x.crc"):
        (table.path / name).parent.mkdir(parents=True, exist_ok=True)
        (table.path / name).write_bytes(b"x")
    handles = [table.begin(partition_by=["p"]) for _ in range(2)]
    writes = [staged(table, handle) for handle in handles]
    assert [table.publish(handle, write).version for handle, write in zip(handles, writes, strict=True)] == [0, 1]


def test_files_that_come_before_the_first_version_are_seen_by_the_commit(table):
    handle = table.begin(partition_by=["p"])
    write = staged(table, handle)
    (table.path / "raw.json").write_text("{}")
    with pytest.raises(NonEmptyLocationException, match=r"raw\.json"):
        table.publish(handle, write)
    (table.path / "raw.json").unlink()
    assert table.publish(handle, write).version == 0
    (table.path / "raw.json").write_text("{}")  # a table is there now
    assert table.begin().read_version == 0


# -- what a forged staged write may name ---------------------------------------------------------------------------------------


def rewritten(handle, *actions, task_id: str = "delete", **fields) -> StagedWrite:
    """What an operation on rows reports: removes, and the same files with vectors."""
    kinds = [next(iter(action)) for action in actions]
    return StagedWrite(
        transaction_id=handle.transaction_id,
        stage=fields.pop("stage", task_id),
        task_id=task_id,
        attempt="1-a",
        operation="DELETE",
        mode="rewrite",
        schema_string=handle.schema_string,
        partition_columns=handle.partition_columns,
        actions=actions,
        num_files=kinds.count("add"),
        num_removed_files=kinds.count("remove"),
        num_change_files=kinds.count("cdc"),
        num_records=0,
        **fields,
    )


def marked(table, handle, file: AddFile, *rows: int, stage: str = "delete") -> list[dict]:
    """Mark rows of a file as deleted, in a vector file of the stage's attempt."""
    directory = f"staged/{handle.transaction_id}/{stage}/1-a"
    [vector] = write_deletion_vectors(table.log().store, directory, [BitMap64(rows)])
    stats = json.dumps({"numRecords": 2, "tightBounds": False})
    changed = msgspec.structs.replace(file, deletion_vector=vector, stats=stats, data_change=True)
    return [as_json(file.remove(0)), as_json(changed)]


@pytest.fixture(params=["json", "checkpoint"])
def with_vectors(table, request) -> Table:
    """A table with deletion vectors, and a file at an absolute path, as a shallow clone has them."""
    handle = table.begin(partition_by=["p"], configuration={"delta.enableDeletionVectors": "true"})
    table.publish(handle, staged(table, handle))
    source = table.path.parent / "source/x y.parquet"
    source.parent.mkdir()
    pq.write_table(pa.table({"id": pa.array([7, 8], pa.int64())}), source)
    write_commit(table.path, 1, add(source.as_uri(), records=2, size=source.stat().st_size, p="s"))
    if request.param == "checkpoint":
        write_checkpoint(table.log().snapshot)
    return table


def test_rows_of_live_files_may_be_marked_wherever_the_files_are(with_vectors):
    table = with_vectors
    handle = table.begin()
    files = table.log().snapshot.add_files()
    first = rewritten(handle, *(action for file in files for action in marked(table, handle, file, 0)))
    staged_files = [msgspec.convert(action["add"], AddFile) for action in first.actions if "add" in action]
    after = (f"{first.stage}/{first.attempt}",)
    again = [action for file in staged_files for action in marked(table, handle, file, 0, 1, stage="again")]
    second = rewritten(handle, *again, task_id="again", after=after)
    assert table.publish(handle, first, second).version == 2
    assert {file.deletion_vector.cardinality for file in table.log().snapshot.add_files()} == {2}


def forgeries(table, handle) -> dict[str, StagedWrite]:
    """Staged writes that no stage leaves behind, by what is wrong with them."""
    inside, absolute = sorted(table.log().snapshot.add_files(), key=lambda file: "source" in file.path)
    outside = table.path.parent / "outside.parquet"
    pq.write_table(pa.table({"id": pa.array([99, 98], pa.int64())}), outside)
    alien = msgspec.structs.replace(inside, path=outside.as_uri(), size=outside.stat().st_size)
    relative = msgspec.structs.replace(alien, path="../outside.parquet")
    own = marked(table, handle, inside, 0)
    other_vector = marked(table, handle, absolute, 1)
    attempt = f"staged/{handle.transaction_id}/delete/1-a"
    change = {"partitionValues": {"p": "a"}, "size": 1, "dataChange": False}
    forged_vector = json.loads(json.dumps(own))
    forged_vector[1]["add"]["deletionVector"].update(storageType="p", pathOrInlineDv=outside.as_uri())
    inline = json.loads(json.dumps(own))
    inline[1]["add"]["deletionVector"] = as_json(
        msgspec.structs.replace(inside, deletion_vector=inline_deletion_vector(BitMap64([0])))
    )["add"]["deletionVector"]
    moved = json.loads(json.dumps(own))
    moved[1]["add"]["partitionValues"] = {"p": "b"}
    foreign = json.loads(json.dumps(own).replace(handle.transaction_id, "0c7d7a4e-5d4b-4a3c-9b3e-111111111111"))
    another_attempt = json.loads(json.dumps(own).replace("/1-a", "/2-b"))
    another_attempt[0] = own[0]
    return {
        "absolute path outside of the table": rewritten(handle, *marked(table, handle, alien, 0)),
        "path out of the table": rewritten(handle, *marked(table, handle, relative, 0)),
        "removed, and nothing else": rewritten(handle, as_json(alien.remove(0))),
        "removed with a vector that it has not": rewritten(
            handle, as_json(msgspec.convert(other_vector[1]["add"], AddFile).remove(0))
        ),
        "vector outside": rewritten(handle, *forged_vector),
        "vector in the log": rewritten(handle, *inline),
        "vector of another transaction": rewritten(handle, own[0], foreign[1]),
        "vector of another attempt": rewritten(handle, *another_attempt),
        "another partition": rewritten(handle, *moved),
        "change data outside": rewritten(handle, {"cdc": {"path": outside.as_uri(), **change}}),
        "change data of another attempt": rewritten(handle, {"cdc": {"path": f"{attempt}/../2-b/x.parquet", **change}}),
        "stage of another task": rewritten(handle, *own, stage="other"),
        "file of a stage that it does not build on": rewritten(
            handle, as_json(msgspec.convert(own[1]["add"], AddFile).remove(0)), task_id="second"
        ),
    }


def test_paths_that_are_no_file_of_the_table_nor_of_the_stage_are_refused(with_vectors):
    table = with_vectors
    handle = table.begin()
    published = []
    for wrong, write in forgeries(table, handle).items():
        with contextlib.suppress(StagingException):
            table.publish(handle, write)
            published.append(wrong)
    assert not published
    assert len(table.versions()) == 2


def test_deleted_rows_are_not_brought_back(with_vectors):
    table = with_vectors
    handle = table.begin()
    [file, _] = table.log().snapshot.add_files()
    table.publish(handle, rewritten(handle, *marked(table, handle, file, 0)))
    handle = table.begin()
    [now] = [file for file in table.log().snapshot.add_files() if file.deletion_vector is not None]
    with pytest.raises(StagingException, match="bring deleted rows back"):
        table.publish(handle, rewritten(handle, as_json(now.remove(0)), as_json(msgspec.structs.replace(file, data_change=True))))


def test_a_stage_names_no_file_of_another_stage(filled):
    handle = filled.begin()
    first = staged(filled, handle, "first")
    with pytest.raises(StagingException, match="not under its staging path"):
        filled.publish(handle, replace(first, num_records=0, actions=(), num_files=0), replace(first, stage="x", task_id="x"))
    data = ManifestRef(path=first.actions[0]["add"]["path"], count=1, sha256="", size=1)
    with pytest.raises(ManifestException, match="not that of its attempt"):
        filled.publish(handle, replace(first, actions=(), manifest=data))


@pytest.mark.parametrize("actions", [({"metaData": {"id": "x"}},), ({"add": {"path": 1}},), ()])
def test_actions_that_are_not_what_the_stage_counted_are_refused(filled, actions):
    handle = filled.begin()
    with pytest.raises(StagingException, match="broken"):
        filled.publish(handle, replace(staged(filled, handle), actions=actions))


def test_large_stages_travel_by_manifest(filled, monkeypatch):
    monkeypatch.setattr("airflow_delta.table.stage.stage_view.INLINE_LIMIT", 10)
    handle = filled.begin()
    job(handle)
    write = staged(filled, handle)
    assert (write.actions, write.num_files) == ((), 2)
    manifest = filled.path / write.manifest.path
    assert manifest.exists()
    assert filled.publish(handle, write).version == 1
    assert len(filled.rows()) == 6
    assert not manifest.exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (Path.unlink, "missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-5]), "bytes"),
        (lambda p: p.write_bytes(p.read_bytes().replace(b'"numRecords', b'"numrecords')), "altered"),
    ],
    ids=["missing", "truncated", "altered"],
)
def test_a_manifest_that_is_not_as_it_was_written_is_refused(filled, monkeypatch, damage, says):
    monkeypatch.setattr("airflow_delta.table.stage.stage_view.INLINE_LIMIT", 10)
    handle = filled.begin()
    write = staged(filled, handle)
    damage(filled.path / write.manifest.path)
    with pytest.raises(ManifestException, match=says):
        filled.publish(handle, write)


def test_a_version_that_the_log_no_longer_holds_is_refused(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    for _ in range(3):
        other = filled.begin()
        filled.publish(other, staged(filled, other))
    log = filled.log()
    log.checkpoint()
    for version in range(3):
        (filled.path / "_delta_log" / f"{version:020}.json").unlink()
        (filled.path / "_delta_log" / f"{version:020}.crc").unlink(missing_ok=True)
    with pytest.raises(VersionNotFoundException, match="read version 0"):
        filled.publish(handle, write)


def concurrent_creators(table, first: dict, second: dict, second_part: str = "a", **second_columns):
    """Two transactions begin without a table; the first one creates it, then the second one commits."""
    one, two = table.begin(partition_by=["p"]), table.begin(partition_by=["p"], **second.pop("begin", {}))
    write = table.stage_files(two, path=job(two, "out", second_part, **second_columns), **second)
    table.publish(one, staged(table, one, **first), tags={"airflow.dagId": "orders", "airflow.runId": "r1"})
    return two, write


@pytest.mark.parametrize(
    ("first", "second", "part"),
    [
        ({}, {}, "a"),
        ({"mode": "overwrite", "replace_where": "p = 'a'"}, {"mode": "overwrite", "replace_where": "p = 'b'"}, "b"),
        ({"mode": "dynamic"}, {"mode": "dynamic"}, "b"),
    ],
    ids=["append", "replaceWhere of other partitions", "dynamic of other partitions"],
)
def test_who_finds_the_table_created_meanwhile_goes_on_from_it(table, first, second, part):
    two, write = concurrent_creators(table, first, second, part)
    result = table.publish(two, write)
    assert (result.version, result.read_version) == (1, 0)
    assert table.rows() == sorted([(1, "a"), (2, "a"), (1, part), (2, part)])
    commit = table.actions(1)
    assert {"metaData", "protocol", "remove"}.isdisjoint(commit)
    assert commit["txn"][0]["appId"] == two.app_id
    assert table.publish(two, write).committed_before


@pytest.mark.parametrize(
    ("second", "conflicts"),
    [({}, 0), ({"mode": "overwrite"}, 0), ({"begin": {"configuration": {"delta.appendOnly": "true"}}}, 1)],
)
def test_a_race_that_harms_nobody_is_no_event_of_a_conflict(table, second, conflicts):
    """What is a conflict after all is one: found before the log was touched, or in the log."""
    is_conflict = bool(second)
    two, write = concurrent_creators(table, {}, dict(second))
    heard = []

    def listen(_name, _uri, data):
        heard.append(data["winningVersion"])

    events.add_listener(listen, only=(events.CONFLICT,))
    try:
        with contextlib.nullcontext() if not is_conflict else pytest.raises(DeltaConcurrentModificationException):
            table.publish(two, write)
    finally:
        events.remove_listener(listen)
    assert heard == [0] * conflicts


@pytest.mark.parametrize(
    "second",
    [
        {"mode": "overwrite"},
        {"mode": "dynamic"},
        {"mode": "overwrite", "replace_where": "p = 'a'"},
    ],
    ids=["overwrite", "dynamic", "replaceWhere"],
)
def test_rows_that_an_overwrite_could_not_see_are_a_conflict_when_it_created_the_table_too(table, second):
    two, write = concurrent_creators(table, {}, second)
    with pytest.raises(ConcurrentAppendException, match=r"did not exist .*: version 0 .*by Dag orders, run r1") as caught:
        table.publish(two, write)
    assert caught.value.winning_commit["tags"]["airflow.dagId"] == "orders"
    assert len(table.versions()) == 1


def test_a_later_winner_is_still_checked_after_the_table_was_created_meanwhile(table):
    two, write = concurrent_creators(table, {}, {"mode": "overwrite", "replace_where": "p = 'b'"}, "b")
    three = table.begin()
    table.publish(three, staged(table, three, part="b"))
    with pytest.raises(ConcurrentAppendException):
        table.publish(two, write)
    assert len(table.versions()) == 2


@pytest.mark.parametrize(
    "second",
    [
        {"begin": {"configuration": {"delta.appendOnly": "true"}}},
        {"begin": {"configuration": {"delta.feature.deletionVectors": "supported"}}},
        {"columns": True},
    ],
    ids=["other properties", "other features", "other columns"],
)
def test_a_table_that_was_created_otherwise_is_a_conflict(table, second):
    columns = {"other": pa.array([1], pa.int64())} if second.pop("columns", False) else {}
    two, write = concurrent_creators(table, {}, second, **columns)
    with pytest.raises((ProtocolChangedException, MetadataChangedException), match="created with another schema"):
        table.publish(two, write)
    assert len(table.versions()) == 1


def test_features_that_both_ask_for_do_not_make_it_another_table(table):
    asked = {"configuration": {"delta.feature.deletionVectors": "supported"}, "partition_by": ["p"]}
    one, two = table.begin(**asked), table.begin(**asked)
    table.publish(one, staged(table, one))
    assert table.publish(two, staged(table, two)).version == 1


def test_the_same_key_that_created_the_table_right_before_the_put_is_a_conflict(table, monkeypatch):
    one, two = (table.begin(partition_by=["p"], transaction_key="same") for _ in range(2))
    write = staged(table, two)
    table.publish(one, staged(table, one), tags={"airflow.dagId": "orders"})
    # The race: the other commit lands after this one looked for its key.
    monkeypatch.setattr(publishing, "committed_before", lambda log, handle: None)
    with pytest.raises(ConcurrentTransactionException, match=r"another execution .* by Dag orders"):
        table.publish(two, write)
    assert len(table.versions()) == 1


def test_a_table_that_was_created_again_meanwhile_is_refused(filled):
    import shutil

    handle = filled.begin()
    write = staged(filled, handle)
    shutil.rmtree(filled.path / "_delta_log")
    other = filled.begin(partition_by=["p"])
    filled.publish(other, staged(filled, other))
    with pytest.raises(MetadataChangedException, match="created again"):
        filled.publish(handle, write)


# -- exactly once ---------------------------------------------------------------------------------------------------------------


def test_a_commit_that_runs_again_returns_what_it_committed(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    first = filled.publish(handle, write)
    other = filled.begin()
    filled.publish(other, staged(filled, other))
    again = filled.publish(handle, write)
    assert (again.committed_before, first.committed_before) == (True, False)
    same = (
        "version",
        "read_version",
        "transaction_id",
        "app_id",
        "txn_version",
        "operation",
        "num_files",
        "num_records",
        "partitions",
    )
    assert [getattr(again, n) for n in (*same, "num_bytes", "timestamp", "table_id", "isolation_level", "is_blind_append")] == [
        getattr(first, n) for n in (*same, "num_bytes", "timestamp", "table_id", "isolation_level", "is_blind_append")
    ]
    assert len(filled.versions()) == 3


def test_a_commit_that_died_after_the_log_entry_recognises_it(filled, monkeypatch):
    handle = filled.begin()
    write = staged(filled, handle)

    def die(*_: object, **_options: object) -> None:
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(commit_stages, "result_of_transaction", die)
        with pytest.raises(SystemExit):
            filled.publish(handle, write)
    assert filled.publish(handle, write).committed_before
    assert len(filled.versions()) == 2


def test_two_commit_attempts_at_once_commit_once(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    results, errors = [], []

    def attempt() -> None:
        try:
            results.append(filled.publish(handle, write))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {result.version for result in results} == {1}
    assert len(filled.versions()) == 2
    assert len(filled.rows()) == 4


def test_a_cancelled_commit_writes_nothing_and_may_run_again(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    with pytest.raises(CommitCancelledException):
        filled.publish(handle, write, policy=CommitPolicy(cancelled=lambda: True))
    assert len(filled.versions()) == 1
    assert filled.publish(handle, write).version == 1


# -- abort ----------------------------------------------------------------------------------------------------------------------


def test_an_abort_deletes_what_was_staged_and_keeps_a_commit_from_coming_later(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    result = filled.abort(handle)
    assert (result.outcome, result.num_deleted_files) == ("deleted", 1)
    assert {p.name for p in Path(handle.staging_path).rglob("*") if p.is_file()} == {"_aborted", "_commit-0"}
    with pytest.raises(TransactionAbortedException, match="Clear the start task"):
        filled.publish(handle, write)
    assert filled.abort(handle).outcome == "deleted"
    assert len(filled.versions()) == 1


@pytest.mark.parametrize("of", ["missing", "a file"])
def test_a_directory_that_cannot_be_created_is_a_typed_error_and_the_abort_is_quiet(tmp_path, of):
    (tmp_path / "file").touch()
    table = Table(Path("/proc/none/t") if of == "missing" else tmp_path / "file" / "t")
    handle = table.begin(schema=schema(column("id", "long")))
    with pytest.raises(LocationNotWritableException, match=f"The directory {table.uri}.* cannot be created") as found:
        put_request(table.log(), plan_stage(table.view(handle)))
    assert isinstance(found.value, OSError)
    result = table.abort(handle)
    assert (result.outcome, result.num_deleted_files) == ("deleted", 0)
    assert "Nothing of it is there" in result.reason
    assert result.transaction_id == handle.transaction_id


def test_an_abort_that_may_not_mark_what_was_staged_fails(filled, monkeypatch):
    handle = filled.begin()
    staged(filled, handle)
    refused = LocationNotWritableException("a disk that became read-only")
    monkeypatch.setattr("airflow_delta.log.storage.local.LocalStore.put", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises(LocationNotWritableException):
        filled.abort(handle)


def test_an_abort_after_the_commit_touches_nothing(filled):
    handle = filled.begin()
    filled.publish(handle, staged(filled, handle))
    result = filled.abort(handle)
    assert (result.outcome, result.version) == ("committed", 1)
    assert len(filled.rows()) == 4
    assert not (Path(handle.staging_path) / "_aborted").exists()


def test_an_abort_during_a_commit_leaves_the_files(filled, monkeypatch):
    """Whichever way the race ends, nothing that gets published is deleted."""
    handle = filled.begin()
    write = staged(filled, handle)
    outcomes = []
    real = publishing.check_staged_files

    def abort_in_between(*arguments: object) -> None:
        outcomes.append(filled.abort(handle).outcome)
        real(*arguments)

    monkeypatch.setattr(publishing, "check_staged_files", abort_in_between)
    assert filled.publish(handle, write).version == 1
    assert outcomes == ["marked"]
    assert len(filled.rows()) == 4
    assert filled.abort(handle).outcome == "committed"


def test_a_commit_in_an_unknown_state_keeps_the_files_from_an_abort(filled, monkeypatch):
    handle = filled.begin()
    write = staged(filled, handle)

    def unknown(*_: object) -> None:
        raise CommitStateUnknownException("the store did not answer")

    monkeypatch.setattr(publishing, "commit_stages", unknown)
    with pytest.raises(CommitStateUnknownException):
        filled.publish(handle, write)
    assert filled.abort(handle).outcome == "marked"
    assert (filled.path / write.actions[0]["add"]["path"]).exists()


def test_a_commit_that_failed_for_certain_does_not_keep_an_abort_from_deleting(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    with pytest.raises(MissingStageException):
        filled.publish(handle, write, expected={("other", -1): None})
    with pytest.raises(CommitCancelledException):
        filled.publish(handle, write, policy=CommitPolicy(cancelled=lambda: True))
    assert filled.abort(handle).outcome == "deleted"


# -- rerun ----------------------------------------------------------------------------------------------------------------------


def run(table: Table, part: str, **options) -> tuple:
    handle = table.begin(transaction_key="k", **options)
    return handle, table.publish(handle, staged(table, handle, part=part)) if handle.committed is None else None


@pytest.fixture
def committed(filled):
    run(filled, "k")
    return filled


def test_skip_says_where_the_key_was_committed(committed):
    handle, _ = run(committed, "k")
    assert (handle.committed.version, handle.committed.num_files, handle.committed.committed_before) == (1, 1, True)
    assert committed.publish(handle).version == 1
    assert len(committed.versions()) == 2


def test_skip_of_a_commit_that_the_log_no_longer_holds(committed):
    other = committed.begin()
    committed.publish(other, staged(committed, other))
    committed.log().checkpoint()
    for version in range(2):
        (committed.path / "_delta_log" / f"{version:020}.json").unlink()
        (committed.path / "_delta_log" / f"{version:020}.crc").unlink(missing_ok=True)
    handle = committed.begin(transaction_key="k")
    assert (handle.committed.version, handle.committed.operation) == (2, "")


def test_fail(committed):
    with pytest.raises(TransactionAlreadyCommittedException, match="version 1"):
        committed.begin(transaction_key="k", rerun_policy="fail")


def test_append_adds_again(committed):
    handle, result = run(committed, "k", rerun_policy="append")
    assert (handle.txn_version, result.version) == (1, 2)
    assert len(committed.rows()) == 6


def test_replace_swaps_the_files_that_the_key_added_and_no_other(committed):
    for version in (2, 3):
        _, result = run(committed, f"k{version}", rerun_policy="replace")
        assert (result.version, result.num_removed_files, result.num_files) == (version, 1, 1)
        assert committed.rows() == [(1, "a"), (1, f"k{version}"), (2, "a"), (2, f"k{version}")]


@pytest.mark.parametrize("turned", [False, True])
def test_replace_and_a_delete_of_the_same_files(committed, turned):
    """As a run does that deletes its slice before it appends; both want the files gone."""
    handle = committed.begin(transaction_key="k", rerun_policy="replace")
    gone = committed.operate(handle, plan_delete, predicate="p = 'k'", task_id="delete")
    stages = [gone, staged(committed, handle, part="k", after=[gone.to_dict()])]
    result = committed.publish(handle, *(stages[::-1] if turned else stages))
    assert (result.num_removed_files, result.num_files) == (1, 1)
    assert committed.rows() == [(1, "a"), (1, "k"), (2, "a"), (2, "k")]


def test_stages_do_not_see_the_rows_that_replace_takes_back(committed):
    """A stage that adds only what is missing would add nothing to them, and they go."""
    handle = committed.begin(transaction_key="k", rerun_policy="replace")
    assert table_rows(committed.view(handle), "p = 'k'").to_table().num_rows == 0
    again = staged(committed, handle, part="k")
    assert table_rows(committed.view(handle, after=[again.to_dict()])).to_table().num_rows == 4
    kept = committed.operate(handle, plan_delete, predicate="p = 'a'", task_id="delete", after=[again.to_dict()])
    committed.publish(handle, again, kept)
    assert committed.rows() == [(1, "k"), (2, "k")]


def test_replace_is_refused_when_others_have_rewritten_the_files(committed):
    other = committed.begin()
    committed.publish(other, staged(committed, other, part="k", mode="overwrite", replace_where="p = 'k'"))
    with pytest.raises(TransactionAlreadyCommittedException, match="rewritten or removed 1 of its 1 files"):
        run(committed, "k", rerun_policy="replace")


def test_replace_is_refused_when_others_have_marked_rows_as_deleted(committed):
    """An update of another writer may have moved them to a file of its own, which the rerun would not replace."""
    [add] = committed.actions(1)["add"]
    features = ["deletionVectors"]
    file = msgspec.convert(add, AddFile)
    vector = inline_deletion_vector(BitMap64([0]))
    marked = msgspec.structs.replace(file, deletion_vector=vector)
    write_commit(committed.path, 2, protocol(3, 7, reader_features=features, writer_features=features), file.remove(0), marked)
    with pytest.raises(TransactionAlreadyCommittedException, match="rewritten or removed 1 of its 1 files"):
        run(committed, "k", rerun_policy="replace")


def test_another_execution_of_the_same_key_that_was_faster_counts_as_ours_under_skip(filled):
    slow, fast = filled.begin(transaction_key="k"), filled.begin(transaction_key="k")
    write = staged(filled, slow)
    filled.publish(fast, staged(filled, fast))
    result = filled.publish(slow, write)
    assert (result.version, result.committed_before, result.transaction_id) == (1, True, fast.transaction_id)


def test_monotonic_versions(filled):
    def attempt(version: int, **options):
        handle = filled.begin(app_id="etl", txn_version=version, **options)
        return None if handle.committed else filled.publish(handle, staged(filled, handle, part=f"v{version}")).version

    assert [attempt(5), attempt(5), attempt(4), attempt(6)] == [1, None, None, 2]
    assert filled.actions(2)["txn"][0]["version"] == 6
    assert attempt(6, rerun_policy="replace") == 3
    assert {p for _, p in filled.rows()} == {"a", "v5", "v6"}


# -- what it costs --------------------------------------------------------------------------------------------------------------

BLIND = """
import json, sys
from airflow_delta.log import DeltaLog
from airflow_delta.table.start.begin import begin
from airflow_delta.table.commit.publish import publish
from airflow_delta.contract.payloads import StagedWrite
table, staged = sys.argv[1], json.loads(sys.argv[2])
handle = begin(DeltaLog.for_table(table), transaction_key="blind", transaction_id=staged["transactionId"])
result = publish(DeltaLog.for_table(table), handle, [StagedWrite.from_dict(staged)], attempt="1-a")
heavy = {"pyarrow", "sqlglot", "obstore", "tenacity", "pyspark", "airflow", "numpy", "pandas"} & set(sys.modules)
print(json.dumps([result.version, result.is_blind_append, sorted(heavy)]))
"""


def test_a_blind_append_imports_nothing_heavy(filled):
    handle = filled.begin()
    write = staged(filled, handle)
    done = subprocess.run(
        [sys.executable, "-c", BLIND, filled.uri, json.dumps(write.to_dict())], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, True, []]


@pytest.mark.parametrize("policy", ["skip", "replace", "append", "fail"])
def test_begin_never_lists_files(filled, monkeypatch, policy):
    from airflow_delta.log.snapshot import Snapshot

    def listed(*_: object, **__: object) -> None:
        raise AssertionError("the list of files was read")

    for name in ("files", "add_files", "tail_files"):
        monkeypatch.setattr(Snapshot, name, listed)
    assert filled.begin(transaction_key="new", rerun_policy=policy).read_version == 0
