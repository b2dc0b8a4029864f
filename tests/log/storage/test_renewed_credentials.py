"""Credentials of a role end before a long task does: stores fetch new ones by themselves."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_delta.exceptions import CredentialsUnavailableException
from airflow_delta.hooks import cloud
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log.storage.factory import store_for

RENEWED_BEFORE_END = 300
"""Seconds before their end at which object_store asks for new credentials."""


class Cloud:
    """A token service and a store in one server: it keeps the session that each request to the store has."""

    def __init__(self) -> None:
        self.sessions: list[str] = []
        self.issued = 0
        self.lasts = 3600.0
        self.refusals = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if owner.refusals:
                    owner.refusals -= 1
                    self._answer(503, b"<E><Error><Code>ServiceUnavailable</Code></Error></E>")
                    return
                owner.issued += 1
                until = datetime.now(UTC) + timedelta(seconds=owner.lasts)
                self._answer(
                    200,
                    '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
                    f"<AccessKeyId>role</AccessKeyId><SecretAccessKey>very-secret-{owner.issued}</SecretAccessKey>"
                    f"<SessionToken>session-{owner.issued}</SessionToken><Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
                    "</Credentials></AssumeRoleResult></AssumeRoleResponse>".encode(),
                )

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                owner.sessions.append(self.headers.get("x-amz-security-token", ""))
                self._answer(200, b"x")

            do_PUT = do_HEAD = do_GET

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                self.send_header("ETag", '"x"')
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def role(monkeypatch) -> Iterator[tuple[Cloud, DeltaHook]]:
    """The cloud, and a connection with a role in it."""
    made = Cloud()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    options = {
        "role_arn": "arn:aws:iam::123456789012:role/lake",
        "region": "us-east-1",
        "endpoint_url": made.url,
        "endpoint_url_sts": made.url,
    }
    fields = {"conn_type": "delta", "login": "key", "password": "very-secret", "extra": {"storage_options": options}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))
    monkeypatch.setattr(cloud, "_fetched", {})
    yield made, DeltaHook("lake")
    made.server.shutdown()
    made.server.server_close()


def test_a_store_that_lives_longer_than_its_session(role, monkeypatch):
    made, hook = role
    monkeypatch.setattr(cloud, "KEPT_SECONDS", 0.0)
    made.lasts = RENEWED_BEFORE_END + 2
    store = hook.get_log("s3://lake/t").store
    store.read("a")
    until = time.monotonic() + 60
    while len(set(made.sessions)) < 3 and time.monotonic() < until:
        time.sleep(0.3)
        store.read("a")
    assert made.sessions[0] == "session-1"
    assert len(set(made.sessions)) == 3
    assert made.sessions == sorted(made.sessions, key=lambda session: int(re.sub(r"\D", "", session)))


def test_a_session_that_lasts_is_fetched_once(role):
    made, hook = role
    for _ in range(3):
        hook.get_log("s3://lake/t").store.read("a")
    assert (made.issued, set(made.sessions)) == (1, {"session-1"})


def test_a_hiccup_of_the_service_is_no_error(role):
    made, hook = role
    made.refusals = 2
    assert hook.get_log("s3://lake/t").store.read("a") == b"x"


def test_a_service_that_is_away_when_they_are_renewed(role, monkeypatch):
    made, hook = role
    monkeypatch.setattr(cloud, "KEPT_SECONDS", 0.0)
    made.lasts = 1.0
    store = hook.get_log("s3://lake/t").store
    store.read("a")
    made.refusals = 1_000
    time.sleep(1.5)
    with pytest.raises(CredentialsUnavailableException, match=r"role/lake of .* 'lake' cannot be assumed.*Unavailable"):
        store.read("a")
    asked = len(made.sessions)
    with pytest.raises(CredentialsUnavailableException):  # nothing was sent, so nothing can have been written
        store.put_if_absent("b", b"1")
    assert len(made.sessions) == asked
    made.refusals = 0
    assert store.read("a") == b"x"


def test_another_process_uses_the_values_as_long_as_they_last(role, monkeypatch):
    from airflow_delta.log.storage import credentials

    made, hook = role
    options = hook.storage_options("s3://lake/t")
    monkeypatch.setattr(credentials, "_fetchers", {})
    assert store_for("s3://lake/t", options).read("a") == b"x"
    assert set(made.sessions) == {"session-1"}


def test_renewed_credentials_are_masked(role, monkeypatch):
    masked: list[str] = []
    monkeypatch.setattr(cloud, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(cloud, "mask_secret", masked.append)
    made, hook = role
    made.lasts = RENEWED_BEFORE_END
    store = hook.get_log("s3://lake/t").store
    for _ in range(2):
        time.sleep(0.2)  # the client asks at most ten times a second
        store.read("a")
    assert {"very-secret-1", "session-1", "very-secret-2", "session-2"} <= set(masked)
