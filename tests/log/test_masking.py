"""Masking texts and options, and that the engine never shows a secret."""

from __future__ import annotations

import json
import socketserver
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from airflow_delta.contract.request import StageRequest
from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.factory import store_for
from airflow_delta.masking import has_user_info, masked, masked_settings, masked_values, refused_options, secret_values
from support.actions import protocol

TEXTS = [
    ("http://user:secret@host:9000/x", "http://***@host:9000/x"),
    ("http://u:p@ss@host/", "http://***@host/"),
    ("see https://token@host, and s3://k:s@bucket/x", "see https://***@host, and s3://***@bucket/x"),
    ("abfss://container@account.dfs.core.windows.net/t", "abfss://container@account.dfs.core.windows.net/t"),
    ("abfss://user:key@account/t", "abfss://***@account/t"),
    ("s3://bucket/a@b/c=1&d=2", "s3://bucket/a@b/c=1&d=2"),
    ("https://h/?prefix=a&X-Amz-Signature=abc&sig=x", "https://h/?prefix=a&X-Amz-Signature=***&sig=***"),
    ("jdbc:postgresql://h/db?user=a&password=b", "jdbc:postgresql://h/db?user=***&password=***"),
    ("jdbc:sqlserver://h;databaseName=x;password=p", "jdbc:sqlserver://h;databaseName=x;password=***"),
    ("jdbc:sqlserver://h;password={a;b};encrypt=true", "jdbc:sqlserver://h;password=***;encrypt=true"),
    ("jdbc:derby:x;create=true;password=p", "jdbc:derby:x;create=true;password=***"),
    ("jdbc:mysql://address=(host=h)(password=p)/db", "jdbc:mysql://address=(host=h)(password=***)/db"),
    ("https://h/#access_token=a", "https://h/#access_token=***"),
    ("jdbc:oracle:thin:scott/tiger@//h:1521/x", "jdbc:oracle:thin:***@//h:1521/x"),
    ("sc://host:15002/;token=abc", "sc://host:15002/;token=***"),
    ("x where a = 1; b = 2", "x where a = 1; b = 2"),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_texts(text, expected):
    assert masked(text) == expected
    assert masked(expected) == expected
    assert masked_values({"a": [text, 1, None]}) == {"a": [expected, 1, None]}
    assert str(DeltaError(text)).endswith(expected)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "part",
    [
        "s3://a:",
        "a://b:c/",
        "x",
        "a:",
        "://",
        "@",
        "s3://",
        "jdbc:",
        "jdbc:oracle:x:",
        "?a",
        "http://a?b=",
        "&",
        "=",
        "a@",
        "jdbc:;a={",
        "jdbc:(",
    ],
)
def test_a_long_text_takes_no_longer_than_its_length(part):
    """A text in a table's log may have megabytes: with the square of its length this would take hours."""
    masked(f"http://{part * (400_000 // len(part))}")
    masked(part * (400_000 // len(part)) + " ://")


def test_known_secrets_go_wherever_they_stand():
    assert masked("key=hush-hush of hush-hush", ["hush-hush", "abc", ""]) == "key=*** of ***"


OPTIONS = [
    ({"AWS_REGION": "eu-west-1", "AWS_ALLOW_HTTP": "true", "timeout": "30s", "aws_endpoint": "http://minio:9000"}, ()),
    ({"AWS_ENDPOINT_URL": "http://user:secret@host"}, ("user:secret", "secret")),
    ({"AWS_ENDPOINT_URL": "http://user:s%2Fx@host"}, ("user:s%2Fx", "s%2Fx", "s/x")),
    ({"AWS_ENDPOINT_URL": "http://user:s/x@host"}, ("user:s/x", "s/x")),
    ({"AWS_ENDPOINT_URL": "https://host/?sig=s/x"}, ("https://host/?sig=s/x",)),
    ({"AWS_SECRET_ACCESS_KEY": "hush", "AZURE_STORAGE_SAS_TOKEN": "sv=1"}, ("hush", "sv=1")),
    ({"something_new": "value", "something_else": "false", "another": "42"}, ("value",)),
    ({"secret_pin": "1234"}, ("1234",)),
]


@pytest.mark.parametrize(("options", "secrets"), OPTIONS)
def test_values_of_options_that_are_not_known_to_be_harmless(options, secrets):
    assert secret_values(options) == secrets


def test_options_of_spark_that_must_not_be_written_down():
    harmless = {"header": "true", "maxRecordsPerFile": 5, "compression": "zstd", "parquet.block.size": 1, "url": "jdbc:h2:mem:x"}
    assert refused_options(harmless) == []
    assert refused_options({"url": "jdbc:mysql://h/db?useSSL=false&serverTimezone=UTC&rewriteBatchedStatements=true"}) == []
    for url in ("jdbc:derby:x;password=p", "jdbc:h2:mem:x;PASSWORD=p", "jdbc:mysql://address=(host=h)(password=p)/db"):
        assert refused_options({"url": url}) == ["url"]
    refused = {
        "password": "x",
        "user": "x",
        "sfPassword": "x",
        "parquet.encryption.key.list": "k1:AAA",
        "url": "jdbc:postgresql://h/db?password=x",
        "whatIsThis": "x",
        "path": "s3a://key:secret@bucket/x",
    }
    assert refused_options(refused) == list(refused)


def test_settings_are_shown_without_secrets():
    settings = {"delta.appendOnly": "true", "fs.s3a.secret.key": "x", "properties": '{"my.password":"x","primaryKey":"id"}'}
    assert masked_settings(settings) == {
        "delta.appendOnly": "true",
        "fs.s3a.secret.key": "***",
        "properties": '{"my.password":"***","primaryKey":"***"}',
    }


def test_only_settings_that_are_known_to_be_harmless_are_shown():
    secret = ("pass", "db.pass", "pwd", "sas", "sig", "auth", "kms.key", "dsn", "bearer", "sasl.jaas.config", "owner", "note")
    assert masked_settings(dict.fromkeys(secret, "x")) == dict.fromkeys(secret, "***")
    shown = {
        "delta.constraints.key_is_positive": "key > 0",
        "delta.checkpointInterval": "10",
        "our.retries": "3",
        "our.flag": "true",
        "predicate": '["(id = 1)"]',
        "columns": '[{"column":{"name":"key","type":"integer","nullable":true,"metadata":{}}}]',
    }
    assert masked_settings(shown) == shown
    assert masked_settings({"auth.retries": "3"}) == {"auth.retries": "***"}
    assert masked_settings({"properties": '[{"pwd":"x"}]'}) == {"properties": '[{"pwd":"***"}]'}


SECRET_LOCATIONS = [
    ("s3://key:a/b@bucket/t", "s3://***@bucket/t"),
    ("abfss://c:a/b@account.dfs.core.windows.net/t", "abfss://***@account.dfs.core.windows.net/t"),
    ("abfss://c@a.dfs.core.windows.net/t?sv=1&sig=hush", "abfss://c@a.dfs.core.windows.net/t?sv=1&sig=***"),
    ("s3://b/t?X-Amz-Signature=hush", "s3://b/t?X-Amz-Signature=***"),
    ("s3://b/t?AWSAccessKeyId=hush&x=1", "s3://b/t?AWSAccessKeyId=***&x=1"),
    ("hdfs://etl:a/b@node:8020/t", "hdfs://***@node:8020/t"),
    ("s3://key:hush/t", "s3://***/t"),
    ("az://container:hush/t", "az://***/t"),
    ("/data/t?sig=hush", "/data/t?sig=***"),
    ("/data/t?sig=/hush", "/data/t?sig=***"),
    ("data/t?v=1&sig=hush", "data/t?v=1&sig=***"),
    ("file:/data/t?X-Goog-Signature=hush", "file:/data/t?X-Goog-Signature=***"),
]


@pytest.mark.parametrize(("uri", "shown"), SECRET_LOCATIONS)
def test_a_secret_in_a_location_is_refused_and_not_shown(uri, shown):
    assert masked(f"at {uri} here") == f"at {shown} here"
    with pytest.raises(DeltaIllegalArgumentException, match=r"contains credentials .*connection") as raised:
        store_for(uri)
    assert "hush" not in (text := f"{raised.value} {raised.value.table}")
    assert "a/b" not in text


@pytest.mark.parametrize("uri", ["hdfs://node:8020/a@b", "s3://b/a@b/c=1&d=2", "s3://b/t?version=1", "http://h:8080/users/@me"])
def test_a_location_without_a_secret_stays(uri):
    assert not has_user_info(uri)
    assert masked(uri) == uri


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/t", "S3A://key:secret@bucket/t", "gs://secret@bucket/t"])
def test_a_location_with_credentials_is_refused(uri):
    assert has_user_info(uri)
    with pytest.raises(DeltaIllegalArgumentException, match="credentials") as raised:
        store_for(uri)
    assert "secret" not in f"{raised.value} {raised.value.table}"


@pytest.fixture
def refusing() -> Iterator[str]:
    """An S3 endpoint that refuses every request and repeats it in the reply."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            told = f"{self.path} {dict(self.headers)} http://user:hush-hush@host"
            body = f"<Error><Code>AccessDenied</Code><Message>{told}</Message></Error>".encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command != "HEAD" else b"")

        do_HEAD = do_PUT = do_GET

        def log_message(self, *_):
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://user:hush-hush@127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_errors_of_a_store_repeat_no_credentials(refusing):
    options = {
        "AWS_ENDPOINT_URL": refusing,
        "AWS_REGION": "x",
        "AWS_ACCESS_KEY_ID": "the-key-id",
        "AWS_SECRET_ACCESS_KEY": "the-secret-key",
        "AWS_SESSION_TOKEN": "the-session-token",
    }
    log = DeltaLog.for_table("s3://bucket/t", options)
    for action in (
        lambda: log.read_commit(0),
        log.update,
        lambda: log.store.put_if_absent("x", b"x"),
        lambda: log.store.put("y", b""),
    ):
        with pytest.raises(OSError, match="bucket/t") as raised:
            action()
        told = "".join(traceback.format_exception(raised.value)) + repr(log) + repr(log.store)
        for secret in ("hush-hush", "the-key-id", "the-secret-key", "the-session-token"):
            assert secret not in told


def request(**changes) -> StageRequest:
    plain = {
        "transaction_id": "t",
        "table": "/t",
        "read_version": 0,
        "stage": "s",
        "task_id": "s",
        "attempt": "1",
        "directory": "d",
    }
    return StageRequest(**{**plain, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"table": "s3a://key:hush-hush@bucket/t"},
        {"options": {"parquet.encryption.key.list": "k1:hush-hush"}},
        {"arguments": {"source": {"format": "jdbc", "options": '{"dbtable": "x", "password": "hush-hush"}'}}},
        {"arguments": {"source": {"format": "jdbc", "options": {"dbtable": "x", "password": "hush-hush"}}}},
        {"arguments": {"source": {"format": "jdbc", "options": {"url": "jdbc:mysql://u:hush-hush@h/db"}}}},
        {"arguments": {"source": {"path": "s3a://u:hush-hush@bucket/x"}}},
        {"arguments": {"source": {"sql": "SELECT * FROM parquet.`s3a://u:hush-hush@bucket/x`"}}},
        {"arguments": {"source": {"path": "/x", "password": "hush-hush"}}},
    ],
)
def test_a_request_with_secrets_is_refused(changes):
    with pytest.raises(DeltaIllegalArgumentException) as raised:
        request(**changes)
    assert "hush-hush" not in str(raised.value)


def test_a_request_names_the_connection_of_its_source():
    source = {"format": "jdbc", "options": {"dbtable": "x", "fetchsize": "100"}, "conn_id": "warehouse"}
    asked = request(arguments={"source": source}, options={"maxRecordsPerFile": "3"})
    assert StageRequest.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked


def test_the_log_of_a_table_gets_no_credentials(tmp_path):
    from airflow_delta.log import Metadata
    from airflow_delta.transaction import Operation
    from support.actions import SCHEMA

    log = DeltaLog.for_table(str(tmp_path / "t"))
    txn = log.start_transaction()
    operation = Operation("WRITE", {"mode": "Append", "predicate": "url = 'http://u:hush-hush@h'"})
    txn.commit(
        [protocol(), Metadata(id="x", schema_string=SCHEMA, created_time=1)],
        operation,
        tags={"source": "s3://u:hush-hush@b/x", "airflow.dagId": "d"},
    )
    text = (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").read_text()
    assert "hush-hush" not in text
    assert "http://***@h" in text
