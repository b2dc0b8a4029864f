"""Reads of files named in a log are bounded: only regular files, and never more of a deletion vector than it can have."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyroaring import BitMap64

from airflow_delta.exceptions import DeltaError, DeltaLogCorruptedException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.deletion_vectors import (
    inline_deletion_vector,
    read_deletion_vector,
    read_deletion_vectors,
    serialize,
    vector_path,
    write_deletion_vectors,
)
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.read.version_scan import plan_version_scan
from support import tables

ROWS = 20_000_000


def directory(path: Path) -> None:
    path.mkdir()


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the whole path may be too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "directory": directory, "socket": listening}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path), {"durable": "false"})


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_are_read(store: LocalStore, tmp_path: Path, kind: str) -> None:
    SPECIAL[kind](tmp_path / "special")
    reads: list[Callable[[], object]] = [
        lambda: store.read("special"),
        lambda: store.read_many(["special"]),
        lambda: store.read_range("special", 0, 1 << 40),
        lambda: store.open_input("special"),
    ]
    for read in reads:
        with pytest.raises(DeltaLogCorruptedException, match=r"special.*not a regular file") as caught:
            read()
        assert caught.value.table == store.root


@pytest.mark.parametrize("kind", SPECIAL)
def test_hints_that_are_no_files_are_left_out_and_commits_refused(table: Path, kind: str) -> None:
    tables.table_with_commits(table, 4)
    checkpoint = [tables.protocol(), tables.metadata(), *(tables.add(f"{version}-0.parquet") for version in range(4))]
    tables.write_checkpoint_by_hand(table, 3, checkpoint)
    for name in (f"{4:020d}.crc", "_last_checkpoint", f"{4:020d}.checkpoint.parquet"):
        SPECIAL[kind](tables.log_path(table, name))
    found = DeltaLog.for_table(str(table)).snapshot
    assert (found.version, found.num_files, found.files().num_rows) == (4, 5, 5)
    tables.commit_path(table, 4).unlink()
    SPECIAL[kind](tables.commit_path(table, 4))
    with pytest.raises(DeltaLogCorruptedException, match="not a regular file"):
        DeltaLog.for_table(str(table)).snapshot.files()


@pytest.mark.parametrize("path", ["/dev/zero", "file:///dev/zero", "file:/dev/zero"])
@pytest.mark.parametrize("several", [False, True])
def test_a_vector_that_is_a_device(store: LocalStore, path: str, several: bool) -> None:
    descriptor = DeletionVectorDescriptor(storage_type="p", path_or_inline_dv=path, offset=1, size_in_bytes=40, cardinality=2)
    with pytest.raises(DeltaLogCorruptedException, match=r"/dev/zero.*not a regular file"):
        read_deletion_vectors(store, [descriptor, replace(descriptor, offset=50)] if several else [descriptor])


FIRST = BitMap64([1, 3, 70_000])


@pytest.mark.parametrize(
    ("changes", "num_records", "reason"),
    [
        ({}, 70_000, "marks row 70000, but the file has 70000 rows"),
        ({}, 2, "3 rows are deleted, but the file has 2"),
        ({"size_in_bytes": 2**31 - 1}, None, "far more than 3 deleted rows"),
        ({"size_in_bytes": 2**31 - 1, "cardinality": 10**17}, 10**16, "deleted, but the file has"),
        ({"size_in_bytes": 10**18, "cardinality": 10**17}, None, "10{18} bytes"),
        ({"size_in_bytes": 2**31 - 1, "cardinality": 10**17}, None, "ends before"),
        ({"size_in_bytes": -1}, None, "-1 bytes"),
        ({"offset": -1}, None, "offset -1"),
        ({"cardinality": -1}, None, "and -1 rows"),
        ({"offset": 2**62}, None, "at offset 4"),
        ({"offset": 2**31 - 1}, None, "ends before"),
    ],
)
def test_claims_that_cannot_be(store: LocalStore, changes: dict[str, int], num_records: int | None, reason: str) -> None:
    [good] = write_deletion_vectors(store, "", [FIRST])
    assert read_deletion_vector(store, good, num_records=70_001) == FIRST
    with pytest.raises(DeltaLogCorruptedException, match=reason):
        read_deletion_vector(store, replace(good, **changes), num_records=num_records)


def test_inline_vectors_are_bounded_as_well(store: LocalStore) -> None:
    good = inline_deletion_vector(FIRST)
    assert read_deletion_vector(store, good, num_records=70_001) == FIRST
    with pytest.raises(DeltaLogCorruptedException, match="marks row 70000"):
        read_deletion_vector(store, good, num_records=70_000)
    with pytest.raises(DeltaLogCorruptedException, match="which no file can have"):
        read_deletion_vector(store, inline_deletion_vector(BitMap64([2**64 - 1])))
    # What comes after the declared bytes is not decoded.
    assert read_deletion_vector(store, replace(good, path_or_inline_dv=good.path_or_inline_dv + "~" * 10_000_000)) == FIRST


def test_only_the_bytes_of_the_vectors_are_read(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many vectors, three of which are read: two close together and one a gigabyte away."""
    bitmaps = [BitMap64([number, number + 9]) for number in range(4)]
    descriptors = write_deletion_vectors(store, "", bitmaps[:3])
    path = tmp_path / vector_path(store, descriptors[0])
    data = serialize(bitmaps[3])
    with open(path, "r+b") as file:
        file.seek(1 << 30)
        file.write(len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big"))
    far = replace(descriptors[0], offset=1 << 30, size_in_bytes=len(data))
    reads: list[tuple[int, int]] = []
    read_range = store.read_range
    monkeypatch.setattr(store, "read_range", lambda path, start, end: reads.append((start, end)) or read_range(path, start, end))
    wanted = [descriptors[2], far, descriptors[0]]
    assert read_deletion_vectors(store, wanted) == [bitmaps[2], bitmaps[3], bitmaps[0]]
    assert len(reads) == 2
    assert sum(length for _, length in reads) < 1000


def test_a_vector_of_many_rows_takes_no_memory_by_row(table: Path) -> None:
    """4 KB mark 20 million rows: planned in a separate process, whose peak memory is measured."""
    store = LocalStore(str(table), {"durable": "false"})
    protocol = tables.protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"])
    [vector] = write_deletion_vectors(store, "", [BitMap64(range(ROWS))])
    assert vector.size_in_bytes < 8192
    file = tables.add("f", stats=json.dumps({"numRecords": ROWS}), deletion_vector=vector)
    tables.write_commit(table, 0, protocol, tables.metadata(), file)
    code = f"""
import re
from pathlib import Path
import pyarrow.parquet as pq
import pyarrow.compute, pyarrow.dataset
from airflow_delta.table.read.version_scan import plan_version_scan
from airflow_delta.log import DeltaLog
log = DeltaLog.for_table({str(table)!r}, {{"durable": "false"}})
# Its own peak: that of resource.getrusage() begins with the size of the process that started it.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10
before = peak()
[file] = plan_version_scan(log, 0).files
print(file.deletion_vector.num_words, peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words, megabytes = map(int, done.stdout.split()[-2:])
    assert words == ROWS // 64
    assert megabytes < 150  # so many integers alone are 160 MB, and there were several copies of them


def test_the_words_of_a_scan_are_those_of_the_vector(table: Path) -> None:
    """Around the border of two pieces, and far apart."""
    import pyarrow.parquet as pq

    store = LocalStore(str(table), {"durable": "false"})
    rows = BitMap64([0, 63, 64, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20, 2**39]) | BitMap64(range(2_000_001, 2_400_000, 3))
    protocol = tables.protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"])
    tables.create_table(table)
    descriptors = write_deletion_vectors(store, "", [BitMap64([7]), rows])
    files = [tables.add(f"f{number}", deletion_vector=vector) for number, vector in enumerate(descriptors)]
    tables.write_commit(table, 1, protocol, *files)
    plan = plan_version_scan(DeltaLog.for_table(str(table)), 1)
    words = pq.read_table(table / str(plan.deleted_rows)).to_pylist()
    found: list[set[int]] = [set(), set()]
    for row in words:
        number, word = row["key"] >> 34, row["word"] & (2**64 - 1)
        found[number] |= {(row["key"] & (2**34 - 1)) * 64 + bit for bit in range(64) if word >> bit & 1}
    assert found == [{7}, set(rows)]
    assert [file.deletion_vector.num_words for file in plan.files if file.deletion_vector] == [1, len(words) - 1]


def test_a_scan_checks_the_rows_of_the_file(table: Path) -> None:
    protocol = tables.protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"])
    vector = inline_deletion_vector(BitMap64([9]))
    tables.write_commit(table, 0, protocol, tables.metadata(), tables.add("f", stats='{"numRecords":9}', deletion_vector=vector))
    with pytest.raises(DeltaError, match="marks row 9, but the file has 9 rows"):
        plan_version_scan(DeltaLog.for_table(str(table)), 0)
