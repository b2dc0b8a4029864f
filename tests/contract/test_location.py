"""One place has one form, in whatever spelling it is given; two places never share one."""

from __future__ import annotations

from itertools import combinations

import pytest

from airflow_delta.assets.delta import delta_asset_uri
from airflow_delta.contract.location import SCHEMES, Location, dataset_name, store_of
from airflow_delta.contract.spark_paths import data_file_uri
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.location import one_spelling
from airflow_delta.log.storage.factory import store_for
from airflow_delta.spark.connectors import coordinate, storage_error
from airflow_delta.table.stage.spark_uri import spark_uri
from airflow_delta.transaction.commit.lock import lock_of
from airflow_delta.ui.known import table_key

ACCOUNT = "acc.dfs.core.windows.net"
ACCOUNT_BLOB = "acc.blob.core.windows.net"

PLACES = {
    "S3": ["s3://lake/t", "s3a://lake/t", "s3n://lake/t/", "S3://lake/t//"],
    "S3, another path": ["s3://lake/u/t", "s3a://lake/u/t"],
    "S3, another case": ["s3://lake/T", "s3a://lake/T"],
    "GCS": ["gs://lake/t", "gcs://lake/t", "GCS://lake/t/"],
    "Azure": [
        f"abfss://lake@{ACCOUNT}/t",
        f"abfs://lake@{ACCOUNT}/t",
        f"abfss://lake@{ACCOUNT.upper()}/t/",
        f"abfss://lake@{ACCOUNT_BLOB}/t",
        f"az://lake@{ACCOUNT}/t",
        f"azure://lake@{ACCOUNT}/t",
        f"wasb://lake@{ACCOUNT_BLOB}/t",
        f"wasbs://lake@{ACCOUNT_BLOB}/t",
        f"https://{ACCOUNT_BLOB}/lake/t",
        f"https://{ACCOUNT}/lake/t/",
    ],
    "Azure, another account": [f"abfss://lake@other.{ACCOUNT.partition('.')[2]}/t"],
    "Azure without its account": ["az://lake/t", "azure://lake/t/", "AZ://lake/t"],
    "HDFS": ["hdfs://node/t", "hdfs://node:8020/t", "hdfs://NODE/t/"],
    "HDFS, another port": ["hdfs://node:9000/t"],
    "local": ["/lake/t", "file:///lake/t", "file:/lake/t", "file://localhost/lake/t", "//lake//t/"],
    "local, another folder": ["/lake/u/t"],
}
SPELLINGS = [(place, uri) for place, spellings in PLACES.items() for uri in spellings]
OBJECTS = {place: spellings for place, spellings in PLACES.items() if place.split(",")[0] not in ("HDFS", "local")}
PAIRS = [pytest.param(one, other, id=f"{one[1]} {other[1]}") for one, other in combinations(SPELLINGS, 2)]


def lock(uri):
    return lock_of(store_for(uri))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_spellings_are_equal_if_they_are_one_place(one, other):
    same = one[0] == other[0]
    assert (Location.parse(one[1]).key == Location.parse(other[1]).key) is same
    assert (table_key(one[1]) == table_key(other[1])) is same  # of the pages, and of what a connection may use
    assert (lock(one[1]) is lock(other[1])) is same


@pytest.mark.parametrize("place", OBJECTS)
@pytest.mark.parametrize("form", [one_spelling, delta_asset_uri, dataset_name, lambda uri: Location.parse(uri).uri])
def test_each_form_has_one_spelling_for_an_object_store(place, form):
    assert len({form(uri) for uri in PLACES[place]}) == 1


@pytest.mark.parametrize("form", [one_spelling, delta_asset_uri, dataset_name])
def test_no_two_places_on_object_stores_share_a_spelling(form):
    assert len({form(spellings[0]) for spellings in OBJECTS.values()}) == len(OBJECTS)


@pytest.mark.parametrize(("place", "expected"), [("S3", "s3a://lake/t"), ("GCS", "gs://lake/t")])
def test_spark_has_one_spelling(place, expected):
    assert {spark_uri(uri, {}) for uri in PLACES[place]} == {expected}


def test_spark_has_one_spelling_of_an_account_but_for_tls():
    assert {spark_uri(uri, {}) for uri in PLACES["Azure"]} == {f"abfss://lake@{ACCOUNT}/t", f"abfs://lake@{ACCOUNT}/t"}
    options = {"azure_storage_account_name": "acc"}
    assert {spark_uri(uri, options) for uri in PLACES["Azure without its account"]} == {f"abfss://lake@{ACCOUNT}/t"}


def test_an_account_in_the_options_completes_a_container():
    completed = {Location.parse(uri, {"azure_storage_account_name": "ACC"}).key for uri in PLACES["Azure without its account"]}
    assert completed == {Location.parse(PLACES["Azure"][0]).key}


@pytest.mark.parametrize("uri", ["s3://lake//t", "gcs://lake/a//t", f"abfss://lake@{ACCOUNT}//t"])
def test_an_empty_part_of_a_prefix_is_another_place_that_cannot_be_opened(uri):
    assert Location.parse(uri).key != Location.parse(uri[:6] + uri[6:].replace("//", "/")).key
    for refusing in (one_spelling, store_for):
        with pytest.raises(DeltaIllegalArgumentException, match="empty part"):
            refusing(uri)


@pytest.mark.parametrize(
    ("table", "path", "expected"),
    [
        ("s3a://lake/t", "s3://other/f", "s3a://other/f"),
        ("gs://lake/t", "gcs://other/f", "gs://other/f"),
        ("gs://lake/t", "s3://other/f", "s3://other/f"),
        ("/lake/t", "gcs://other/f", "gcs://other/f"),
    ],
)
def test_spark_opens_a_file_in_another_bucket_by_the_scheme_of_the_table(table, path, expected):
    assert data_file_uri(table, path) == expected


@pytest.mark.parametrize(("scheme", "hadoop"), [("gcs", "gs"), ("azure", "abfss"), ("s3n", "s3a")])
def test_an_error_about_a_scheme_that_hadoop_does_not_know_says_which_it_knows(scheme, hadoop):
    error = storage_error(f'No FileSystem for scheme "{scheme}"', f"{scheme}://lake/t")
    assert error is not None
    assert f"Hadoop's scheme for this store is {hadoop}://" in error.message


def test_an_asset_and_a_location_agree_on_the_authority():
    for spellings in OBJECTS.values():
        for uri in spellings:
            assert delta_asset_uri(uri).split("/")[2] == Location.parse(uri).asset


@pytest.mark.parametrize("scheme", [*SCHEMES, "https"])
def test_every_scheme_is_known_everywhere(scheme):
    """What one place knows of a scheme all know: the store, its connector, its asset, the engine."""
    uri = {"file": "file:///lake/t", "https": f"https://{ACCOUNT}/lake/t"}.get(scheme, f"{scheme}://lake/t")
    store = store_of(uri)
    assert Location.parse(uri).store == store
    assert store_for(uri).root
    assert delta_asset_uri(uri).split("/")[2] in {"s3", "gs", "abfs", "az", "hdfs", "file"}
    assert (coordinate(scheme, "3.5.0") is not None) is (store in ("S3", "GCS", "Azure") and scheme != "https")
