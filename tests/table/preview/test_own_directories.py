"""Each task that writes a preview has a directory of its own, and each of its attempts, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt, stage_key
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.arrow import files
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.preview import write_preview
from airflow_delta.table.preview.table_preview import preview_table
from airflow_delta.table.state.previews import end_previews
from support.previews import rows
from support.table import Table

both = pytest.mark.parametrize("make", [preview_table, preview_changes])


@pytest.fixture
def handle(table: Table) -> TransactionHandle:
    begun = table.begin()
    table.publish(begun, table.stage_rows(begun, []))
    return table.begin()


@pytest.fixture
def first(table: Table, handle: TransactionHandle) -> StagedWrite:
    return table.stage_rows(handle, [1], task_id="first")


@pytest.fixture
def second(table: Table, handle: TransactionHandle) -> StagedWrite:
    return table.stage_rows(handle, [2], task_id="second")


def ids(path: str) -> list[int]:
    return [row[0] for row in rows(path)]


@both
def test_of_two_tasks_each_shows_its_own_stage(
    table: Table, handle: TransactionHandle, first: StagedWrite, second: StagedWrite, make: Callable[..., Any]
) -> None:
    keys = [stage_key("gates.first"), stage_key("gate für all", 0), stage_key("gate für all", 1)]
    given = [[first], [second], [first, second]]
    found = [make(table.log(), handle, staged, task=key).path for staged, key in zip(given, keys, strict=True)]
    assert [ids(path) for path in found] == [[1], [2], [1, 2]]
    assert len({DeltaTable(path).metadata().id for path in [*found, table.uri]}) == 4


@both
def test_a_later_attempt_takes_away_the_earlier_ones_of_its_task_alone(
    table: Table, handle: TransactionHandle, first: StagedWrite, second: StagedWrite, make: Callable[..., Any]
) -> None:
    other = make(table.log(), handle, [second], task="other", attempt=new_attempt(9))
    earlier = make(table.log(), handle, [first], task="gate", attempt=new_attempt(1))
    later = make(table.log(), handle, [first, second], task="gate", attempt=new_attempt(10))
    assert not Path(earlier.path).exists()
    # Its worker was only given up for dead, and goes on.
    make(table.log(), handle, [first], task="gate", attempt=new_attempt(2))
    assert (ids(later.path), ids(other.path)) == ([1, 2], [2])
    assert DeltaTable(earlier.path.replace(Path(earlier.path).name, Path(later.path).name)).version() == later.version


@both
@pytest.mark.parametrize("call", ["put", "put_file"])
def test_two_workers_of_a_task_at_once(
    table: Table,
    handle: TransactionHandle,
    first: StagedWrite,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Any],
    call: str,
) -> None:
    """The second begins and ends before the first one's next file, and no file of the other gets into either."""
    if call == "put_file":
        monkeypatch.setattr(files, "IN_MEMORY_BYTES", 0)  # else a small file is put as bytes
    written = getattr(LocalStore, call)
    second = []

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(LocalStore, call, written)
        second.append(make(table.log(), handle, [first], task="gate", attempt=new_attempt(2)))
        return written(*arguments)

    monkeypatch.setattr(LocalStore, call, meanwhile)
    make(table.log(), handle, [first], task="gate", attempt=new_attempt(1))
    assert ids(second[0].path) == [1]
    assert second[0].num_added_files == 1


def test_the_files_of_changed_rows_are_those_that_the_attempt_wrote(
    table: Table, handle: TransactionHandle, first: StagedWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalStore.put

    def beside(store: LocalStore, path: str, data: bytes) -> None:
        directory, is_log, _ = path.partition("/_delta_log/")
        if is_log:
            put(store, f"{directory}/part-of-another.parquet", b"half a file")
        put(store, path, data)

    monkeypatch.setattr(LocalStore, "put", beside)
    assert ids(preview_changes(table.log(), handle, [first]).path) == [1]


def test_without_a_task_a_preview_replaces_the_last_one(
    table: Table, handle: TransactionHandle, first: StagedWrite, second: StagedWrite
) -> None:
    of_a_task = write_preview(table.log(), handle, [first], task=stage_key("_no_task"))["path"]
    before = write_preview(table.log(), handle, [first])["path"]
    now = write_preview(table.log(), handle, [second])["path"]
    assert (Path(before).exists(), ids(now), ids(of_a_task)) == (False, [2], [1])


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_the_end_of_the_transaction_takes_all_of_them(
    table: Table, handle: TransactionHandle, first: StagedWrite, ends: str
) -> None:
    paths = [make(table.log(), handle, [first], task=task).path for task in "ab" for make in (preview_table, preview_changes)]
    if ends == "abort":
        table.abort(handle)
    else:
        table.publish(handle, first)
        end_previews(table.log(), handle.transaction_id)
    assert not any(Path(path).exists() for path in paths)
