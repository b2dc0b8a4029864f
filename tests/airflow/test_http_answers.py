"""A server that sends without end, or what becomes huge, fails a request in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_delta import http_answers
from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.exceptions import CatalogNotFoundException, CatalogUnavailableException
from airflow_delta.tasks.restart.clearing import clear_with_downstream

NAME = TableName.parse("main.sales.orders")
BOMB = gzip.compress(b" " * (200 << 20), compresslevel=1)


class Server:
    """Answers every request in one of several bad ways."""

    def __init__(self) -> None:
        self.way, self.packed = "", "gzip"
        self.stopped = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                getattr(server, server.way)(self)

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def slow_body(self, handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        self._trickle(handler)

    def slow_headers(self, handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        self._trickle(handler)

    def _trickle(self, handler: Any) -> None:
        while not self.stopped.wait(0.1):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return

    def bomb(self, handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", self.packed)
        handler.send_header("Content-Length", str(len(BOMB)))
        handler.end_headers()
        handler.wfile.write(BOMB)

    def good(self, handler: Any) -> None:
        body = gzip.compress(b'{"protocol-version": "1.0", "endpoints": ["GET /v1/config"]}')
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def refusal(self, handler: Any) -> None:
        body = b'{"error": {"message": "no such catalog", "type": "NoSuchCatalogException"}}'
        handler.send_response(404)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def endless(self, handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not self.stopped.is_set():
                handler.wfile.write(b" " * (1 << 20))
        except OSError:
            return


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers, "SECONDS", 2.0)
    monkeypatch.setattr(http_answers, "MOST_BYTES", 8 << 20)
    monkeypatch.setattr("airflow_delta.catalog.client._ATTEMPTS", 1)
    monkeypatch.setattr("airflow_delta.tasks.restart.clearing._ATTEMPTS", 1)


def _load(server: Server) -> None:
    UnityCatalogClient(server.url).load_table(NAME)


def _clear(_: Server) -> None:
    clear_with_downstream("airflow_api", dag_id="dag", run_id="run", tasks=["task"])


@pytest.fixture(params=[(_load, CatalogUnavailableException), (_clear, OSError)], ids=["catalog", "Airflow's API"])
def client(request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that asks, and the error that it raises."""
    connection = {"conn_type": "http", "host": server.url, "password": "token"}
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps(connection))
    return request.param


def test_what_a_server_says_comes_through(server: Server) -> None:
    server.way = "good"
    client = UnityCatalogClient(server.url, "token")
    assert client.config("main").endpoints == ("GET /v1/config",)
    server.way = "refusal"
    with pytest.raises(CatalogNotFoundException, match="404 NoSuchCatalogException: no such catalog"):
        client.config("main")


@pytest.mark.parametrize("way", ["slow_body", "slow_headers"])
def test_an_answer_that_does_not_end_is_given_up(server: Server, client: Any, way: str) -> None:
    server.way = way
    ask, error = client
    begun = time.monotonic()
    with pytest.raises(error, match="the answer was not whole after 2 s"):
        ask(server)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("way", ["br", "gzip, gzip", "zstd"])
def test_only_gzip_is_unpacked(server: Server, client: Any, way: str) -> None:
    """A piece of the others may unpack to more than memory holds."""
    server.way, server.packed = "bomb", way
    ask, error = client
    with pytest.raises(error, match="is packed as"):
        ask(server)


@pytest.mark.parametrize("way", ["bomb", "endless"])
def test_an_answer_that_is_too_large_is_not_kept(server: Server, client: Any, way: str) -> None:
    server.way = way
    ask, error = client
    tracemalloc.start()
    try:
        with pytest.raises(error, match="the answer has more than 8 MiB"):
            ask(server)
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()
