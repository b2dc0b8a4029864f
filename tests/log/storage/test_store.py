"""What every store must do (Delta's LogStoreSuiteBase), tested on local files; for object stores see test_object_store."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.base import UNKNOWN
from airflow_delta.log.storage.errors import AmbiguousPutError
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.local import LocalStore, local_path


@pytest.mark.parametrize("name", ["table", "with space", "50%", "a%20b", "über", "a+b", "c=d", "x:y", "[brackets]{}*?"])
def test_a_table_path_is_taken_literally(tmp_path: Path, name: str) -> None:
    store = store_for(f"{tmp_path}/{name}")
    store.put_if_absent("_delta_log/f", b"x")
    assert (tmp_path / name / "_delta_log" / "f").read_bytes() == b"x"


def test_a_file_uri_is_decoded(tmp_path: Path) -> None:
    table = tmp_path / "a b%ü"
    store_for(table.as_uri()).put("f", b"x")
    assert (table / "f").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("uri", "path"),
    [("file:///x/y", "/x/y"), ("file:/x/y", "/x/y"), ("file://localhost/x", "/x"), ("/x/y/", "/x/y"), ("FILE:///x", "/x")],
)
def test_forms_of_a_local_uri(uri: str, path: str) -> None:
    assert local_path(uri) == path


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = store_for("here/table/")
    assert (store.root, store.local_root) == ("here/table", f"{tmp_path}/here/table")


@pytest.mark.parametrize("uri", ["", " ", "dbfs://x/y", "hdfs://x", "hdfs:///y", "file://host/x", "s3://"])
def test_locations_that_are_refused(uri: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException):
        store_for(uri)


def test_an_unknown_value_of_durable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="durable"):
        store_for(str(tmp_path), {"durable": "perhaps"})


@pytest.mark.parametrize("content", [b"", b"x", b"y" * 5_000_000])
@pytest.mark.parametrize("durable", ["true", "false"])
def test_put_and_read(tmp_path: Path, content: bytes, durable: str) -> None:
    store = store_for(str(tmp_path / "t"), {"durable": durable})
    store.put_if_absent("_delta_log/f", content)
    assert store.read("_delta_log/f") == content
    status = store.head("_delta_log/f")
    assert status is not None
    assert (status.size, status.name) == (len(content), "f")
    assert status.modification_time == os.stat(tmp_path / "t/_delta_log/f").st_mtime_ns // 1_000_000


@pytest.fixture(params=["unnamed file", "named file"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "t"))
    if request.param == "named file":
        store._anonymous_files = False
    return store


def test_put_if_absent_never_replaces(local: LocalStore) -> None:
    local.put_if_absent("d/f", b"first")
    with pytest.raises(FileExistsError):
        local.put_if_absent("d/f", b"second")
    assert local.read("d/f") == b"first"
    assert os.listdir(f"{local.local_root}/d") == ["f"]


def test_a_race_for_one_name_has_one_winner(local: LocalStore) -> None:
    local.put_if_absent("d/other", b"")
    won: list[bytes] = []
    lost: list[bytes] = []
    for round_ in range(50):
        barrier = threading.Barrier(4)

        def put(content: bytes, barrier: threading.Barrier = barrier, round_: int = round_) -> None:
            barrier.wait()
            try:
                local.put_if_absent(f"d/{round_}", content)
                won.append(content)
            except FileExistsError:
                lost.append(content)

        threads = [threading.Thread(target=put, args=(f"{round_}-{number}".encode() * 1000,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert local.read(f"d/{round_}") == won[-1]
    assert (len(won), len(lost)) == (50, 150)
    assert not [name for name in os.listdir(f"{local.local_root}/d") if name.endswith(".tmp")]


def test_a_full_disk_leaves_nothing_behind(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    local.put_if_absent("d/before", b"")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        local.put_if_absent("d/f", b"x")
    monkeypatch.undo()
    assert os.listdir(f"{local.local_root}/d") == ["before"]


def test_a_directory_that_cannot_be_synced_leaves_the_outcome_open(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    local.put_if_absent("d/before", b"")
    sync = os.fsync

    def fail_on_directories(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_on_directories)
    with pytest.raises(AmbiguousPutError):
        local.put_if_absent("d/f", b"x")


def test_where_links_are_missing_a_put_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    store = LocalStore(str(tmp_path))
    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(OSError, match="hard links"):
        store.put_if_absent("f", b"x")
    assert os.listdir(tmp_path) == []


def test_put_replaces_at_once(local: LocalStore) -> None:
    local.put("d/f", b"one")
    local.put("d/f", b"two")
    assert local.read("d/f") == b"two"
    assert os.listdir(f"{local.local_root}/d") == ["f"]


def test_permissions_follow_the_umask(local: LocalStore) -> None:
    before = os.umask(0o027)
    try:
        local.put_if_absent("a", b"")
        local.put("b", b"")
    finally:
        os.umask(before)
    assert {os.stat(f"{local.local_root}/{name}").st_mode & 0o777 for name in "ab"} == {0o640}


def test_what_is_missing(local: LocalStore) -> None:
    assert local.head("d/f") is None
    assert local.list_from("d", "") == []
    assert list(local.list_recursive("d")) == []
    with pytest.raises(FileNotFoundError):
        local.read("d/f")
    local.delete(["d/f"])
    assert local.delete_tree("d") == 0


def test_list_from_a_name(local: LocalStore) -> None:
    for name in ("c", "a", "b", "B"):
        local.put(f"d/{name}", b"12")
    local.put("d/sub/x", b"")
    assert [status.name for status in local.list_from("d", "b")] == ["b", "c", "sub"]
    assert [status.size for status in local.list_from("d", "b", stat=False)] == [UNKNOWN] * 3
    assert local.list_from("d", "b")[0].size == 2


def test_list_recursive_and_delete_tree(local: LocalStore) -> None:
    for path in ("d/a", "d/e/b", "d/e/f/c", "other"):
        local.put(path, b"1")
    assert sorted(status.path for status in local.list_recursive("d")) == ["d/a", "d/e/b", "d/e/f/c"]
    assert local.delete_tree("d") == 3
    assert os.listdir(local.local_root) == ["other"]


def test_delete_tree_does_not_follow_links(local: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    local.put("d/a", b"")
    os.symlink(outside, f"{local.local_root}/d/link")
    local.delete_tree("d")
    assert (outside / "precious").exists()
    assert not os.path.exists(f"{local.local_root}/d")


def test_the_table_itself_is_not_deleted(local: LocalStore) -> None:
    with pytest.raises(DeltaIllegalArgumentException):
        local.delete_tree("")


def test_ranges(local: LocalStore) -> None:
    local.put("f", b"0123456789")
    assert local.read_range("f", 2, 3) == b"234"
    assert local.read_range("f", 8, 10) == b"89"
    assert local.read_many(["f", "f"]) == [b"0123456789"] * 2


def test_open_input_is_what_arrow_reads(local: LocalStore) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = pa.table({"x": [1, 2, 3]})
    os.makedirs(local.local_root)
    pq.write_table(content, f"{local.local_root}/f.parquet")
    with local.open_input("f.parquet") as file:
        assert pq.ParquetFile(file).read() == content
    with pytest.raises(FileNotFoundError):
        local.open_input("none.parquet")


class TestScratchFiles:
    """Files written piece by piece and put under a name at the end."""

    @pytest.mark.parametrize("anonymous", [True, False])
    @pytest.mark.parametrize("before", [None, b"old"])
    def test_a_scratch_file_becomes_the_file(self, table: Path, before: bytes | None, anonymous: bool) -> None:
        store = LocalStore(str(table))
        store.put("_delta_log/other", b"")
        store._anonymous_files = anonymous
        if before is not None:
            store.put("_delta_log/x", before)
        file = store.scratch_file()
        file.write(b"1" * 100_000)
        file.seek(0)
        store.put_file("_delta_log/x", file)
        file.close()
        assert store.read("_delta_log/x") == b"1" * 100_000
        assert sorted(path.name for path in (table / "_delta_log").iterdir()) == ["other", "x"]
        modes = {(table / "_delta_log" / name).stat().st_mode for name in ("other", "x")}
        assert len(modes) == 1, "readable for the same people as every other file"

    def test_the_first_files_of_a_table_are_linked_too(self, tmp_path: Path) -> None:
        """They are staged before there is a log."""
        store = LocalStore(str(tmp_path / "new" / "table"))
        with store.scratch_file() as file:
            file.write(b"1" * 100_000)
            file.seek(0)
            inode = os.fstat(file.fileno()).st_ino
            store.put_file("staged/x", file)
        assert (tmp_path / "new" / "table" / "staged" / "x").stat().st_ino == inode
        assert [path.name for path in (tmp_path / "new" / "table").iterdir()] == ["staged"]

    def test_it_leaves_nothing_when_it_is_not_put(self, table: Path) -> None:
        store = LocalStore(str(table))
        store.put("_delta_log/other", b"")
        with store.scratch_file() as file:
            file.write(b"1")
        assert [path.name for path in (table / "_delta_log").iterdir()] == ["other"]

    def test_only_the_rest_of_a_file_is_put(self, table: Path) -> None:
        store = LocalStore(str(table))
        store.put("_delta_log/other", b"")
        with store.scratch_file() as file:
            file.write(b"12345")
            file.seek(2)
            store.put_file("_delta_log/x", file)
        assert store.read("_delta_log/x") == b"345"


def test_a_directory_that_is_made_during_a_listing_is_no_file(tmp_path: Path) -> None:
    """Else the staging directory of a transaction that begins at the same time looks like a file of somebody else."""
    store = store_for(str(tmp_path))
    done = threading.Event()

    def make() -> None:
        for number in range(3_000):
            (tmp_path / f"{number}").mkdir()
        done.set()

    maker = threading.Thread(target=make)
    maker.start()
    while not done.is_set():
        files, directories = store.list_children("")
        assert files == []
    maker.join()
    files, directories = store.list_children("")
    assert (files, len(directories)) == ([], 3_000)
    assert directories == store.list_directories("")
