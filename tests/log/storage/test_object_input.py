"""A file of a store, read like a Python file: the same bytes, whatever the order of seeks and reads."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_delta.log.storage import object_input
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.log.storage.object_input import ObjectInput

CONTENT = bytes(range(256)) * 40
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 6_000), st.just(0)),
        st.tuples(st.just("readinto"), st.integers(0, 6_000), st.just(0)),
        st.tuples(st.just("seek"), st.integers(-3_000, 3_000), st.sampled_from([io.SEEK_CUR, io.SEEK_END])),
        st.tuples(st.just("seek"), st.integers(0, len(CONTENT) + 500), st.just(io.SEEK_SET)),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    root = tmp_path_factory.mktemp("store")
    (root / "file").write_bytes(CONTENT)
    return LocalStore(str(root))


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_as_a_file_in_memory(store: LocalStore, steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_input, "_TAIL", 1_000)  # so that reads fall before it, across its border and into it
        ours, reference = ObjectInput(store, "file", len(CONTENT)), io.BytesIO(CONTENT)
        for step, number, whence in steps:
            if step == "read":
                assert ours.read(number) == reference.read(number)
            elif step == "readinto":
                buffer, expected = bytearray(number), bytearray(number)
                assert ours.readinto(buffer) == reference.readinto(expected)
                assert buffer == expected
            else:
                target = {io.SEEK_SET: 0, io.SEEK_CUR: reference.tell(), io.SEEK_END: len(CONTENT)}[whence] + number
                assert ours.seek(number, whence) == reference.seek(max(target, 0))
            assert ours.tell() == reference.tell()


def test_what_it_can_do(store: LocalStore, tmp_path: Path) -> None:
    file = ObjectInput(store, "file", len(CONTENT))
    assert (file.readable(), file.seekable(), file.writable(), file.size()) == (True, True, False, len(CONTENT))
    (tmp_path / "empty").write_bytes(b"")
    assert ObjectInput(LocalStore(str(tmp_path)), "empty", 0).read() == b""
