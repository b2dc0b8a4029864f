"""Symbolic links: nothing is read, written or deleted through one that leads out of the table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyroaring import BitMap64

from airflow_delta.exceptions import DeltaLogCorruptedException, PathOutsideTableException
from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.actions.deletion_vectors import read_deletion_vector, write_deletion_vectors
from airflow_delta.log.checkpoint.last_checkpoint import read_last_checkpoint
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.storage.factory import sibling
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.transaction import Operation
from support import tables
from support.slow import slow_except

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


SWAPS = """
import ctypes, os, sys
place, outside = map(os.fsencode, sys.argv[1:])
os.symlink(outside, place + b".link")
libc, here, exchange = ctypes.CDLL(None, use_errno=True), -100, 2
while not libc.renameat2(here, place, here, place + b".link", exchange):
    pass
"""


@pytest.fixture(params=slow_except(["d", "a/d", "a/d/e"], "a/d/e"))
def swapped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LocalStore, str]]:
    """A table with a directory that another process replaces by a link, and back, all the time; and that directory."""
    directory = "d" if request.param == "d" else "a/d"
    (tmp_path / "outside/e").mkdir(parents=True)
    store = LocalStore(str(tmp_path / "table"), {"durable": "false"})
    for place in ("", "e/"):
        store.put(f"{directory}/{place}file", b"own")
        (tmp_path / f"outside/{place}file").write_text("of somebody else")
        (tmp_path / f"outside/{place}other").write_text("of somebody else")
        (tmp_path / f"outside/{place}empty").mkdir()
    process = subprocess.Popen([sys.executable, "-c", SWAPS, f"{store.local_root}/{directory}", str(tmp_path / "outside")])
    yield store, request.param
    process.kill()
    process.wait()


def test_a_directory_that_is_swapped_for_a_link(swapped: tuple[LocalStore, str], tmp_path: Path) -> None:
    store, directory = swapped
    outside = tmp_path / "outside"
    before = sorted(str(path) for path in outside.rglob("*"))
    done: Counter[str] = Counter()

    def read() -> None:
        assert store.read(f"{directory}/file") == b"own"

    def status() -> None:
        assert (found := store.head(f"{directory}/file")) is None or found.size == 3

    def listing() -> None:
        assert {item.name for item in store.list_from(directory, "")}.isdisjoint({"other", "empty"})

    def recursive() -> None:
        assert {item.name for item in store.list_recursive(directory)}.isdisjoint({"other", "empty"})

    actions: list[Callable[[], object]] = [
        read,
        status,
        listing,
        recursive,
        lambda: store.put(f"{directory}/new", b"own"),
        lambda: store.put_if_absent(f"{directory}/{uuid.uuid4()}/x/new", b"own"),
        lambda: [store.delete_tree(f"{directory}/{name}") for name in store.list_directories(directory) if name != "e"],
        lambda: store.delete([f"{directory}/other"]),
        lambda: store.delete_tree(f"{directory}/empty"),
        lambda: store.remove_directory(f"{directory}/empty"),
        lambda: store.open_input(f"{directory}/file").read() == b"own" or pytest.fail("read elsewhere"),
    ]
    until = time.monotonic() + 4
    while time.monotonic() < until:
        for number, action in enumerate(actions):
            try:
                action()
            except (OSError, PathOutsideTableException):  # while it is a link, or not there
                done["refused"] += 1
            else:
                done[str(number)] += 1
    assert sorted(str(path) for path in outside.rglob("*")) == before
    assert all(path.read_text() == "of somebody else" for path in outside.rglob("*") if path.is_file())
    assert min(done.values()) > 50


def test_a_table_is_held_below_a_directory(tmp_path: Path) -> None:
    """Once it is held, no link in place of the table, or of a directory above it, leads elsewhere."""
    filled(tmp_path / "base/team/table")
    filled(tmp_path / "elsewhere/team/table", id=SECRET)
    log = DeltaLog.for_table(str(tmp_path / "base/team/table"))
    assert isinstance(log.store, LocalStore)
    log.store.hold_within(str(tmp_path / "base"))
    (tmp_path / "base/team").rename(tmp_path / "base/moved")
    (tmp_path / "base/team").symlink_to(tmp_path / "elsewhere/team")
    assert log.snapshot.metadata.id != SECRET
    swapped = DeltaLog.for_table(str(tmp_path / "base/team/table"))
    assert isinstance(swapped.store, LocalStore)
    with pytest.raises(PathOutsideTableException, match="is not below"):
        swapped.store.hold_within(str(tmp_path / "base"))
    with pytest.raises(PathOutsideTableException, match="is not below"):
        sibling(log.store, str(tmp_path / "elsewhere/team/table"))


def test_a_held_table_is_written_below_its_directory(tmp_path: Path) -> None:
    (tmp_path / "base/table").mkdir(parents=True)
    (tmp_path / "base/link").symlink_to("table")
    store = LocalStore(str(tmp_path / "base/link"))
    store.hold_within(str(tmp_path / "base"))
    store.put("a/b/c", b"x")
    assert [status.path for status in store.list_recursive("")] == ["a/b/c"]
    assert (tmp_path / "base/table/a/b/c").read_text() == "x"
    with pytest.raises(FileNotFoundError):
        LocalStore(str(tmp_path / "base/none")).hold_within(str(tmp_path / "base"))
