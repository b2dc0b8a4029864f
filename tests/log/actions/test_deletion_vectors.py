"""Deletion vectors: the bytes that Delta Spark writes, all storage types, and damaged vectors."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from airflow_delta.exceptions import DeltaFileNotFoundException, DeltaLogCorruptedException
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.deletion_vectors import (
    inline_deletion_vector,
    read_deletion_vector,
    read_deletion_vectors,
    serialize,
    vector_path,
    write_deletion_vectors,
    z85_decode,
    z85_encode,
)
from airflow_delta.log.storage.local import LocalStore

# Written by Delta Spark 4.4.0: DELETE of rows 1 and 3 of one file, and 0, 2 and 4 of another.
SPARK_FILE = base64.b64decode(
    "AQAAACTR0zlkAQAAAAAAAAAAAAAAOjAAAAEAAAAAAAEAEAAAAAEAAwBoNJepAAAAJtHTOWQBAAAAAAAAAAAAAAA6MAAAAQAAAAAAAgAQAAAAAAACAAQAMGXYuA=="
)
SPARK_NAME = "deletion_vector_43387d12-27df-46d3-90a0-d2e93e4cd7ed.bin"
FIRST = DeletionVectorDescriptor(
    storage_type="u", path_or_inline_dv="lPxGbc/mzxKF74^k1%O}", offset=1, size_in_bytes=36, cardinality=2
)
SECOND = replace(FIRST, offset=45, size_in_bytes=38, cardinality=3)

MANY = [BitMap64([1]), BitMap64(range(5, 70000)), BitMap64([0, 2**32 + 5, 2**40]), BitMap64(range(0, 200000, 3)), BitMap64()]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / SPARK_NAME).write_bytes(SPARK_FILE)
    return LocalStore(str(tmp_path), {"durable": "false"})


def test_a_file_of_delta_spark(store):
    assert vector_path(store, FIRST) == SPARK_NAME
    assert list(read_deletion_vector(store, FIRST)) == [1, 3]
    assert [list(bitmap) for bitmap in read_deletion_vectors(store, [SECOND, FIRST])] == [[0, 2, 4], [1, 3]]


def test_the_same_bytes_as_delta_spark(store):
    assert serialize(BitMap64([1, 3])) == SPARK_FILE[5:41]
    [first, second] = write_deletion_vectors(store, "", [BitMap64([1, 3]), BitMap64([0, 2, 4])])
    assert store.read(vector_path(store, first)) == SPARK_FILE
    assert replace(first, path_or_inline_dv="") == replace(FIRST, path_or_inline_dv="")
    assert replace(second, path_or_inline_dv="") == replace(SECOND, path_or_inline_dv="")


@pytest.mark.parametrize("directory", ["", "aB", "staged/tx/stage/1-ab"])
def test_what_is_written_is_read_back(store, directory):
    descriptors = write_deletion_vectors(store, directory, MANY)
    for small in (0, -1):
        descriptors[small] = inline_deletion_vector(MANY[small])
    assert [d.storage_type for d in descriptors] == ["i", "u", "u", "u", "i"]
    assert len({vector_path(store, d) for d in descriptors if d.storage_type == "u"}) == 1
    assert read_deletion_vectors(store, descriptors) == MANY
    assert [read_deletion_vector(store, d) for d in descriptors] == MANY
    elsewhere = write_deletion_vectors(store, "other", MANY)
    assert read_deletion_vectors(store, descriptors + elsewhere) == MANY * 2


def test_nothing_is_written_for_no_vectors(store, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert write_deletion_vectors(store, "sub", []) == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "{}"])
def test_absolute_paths_inside_and_outside_of_the_table(store, tmp_path, tmp_path_factory, form):
    other = tmp_path_factory.mktemp("other %20ü")
    (other / SPARK_NAME).write_bytes(SPARK_FILE)
    for directory in (str(tmp_path), str(other).replace("%", "%25").replace(" ", "%20")):
        descriptor = replace(SECOND, storage_type="p", path_or_inline_dv=f"{form.format(directory)}/{SPARK_NAME}")
        assert list(read_deletion_vector(store, descriptor)) == [0, 2, 4]
        both = read_deletion_vectors(store, [descriptor, replace(descriptor, offset=1, size_in_bytes=36, cardinality=2)])
        assert [list(bitmap) for bitmap in both] == [[0, 2, 4], [1, 3]]


@given(st.binary(max_size=64).map(lambda data: data[: len(data) // 4 * 4]))
def test_z85_round_trip(data):
    assert z85_decode(z85_encode(data)) == data


def test_z85_of_its_specification():
    assert z85_encode(bytes.fromhex("864FD26FB559F75B")) == "HelloWorld"
    assert z85_decode("%nSc0") == b"\xff" * 4
    for text in ("abcd", "abc~e", "#####", "%nSc1"):
        with pytest.raises(ValueError, match=r"multiple|not a Z85 character|too large"):
            z85_decode(text)
    with pytest.raises(ValueError, match="multiple of four"):
        z85_encode(b"abc")


INLINE = inline_deletion_vector(BitMap64([1, 3]))


@pytest.mark.parametrize(
    ("descriptor", "reason"),
    [
        (replace(FIRST, size_in_bytes=35), "DELTA_DELETION_VECTOR_SIZE_MISMATCH"),
        (replace(FIRST, size_in_bytes=4000), "ends before"),
        (replace(FIRST, cardinality=3), "3 rows are deleted, but the vector marks 2.*CARDINALITY"),
        (replace(FIRST, path_or_inline_dv="ab~xGbc/mzxKF74^k1%O}"), "not a UUID"),
        (replace(FIRST, storage_type="x"), "storage type is 'x'"),
        (replace(INLINE, path_or_inline_dv="~" + INLINE.path_or_inline_dv[1:]), "not a Z85 character"),
        (replace(INLINE, path_or_inline_dv=INLINE.path_or_inline_dv[:5]), "SIZE_MISMATCH"),
        (replace(INLINE, path_or_inline_dv="00000" + INLINE.path_or_inline_dv[5:]), "magic number 0"),
        (replace(INLINE, path_or_inline_dv=z85_encode((1681511376).to_bytes(4, "little"))), "SIZE_MISMATCH"),
        (
            replace(INLINE, path_or_inline_dv=z85_encode((1681511376).to_bytes(4, "little") + bytes(4)), size_in_bytes=8),
            "non-portable",
        ),
        (replace(INLINE, size_in_bytes=INLINE.size_in_bytes - 2), "not a Roaring bitmap"),
    ],
)
def test_descriptors_that_do_not_fit(store, descriptor, reason):
    with pytest.raises(DeltaLogCorruptedException, match=f"(?s){reason}.*[Rr]estore") as caught:
        read_deletion_vector(store, descriptor)
    assert store.root in str(caught.value)


@pytest.mark.parametrize("position", range(len(SPARK_FILE)))
def test_any_changed_byte_is_an_error_or_none_of_ours(store, tmp_path, position):
    damaged = bytearray(SPARK_FILE)
    damaged[position] ^= 0xFF
    (tmp_path / SPARK_NAME).write_bytes(damaged)
    mine = FIRST if position < 45 else SECOND
    with pytest.raises(DeltaLogCorruptedException, match=r"version|CHECKSUM|SIZE"):
        read_deletion_vectors(store, [FIRST, SECOND])
    if position:
        with pytest.raises(DeltaLogCorruptedException, match=r"CHECKSUM|SIZE"):
            read_deletion_vector(store, mine)
        read_deletion_vector(store, SECOND if mine is FIRST else FIRST)


def test_a_file_that_is_gone(store, tmp_path):
    other = replace(FIRST, path_or_inline_dv=z85_encode(bytes(16)))
    for descriptors in ([other], [FIRST, other], [replace(FIRST, storage_type="p", path_or_inline_dv="file:/no/where.bin")]):
        with pytest.raises(DeltaFileNotFoundException, match=r"(00000000-0000-0000-0000-000000000000|/no/where).*VACUUM"):
            read_deletion_vectors(store, descriptors)


def test_pyroaring_is_imported_only_where_a_vector_is_decoded():
    code = (
        "import sys, airflow_delta.log.actions.deletion_vectors; sys.exit('pyroaring' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
