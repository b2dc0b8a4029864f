"""The first line of every commit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_delta import __version__
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.publication.records import Member
from airflow_delta.streaming import DeltaBatchSink
from airflow_delta.table.commit.commit import CommitOptions
from airflow_delta.transaction import Operation
from airflow_delta.transaction.policy import CommitPolicy
from support.actions import add, remove
from support.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(("part",))
    return table


def test_all_fields_of_an_append(table: Table) -> None:
    before = int(time.time() * 1000)
    transaction = table.log().start_transaction()
    operation = Operation.write("append", ["part"], metrics={"numFiles": 1, "numOutputRows": 7})
    tags = {"airflow.dagId": "flights", "airflow.tryNumber": 2}
    transaction.commit([add("a", part=1)], operation, tags=tags, user_metadata="note")
    assert list(table.lines(1)[0]) == ["commitInfo"]
    info = table.info(1)
    assert before <= info.pop("timestamp") <= int(time.time() * 1000)
    assert info == {
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["part"]'},
        "readVersion": 0,
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "dataChange": True,
        "operationMetrics": {"numFiles": "1", "numOutputRows": "7"},
        "userMetadata": "note",
        "tags": {"airflow.dagId": "flights", "airflow.tryNumber": "2"},
        "engineInfo": f"airflow-provider-delta/{__version__}",
        "txnId": transaction.txn_id,
    }
    assert transaction.outcome is not None
    assert transaction.outcome.commit_info.tags == info["tags"]


def test_what_a_first_commit_leaves_out(table: Table) -> None:
    info = table.info(0)
    assert "readVersion" not in info
    assert "tags" not in info
    assert "userMetadata" not in info
    assert info["operationMetrics"] == {}


def test_blind_append_or_not(table: Table) -> None:
    def commit(reads: str, *actions: object) -> bool:
        transaction = table.log().start_transaction()
        if reads == "app":
            transaction.txn_version("app")
        elif reads == "files":
            transaction.track_files_read(["a"])
        elif reads == "whole":
            transaction.read_whole_table()
        elif reads:
            transaction.filter_files(reads)
        version = transaction.commit(list(actions), Operation.write())  # type: ignore[arg-type]
        return bool(table.info(version)["isBlindAppend"])

    assert commit("", add("a", part=1))
    assert commit(""), "a commit without file actions and reads counts as one"
    assert commit("app", add("b", part=1)), "looking up an application id is no read of data"
    assert not commit("part = 99", add("c", part=1)), "a read that found nothing is a read"
    assert not commit("files", add("d", part=1))
    assert not commit("whole", add("e", part=1))
    assert not commit("", remove("a", part=1))


def test_txn_ids_differ(table: Table) -> None:
    assert table.log().start_transaction().txn_id != table.log().start_transaction().txn_id


def test_user_metadata_of_operation_wins_over_that_of_the_transaction(table: Table) -> None:
    transaction = table.log().start_transaction(user_metadata="session")
    assert transaction.get_user_metadata(Operation.write()) == "session"
    assert transaction.get_user_metadata(Operation.write(user_metadata="write")) == "write"


@pytest.mark.parametrize(
    ("operation", "name", "parameters"),
    [
        (
            Operation.write("overwrite", [], predicate="part = '1'", can_overwrite_schema=True),
            "WRITE",
            {"mode": "Overwrite", "partitionBy": "[]", "canOverwriteSchema": True, "predicate": "part = '1'"},
        ),
        (
            Operation.write("overwrite", ["p"], dynamic_partition_overwrite=True),
            "WRITE",
            {"mode": "Overwrite", "partitionBy": '["p"]', "isDynamicPartitionOverwrite": True},
        ),
        (
            Operation.create_table(["p"], properties={"delta.appendOnly": "true"}),
            "CREATE TABLE",
            {
                "partitionBy": '["p"]',
                "clusterBy": "[]",
                "description": None,
                "isManaged": "false",
                "properties": '{"delta.appendOnly":"true"}',
            },
        ),
        (Operation.delete(["(x = 'ü')"]), "DELETE", {"predicate": "[\"(x = 'ü')\"]"}),
        (Operation.truncate(), "TRUNCATE", {}),
        (
            Operation.merge("t.id = s.id", matched=[{"actionType": "update"}]),
            "MERGE",
            {
                "predicate": '["t.id = s.id"]',
                "matchedPredicates": '[{"actionType":"update"}]',
                "notMatchedPredicates": "[]",
                "notMatchedBySourcePredicates": "[]",
            },
        ),
        (Operation.optimize(), "OPTIMIZE", {"predicate": "[]", "zOrderBy": "[]", "clusterBy": "[]", "auto": False}),
        (Operation.restore(version=3), "RESTORE", {"version": 3, "timestamp": None}),
        (
            Operation.streaming_update("Append", "q", 4),
            "STREAMING UPDATE",
            {"outputMode": "Append", "queryId": "q", "epochId": "4"},
        ),
        (Operation.replace_table(or_create=True, as_select=True), "CREATE OR REPLACE TABLE AS SELECT", None),
        (Operation.manual_update(), "Manual Update", {}),
    ],
)
def test_operations(operation: Operation, name: str, parameters: dict[str, object] | None) -> None:
    assert operation.name == name
    if parameters is not None:
        assert operation.encoded_parameters() == parameters
        assert json.loads(json.dumps(operation.encoded_parameters())) == parameters


def test_which_operations_change_data_and_partitioning() -> None:
    assert Operation.write().changes_data
    assert Operation.delete().changes_data
    assert Operation.create_table(as_select=True).changes_data
    assert not Operation.create_table().changes_data
    assert not Operation.optimize().changes_data
    assert not Operation.manual_update().changes_data
    assert not Operation.write().may_change_partition_columns
    assert not Operation.write("overwrite").may_change_partition_columns
    assert Operation.write("overwrite", can_overwrite_schema=True).may_change_partition_columns
    assert Operation.replace_table().may_change_partition_columns
    assert not Operation.update("x = 1").may_change_partition_columns
    assert Operation.write().with_metrics({"numFiles": 2}).encoded_metrics() == {"numFiles": "2"}


def test_the_clock_can_be_given(table: Table) -> None:
    transaction = table.log().start_transaction(clock=lambda: 1_234)
    transaction.commit([add("a", part=1)], Operation.write())
    assert table.info(1)["timestamp"] == 1_234
    assert transaction.outcome is not None
    assert transaction.outcome.timestamp == 1_234


@pytest.mark.parametrize("note", [{"ticket": "4711"}, 4711, ["a"], b"a"])
def test_user_metadata_that_is_no_text_is_refused(table: Table, tmp_path: Path, note: Any) -> None:
    """Readers take the field for text: one entry with an object would hide the history of the table from them."""
    transaction = table.log().start_transaction()
    for refuse in (
        lambda: transaction.commit([add("a", part=1)], Operation.write(), user_metadata=note),
        lambda: transaction.commit([add("a", part=1)], Operation.write(user_metadata=note)),
        lambda: transaction.commit_large([add("a", part=1)], Operation.write(), user_metadata=note),
        lambda: CommitPolicy(user_metadata=note),
        lambda: CommitOptions(user_metadata=note),
        lambda: Member(log=table.log(), handle=None, user_metadata=note),  # type: ignore[arg-type]
        lambda: DeltaBatchSink(table.path, user_metadata=note),
    ):
        with pytest.raises(DeltaIllegalArgumentException, match="user_metadata must be text"):
            refuse()
    assert len(table.versions()) == 1
