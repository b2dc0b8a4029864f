"""Each way to write one connection reaches the same table: options of object_store and of delta-rs, and Airflow's own types.

Those of type ``aws`` that only Airflow's hook can read run with Amazon's provider, which the tests of Celery have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log import AddFile
from airflow_delta.transaction import Operation
from stores.install import CELERY
from stores.servers import REGION
from support.actions import metadata, protocol

PROVIDER = Path(__file__).parents[2] / "provider"
WRITE = """
import sys
from airflow_delta.hooks.delta import DeltaHook
hook = DeltaHook("lake")
good, message = hook.test_connection()
assert good, message
store = hook.get_log("t").store
store.put_if_absent("by-the-hook", b"1")
print("READ", store.read("by-the-hook"))
"""


def s3_forms(gateway: Any) -> dict[str, dict[str, Any]]:
    """Connections to one bucket of the gateway, without their host."""
    key, secret, url = gateway.ACCESS_KEY, gateway.SECRET_KEY, gateway.url
    login = {"login": key, "password": secret}
    return {
        "login": {**login, "extra": {"storage_options": {"AWS_ENDPOINT_URL": url, "AWS_REGION": REGION}}},
        "object_store": {"storage_options": {"access_key_id": key, "secret_access_key": secret, "endpoint": f"{url}/"}},
        "delta-rs": {
            "storage_options": {
                "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL": url, "AWS_REGION": REGION,
                "AWS_ALLOW_HTTP": "true", "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_S3_ADDRESSING_STYLE": "path",
                "AWS_S3_LOCKING_PROVIDER": "dynamodb", "AWS_EC2_METADATA_DISABLED": "true", "timeout": "60s",
                "max_retries": "4",
            }
        },
        "aws": {"aws_conn_id": {**login, "extra": {"region_name": REGION, "endpoint_url": url}}},
        "aws service": {"aws_conn_id": {"extra": {
            "aws_access_key_id": key, "aws_secret_access_key": secret,
            "service_config": {"s3": {"endpoint_url": url, "region_name": REGION}},
        }}},
        "aws client": {"aws_conn_id": {**login, "extra": {"region_name": REGION, "endpoint_url": url, "config_kwargs": {
            "connect_timeout": 5, "read_timeout": 60, "retries": {"max_attempts": 3}, "s3": {"addressing_style": "path"},
        }}}},
    }  # fmt: skip


def azure_forms(azurite: Any) -> dict[str, dict[str, Any]]:
    """Connections to one container of the emulator, without their host."""
    url, account, key = azurite.url, azurite.ACCOUNT, azurite.KEY
    sas = azurite.signed("sas", url.rpartition("/")[0])["azure_storage_sas_token"]
    return {
        "login": {"login": account, "password": key, "extra": {"storage_options": {"AZURE_STORAGE_ENDPOINT": url}}},
        "object_store": {"storage_options": {"account_name": account, "access_key": key, "endpoint": f"{url}/"}},
        "sas": {"storage_options": {"account_name": account, "AZURE_STORAGE_SAS_TOKEN": f"?{sas}", "azure_endpoint": url}},
        "wasb url": {"wasb_conn_id": {"host": url, "password": key}},
        "wasb sas": {"wasb_conn_id": {"host": url, "extra": {"sas_token": sas}}},
        "wasb string": {"wasb_conn_id": {"extra": {"connection_string": azurite.connection_string}}},
        "wasb portal": {"wasb_conn_id": {"extra": {"connection_string": f"BlobEndpoint={url}/;SharedAccessSignature={sas}"}}},
        "adls": {"adls_conn_id": {"extra": {"account_url": url}, "password": key}},
    }  # fmt: skip


def define(monkeypatch: pytest.MonkeyPatch, host: str, form: dict[str, Any]) -> None:
    """Make the connection ``lake``, and the one that it names."""
    fields = {"conn_type": "delta", "host": host}
    if "login" in form:
        fields |= form
    else:
        extra: dict[str, Any] = {}
        for name, value in form.items():
            if name.endswith("_conn_id"):
                monkeypatch.setenv("AIRFLOW_CONN_CLOUD", json.dumps({"conn_type": name.partition("_")[0], **value}))
                extra[name] = "cloud"
            else:
                extra[name] = value
        fields["extra"] = extra
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))


FORMS = [
    *(("s3", name) for name in ("login", "object_store", "delta-rs", "aws", "aws service", "aws client")),
    *(("azure", name) for name in ("login", "object_store", "sas", "wasb url", "wasb sas", "wasb string", "wasb portal", "adls")),
]


@pytest.mark.parametrize(("kind", "name"), FORMS)
def test_a_form_of_a_connection(kind: str, name: str, stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores[kind]
    forms = s3_forms(store) if kind == "s3" else azure_forms(store)
    assert sorted(forms) == sorted(form for of, form in FORMS if of == kind)
    define(monkeypatch, store.root(store.container()), forms[name])
    hook = DeltaHook("lake")
    good, message = hook.test_connection()
    assert good, message
    log = hook.get_log("t")
    add = AddFile(path="f", partition_values={}, size=1, modification_time=1, data_change=True)
    version = log.start_transaction().commit([protocol(), metadata(), add], Operation("WRITE", {"mode": "Append"}))
    assert (version, hook.get_log("t").snapshot.version) == (0, 0)


def test_a_bucket_that_is_not_there_is_told_by_the_test(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("s3", "azure"):
        store = stores[kind]
        define(monkeypatch, store.root("no-such-place"), (s3_forms if kind == "s3" else azure_forms)(store)["login"])
        good, message = DeltaHook("lake").test_connection()
        assert not good, message


def test_what_only_the_hook_of_aws_can_read(stores: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gateway = stores["s3"]
    (tmp_path / "credentials").write_text(
        f"[lake]\naws_access_key_id = {gateway.ACCESS_KEY}\naws_secret_access_key = {gateway.SECRET_KEY}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AIRFLOW__DELTA__CREDENTIAL_ENDPOINTS", gateway.url)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROVIDER), str(CELERY)]))
    profile = {"profile_name": "lake", "region_name": REGION, "endpoint_url": gateway.url}
    define(monkeypatch, gateway.root(gateway.container()), {"aws_conn_id": {"extra": profile}})

    def run() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", WRITE]
        return subprocess.run(argv, env=os.environ, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)

    done = run()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "READ b'1'" in done.stdout
    role = {"role_arn": "arn:aws:iam::123456789012:role/lake", "assume_role_kwargs": {"ExternalId": "of-the-lake"}}
    away = {**role, "region_name": REGION, "service_config": {"sts": {"endpoint_url": "http://127.0.0.1:9"}}}
    keys = {"login": gateway.ACCESS_KEY, "password": gateway.SECRET_KEY}
    define(monkeypatch, gateway.root("lake"), {"aws_conn_id": {**keys, "extra": away}})
    done = run()
    assert done.returncode != 0
    # A service that is away may come back: neither a botocore error nor a final one.
    assert "CredentialsUnavailableException" in done.stderr + done.stdout
