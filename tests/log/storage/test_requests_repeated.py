"""How often a store's client repeats a request: as a connection says, and conditional puts never."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.factory import store_for


@pytest.fixture
def failing():
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.command)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("repeats", [0, 2])
def test_as_often_as_the_options_say(failing, repeats):
    url, asked = failing
    keys = {"access_key_id": "a", "secret_access_key": "b", "endpoint_url": url}
    store = store_for("s3://lake/t", {**keys, "AWS_MAX_RETRIES": str(repeats)})
    with pytest.raises(OSError, match="failed"):
        store.read("x")
    assert asked == ["GET"] * (repeats + 1)
    with pytest.raises(OSError, match="unknown"):
        store.put_if_absent("x", b"1")
    assert asked == [*["GET"] * (repeats + 1), "PUT"]


def test_a_number_is_a_number():
    with pytest.raises(DeltaIllegalArgumentException, match="max_retries of table s3://lake/t is 'often'"):
        store_for("s3://lake/t", {"access_key_id": "a", "secret_access_key": "b", "max_retries": "often"}).read("x")
