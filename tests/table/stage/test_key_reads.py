"""Key values that a stage looked for, on the worker: what it takes from a report, and what the commit takes from the stage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.key_values import KeyValues
from airflow_delta.contract.merge import ComparedColumns, when_matched_delete, when_not_matched_by_source_delete
from airflow_delta.contract.payloads import DeclaredReads, KeyRead, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import KEYS_NAME
from airflow_delta.exceptions import ManifestException, StagingException
from airflow_delta.table.commit.publish import clean_up
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.stage.load import load_key_rows
from airflow_delta.table.stage.scan import plan_scan
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.transaction import Operation
from support.actions import add, column
from support.feature_tables import create
from support.table import Table

ON = "target.id = source.id AND target.p = 'a'"
READ = "`p` = 'a'"
DELETE = [when_matched_delete()]
FEW = KeyValues(columns=("id",), null_safe=(False,), low=(1,), high=(2,), nulls=(False,), rows=((1,), (2,)))
MANY = replace(FEW, high=(1999,), rows=tuple((i,) for i in range(2000)))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    create(table, column("id", "long"), column("p", "string"), column("x", "double"), partition_by=("p",))
    return table


def collected(
    table: Table, keys: KeyValues | None, *, on: str = ON, clauses: Any = DELETE, scan: str | None = None
) -> tuple[Any, StagedWrite]:
    """Stage a MERGE whose report has these keys."""
    handle = table.begin()
    view = table.view(handle)
    work = plan_merge(view, condition=on, clauses=clauses)
    request = work.request if scan is None else replace(work.request, scan=plan_scan(view, scan))
    staged = work.collect(request, report(request, keys))
    return handle, StagedWrite.from_dict(json.loads(json.dumps(staged.to_dict())))


def report(request: StageRequest, keys: KeyValues | None) -> StageReport:
    found = StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        keys=keys,
        schema_string=request.schema_string or "",
        partition_columns=request.partition_columns,
    )
    return StageReport.from_dict(json.loads(json.dumps(found.to_dict())))


def test_few_rows_are_in_the_payload(table: Table) -> None:
    handle, staged = collected(table, FEW)
    key = KeyRead(predicate=READ, columns=("id",), null_safe=(False,), low=(1,), high=(2,), nulls=(False,), rows=FEW.rows)
    assert staged.reads == DeclaredReads(predicates=(READ,), keys=(key,))
    assert load_key_rows(table.log(), handle, staged, key) == [[1], [2]]
    assert not list(table.path.rglob(KEYS_NAME))


def test_a_stage_without_keys(table: Table) -> None:
    handle, staged = collected(table, None)
    assert staged.reads == DeclaredReads(predicates=(READ,))
    handle, staged = collected(table, replace(FEW, rows=None))
    assert load_key_rows(table.log(), handle, staged, staged.reads.keys[0]) is None


def test_many_rows_are_in_a_file_until_the_commit(table: Table) -> None:
    handle, staged = collected(table, MANY)
    [key] = staged.reads.keys
    assert key.rows is None
    assert key.file is not None
    assert (key.file.count, key.file.path.rpartition("/")[2]) == (2000, KEYS_NAME)
    lines = (table.path / key.file.path).read_text().splitlines()
    assert (lines[0], lines[-1]) == ("[0]", "[1999]")
    assert load_key_rows(table.log(), handle, staged, key) == [[i] for i in range(2000)]
    table.publish(handle, staged)
    assert not list(table.path.rglob(KEYS_NAME))


def test_only_the_file_of_the_attempt_is_deleted(table: Table) -> None:
    """A staged write is not trusted."""
    handle, staged = collected(table, MANY)
    [key] = staged.reads.keys
    entry = table.path / "_delta_log" / f"{0:020}.json"
    other = replace(key, file=replace(key.file, path=str(entry.relative_to(table.path))))
    with pytest.raises(ManifestException, match="not that of its attempt"):
        load_key_rows(table.log(), handle, staged, other)
    tampered = replace(staged, reads=replace(staged.reads, keys=(other,)))
    winner = add("x", part=None, partition_values={"p": "a"})  # the values matter only if somebody else commits
    table.log().start_transaction().commit([winner], Operation.write())
    with pytest.raises(ManifestException, match="not that of its attempt"):
        table.publish(handle, tampered)
    clean_up(table.log(), handle, [tampered], table.log().snapshot)
    assert entry.exists()
    assert not (table.path / key.file.path).exists()


def test_a_file_that_was_altered(table: Table) -> None:
    handle, staged = collected(table, MANY)
    [key] = staged.reads.keys
    path = table.path / key.file.path
    data = path.read_bytes()
    for changed, message in (
        (data.replace(b"[5]", b"[6]", 1), "was altered"),
        (data[:-5], "bytes, but its stage wrote"),
        (None, "The key file .* is missing"),
    ):
        path.unlink() if changed is None else path.write_bytes(changed)
        with pytest.raises(ManifestException, match=message):
            load_key_rows(table.log(), handle, staged, key)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": ((1, 2),)},
        {"rows": ((1.5,),)},
        {"low": ()},
        {"high": ([1],)},
        {"nulls": (True, False)},
        {"null_safe": ()},
    ],
)
def test_malformed_keys_of_a_staged_write(table: Table, change: dict[str, Any]) -> None:
    handle, staged = collected(table, FEW)
    with pytest.raises(StagingException, match="is broken"):
        load_key_rows(table.log(), handle, staged, replace(staged.reads.keys[0], **change))


def test_malformed_rows_of_a_file(table: Table) -> None:
    import hashlib

    handle, staged = collected(table, MANY)
    [key] = staged.reads.keys
    for line in ("{}", "[1", '["a", 1]', "[[1]]"):
        data = f"{line}\n".encode()
        (table.path / key.file.path).write_bytes(data)
        file = replace(key.file, count=1, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        with pytest.raises(StagingException, match="is broken"):
            load_key_rows(table.log(), handle, staged, replace(key, file=file))


def test_a_wider_read_by_the_same_predicate(table: Table) -> None:
    """The source has read all rows that the predicate selects, whatever the MERGE has looked for."""
    assert collected(table, FEW, scan=READ)[1].reads == DeclaredReads(predicates=(READ,))
    reads = collected(table, FEW, scan="id > 1")[1].reads
    assert (reads.predicates, [key.predicate for key in reads.keys]) == ((READ, "`id` > 1"), [READ])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (replace(FEW, columns=("nope",)), "nope is not a column"),
        (replace(FEW, columns=("p",), low=("a",), high=("b",), rows=()), "p is not compared"),
        (replace(FEW, null_safe=(True,)), "id is not compared"),
        (replace(FEW, rows=((True,),)), "True is not a value of id"),
        (replace(FEW, rows=(("1",),)), "'1' is not a value of id"),
        (replace(FEW, rows=((1, 2),)), "not a value for each"),
        (replace(FEW, nulls=()), "not say the same"),
    ],
)
def test_claims_that_no_stage_would_make(table: Table, keys: KeyValues, message: str) -> None:
    with pytest.raises(StagingException, match=message):
        collected(table, keys)


def test_a_merge_that_read_everything_has_no_keys(table: Table) -> None:
    with pytest.raises(StagingException, match="id is not compared"):
        collected(table, FEW, clauses=[when_not_matched_by_source_delete()])


def compared(table: Table, **options: Any) -> list[tuple[str, str, bool]]:
    request = plan_stage(table.view(table.begin()), mode="overwrite", **options)
    keys = [ComparedColumns.from_dict(key) for key in request.arguments["keys"]]
    return [(key.column, key.source, key.null_safe) for key in keys]


def test_columns_that_replaced_rows_are_found_by(table: Table) -> None:
    assert compared(table, replace_using=["ID", "p"]) == [("id", "`id`", False), ("p", "`p`", False)]
    assert compared(table, replace_on="(t.ID = s.x) AND s.p <=> t.p AND t.x < s.x") == [("id", "`x`", False), ("p", "`p`", True)]
    assert compared(table, replace_on="t.id = s.id OR t.p = s.p") == []
    assert compared(table, replace_on="t.id = t.x AND s.id = s.x AND t.id = s.id + 1") == []
    assert compared(table) == []
