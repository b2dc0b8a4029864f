"""Symbolic links: nothing is read, written or deleted through one that leads out of the table."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyroaring import BitMap64

from airflow_delta.exceptions import DeltaLogCorruptedException, PathOutsideTableException
from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.actions.deletion_vectors import read_deletion_vector, write_deletion_vectors
from airflow_delta.log.checkpoint.last_checkpoint import read_last_checkpoint
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.transaction import Operation
from support import tables

SECRET = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A table that must not be visible through a link: three versions, with checkpoint and checksum."""
    return filled(tmp_path / "other", id=SECRET)


def filled(path: Path, **metadata: str) -> Path:
    tables.create_table(path, tables.add(f"{path.name}.parquet"), **metadata)
    tables.append(path, 1)
    log = DeltaLog.for_table(str(path))
    write_checkpoint(log.snapshot)
    log.start_transaction().commit([tables.add(f"{path.name}-2.parquet")], Operation.manual_update())
    return path


def state(snapshot: Snapshot) -> tuple[str, list[str]]:
    return snapshot.metadata.id, sorted(snapshot.files(columns=["path"]).column("path").to_pylist())


COMMIT, CHECKPOINT = "00000000000000000002.json", "00000000000000000001.checkpoint.parquet"


@pytest.mark.parametrize("name", [COMMIT, CHECKPOINT, "00000000000000000002.crc"])
def test_a_file_of_the_log_that_is_a_link(tmp_path: Path, other: Path, name: str) -> None:
    table = filled(tmp_path / "table")
    target = tables.log_path(table, name)
    target.unlink()
    target.symlink_to(tables.log_path(other, name))
    with pytest.raises(PathOutsideTableException, match=name):
        state(DeltaLog.for_table(str(table)).snapshot)


def test_a_hint_that_is_a_link_is_ignored(tmp_path: Path, other: Path) -> None:
    table = filled(tmp_path / "table")
    hint = tables.log_path(table, "_last_checkpoint")
    hint.unlink()
    hint.symlink_to(tables.log_path(other, "_last_checkpoint"))
    log = DeltaLog.for_table(str(table))
    assert read_last_checkpoint(log.store) is None
    write_checkpoint(log.snapshot)
    assert not hint.is_symlink()
    assert DeltaLog.for_table(str(other)).snapshot.version == 2


def test_a_log_that_is_a_link(tmp_path: Path, other: Path) -> None:
    before = sorted((other / "_delta_log").iterdir())
    table = tmp_path / "table"
    table.mkdir()
    (table / "_delta_log").symlink_to(other / "_delta_log")
    log = DeltaLog.for_table(str(table))
    with pytest.raises(PathOutsideTableException, match="symbolic link"):
        log.update()
    with pytest.raises(PathOutsideTableException):
        log.store.put_if_absent(f"_delta_log/{3:020}.json", b"{}")
    with pytest.raises(PathOutsideTableException):
        log.store.delete_tree("_delta_log")
    assert sorted((other / "_delta_log").iterdir()) == before


def test_the_table_may_be_a_link(tmp_path: Path, other: Path) -> None:
    (tmp_path / "link").symlink_to(other)
    (tmp_path / "lake").symlink_to(tmp_path)
    expected = state(DeltaLog.for_table(str(other)).snapshot)
    for path in ("link", "lake/other", "lake/link"):
        assert state(DeltaLog.for_table(str(tmp_path / path)).snapshot) == expected


def test_deletion_vectors_behind_links(tmp_path: Path) -> None:
    inside, outside = LocalStore(str(tmp_path / "table")), LocalStore(str(tmp_path / "outside"))
    inside.put("x", b"")
    [vector] = write_deletion_vectors(outside, "", [BitMap64([1])])
    [name] = os.listdir(tmp_path / "outside")
    (tmp_path / "table" / name).symlink_to(tmp_path / "outside" / name)
    with pytest.raises(PathOutsideTableException):
        read_deletion_vector(inside, vector)
    (tmp_path / "table" / name).unlink()
    (tmp_path / "table/d").mkdir()
    os.rename(tmp_path / "outside" / name, tmp_path / "table/d" / name)
    (tmp_path / "table" / name).symlink_to(f"d/{name}")  # of the table
    assert read_deletion_vector(inside, vector) == BitMap64([1])


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A table with links of every kind, all to a directory beside it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    store = LocalStore(str(tmp_path / "table"))
    store.put("d/own", b"own")
    os.symlink(outside, tmp_path / "table/link")
    os.symlink(outside, tmp_path / "table/staged")
    os.symlink(outside, tmp_path / "table/d/link")
    os.symlink(outside / "precious", tmp_path / "table/d/file")
    os.symlink("own", tmp_path / "table/d/alias")
    return store


@pytest.mark.parametrize("path", ["link/precious", "d/link/precious", "d/file", "staged/precious", "../outside/precious"])
def test_a_way_out_of_the_table(store: LocalStore, tmp_path: Path, path: str) -> None:
    reads: list[Callable[[], object]] = [
        lambda: store.read(path),
        lambda: store.read_range(path, 0, 1),
        lambda: store.open_input(path),
    ]
    for read in reads:
        with pytest.raises(PathOutsideTableException):
            read()
    if path != "d/file":  # the link itself may be replaced and deleted
        directory = path.rpartition("/")[0]
        writes: list[Callable[[], object]] = [
            lambda: store.put(path, b"y"),
            lambda: store.put_if_absent(f"{directory}/new", b"y"),
            lambda: store.delete([path]),
            lambda: store.delete_tree(directory),
            lambda: list(store.list_recursive(directory)),
            lambda: store.list_from(directory, ""),
        ]
        for write in writes:
            with pytest.raises(PathOutsideTableException):
                write()
    assert os.listdir(tmp_path / "outside") == ["precious"]
    assert (tmp_path / "outside/precious").read_text() == "x"


def test_links_within_the_table(store: LocalStore) -> None:
    assert store.read("d/alias") == b"own"
    found = {status.path: status.is_link for status in store.list_recursive("")}
    assert found == {"d/own": False, "d/alias": True, "d/file": True, "d/link": True, "link": True, "staged": True}
    store.delete(["d/file"])
    assert not os.path.lexists(f"{store.local_root}/d/file")


def test_what_is_no_file(store: LocalStore) -> None:
    os.mkfifo(f"{store.local_root}/d/pipe")
    os.symlink("/dev/zero", f"{store.local_root}/d/device")
    with pytest.raises(PathOutsideTableException):
        store.read("d/device")
    for name in ("d/pipe", "d"):
        with pytest.raises(DeltaLogCorruptedException, match="not a regular file"):
            store.read(name)
