"""One name for each storage option, whatever spelling of object_store it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage import options
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.options import CLIENT_OPTIONS, canonical_name, canonical_options

URIS = {"S3": "s3://bucket/t", "Azure": "az://container/t", "GCS": "gs://bucket/t"}
OF_ROLES = {"aws_iam_role_arn", "aws_s3_assume_role_arn", "aws_iam_role_session_name", "aws_s3_role_session_name"}
OURS = {"aws_sts_endpoint", "sts_endpoint", "endpoint_url_s3", *OF_ROLES}
"""Spellings of other tools, which object_store does not know."""


def complaint(make: Callable[..., object], **arguments: object) -> str:
    """What object_store says about a value that may be wrong; its name may not."""
    try:
        make("b", **arguments)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("store", URIS)
def test_object_store_knows_every_name_and_spelling(store: str) -> None:
    from obstore import store as stores

    make = {"S3": stores.S3Store, "Azure": stores.AzureStore, "GCS": stores.GCSStore}[store]
    spellings = options.NAMES[store].keys() - OURS
    assert [name for name in spellings if "Configuration key" in complaint(make, config={name: "true"})] == []
    assert "Configuration key" in complaint(make, config={"no_such_option": "true"})


def test_object_store_knows_every_option_of_the_client() -> None:
    from obstore.store import S3Store

    unknown = complaint(S3Store, client_options={"no_such_option": "1"}).partition("no_such_option")[0]
    assert unknown
    assert [name for name in CLIENT_OPTIONS if complaint(S3Store, client_options={name: "1s"}).startswith(unknown)] == []


SPELLINGS = [
    ("S3", "AWS_ENDPOINT_URL", "aws_endpoint_url"),
    ("S3", "endpoint", "aws_endpoint_url"),
    ("S3", "token", "aws_session_token"),
    ("Azure", "token", "azure_storage_token"),
    ("Azure", "ACCOUNT_NAME", "azure_storage_account_name"),
    ("Azure", "azure_tenant_id", "azure_storage_tenant_id"),
    ("GCS", "SERVICE_ACCOUNT", "google_service_account"),
    ("GCS", "bearer_token", "google_bearer_token"),
    ("GCS", "AWS_ALLOW_HTTP", "allow_http"),
    ("S3", "azure_storage_account_name", None),
]


@pytest.mark.parametrize(("store", "spelling", "name"), SPELLINGS)
def test_a_spelling_has_a_name(store: str, spelling: str, name: str | None) -> None:
    assert canonical_name(spelling, store) == name


def test_an_option_is_there_once() -> None:
    given = {"AWS_REGION": "eu-west-1", "region": "eu-west-1", "azure_storage_account_name": "a", "aws_timeout": "3s"}
    assert canonical_options(given, URIS["S3"]) == {"aws_region": "eu-west-1", "timeout": "3s"}
    assert canonical_options(given, URIS["Azure"]) == {"azure_storage_account_name": "a", "timeout": "3s"}


REFUSED = [
    ({"AWS_REGION": "a", "region": "b"}, "set aws_region twice, to different values: as 'AWS_REGION' and as 'region'"),
    ({"AWS_REGON": "a"}, "the connection 'lake' set 'AWS_REGON', which no store knows"),
    ({"bucket": "lake"}, "set 'bucket', but the bucket is part of the table's location"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], text: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=text):
        canonical_options(given, URIS["S3"], whose="the connection 'lake'")


ACCOUNT = "abfss://container@account.dfs.core.windows.net/t"


@pytest.mark.parametrize("spelling", ["azure_storage_account_name", "account_name", "AZURE_STORAGE_ACCOUNT_NAME"])
def test_the_account_may_be_in_the_location_and_in_the_options(spelling: str) -> None:
    store = store_for(ACCOUNT, {spelling: "account", "azure_storage_account_key": "a2V5"})
    assert store._make(None).config["account_name"] == "account"  # type: ignore[attr-defined]


def test_two_accounts_are_refused() -> None:
    store = store_for(ACCOUNT, {"account_name": "other", "account_key": "a2V5"}, connection="lake")
    with pytest.raises(DeltaIllegalArgumentException, match=r"account 'account', but the connection 'lake' is for .* 'other'"):
        store._make(None)  # type: ignore[attr-defined]


def test_a_home_directory_is_refused() -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="begins with ~"):
        store_for("~/lake/t")


@pytest.mark.parametrize("url", ["minio:9000", "127.0.0.1:9000", "//minio:9000", "http://", "ftp://minio", "http://minio:port"])
@pytest.mark.parametrize(
    ("uri", "name"), [("s3://b/t", "endpoint"), ("az://c/t", "AZURE_STORAGE_ENDPOINT"), ("gs://b/t", "google_base_url")]
)
def test_an_endpoint_is_a_url(uri: str, name: str, url: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=rf"{name}.* of the connection 'lake' is .*Write it with its scheme"):
        store_for(uri, {name: url, "azure_storage_account_name": "a"}, connection="lake").read("f")


def test_an_endpoint_of_the_environment_is_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
    with pytest.raises(
        DeltaIllegalArgumentException, match="'AWS_ENDPOINT_URL' of the environment of this process is 'minio:9000'"
    ):
        store_for("s3://b/t").read("f")


def test_a_slash_after_an_endpoint_is_left_out() -> None:
    """The client would ask for account//container."""
    given = {"azure_storage_endpoint": "http://127.0.0.1:10000/account/", "azure_storage_account_name": "account"}
    assert canonical_options(given, "az://c/t")["azure_storage_endpoint"] == "http://127.0.0.1:10000/account"
