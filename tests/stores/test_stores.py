"""Each emulator keeps the promises that a log store needs."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
import pytest

from stores.races import WRITERS, check_races
from stores.tables import client


@pytest.fixture
def container(store: Any) -> Any:
    return client(store.options, store.root(store.container()))


def test_put_if_absent_has_one_winner(container):
    check_races(container)


def test_lists_from_an_offset_in_order_and_in_pages(container):
    names = [f"log/{number:05}" for number in range(1_203)]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda name: obstore.put(container, name, b"x"), names))
    assert [meta["path"] for page in obstore.list(container, "log/") for meta in page] == names
    assert [meta["path"] for page in obstore.list(container, "log/", offset=names[1_000]) for meta in page] == names[1_001:]
    listed = obstore.list_with_delimiter(container)
    assert listed["common_prefixes"] == ["log"]
    assert not listed["objects"]


def test_an_etag_is_the_same_in_lists_and_look_ups(store):
    """Files that were loaded are told apart by it, whichever way they were found."""
    from airflow_delta.log.storage.factory import store_for
    from airflow_delta.table.positions.files.pattern import SourcePattern, matching

    pattern = SourcePattern.parse(f"{store.root(store.container())}/raw/*.csv", recursive=True)
    log_store = store_for(pattern.base, store.options)
    names = ["a.csv", "x/b c%20#.csv"]
    etags = []
    for content in (b"id\n1\n", b"id\n2\n"):
        for name in names:
            log_store.put(name, content)
        _, listed = matching(log_store, pattern)
        assert sorted(status.path for status in listed) == names
        for status in listed:
            found = log_store.head(status.path)
            assert (found.etag, found.size) == (status.etag, status.size)
            assert found.modification_time // 1000 == status.modification_time // 1000, "a header has seconds"
        etags.append({status.path: status.etag for status in listed})
    assert all(etags[0][name] and etags[0][name] != etags[1][name] for name in names), "the size is the same, and maybe the time"


def test_a_large_object_goes_in_parts(store):
    from airflow_delta.log.storage.factory import store_for

    log_store = store_for(f"{store.root(store.container())}/t", store.options)
    data = os.urandom(1 << 20) * 33 + b"the end"
    log_store.put_file("_delta_log/large", io.BytesIO(data))
    assert log_store.head("_delta_log/large").size == len(data)
    assert log_store.read("_delta_log/large") == data


def test_copies_from_another_table_and_from_another_store(store, tmp_path):
    from airflow_delta.log.storage.factory import store_for

    root = store.root(store.container())
    source, target = store_for(f"{root}/a b", store.options), store_for(f"{root}/c", store.options)
    elsewhere = store_for(str(tmp_path / "local"))
    large = os.urandom(1 << 20) * 33 + b"the end"
    for name, data in (("p=a b%2F/ü 1.parquet", b"0123456789"), ("large", large)):
        source.put(name, data)
        assert target.copy_from(source, name, f"staged/{name}") == len(data)
        assert elsewhere.copy_from(source, name, name) == len(data)
        assert target.copy_from(elsewhere, name, f"back/{name}") == len(data)
        assert target.read(f"staged/{name}") == target.read(f"back/{name}") == elsewhere.read(name) == data
    # Other settings may be those of another account: the bytes go through this process.
    stranger = store_for(f"{root}/a b", {**store.options, "timeout": "50s"})
    assert target.copy_from(stranger, "large", "third") == len(large)
    assert target.read("third") == large
    for holder in (source, elsewhere):
        with pytest.raises(FileNotFoundError):
            target.copy_from(holder, "nothing", "x")


def test_reads_ranges_and_deletes(container):
    name = "p=a b%2F/ü 1.parquet"
    obstore.put(container, name, b"0123456789", mode="create")
    assert bytes(obstore.get_range(container, name, start=2, end=5)) == b"234"
    assert obstore.head(container, name)["size"] == 10
    obstore.delete(container, name)
    with pytest.raises(FileNotFoundError):
        obstore.head(container, name)


def test_takes_an_upload_in_parts(container):
    content = os.urandom(12 << 20)
    obstore.put(container, "large", content, chunk_size=5 << 20)
    assert bytes(obstore.get(container, "large").bytes()) == content
