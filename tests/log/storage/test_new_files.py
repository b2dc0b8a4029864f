"""Many new files below one directory: whole, durable, and nowhere else."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_delta.exceptions import LocationNotWritableException, PathOutsideTableException
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.local import LocalStore


class Plain(LocalStore):
    """Puts new files as every other one, as stores without directories do."""

    new_files = LogStore.new_files


@pytest.mark.parametrize("kind", [LocalStore, Plain])
@pytest.mark.parametrize("directory", ["", "staged/x"])
def test_files_have_their_content(tmp_path: Path, kind: type[LocalStore], directory: str) -> None:
    store, content = kind(str(tmp_path / "table")), {"f": b"", "a=1/f": b"1", "a=1/g": b"2" * 5_000_000, "a=2/b=ü/f": b"3"}
    with store.new_files(directory) as files:
        for path, data in content.items():
            files.put(path, data)
    root = tmp_path / "table" / directory
    assert {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()} == content
    store.put("other", b"")
    assert {path.stat().st_mode for path in root.rglob("f")} == {(tmp_path / "table" / "other").stat().st_mode}


def test_threads_make_the_same_directories(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with store.new_files("d") as files, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: files.put(f"a={number % 5}/b={number % 7}/{number}", b"x"), range(500)))
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 500


def test_every_file_and_every_name_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.add(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
    )
    with LocalStore(str(tmp_path)).new_files("d") as files:
        files.put("f", b"1")
        files.put("a=1/b=2/f", b"2")
    assert synced == {".", "d", "d/f", "d/a=1", "d/a=1/b=2", "d/a=1/b=2/f"}
    synced.clear()
    with LocalStore(str(tmp_path), {"durable": "false"}).new_files("e") as files:
        files.put("a=1/f", b"1")
    assert not synced


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    with LocalStore(str(tmp_path)).new_files("d") as files:
        files.put("f", b"1")
        with pytest.raises(FileExistsError):
            files.put("f", b"2")
    assert (tmp_path / "d" / "f").read_bytes() == b"1"


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    with LocalStore(str(tmp_path)).new_files("d") as files:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            files.put("a=1/f", b"1")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with LocalStore(str(tmp_path / "table")).new_files("staged/x") as files:
        (tmp_path / "table" / "staged" / "x" / "a=1").symlink_to(outside)
        with pytest.raises(PathOutsideTableException, match="a=1"):
            files.put("a=1/f", b"1")
        with pytest.raises(PathOutsideTableException):
            files.put("../../../outside/f", b"1")
    assert not list(outside.iterdir())


def test_a_directory_that_is_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with store.new_files("staged/x") as files:
        files.put("a=1/f", b"1")
        store.delete_tree("staged")
        files.put("a=1/f", b"2")
        files.put("b=1/f", b"3")
    assert sorted(path.read_bytes() for path in tmp_path.rglob("f")) == [b"2", b"3"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    with LocalStore(str(tmp_path)).new_files("d") as files:
        (tmp_path / "d" / "a=1").write_bytes(b"in the way")
        with pytest.raises(LocationNotWritableException):
            files.put("a=1/f", b"1")
