"""What is read is as long as the store says, or it is no answer: proxies cut bodies and call what is left their length."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import encode_actions
from airflow_delta.log.storage.errors import IncompleteReadError
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.object import ObjectStore
from stores.proxy import FaultProxy, Rule
from support import tables

pytestmark = pytest.mark.s3

CONTENT = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def _proxy(s3_options: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    with FaultProxy(s3_options["AWS_ENDPOINT_URL"], tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    monkeypatch.setattr("airflow_delta.log.storage.whole_reads._READ_AGAIN", (0.0, 0.0))
    _proxy.set()
    return _proxy


@pytest.fixture
def store(s3_table: str, s3_options: dict[str, str], proxy: FaultProxy) -> ObjectStore:
    store = store_for(s3_table, {**s3_options, "AWS_ENDPOINT_URL": proxy.url})
    assert isinstance(store, ObjectStore)
    store.put("f", CONTENT)
    return store


READS = {
    "whole": (lambda store: store.read("f"), CONTENT),
    "several": (lambda store: store.read_many(["f", "f"])[1], CONTENT),
    "a range": (lambda store: store.read_range("f", 100, 5_000), CONTENT[100:5_100]),
    "a range over the end": (lambda store: store.read_range("f", 10_000, 5_000), CONTENT[10_000:]),
    "ranges": (
        lambda store: b"".join(store.read_ranges("f", [(100, 900), (5_000, 900)])),
        CONTENT[100:1_000] + CONTENT[5_000:5_900],
    ),
    "a file": (lambda store: store.open_input("f", len(CONTENT)).read(), CONTENT),
}


@pytest.mark.parametrize("name", READS)
def test_an_answer_that_is_cut_is_asked_for_again(name: str, store: ObjectStore, proxy: FaultProxy) -> None:
    read, expected = READS[name]
    proxy.set(Rule("cut", "GET"))
    assert read(store) == expected
    assert proxy.faults == [1]


@pytest.mark.parametrize("name", READS)
def test_answers_that_are_always_cut_are_an_error(name: str, store: ObjectStore, proxy: FaultProxy) -> None:
    read, _ = READS[name]
    proxy.set(Rule("cut", "GET", times=None))
    with pytest.raises(IncompleteReadError, match=rf"Reading {store.root}/f gave \d+ bytes of \d+"):
        read(store)


def test_a_file_that_is_shorter_than_in_its_listing_is_an_error(store: ObjectStore) -> None:
    with store.open_input("f", len(CONTENT) + 1) as file, pytest.raises(IncompleteReadError):
        file.read()


def test_an_empty_object_is_empty(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.read("empty") == b""


def test_an_entry_of_the_log_loses_nothing(s3_table: str, s3_options: dict[str, str], proxy: FaultProxy) -> None:
    """Cut after a line, it would be an entry with fewer files."""
    log = DeltaLog.for_table(s3_table, s3_options)
    files = (tables.add(f"{number}.parquet") for number in range(20))
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), tables.metadata(), *files]))
    through = {**s3_options, "AWS_ENDPOINT_URL": proxy.url}
    proxy.set(Rule("cut", "GET", target=r"0+\.json"))
    assert DeltaLog.for_table(s3_table, through).update().files().num_rows == 20
    assert proxy.faults == [1]
    proxy.set(Rule("cut", "GET", target=r"0+\.json", times=None))
    with pytest.raises(IncompleteReadError):
        DeltaLog.for_table(s3_table, through).update().files()


class WithoutRanges:
    """A store that answers every GET with the whole object, as HTTP allows; or with less, under the length of that."""

    def __init__(self) -> None:
        self.carried = len(CONTENT)
        store = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = CONTENT[: store.carried] if self.command == "GET" else CONTENT
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Last-Modified", "Sat, 28 Nov 2026 12:00:00 GMT")
                self.send_header("ETag", '"1"')
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_GET = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


def test_a_store_without_ranges_is_asked_for_the_size(s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_delta.log.storage.whole_reads._READ_AGAIN", (0.0, 0.0))
    there = WithoutRanges()
    try:
        store = store_for("s3://lake/t", {**s3_options, "AWS_ENDPOINT_URL": there.url})
        assert store.read("f") == CONTENT
        there.carried = 100
        with pytest.raises(IncompleteReadError, match=f"gave 100 bytes of {len(CONTENT)}"):
            store.read("f")
    finally:
        there.server.shutdown()
        there.server.server_close()
