"""What VACUUM deletes of staged transactions, and in which order: a commit that could find files finds the marker of an end."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from airflow_delta.contract.staging_directory import ABORT_MARKER, COMMIT_MARKER_PREFIX, COMMITTED_MARKER
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.table.operations.vacuum.delete import Found, delete, with_markers_last
from airflow_delta.table.operations.vacuum.last_look import LastLook
from airflow_delta.table.operations.vacuum.listing import Listing
from airflow_delta.table.operations.vacuum.staged_transactions import (
    AbandonedTransaction,
    StagedTransactions,
    staged_transactions,
)
from support.table import Table

ONE, OTHER = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


def of(transaction: str, name: str) -> str:
    return f"staged/{transaction}/{name}"


def status(path: str, size: int = 1, modified: int = 1) -> FileStatus:
    return FileStatus(path, size, modified)


ABORTED, PUT, DONE = of(ONE, ABORT_MARKER), of(ONE, f"{COMMIT_MARKER_PREFIX}1"), of(ONE, COMMITTED_MARKER)
DATA, MORE = of(ONE, "stage/a/1.parquet"), of(ONE, "stage/a/2.parquet")
DEEPER = of(ONE, f"stage/{ABORT_MARKER}")
OUTSIDE = f"p=1/x/{ABORT_MARKER}"
THEIRS, THEIR_END = of(OTHER, "stage/a/1.parquet"), of(OTHER, ABORT_MARKER)


@pytest.mark.parametrize(
    ("listed", "found", "data", "markers"),
    [
        ((DATA, PUT, DONE, ABORTED), (DATA, PUT, DONE, ABORTED), (DATA,), (PUT, DONE)),
        ((PUT, DONE, ABORTED), (PUT, DONE, ABORTED), (), (PUT, DONE, ABORTED)),
        ((DATA, MORE, PUT, ABORTED), (DATA, PUT, ABORTED), (DATA,), ()),
        ((DATA, ABORTED, THEIRS, THEIR_END), (ABORTED, THEIRS, THEIR_END), (THEIRS,), ()),
        ((ABORTED, THEIRS, THEIR_END), (ABORTED, THEIRS, THEIR_END), (THEIRS,), (ABORTED,)),
        ((DEEPER, ABORTED), (DEEPER, ABORTED), (DEEPER,), ()),
        ((OUTSIDE, "old.parquet", ABORTED), (OUTSIDE, "old.parquet", ABORTED), (OUTSIDE, "old.parquet"), (ABORTED,)),
    ],
)
def test_markers_go_with_the_last_file_and_that_of_an_abort_alone(
    listed: Collection[str], found: Collection[str], data: Collection[str], markers: Collection[str]
) -> None:
    every = {path: status(path) for path in listed}
    before = Found([every[path] for path in found], ["empty"], 7, StagedTransactions())
    after = with_markers_last(Listing(list(every.values())), before)
    assert tuple(one.path for one in after.files) == tuple(data)
    assert tuple(one.path for one in after.markers) == tuple(markers)
    assert (after.directories, after.num_listed_directories, after.staged) == (["empty"], 7, before.staged)


def test_what_the_last_look_keeps_stays_with_the_markers_of_its_transaction(tmp_path: Path) -> None:
    paths = [DATA, PUT, THEIRS, of(OTHER, COMMITTED_MARKER), "old/p=1/1.parquet"]
    for path in [*paths, "old/p=1/.1.parquet.crc", "full/left"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x")
    log = DeltaLog.for_table(str(tmp_path))

    class Keeps(LastLook):
        def __init__(self) -> None:
            pass

        def __call__(self, files: Collection[FileStatus]) -> list[FileStatus]:
            return [one for one in files if one.path != DATA]

    files, markers = [status(path) for path in (DATA, THEIRS, "old/p=1/1.parquet")], [status(PUT), status(paths[3])]
    done = delete(log, Found(files, ["old/p=1", "full"], 3, StagedTransactions(), markers), Keeps())
    assert [one.path for one in done.files] == [THEIRS, "old/p=1/1.parquet"]
    assert [one.path for one in done.markers] == [paths[3]]
    assert done.directories == ["old/p=1"]
    assert done.num_bytes == 3
    assert done.paths == (THEIRS, "old/p=1/1.parquet", paths[3], "old/p=1")
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {DATA, PUT, "full/left"}
    assert not (tmp_path / "staged" / OTHER).exists(), "nothing is left of it"


PREVIEW, PLAN = of(ONE, "_preview/_delta_log/0.json"), of(ONE, "publication-abc.json")


@pytest.mark.parametrize(
    ("state", "stay", "go"),
    [
        ({}, (), (DATA, ABORTED, DONE, PREVIEW, PLAN, "staged", of(ONE, "").rstrip("/"))),
        ({"live": {ONE}}, (DATA, ABORTED, PREVIEW, PLAN, "staged", of(ONE, "").rstrip("/")), (THEIRS, "p=1/old.parquet")),
        ({"aborted": {ONE}}, (ABORTED, DONE, of(ONE, "").rstrip("/")), (DATA, DEEPER, PREVIEW, PLAN, "staged", THEIR_END)),
        ({"in_table": {ONE}}, (ABORTED, DONE), (DATA, of(ONE, "").rstrip("/"), PREVIEW, PLAN, THEIR_END)),
        ({"kept": {ONE}}, (PREVIEW,), (DATA, ABORTED, PLAN, of(OTHER, "_preview/_delta_log/0.json"))),
        ({"planned": {ONE}}, (PLAN, of(ONE, "").rstrip("/")), (DATA, ABORTED, PREVIEW, of(OTHER, "publication-abc.json"))),
    ],
)
def test_what_stays_of_a_transaction(state: dict[str, set[str]], stay: Collection[str], go: Collection[str]) -> None:
    staged = StagedTransactions(**{name: frozenset(names) for name, names in state.items()})
    assert [path for path in stay if not staged.protects(path)] == []
    assert [path for path in go if staged.protects(path)] == []


def test_what_is_told_of_an_abandoned_transaction() -> None:
    files = [status(DATA, 10, 5), status(MORE, -1, 9), status(of(ONE, "other/a/3"), 4, 7), status(of(ONE, "_scans/x"), 2, 1)]
    told = AbandonedTransaction.of(ONE, [*files, status(of(ONE, "loose"), 0, 3)])
    assert told.to_dict() == {
        "transactionId": ONE,
        "stages": ["other", "stage"],
        "numFiles": 5,
        "numBytes": 16,
        "lastModified": 9,
    }


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create()
    return table


@pytest.mark.parametrize(("seconds", "kept"), [(-60, False), (3600, True)])
def test_a_preview_stays_until_the_time_that_it_says(table: Table, seconds: int, kept: bool) -> None:
    now = int(time.time() * 1000)
    preview = of(ONE, f"_preview/_kept-{now + seconds * 1000}")
    listing = Listing([status(preview, modified=now), status(THEIRS, modified=now)])
    found = staged_transactions(table.log(), listing, [], dead_before=now - 1)
    assert found.kept == ({ONE} if kept else set())
    assert found.live == {ONE, OTHER}


def test_publications_are_planned_from_some_time_on(table: Table) -> None:
    listing = Listing([status(PLAN, modified=100), status(DATA, modified=10), status(THEIRS, modified=10)])
    found = staged_transactions(table.log(), listing, [], dead_before=50)
    assert (found.planned, [one.transaction_id for one in found.abandoned]) == ({ONE}, [OTHER])
    assert staged_transactions(table.log(), listing, [], dead_before=200, planned_after=100).planned == {ONE}


@pytest.mark.parametrize("marker", [DONE, PUT, None])
def test_markers_are_no_files_of_an_abandoned_transaction(table: Table, marker: str | None) -> None:
    """And one that its marker calls committed was not abandoned."""
    paths = [DATA, *([] if marker is None else [marker])]
    for path in paths:
        (table.path / path).parent.mkdir(parents=True, exist_ok=True)
        (table.path / path).write_text(json.dumps({"transactionId": ONE, "startedAt": 1, "version": 1}))
    listing = Listing([status(path, modified=10) for path in paths])
    found = staged_transactions(table.log(), listing, [], dead_before=50).abandoned
    assert [one.num_files for one in found] == ([] if marker == DONE else [1])
