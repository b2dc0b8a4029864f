"""What start settles: identity, policy, the table's state and what a new table gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
)
from airflow_delta.log.actions import encode_actions
from airflow_delta.staging.contract import TransactionHandle
from commands.flow import Table, column, schema
from support.tables import metadata, protocol


@pytest.fixture
def table(tmp_path) -> Table:
    return Table(tmp_path / "table")


def put_table(table: Table, *actions) -> None:
    log = Path(table.path) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_bytes(encode_actions(actions or (protocol(), metadata(partition_columns=["part"]))))


@pytest.mark.parametrize(
    ("identity", "says"),
    [
        ({"app_id": "a"}, "app_id was given without txn_version"),
        ({"txn_version": 1}, "txn_version was given without app_id"),
        ({"app_id": "a", "txn_version": -1}, "-1"),
        ({"app_id": "a", "txn_version": True}, "True"),
        ({"app_id": "a", "txn_version": "1"}, "'1'"),
        ({"app_id": "a", "txn_version": 1.5}, "1.5"),
        ({"app_id": "a", "txn_version": 2**63}, "whole number"),
        ({"app_id": " ", "txn_version": 1}, "not empty"),
        ({"transaction_key": ""}, "not empty"),
        ({"transaction_key": "k", "app_id": "a", "txn_version": 1}, "not both"),
        ({"transaction_key": "k", "rerun_policy": "again"}, "rerun_policy"),
        ({"transaction_key": "k", "isolation_level": "Snapshot"}, "isolation_level"),
    ],
)
def test_what_is_no_identity_or_policy_is_refused(table, identity, says):
    with pytest.raises(DeltaIllegalArgumentException) as caught:
        table.begin(**identity)
    assert says in str(caught.value)


def test_a_table_that_does_not_exist(table):
    with pytest.raises(DeltaTableNotFoundException, match="create=True"):
        table.begin(create=False)
    handle = table.begin(partition_by=["p"], configuration={"delta.appendOnly": "true"}, description="d", name="n")
    assert (handle.read_version, handle.table_id, handle.schema_string, handle.txn_version) == (-1, None, None, 0)
    assert handle.configuration["delta.appendOnly"] == "true"
    assert handle.configuration["delta.setTransactionRetentionDuration"] == "interval 90 days"
    assert (handle.name, handle.description, handle.partition_columns) == ("n", "d", ("p",))
    assert not table.path.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"schema": "no json"},
        {"schema": schema(column("a", "long"), column("A", "long"))},
        {"schema": schema(column("a", "long")), "partition_by": ["b"]},
        {"schema": schema(column("a", "long")), "partition_by": ["a"]},
        {"configuration": {"delta.appendOnly": "maybe"}},
        {"configuration": {"delta.noSuchProperty": "1"}},
    ],
)
def test_a_table_that_could_not_be_created_is_refused_at_start(table, options):
    with pytest.raises((DeltaAnalysisException, DeltaIllegalArgumentException)):
        table.begin(**options)


def test_an_existing_table(table):
    put_table(table)
    handle = table.begin()
    assert (handle.read_version, handle.partition_columns, handle.isolation_level) == (0, ("part",), "Serializable")
    assert handle.table_id == metadata().id
    assert handle.staging_path == f"{table.uri}/staged/{handle.transaction_id}"
    assert handle == TransactionHandle.from_dict(handle.to_dict())
    assert table.begin(partition_by=["PART"]).read_version == 0
    with pytest.raises(DeltaAnalysisException, match=r"partitioned by \(part\)"):
        table.begin(partition_by=["id"])


@pytest.mark.parametrize(
    ("actions", "error"),
    [
        ((protocol(4, 7, reader_features=["x"], writer_features=["x"]), metadata()), InvalidProtocolVersionException),
        (
            (protocol(3, 7, reader_features=["rocketFuel"], writer_features=["rocketFuel"]), metadata()),
            DeltaUnsupportedTableFeatureException,
        ),
    ],
)
def test_a_table_that_we_do_not_understand_is_refused_at_start(table, actions, error):
    put_table(table, *actions)
    with pytest.raises(error):
        table.begin()
