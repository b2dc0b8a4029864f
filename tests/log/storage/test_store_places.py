"""Where worker and Spark ask for a table: the same place, whether the connection or the environment says it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.hadoop import hadoop_settings
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.options import canonical_options
from airflow_delta.table.stage.spark_uri import spark_uri

KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
AZURE_KEY = {"azure_storage_account_name": "account", "azure_storage_account_key": "a2V5"}
VIRTUAL = {"aws_virtual_hosted_style_request": "true"}
ABFSS = "abfss://container@account.dfs.core.windows.net/t"
CHINA = "abfss://container@account.dfs.core.chinacloudapi.cn/t"
CHINESE = "https://account.blob.core.chinacloudapi.cn"


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """The URLs that clients ask for, through a proxy on loopback that knows nothing; its own URL comes first."""
    urls: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            urls.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def do_CONNECT(self) -> None:
            urls.append(f"https://{self.path}")
            self.send_error(502)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    urls.append(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield urls
    server.shutdown()
    server.server_close()


PLACES = [
    # location, options, environment, URL that the worker asks, endpoint of Hadoop
    ("s3://lake/t", {"aws_endpoint_url": "http://s3.example"}, {}, "http://s3.example/lake/t/x", "http://s3.example"),
    ("s3://lake/t", {"aws_endpoint_url": "http://s3.example/"}, {}, "http://s3.example/lake/t/x", "http://s3.example"),
    ("s3://lake/t", {"aws_endpoint_url": "http://s3.example", **VIRTUAL}, {}, "http://lake.s3.example/t/x", "http://s3.example"),
    ("s3://lake/t", {"aws_endpoint_url": "http://lake.s3.example:81", **VIRTUAL}, {}, "http://lake.s3.example:81/t/x",
     "http://s3.example:81"),
    ("s3://lake/t", {}, {"AWS_ENDPOINT_URL": "http://env.example"}, "http://env.example/lake/t/x", "http://env.example"),
    ("s3://lake/t", VIRTUAL, {"AWS_ENDPOINT_URL_S3": "http://env.example"}, "http://lake.env.example/t/x", "http://env.example"),
    ("s3://lake/t", {"aws_endpoint_url": "http://s3.example"}, {"AWS_ENDPOINT_URL_S3": "http://env.example"},
     "http://s3.example/lake/t/x", "http://s3.example"),
    ("s3://lake/t", {"aws_endpoint_url": "http://all.example", "aws_endpoint_url_s3": "http://s3.example"}, {},
     "http://s3.example/lake/t/x", "http://s3.example"),
    ("s3://lake/t", {}, {"AWS_ENDPOINT_URL": "http://env.example", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
     "http://lake.env.example/t/x", "http://env.example"),
    ("s3://lake/t", {"aws_endpoint_url": "http://s3.example", "AWS_S3_ADDRESSING_STYLE": "virtual"}, {},
     "http://lake.s3.example/t/x", "http://s3.example"),
    ("gs://lake/t", {"google_base_url": "http://gcs.example/"}, {}, "http://gcs.example/lake/t%2Fx", "http://gcs.example"),
    ("gs://lake/t", {}, {"GOOGLE_BASE_URL": "http://env.example"}, "http://env.example/lake/t%2Fx", "http://env.example"),
    ("az://container/t", {"azure_storage_endpoint": "http://127.0.0.2:1/account/"}, {},
     "http://127.0.0.2:1/account/container/t/x", "127.0.0.2:1"),
    ("az://container/t", {}, {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.2:1/account"},
     "http://127.0.0.2:1/account/container/t/x", "127.0.0.2:1"),
    (ABFSS, {}, {}, "https://account.blob.core.windows.net:443", None),
    (CHINA, {}, {}, "https://account.blob.core.chinacloudapi.cn:443", None),
    ("az://container/t", {"azure_storage_endpoint": CHINESE}, {}, "https://account.blob.core.chinacloudapi.cn:443", None),
]  # fmt: skip
ENDPOINTS = {"s3a": "fs.s3a.bucket.lake.endpoint", "gs": "fs.gs.storage.root.url", "abfs": "fs.azure.abfs.endpoint"}


@pytest.mark.parametrize(("uri", "options", "environment", "url", "endpoint"), PLACES)
def test_worker_and_spark_ask_at_one_place(asked, monkeypatch, uri, options, environment, url, endpoint):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    own = {"s3": KEYS, "gs": {"google_skip_signature": "true"}}.get(uri.partition("://")[0], AZURE_KEY)
    options = {**own, **options}
    quick = {"proxy_url": asked[0], "connect_timeout": "5s", "timeout": "10s"}
    with pytest.raises(Exception, match=r"x|502|failed"):
        store_for(uri, {**options, **quick}).read("x")
    assert url in asked[1:]
    place = spark_uri(uri, options)
    settings = hadoop_settings(place, canonical_options(options, uri), environment=environment)
    assert settings.get(ENDPOINTS.get(place.partition("://")[0], "")) == endpoint
    if uri.startswith("s3"):
        virtual = not url.partition("://")[2].partition("/")[2].startswith("lake")
        assert settings["fs.s3a.bucket.lake.path.style.access"] == str(not virtual).lower()


def test_the_signature_of_a_cloud_goes_to_no_other(asked):
    for uri in (ABFSS, CHINA):
        other = {ABFSS: CHINESE, CHINA: "https://account.blob.core.windows.net"}[uri]
        store = store_for(uri, {**AZURE_KEY, "azure_storage_endpoint": other, "proxy_url": asked[0]})
        with pytest.raises(DeltaIllegalArgumentException, match=r"is at account\.dfs.*is for account\.dfs"):
            store.read("x")
    assert len(asked) == 1


OF_DELTA_RS = ["AWS_IAM_ROLE_ARN", "AWS_S3_ASSUME_ROLE_ARN", "AWS_IAM_ROLE_SESSION_NAME", "AWS_S3_ROLE_SESSION_NAME"]
WITHOUT_MEANING = [
    "AWS_S3_LOCKING_PROVIDER",
    "AWS_S3_POOL_IDLE_TIMEOUT_SECONDS",
    "AWS_ENDPOINT_URL_DYNAMODB",
    "AWS_FORCE_CREDENTIAL_LOAD",
]


def test_names_of_delta_rs():
    for name in OF_DELTA_RS:
        assert canonical_options({name: "x"}, "s3://lake/t") == {f"aws_role_{'arn' if 'ARN' in name else 'session_name'}": "x"}
    for name in WITHOUT_MEANING:
        assert canonical_options({name: "x"}, "s3://lake/t") == {}
    with pytest.raises(DeltaIllegalArgumentException, match="aws_s3_addressing_style of table s3://lake/t is 'auto'"):
        canonical_options({"AWS_S3_ADDRESSING_STYLE": "auto"}, "s3://lake/t")
    with pytest.raises(DeltaIllegalArgumentException, match="'AWS_PROFILE', which no store knows"):
        canonical_options({"AWS_PROFILE": "x"}, "s3://lake/t")
