"""Putting a commit on a file system without unnamed files: a temporary file, and a hard link that never replaces anything."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.log.storage.local import LocalStore


@pytest.fixture(params=["no O_TMPFILE", "unnamed files cannot be linked"])
def store(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    if request.param == "no O_TMPFILE":
        really_open = os.open

        def open_(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return really_open(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", open_)
    else:
        really_link = os.link

        def link(source: Any, target: Any, **options: Any) -> None:
            if str(source).startswith("/proc/"):
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            really_link(source, target, **options)

        monkeypatch.setattr(os, "link", link)
    return LocalStore(str(tmp_path))


def test_a_put_is_complete_and_leaves_nothing_beside(store: LocalStore, tmp_path: Path) -> None:
    for number in range(3):
        store.put_if_absent(f"d/{number}", b"x" * 100_000)
    assert sorted(os.listdir(tmp_path / "d")) == ["0", "1", "2"]
    assert store.read("d/2") == b"x" * 100_000


def test_a_put_never_replaces(store: LocalStore, tmp_path: Path) -> None:
    store.put_if_absent("f", b"one")
    for _ in range(2):
        with pytest.raises(FileExistsError):
            store.put_if_absent("f", b"two")
    assert store.read("f") == b"one"
    assert os.listdir(tmp_path) == ["f"]


def test_a_full_disk_is_told_and_leaves_nothing(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_if_absent("before", b"")

    def full(_descriptor: int, _data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        store.put_if_absent("f", b"x")
    assert os.listdir(tmp_path) == ["before"]


def test_any_other_error_is_not_taken_for_a_missing_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))
    really_open = os.open

    def broken(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EIO, "Input/output error")
        return really_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(OSError, match="Input/output error"):
        store.put_if_absent("f", b"x")
    assert os.listdir(tmp_path) == []
