"""What a store refuses for good is an error at once, in the store's own words; what may have happened is not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_delta.exceptions import ConditionalPutException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.conditional_put import check_conditional_put
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreAccessError, StoreRefusedError, StoreUnavailableError
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.start.begin import begin

pytestmark = pytest.mark.s3


class Server:
    """S3 as far as needed: answers every request with a status, or keeps objects and ignores conditions."""

    def __init__(self) -> None:
        self.status = 0
        self.code = "AccessDenied"
        self.message = "User lake-writer may not\ndo this"
        self.requests: list[tuple[str, str]] = []
        self.objects: dict[str, bytes] = {}
        self.loses_answers = False
        self.credentials = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                server.requests.append((self.command, path))
                status, answer = server.status, b""
                if path.startswith("/imds") and server.credentials:
                    status = server.credentials
                if server.loses_answers:
                    server.objects[path] = body
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if status:
                    answer = f"<Error><Code>{server.code}</Code><Message>{server.message}</Message></Error>".encode()
                elif self.command == "PUT":
                    server.objects[path], status = body, 200
                elif self.command == "POST":
                    server.objects.clear()
                    status, answer = 200, b"<DeleteResult></DeleteResult>"
                else:
                    status = 200 if path in server.objects else 404
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("ETag", '"1"')
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.options = {
            "aws_endpoint_url": f"http://127.0.0.1:{self._server.server_address[1]}",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "very-secret",
        }

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return self.options["aws_endpoint_url"]

    @property
    def puts(self) -> int:
        return sum(method == "PUT" for method, _ in self.requests)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


STATUSES = [
    (400, StoreRefusedError),
    (401, StoreAccessError),
    (403, StoreAccessError),
    (405, StoreRefusedError),
    (413, StoreRefusedError),
    (408, AmbiguousPutError),
    (429, AmbiguousPutError),
    (500, AmbiguousPutError),
    (503, AmbiguousPutError),
]


@pytest.mark.parametrize(("status", "kind"), STATUSES)
def test_a_put_is_refused_or_ambiguous(server: Server, status: int, kind: type[OSError]) -> None:
    server.status = status
    with pytest.raises(kind) as caught:
        store_for("s3://lake/t", server.options, connection="lake").put_if_absent("_delta_log/f", b"x")
    assert type(caught.value) is kind
    assert server.puts == 1
    if kind is not AmbiguousPutError:
        assert f"Writing s3://lake/t/_delta_log/f was refused: {status} AccessDenied: User lake-writer may not do this. " in str(
            caught.value
        )
        assert "the connection 'lake'" in str(caught.value)
        assert "very-secret" not in str(caught.value)


def ways(server: Server) -> dict[str, LogStore]:
    """Return a table for each way to sign a request: the client's errors differ."""
    azure = {"azure_storage_account_name": "account", "azure_storage_endpoint": f"{server.url}/account"}
    gcs = json.dumps(
        {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    )
    return {
        "S3 key": store_for("s3://lake/t", server.options),
        "S3 below a path like that of a role's token": store_for("s3://lake/latest/api/token", server.options),
        "S3 below a path like an answer": store_for("s3://lake/token request - status code: 403", server.options),
        "Azure key": store_for("az://lake/t", {**azure, "azure_storage_account_key": "c2VjcmV0"}),
        "Azure SAS": store_for("az://lake/t", {**azure, "azure_storage_sas_token": "sv=2023-01-03&sp=rwdl&sig=very-secret"}),
        "Azure token": store_for("az://lake/t", {**azure, "azure_storage_token": "very-secret"}),
        "GCS without token": store_for("gs://lake/t", {"google_service_account_key": gcs, "allow_http": "true"}),
        "GCS token": store_for(
            "gs://lake/t", {"google_bearer_token": "very-secret", "google_base_url": server.url, "allow_http": "true"}
        ),
    }


@pytest.mark.parametrize("answer", ["lost", 500, 503, 429])
def test_a_put_whose_answer_says_nothing_is_ambiguous_however_it_is_signed(server: Server, answer: int | str) -> None:
    """It may have been done: a task that takes it for refused fails for good, with its entry in the log."""
    if answer == "lost":
        server.loses_answers = True
    else:
        server.status = int(answer)
        server.code, server.message = "InternalError", "Backend said - status code: 403, performing GET http://other/ in 1s"
    for way, store in ways(server).items():
        with pytest.raises(AmbiguousPutError) as caught:
            store.put_if_absent("_delta_log/f", b"x")
        assert "credentials" not in str(caught.value), way
        assert "very-secret" not in str(caught.value), way


@pytest.mark.parametrize(("status", "kind"), [(400, StoreRefusedError), (401, StoreAccessError), (403, StoreAccessError)])
def test_a_put_that_is_refused_is_refused_however_it_is_signed(server: Server, status: int, kind: type[OSError]) -> None:
    server.status, server.message = status, "Backend said: status code: 500"
    for way, store in ways(server).items():
        with pytest.raises(kind, match=rf"f was refused: {status} AccessDenied: Backend said: status code: 500\. ") as caught:
            store.put_if_absent("_delta_log/f", b"x")
        assert type(caught.value) is kind, way


@pytest.mark.parametrize("code", ["RequestTimeout", "IncompleteBody", "BadDigest"])
def test_what_happened_to_the_connection_is_not_final(server: Server, code: str) -> None:
    server.status, server.code = 400, code
    store = store_for("s3://lake/t", server.options)
    with pytest.raises(AmbiguousPutError):
        store.put_if_absent("_delta_log/f", b"x")
    with pytest.raises(StoreUnavailableError):
        store.read("f")


def test_a_missing_object_is_missing_however_it_is_signed(server: Server) -> None:
    server.status, server.code = 404, "NoSuchKey"
    for way, store in ways(server).items():
        with pytest.raises(FileNotFoundError):
            store.read("f")
        assert store.head("f") is None, way


def test_reading_and_listing_say_what_the_store_said(server: Server) -> None:
    server.status = 403
    store = store_for("s3://lake/t", server.options, connection="lake")
    for operation, act in (
        ("Reading", lambda: store.read("f")),
        ("Listing", lambda: store.list_from("d", "")),
        ("Deleting", lambda: store.delete(["f"])),
        ("Writing", lambda: store.put("f", b"")),
    ):
        with pytest.raises(PermissionError, match=f"{operation} .* refused: 403 AccessDenied: User lake-writer") as caught:
            act()
        assert isinstance(caught.value, StoreAccessError)


def test_an_expired_token_says_so(server: Server) -> None:
    server.status, server.code, server.message = 400, "ExpiredToken", "The provided token has expired."
    with pytest.raises(StoreRefusedError, match="session token of the connection 'lake' has expired: renew it"):
        store_for("s3://lake/t", server.options, connection="lake").put_if_absent("f", b"x")


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("XAdminUserNotFound", StoreAccessError, "Check login and password"),  # Versity's gateway, of an unknown key
        ("NoSuchBucket", StoreRefusedError, "Check the bucket"),
        ("FilesystemNotFound", StoreRefusedError, "Check the bucket"),
        ("NoSuchKey", FileNotFoundError, "s3://lake/t/f"),
        ("BlobNotFound", FileNotFoundError, "s3://lake/t/f"),
    ],
)
def test_not_everything_that_is_not_found_is_a_missing_object(server: Server, code: str, kind: type[OSError], says: str) -> None:
    """Else a table that may not be read would be one that does not exist."""
    server.status, server.code, server.message = 404, code, "Not found."
    with pytest.raises(kind, match=says) as caught:
        store_for("s3://lake/t", server.options, connection="lake").read("f")
    assert type(caught.value) is kind


def test_without_credentials_nothing_is_sent(server: Server) -> None:
    options = {
        "aws_endpoint_url": server.options["aws_endpoint_url"],
        "aws_metadata_endpoint": f"{server.options['aws_endpoint_url']}/imds",
    }
    server.status, server.code = 403, "NoRole"
    with pytest.raises(StoreAccessError, match=r"no credentials could be found .* Set login and password"):
        store_for("s3://lake/t", options).put_if_absent("_delta_log/f", b"x")
    assert [path for _, path in server.requests if path.endswith("/f")] == []


@pytest.mark.parametrize("status", [500, 503, 429])
def test_credentials_that_cannot_be_fetched_now_are_not_a_refusal(server: Server, status: int, tmp_path: Path) -> None:
    server.credentials = status
    (token := tmp_path / "token").write_text("of the pod")
    store = store_for(
        "s3://lake/t",
        {
            "aws_endpoint_url": server.url,
            "aws_container_credentials_full_uri": f"{server.url}/imds",
            "aws_container_authorization_token_file": str(token),
        },
    )
    with pytest.raises(AmbiguousPutError):
        store.put_if_absent("_delta_log/f", b"x")
    assert {path for _, path in server.requests} == {"/imds"}
    server.credentials = 403
    with pytest.raises(StoreAccessError, match=r"no credentials could be found \(403"):
        store.put_if_absent("_delta_log/f", b"x")


def test_plain_http_must_be_allowed(server: Server) -> None:
    with pytest.raises(StoreRefusedError, match="plain HTTP is not allowed"):
        store_for("s3://lake/t", {**server.options, "allow_http": "false"}).put_if_absent("f", b"x")
    assert server.requests == []


def test_a_store_that_overwrites_is_refused_before_a_table_is_created_there(server: Server) -> None:
    store = store_for("s3://lake/no-conditions", server.options)
    with pytest.raises(ConditionalPutException, match="ignores the condition of a put"):
        check_conditional_put(store)
    assert server.objects == {}
    assert server.puts == 2


def test_the_proof_is_kept_for_a_table(s3_table: str, s3_options: dict[str, str], s3_client, s3_bucket: str) -> None:
    begin(DeltaLog.for_table(s3_table, s3_options), transaction_key="a")
    assert "Contents" not in s3_client.list_objects_v2(Bucket=s3_bucket)
    log = DeltaLog.for_table(s3_table, s3_options)
    put: list[str] = []
    log.store.put_if_absent = lambda path, data, **_: put.append(path)  # type: ignore[method-assign]
    begin(log, transaction_key="b")
    assert put == []
    with pytest.raises(ConditionalPutException):
        check_conditional_put(log.store, again=True)
