"""The asset of a table: one URI for every spelling of its location, and the way back."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace
from urllib.parse import urlsplit, urlunsplit

import pytest
from airflow.sdk import Asset

from airflow_delta.assets.delta import (
    commits_of_events,
    convert_asset_to_openlineage,
    create_asset,
    delta_asset,
    delta_asset_uri,
    sanitize_uri,
    table_of_asset_uri,
)
from airflow_delta.assets.events import event_extra
from airflow_delta.contract.payloads import CommitResult
from airflow_delta.exceptions import DeltaIllegalArgumentException

ACCOUNT = "account.dfs.core.windows.net"
URIS = [
    # as an author writes the table, its connection, the URI, and what the way back gives
    ("s3://lake/flights", None, "delta://s3/lake/flights", ("s3://lake/flights", None)),
    ("s3a://lake/flights/", None, "delta://s3/lake/flights", ("s3://lake/flights", None)),
    ("S3N://lake/flights", None, "delta://s3/lake/flights", ("s3://lake/flights", None)),
    ("s3://Lake/Flights", None, "delta://s3/Lake/Flights", ("s3://Lake/Flights", None)),
    ("s3://lake/a b%c?d#e", None, "delta://s3/lake/a%20b%25c%3Fd%23e", ("s3://lake/a b%c?d#e", None)),
    (
        "s3://lake/month=2013-01/größe",
        None,
        "delta://s3/lake/month=2013-01/gr%C3%B6%C3%9Fe",
        ("s3://lake/month=2013-01/größe", None),
    ),
    ("gs://lake/flights", None, "delta://gs/lake/flights", ("gs://lake/flights", None)),
    ("az://lake/flights", None, "delta://az/lake/flights", ("az://lake/flights", None)),
    (f"abfss://lake@{ACCOUNT}/t", None, f"delta://abfs/lake@{ACCOUNT}/t", (f"abfss://lake@{ACCOUNT}/t", None)),
    (f"abfs://lake@{ACCOUNT.upper()}/t", None, f"delta://abfs/lake@{ACCOUNT}/t", (f"abfss://lake@{ACCOUNT}/t", None)),
    ("hdfs://node:8020/lake/t", None, "delta://hdfs/node:8020/lake/t", ("hdfs://node:8020/lake/t", None)),
    ("/lake/flights/", None, "delta://file/lake/flights", ("/lake/flights", None)),
    ("/lake//a/../flights", None, "delta://file/lake/flights", ("/lake/flights", None)),
    ("/lake/a b", None, "delta://file/lake/a%20b", ("/lake/a b", None)),
    ("file:///lake/a%20b", None, "delta://file/lake/a%20b", ("/lake/a b", None)),
    ("file:/lake/t", None, "delta://file/lake/t", ("/lake/t", None)),
    ("flights", None, "delta://connection/delta_default/flights", ("flights", "delta_default")),
    ("sales/flights/", "lake", "delta://connection/lake/sales/flights", ("sales/flights", "lake")),
    ("flights", "team/lake", "delta://connection/team%2Flake/flights", ("flights", "team/lake")),
    ("delta://s3a/lake/flights", None, "delta://s3/lake/flights", ("s3://lake/flights", None)),
]


@pytest.mark.parametrize(("table", "conn", "uri", "back"), URIS)
def test_uri_and_way_back(table, conn, uri, back):
    assert delta_asset_uri(table, conn) == uri
    assert table_of_asset_uri(uri) == back
    assert delta_asset_uri(*back) == uri


@pytest.mark.parametrize("uri", sorted({uri for _, _, uri, _ in URIS}))
def test_airflow_leaves_it_as_it_is(uri):
    """Airflow's own rules (user names are dropped, queries sorted, slashes cut) and ours, again and again."""
    assert urlunsplit(sanitize_uri(urlsplit(uri))) == uri
    asset = Asset(uri=uri)
    assert (asset.uri, asset.name) == (uri, uri)
    assert Asset(uri=asset.uri).uri == uri


SPELLINGS = [
    ("delta://S3A/lake/flights/", "delta://s3/lake/flights"),
    ("delta://file/lake/./x/../a b", "delta://file/lake/a%20b"),
    ("delta://abfss/lake@ACCOUNT.net/T", "delta://abfs/lake@account.net/T"),
    ("delta://s3/lake/%41%2fb", "delta://s3/lake/A%2Fb"),
]


@pytest.mark.parametrize(("written", "uri"), SPELLINGS)
def test_other_spellings_are_normalised(written, uri):
    assert urlunsplit(sanitize_uri(urlsplit(written))) == uri


@pytest.mark.parametrize(
    "uri",
    ["delta://", "delta:///lake", "delta://s3", "delta://s3/", "delta://file/", "delta://connection/lake", "delta://s3/b/t?v=3"],
)
def test_what_names_no_table_is_refused(uri):
    with pytest.raises(DeltaIllegalArgumentException, match=r"delta://s3/|query"):
        sanitize_uri(urlsplit(uri))


@pytest.mark.parametrize("uri", ["s3://lake/flights", "flights", "x-delta://lake/t"])
def test_the_way_back_is_from_our_uris_only(uri):
    with pytest.raises(DeltaIllegalArgumentException, match="not the asset URI of a Delta table"):
        table_of_asset_uri(uri)


def test_an_empty_table():
    with pytest.raises(DeltaIllegalArgumentException, match="empty"):
        delta_asset_uri(" ")


def test_assets():
    assert delta_asset("s3a://lake/t") == delta_asset("s3://lake/t/")
    assert delta_asset("t", "lake").uri == "delta://connection/lake/t"
    made = create_asset(table="/lake/t", extra={"k": "v"})
    assert (made.uri, made.extra) == ("delta://file/lake/t", {"k": "v"})


@pytest.mark.parametrize("table", ["s3://lake/flights", "/lake/fl ights", "abfss://c@a.dfs.core.windows.net/t", "S3A://Lake//t/"])
def test_an_asset_is_the_one_that_airflow_makes_of_its_uri(table):
    ours = delta_asset(table)
    assert ours == Asset(uri=delta_asset_uri(table))
    assert ours.uri == delta_asset_uri(table)


def test_making_an_asset_asks_no_provider():
    """A Dag file is parsed in a process that has not loaded their descriptions, which takes some 0.15 s."""
    code = """
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
        ProvidersManagerTaskRuntime.asset_uri_handlers = property(lambda self: 1 / 0)
        from airflow_delta.assets.delta import delta_asset
        assert delta_asset("s3://lake/t").uri == "delta://s3/lake/t"
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


class TestOpenLineage:
    def test_by_location(self):
        found = convert_asset_to_openlineage(delta_asset("s3://lake/flights"), None)
        assert (found.namespace, found.name) == ("s3://lake", "flights")

    def test_by_connection(self, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", '{"conn_type": "delta", "host": "s3://lake"}')
        found = convert_asset_to_openlineage(delta_asset("flights", "lake"), None)
        assert (found.namespace, found.name) == ("s3://lake", "flights")

    def test_a_connection_that_is_not_there(self):
        assert convert_asset_to_openlineage(delta_asset("flights", "nowhere"), None) is None


RESULT = CommitResult(
    table="s3://lake/t",
    table_id="id-1",
    version=7,
    read_version=5,
    transaction_id="t",
    app_id="key",
    txn_version=0,
    operation="WRITE",
    attempts=2,
    versions_checked=1,
    resolved={"statistics": "6"},
    isolation_level="Serializable",
    is_blind_append=True,
    timestamp=1,
    num_files=1,
    num_records=3,
    partitions=tuple({"p": str(number)} for number in range(150)),
)


class TestEvents:
    def test_extra(self):
        extra = event_extra(RESULT)
        expected = {
            "version": 7,
            "read_version": 5,
            "table": "s3://lake/t",
            "table_id": "id-1",
            "dedupe_key": "id-1/7",
            "attempts": 2,
            "versions_checked": 1,
            "resolved": {"statistics": "6"},
            "isolation_level": "Serializable",
            "is_blind_append": True,
            "num_partitions": 150,
            "committed_before": False,
        }
        assert {key: extra[key] for key in expected} == expected
        assert len(extra["partitions"]) == 100

    def test_commits_of_events_of_tasks_and_watchers(self):
        task = SimpleNamespace(extra=event_extra(RESULT))
        watcher = SimpleNamespace(extra={"from_trigger": True, "payload": {"version": 7, "dedupe_key": "id-1/7"}})
        later = SimpleNamespace(extra={"from_trigger": True, "payload": {"version": 8, "dedupe_key": "id-1/8"}})
        earlier = SimpleNamespace(extra={"version": 6, "dedupe_key": "id-1/6"})
        by_hand = [
            SimpleNamespace(extra={}),
            SimpleNamespace(extra=None),
            SimpleNamespace(extra={"from_trigger": True, "payload": "x"}),
        ]
        found = commits_of_events([later, task, watcher, earlier, *by_hand])
        assert [commit["version"] for commit in found] == [6, 7, 8]
        assert found[1]["app_id"] == "key"


@pytest.mark.airflow
def test_airflow_knows_the_scheme(airflow_database):
    """Needs the ``asset-uris`` entry of the provider info."""
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    assert ProvidersManagerTaskRuntime().asset_uri_handlers["delta"] is sanitize_uri
    assert ProvidersManagerTaskRuntime().asset_factories["delta"] is create_asset
    assert ProvidersManagerTaskRuntime().asset_to_openlineage_converters["delta"] is convert_asset_to_openlineage
    assert Asset(uri="delta://S3A/lake/flights/").uri == "delta://s3/lake/flights"
    with pytest.raises(DeltaIllegalArgumentException):
        Asset(uri="delta://s3")
