"""Whose secrets go where: a listener on loopback is what an editor of a connection would have, and nothing may arrive there.

Connections and hooks are Airflow's own; the store's client is obstore.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
from airflow.sdk import RetryAction

from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException, PathOutsideTableException
from airflow_delta.hooks import allowed, cloud
from airflow_delta.hooks.allowed import API_SERVER
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log.storage.factory import sibling, store_for
from airflow_delta.log.storage.refusals import is_panic
from airflow_delta.retry_policies import FINAL_ERRORS

S3, ABFSS, AZ, GS = "s3://lake", "abfss://lake@account.dfs.core.windows.net", "az://lake", "gs://lake"
KEYS = {"login": "its-key", "password": "its-secret"}
SECRET = "secret-of-the-process"
QUICK = {"timeout": "2s", "connect_timeout": "1s"}


class Listener:
    """A server that notes what it receives; it answers as ``answer`` says, or never."""

    def __init__(self) -> None:
        noted: list[str] = []
        listener = self
        self.noted, self.answer, self.silent, self.status = noted, b"{}", threading.Event(), 200

        class Handler(BaseHTTPRequestHandler):
            timeout: ClassVar[float] = 30

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                noted.append(f"{self.command} {self.path} {dict(self.headers)} {body!r}")
                if listener.silent.is_set():
                    time.sleep(30)
                    return
                self.send_response(listener.status)
                self.send_header("Content-Length", str(len(listener.answer)))
                self.end_headers()
                self.wfile.write(listener.answer)

            do_POST = do_PUT = do_HEAD = do_CONNECT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.host}"


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def connection(monkeypatch):
    """Define connections through the environment; return the hook of the first."""

    def define(host: str, options: dict[str, str] | None = None, extra: dict[str, Any] | None = None, others=None, **fields: Any):
        known = {
            "lake": {"conn_type": "delta", "host": host, "extra": {"storage_options": options or {}, **(extra or {})}, **fields}
        }
        for name, values in {**known, **(others or {})}.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(values))
        return DeltaHook("lake")

    return define


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """The process has secrets: in its environment, and in a file."""
    (tmp_path / "token").write_text(SECRET)
    monkeypatch.setattr(cloud, "_fetched", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"{SECRET}-{name}")


def read(hook: DeltaHook) -> None:
    """Read something of a table, as every task does."""
    hook.get_log("t").store.read("_delta_log/_last_checkpoint")


ATTACKS = [
    # base path, storage options; FILE and URL stand for a file of the process and for the listener
    (ABFSS, {"azure_federated_token_file": "FILE", "authority_host": "URL", "client_id": "i", "tenant_id": "t"}, "federated"),
    (S3, {"aws_container_credentials_full_uri": "URL", "aws_container_authorization_token_file": "FILE"}, "authorization_token"),
    (S3, {"aws_container_credentials_full_uri": "URL"}, "container_credentials_full"),
    (S3, {"aws_container_credentials_relative_uri": "@HOST/"}, "container_credentials_relative"),
    (S3, {"aws_metadata_endpoint": "URL"}, "aws_metadata_endpoint"),
    (S3, {"web_identity_token_file": "FILE", "role_arn": "r", "AWS_ENDPOINT_URL_STS": "URL"}, "web_identity_token_file"),
    (S3, {"role_arn": "r", "AWS_ENDPOINT_URL_STS": "URL"}, "aws_endpoint_url_sts"),
    (ABFSS, {"msi_endpoint": "URL"}, "azure_msi_endpoint"),
    (ABFSS, {"client_id": "i", "azure_storage_endpoint": "URL"}, "azure_storage_endpoint"),
    (GS, {"google_service_account": "FILE"}, "google_service_account"),
    (GS, {"application_credentials": "FILE", "google_base_url": "URL"}, "google_application_credentials"),
    (S3, {"AWS_ENDPOINT_URL": "URL"}, "aws_endpoint_url"),
    (S3, {"AWS_ENDPOINT_URL_S3": "URL"}, "aws_endpoint_url_s3"),
    (S3, {"AWS_ENDPOINT_URL": "https://mine.eu-west-1.elb.amazonaws.com"}, "aws_endpoint_url"),
    (S3, {"AWS_ENDPOINT_URL": "https://s3.amazonaws.com@HOST"}, "aws_endpoint_url"),
    (S3, {"proxy_url": "URL"}, "proxy_url"),
    (S3, {"allow_invalid_certificates": "true"}, "allow_invalid_certificates"),
    (GS, {"google_base_url": "URL"}, "google_base_url"),
    (S3, {"AWS_REGION": "x@HOST/"}, "aws_region"),
    (S3, {"AWS_DEFAULT_REGION": "example.org/x"}, "aws_default_region"),
    (S3, {"role_arn": "r", "AWS_REGION": "x@HOST/"}, "aws_region"),
    (AZ, {"account_name": "x@HOST/"}, "azure_storage_account_name"),
    (AZ, {"account_name": "x@HOST/", "client_id": "i", "tenant_id": "t"}, "azure_storage_account_name"),
]


@pytest.mark.parametrize(("host", "options", "named"), ATTACKS)
def test_a_connection_gets_nothing_of_the_process(connection, listener, tmp_path, host, options, named):
    words = {"FILE": str(tmp_path / "token"), "URL": listener.url}
    given = {name: words.get(value, value).replace("HOST", listener.host) for name, value in options.items()}
    hook = connection(host, {**given, **QUICK, "allow_http": "true"})
    with pytest.raises(
        DeltaIllegalArgumentException, match=f"{named}.* of the connection 'lake'.*AIRFLOW__DELTA__|{named}.*cannot"
    ):
        read(hook)
    with pytest.raises(DeltaIllegalArgumentException):
        hook.spark_options(host)
    assert not hook.test_connection()[0]
    assert listener.noted == []


@pytest.mark.parametrize(
    "host",
    [
        "s3.us-gov-west-1.amazonaws.com",
        "s3.dualstack.eu-west-1.amazonaws.com",
        "s3.cn-north-1.amazonaws.com.cn",
        "bucket.vpce-0a1b2c-3d4e.s3.us-east-1.vpce.amazonaws.com",
    ],
)
def test_the_process_asks_the_clouds_own_endpoints(connection, host):
    assert connection(S3, {"AWS_ENDPOINT_URL": f"https://{host}"}).storage_options(S3)


@pytest.mark.parametrize("host", ["vpce-0a1b.vpce-svc-0c1d.us-east-1.vpce.amazonaws.com", "s3.us-east-1.vpce.amazonaws.com"])
def test_a_service_of_anybody_is_not_the_clouds(connection, host):
    with pytest.raises(DeltaIllegalArgumentException, match="not the cloud's own endpoint"):
        connection(S3, {"AWS_ENDPOINT_URL": f"https://{host}"}).storage_options(S3)


def test_what_the_deployment_lists_may_be_used(connection, listener, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    options = {
        "aws_container_credentials_full_uri": listener.url,
        "aws_container_authorization_token_file": str(tmp_path / "token"),
        "AWS_ENDPOINT_URL": listener.url,
        **QUICK,
    }
    monkeypatch.setenv("AIRFLOW__DELTA__CREDENTIAL_FILES", f"/run/x, {tmp_path}/*")
    monkeypatch.setenv("AIRFLOW__DELTA__CREDENTIAL_ENDPOINTS", f"{listener.url}/")
    listener.answer = json.dumps(
        {"AccessKeyId": "fetched", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}
    ).encode()
    hook = connection(S3, options)
    read(hook)
    assert SECRET in listener.noted[0]
    assert "fetched" in listener.noted[1]
    hook.process = API_SERVER
    with pytest.raises(DeltaIllegalArgumentException, match="PROCESS_CREDENTIALS_IN"):
        hook.storage_options(S3)
    monkeypatch.setenv("AIRFLOW__DELTA__PROCESS_CREDENTIALS_IN", "task, api_server")
    assert hook.storage_options(S3)
    monkeypatch.setenv("AIRFLOW__DELTA__CREDENTIAL_FILES", f"{tmp_path}/x/*")
    with pytest.raises(DeltaIllegalArgumentException, match="CREDENTIAL_FILES"):
        hook.storage_options(S3)


@pytest.mark.parametrize("host", [S3, ABFSS, GS])
def test_the_credentials_of_a_process_are_for_those_that_the_deployment_names(connection, host, monkeypatch):
    hook = connection(host)
    assert hook.storage_options(host) == {}
    hook.process = API_SERVER
    with pytest.raises(DeltaIllegalArgumentException, match=r"no credentials of its own, and those of this process .api_server."):
        hook.storage_options(host)
    monkeypatch.setenv("AIRFLOW__DELTA__PROCESS_CREDENTIALS_IN", "api_server")
    assert hook.storage_options(host) == {}
    hook.process = None
    with pytest.raises(DeltaIllegalArgumentException, match=r"this process .task."):
        hook.storage_options(host)


def test_own_credentials_go_where_the_connection_points(connection, listener):
    read(connection(S3, {"AWS_ENDPOINT_URL": listener.url, **QUICK}, **KEYS))
    assert "its-key" in listener.noted[0]
    assert SECRET not in listener.noted[0]


def test_the_api_server_is_known_by_what_it_serves(monkeypatch):
    """Not by its context, which is that of the command line, too."""
    from airflow.cli.commands import api_server_command

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    assert allowed.Allowed.here().process == "task"
    assert f'"{allowed._API_SERVER}' in Path(api_server_command.__file__).read_text()
    monkeypatch.setitem(sys.modules, allowed._API_SERVER, allowed)
    assert allowed.Allowed.here().process == API_SERVER


OTHERS = {
    "aws": {"conn_type": "aws", **KEYS},
    "aws_ambient": {"conn_type": "aws", "extra": {"region_name": "eu-west-1"}},
    "aws_elsewhere": {"conn_type": "aws", **KEYS, "extra": {"region_name": "x@example.org/"}},
    "wasb": {"conn_type": "wasb", "login": "account", "password": "a2V5"},
    "wasb_sas": {"conn_type": "wasb", "extra": {"sas_token": "sv=1&sig=x"}},
    "wasb_msi": {
        "conn_type": "wasb",
        "host": "https://account.blob.core.windows.net",
        "extra": {"managed_identity_client_id": "i"},
    },
    "google": {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": "{}"}},
}
FOREIGN = [
    (S3, "aws_conn_id", "aws", {"AWS_ENDPOINT_URL": "URL"}, "aws_endpoint_url"),
    (S3, "aws_conn_id", "aws", {"role_arn": "r", "AWS_ENDPOINT_URL_STS": "URL"}, "aws_endpoint_url_sts"),
    (S3, "aws_conn_id", "aws", {"proxy_url": "URL"}, "proxy_url"),
    (ABFSS, "wasb_conn_id", "wasb", {"azure_storage_endpoint": "URL"}, "azure_storage_endpoint"),
    (ABFSS, "wasb_conn_id", "wasb", {"account_name": "other"}, "azure_storage_account_name"),
    (GS, "gcp_conn_id", "google", {"google_base_url": "URL"}, "google_base_url"),
    (S3, "aws_conn_id", "aws", {"AWS_REGION": "x@HOST/"}, "aws_region"),
    (S3, "aws_conn_id", "aws_elsewhere", {}, "aws_region"),
    (ABFSS, "wasb_conn_id", "wasb_sas", {}, "does not name the account"),
]


@pytest.mark.parametrize(("host", "field", "other", "options", "named"), FOREIGN)
def test_the_credentials_of_another_connection_go_only_where_that_points(
    connection, listener, host, field, other, options, named
):
    given = {name: value.replace("URL", listener.url).replace("HOST", listener.host) for name, value in options.items()}
    hook = connection(host, {**given, **QUICK, "allow_http": "true"}, {field: other}, OTHERS)
    with pytest.raises(DeltaIllegalArgumentException, match=named):
        read(hook)
    assert listener.noted == []


WEB_IDENTITY = {
    "role_arn": "arn:aws:iam::1:role/r",
    "assume_role_method": "assume_role_with_web_identity",
    "assume_role_with_web_identity_federation": "file",
}
SOURCES = [
    # connection, what it names, what the error names
    ("aws", {**WEB_IDENTITY, "assume_role_with_web_identity_token_file": "FILE"}, "aws_web_identity_token_file"),
    ("aws", {**WEB_IDENTITY, "service_config": {"sts": {"endpoint_url": "URL"}}}, "aws_endpoint_url_sts"),
    ("aws", {"role_arn": "arn:aws:iam::1:role/r", "service_config": {"sts": {"endpoint_url": "URL"}}}, "aws_endpoint_url_sts"),
    ("aws", {"role_arn": "arn:aws:iam::1:role/r", "endpoint_url": "URL"}, "aws_endpoint_url"),
    ("aws", {"role_arn": "arn:aws:iam::1:role/r", "verify": False}, "allow_invalid_certificates"),
    (
        "aws",
        {"role_arn": "r", "assume_role_method": "assume_role_with_saml", "assume_role_with_saml": {"idp_url": "URL"}},
        "idp_url",
    ),
    (
        "google_cloud_platform",
        {
            "credential_config_file": {
                "type": "external_account",
                "token_url": "https://sts.googleapis.com/v1/token",
                "credential_source": {"file": "FILE"},
            }
        },
        "credential_source.file",
    ),
    ("google_cloud_platform", {"credential_config_file": {"type": "external_account", "token_url": "URL"}}, "token_url"),
    (
        "google_cloud_platform",
        {"credential_config_file": '{"service_account_impersonation_url": "https://example.org/x"}'},
        "service_account_impersonation_url",
    ),
    ("google_cloud_platform", {"credential_config_file": {"credential_source": {"executable": {"command": "id"}}}}, "executable"),
    ("google_cloud_platform", {"credential_config_file": {"credential_source": {"url": "URL"}}}, "credential_source.url"),
]


# A key pair of its own may go where the connection points; a file of the process may not.
WITH_KEYS = [(*source, KEYS) for source in SOURCES if "assume_role_method" in source[1]]


@pytest.mark.parametrize(("kind", "extra", "named", "keys"), [*[(*source, {}) for source in SOURCES], *WITH_KEYS])
def test_a_connection_to_a_cloud_sends_no_file_of_the_process_anywhere(connection, listener, tmp_path, kind, extra, named, keys):
    text = json.dumps(extra).replace("FILE", str(tmp_path / "token")).replace("URL", listener.url)
    field, host = {"aws": ("aws_conn_id", S3), "google_cloud_platform": ("gcp_conn_id", GS)}[kind]
    others = {"other": {"conn_type": kind, "extra": json.loads(text), **keys}}
    with pytest.raises(DeltaIllegalArgumentException, match=named):
        read(connection(host, QUICK, {field: "other"}, others))
    assert listener.noted == []


def test_patterns_of_files_are_of_one_directory(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DELTA__CREDENTIAL_FILES", "/run/secrets/*.json")
    here = allowed.Allowed.here()
    here.check_file("x", "/run/secrets/a.json", "the connection")
    for path in ("/run/secrets/b/a.json", "/run/secrets/../a.json", "/run/a.json"):
        with pytest.raises(DeltaIllegalArgumentException, match="CREDENTIAL_FILES"):
            here.check_file("x", path, "the connection")


def test_what_the_other_connection_says_too_is_no_contradiction(connection, listener):
    others = {"aws": {"conn_type": "aws", **KEYS, "extra": {"endpoint_url": listener.url}}}
    read(connection(S3, {"AWS_ENDPOINT_URL": listener.url, **QUICK}, {"aws_conn_id": "aws"}, others))
    assert "its-key" in listener.noted[0]


def test_a_managed_identity_of_another_connection_is_that_of_the_process(connection):
    hook = connection(ABFSS, {}, {"wasb_conn_id": "wasb_msi"}, OTHERS)
    assert hook.storage_options(ABFSS)["azure_storage_client_id"] == "i"
    hook.process = API_SERVER
    with pytest.raises(DeltaIllegalArgumentException, match="'wasb_msi' has no credentials of its own"):
        hook.storage_options(ABFSS)


MIXED = [
    # a variable, base path, storage options with credentials: the client would take the variable, too, or instead
    ("AWS_SESSION_TOKEN", S3, {"access_key_id": "a", "secret_access_key": "b"}),
    ("AZURE_STORAGE_TOKEN", ABFSS, {"sas_token": "sv=1&sig=x"}),
    ("AZURE_FEDERATED_TOKEN_FILE", ABFSS, {"client_id": "a", "client_secret": "b", "tenant_id": "c", "authority_host": "URL"}),
    ("GOOGLE_BEARER_TOKEN", GS, {"service_account_key": "{}"}),
    ("GOOGLE_SERVICE_ACCOUNT", GS, {"service_account_key": "{}"}),
]


@pytest.mark.parametrize(("variable", "host", "options"), MIXED)
def test_credentials_of_the_environment_are_not_mixed_with_own(
    connection, listener, monkeypatch, tmp_path, variable, host, options
):
    monkeypatch.setenv(variable, str(tmp_path / "token"))
    hook = connection(host, {name: listener.url if value == "URL" else value for name, value in options.items()})
    with pytest.raises(DeltaIllegalArgumentException, match=f"The environment of this process has {variable}"):
        read(hook)
    assert listener.noted == []


TOGETHER = [
    (S3, {**KEYS, "options": {"access_key_id": "other", "secret_access_key": "x"}}, "given twice: by login and password"),
    (S3, {"options": {"aws_session_token": "x"}}, "lack aws_access_key_id"),
    (S3, {"options": {"access_key_id": "x"}}, "lack aws_secret_access_key"),
    (S3, {**KEYS, "options": {"skip_signature": "true"}}, "in 2 ways.*aws_skip_signature and aws_access_key_id"),
    (ABFSS, {"login": "account", "password": "a2V5", "options": {"sas_token": "sv=1"}}, "in 2 ways"),
    (ABFSS, {"login": "other", "password": "a2V5", "options": {"account_name": "account"}}, "given twice"),
    (ABFSS, {"options": {"client_id": "a", "client_secret": "b"}}, "lack azure_storage_tenant_id"),
    (GS, {"options": {"service_account_key": "{}", "bearer_token": "x"}}, "in 2 ways"),
]


@pytest.mark.parametrize(("host", "fields", "text"), TOGETHER)
def test_credentials_that_cannot_be_used_together_are_refused(connection, host, fields, text):
    with pytest.raises(DeltaIllegalArgumentException, match=text):
        connection(host, **fields).storage_options(host)


def test_a_session_token_belongs_to_the_key_pair(connection, listener):
    read(connection(S3, {"AWS_ENDPOINT_URL": listener.url, "AWS_SESSION_TOKEN": "its-token", **QUICK}, **KEYS))
    assert "its-key" in listener.noted[0]
    assert "its-token" in listener.noted[0]


# -- names ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", ["HOST#", "HOST?", "HOST/#", "a b", "a\\b", "b@HOST", "%2e", ""])
def test_a_bucket_is_a_name(listener, bucket):
    uri = f"s3://{bucket.replace('HOST', listener.host)}/t"
    options = {
        "access_key_id": "a", "secret_access_key": "b", "aws_virtual_hosted_style_request": "true", "allow_http": "true", **QUICK
    }  # fmt: skip
    with pytest.raises(DeltaIllegalArgumentException):
        store_for(uri, options)
    assert listener.noted == []


@pytest.mark.parametrize("host", ["evil.example", "account.evil.example", "account.dfs.core.windows.net.evil.example", "a b"])
def test_a_host_is_that_of_an_account(host):
    with pytest.raises(DeltaIllegalArgumentException):
        store_for(f"abfss://lake@{host}/t", {"sas_token": "sv=1&sig=x"})


def test_an_account_of_another_cloud_is_asked_there():
    store = store_for("abfss://lake@account.dfs.core.chinacloudapi.cn/t", {"account_key": "a2V5"})
    assert store._make(None).config["endpoint"] == "https://account.blob.core.chinacloudapi.cn"


OUTSIDE = [
    (f"{ABFSS}/t", "abfss://lake@other.dfs.core.windows.net/t"),
    (f"{ABFSS}/t", "abfss://other@account.dfs.core.windows.net/t"),
    ("s3://lake/t", "s3://other/t"),
    ("s3://lake/t", "s3a://other/t"),
]


@pytest.mark.parametrize(("table", "named"), OUTSIDE)
def test_what_a_log_names_elsewhere_is_opened_only_if_the_connection_allows_it(table, named):
    store = store_for(table, {})
    with pytest.raises(PathOutsideTableException, match="other_locations"):
        sibling(store, named)
    assert sibling(store_for(table, {"other_locations": f"s3://x/y,{named}"}), f"{named}/p=1").root
    for near in (f"{named}x", f"{named}/../x"):
        with pytest.raises(PathOutsideTableException):
            sibling(store_for(table, {"other_locations": named}), near)


@pytest.mark.parametrize(("table", "named"), [("s3://a/t", "gs://a/t"), ("s3://a/t", "file:///etc"), ("/a/t", "s3://a/t")])
def test_another_kind_of_store_is_never_opened(table, named):
    with pytest.raises(PathOutsideTableException, match="one kind of store"):
        sibling(store_for(table, {"other_locations": named}), named)


def test_a_path_in_a_log_is_one_of_the_bucket():
    assert sibling(store_for("s3://lake/t", {}), "/etc/x").root == "s3://lake/etc/x"
    assert sibling(store_for("/lake/t", {}), "/lake/x").local_root == "/lake/x"


def panic() -> BaseException:
    """Return a real one, of a bucket that no URL can have."""
    import obstore
    from obstore.store import S3Store

    try:
        obstore.get(S3Store("a b", config={"aws_access_key_id": "a", "aws_secret_access_key": "b"}), "x")
    except BaseException as error:
        return error
    raise AssertionError("the client did not panic")


def test_a_panic_of_the_client_is_an_error():
    found = panic()
    assert is_panic(found)
    assert not isinstance(found, Exception)
    store = store_for("s3://lake/t", {"access_key_id": "a", "secret_access_key": "b"})

    def fail() -> None:
        raise found

    with pytest.raises(OSError, match="failed in the store's client"):
        store._call("x", fail)  # type: ignore[attr-defined]


# -- time -----------------------------------------------------------------------------------------------------------------------


def decision(error: BaseException) -> RetryAction:
    return FINAL_ERRORS.evaluate(error, 1, 3).action


@pytest.mark.parametrize(
    ("status", "code", "wanted"),
    [
        (503, "ServiceUnavailable", RetryAction.RETRY),
        (400, "Throttling", RetryAction.RETRY),
        (None, "", RetryAction.RETRY),  # nobody listens
        (403, "AccessDenied", RetryAction.FAIL),
    ],
)
def test_a_service_of_credentials_that_is_away_is_asked_again(connection, listener, status, code, wanted):
    role = {"role_arn": "arn:aws:iam::123456789012:role/lake", "region": "us-east-1", "role_session_name": f"{code}{status}"}
    listener.status, listener.answer = status or 200, f"<E><Error><Code>{code}</Code></Error></E>".encode()
    url = listener.url if status else "http://127.0.0.1:9"
    with pytest.raises(DeltaError, match=r"The role .* of the connection 'lake' cannot be assumed") as found:
        connection(S3, {**role, "AWS_ENDPOINT_URL_STS": url}, **KEYS).storage_options(S3)
    assert decision(found.value) is wanted
    assert isinstance(found.value, OSError) is (wanted is RetryAction.RETRY)


def test_credentials_that_never_come_hold_up_nobody_else(connection, listener, monkeypatch):
    monkeypatch.setattr(cloud, "CREDENTIALS_TIMEOUT", 3.0)
    listener.silent.set()
    role = {"role_arn": "arn:aws:iam::123456789012:role/lake", "region": "us-east-1"}
    slow = connection(S3, {**role, "AWS_ENDPOINT_URL_STS": listener.url}, **KEYS)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            slow.storage_options(S3)
        except DeltaError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    started = time.monotonic()
    _ = slow.connection
    for thread in threads:
        thread.start()
    while not listener.noted:
        time.sleep(0.02)
    listener.silent.clear()
    listener.answer = b"<x/>"
    begun = time.monotonic()
    quick = connection(S3, {**role, "AWS_ENDPOINT_URL_STS": listener.url, "role_session_name": "another"}, **KEYS)
    with pytest.raises(Exception, match=r"."):
        quick.storage_options(S3)
    assert time.monotonic() - begun < 2
    for thread in threads:
        thread.join()
    assert time.monotonic() - started < 8
    assert len(errors) == 2
    assert "did not come within" in str(errors[0])
    assert decision(errors[0]) is RetryAction.RETRY
    for thread in threading.enumerate():
        if thread.name == "delta-credentials":
            thread.join()  # it asks again and again at random moments: Hypothesis takes that for the next test's
