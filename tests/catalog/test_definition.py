"""Changes of a table's definition travel with their commit: the catalog's columns and properties are those of the log."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import duckdb_extension_unity_catalog
import msgspec
import pyarrow as pa
import pytest

from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.catalog.committer import CatalogCommitter
from airflow_delta.catalog.definition import CommittedDefinition
from airflow_delta.contract.changes import (
    AddColumns,
    Change,
    ChangeColumn,
    ClusterBy,
    Column,
    DropColumns,
    DropConstraint,
    RenameColumn,
    ReplaceColumns,
    SetProperties,
    UnsetProperties,
    UpgradeProtocol,
)
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import (
    CatalogAccessException,
    CatalogException,
    CommitStateUnknownException,
    DeltaUnsupportedOperationException,
    MetadataChangedException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import encode_actions
from airflow_delta.table.operations.drop_feature.run import drop_feature
from airflow_delta.table.operations.row_tracking import enable_row_tracking
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.transaction import Operation
from catalog.unity import SCHEMA, CatalogTable, UnityCatalogServer, append, create, open_log
from stores.proxy import FaultProxy, Rule
from support.table import Table

COMMIT = {"method": "POST", "target": "/tables/"}
MAPPED = {"delta.columnMapping.mode": "name"}
spawn = multiprocessing.get_context("spawn")


class UnityTable(Table):
    """A table of the catalog whose steps open it by name, as tasks do."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(Path("unused"))
        self.url, self.name = url, name

    def log(self) -> DeltaLog:
        return open_log(self.url, self.name)

    def alter(self, *changes: Change, key: str | None = None) -> int:
        """Make changes in a transaction of their own, and return the version."""
        handle = self.begin(**({"transaction_key": key} if key is not None else {}))
        staged = plan_alter(self.view(handle), list(changes))
        assert isinstance(staged, StagedWrite)
        return self.publish(handle, staged).version

    def write(self, rows: pa.Table, **options: Any) -> int:
        handle = self.begin()
        return self.publish(handle, self.stage(handle, rows, **options)).version

    def check_same(self) -> None:
        """Compare what the catalog and the log say of the table."""
        snapshot = self.log().update()
        found = UnityCatalogClient(self.url).load_table(self.log().store.versions.name).metadata  # type: ignore[attr-defined]
        columns = [(field["name"], field["nullable"]) for field in json.loads(snapshot.metadata.schema_string)["fields"]]
        assert [(field["name"], field["nullable"]) for field in found.columns["fields"]] == columns
        properties = dict(found.properties)
        features = {key.removeprefix("delta.feature.") for key in properties if key.startswith("delta.feature.")}
        assert features == set(snapshot.protocol.writer_features or ())
        own = {key: value for key, value in properties.items() if not key.startswith("delta.feature.") and key not in DERIVED}
        assert own == snapshot.metadata.configuration
        clustered = snapshot.domain_metadata.get("delta.clustering")
        assert json.loads(properties.get("delta.clusteringColumns", "null")) == (
            json.loads(clustered.configuration)["clusteringColumns"] if clustered is not None else None
        )


DERIVED = {
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.lastUpdateVersion",
    "delta.lastCommitTimestamp",
    "delta.clusteringColumns",
    "delta.rowTracking.rowIdHighWaterMark",
}


@pytest.fixture
def made(unity: UnityCatalogServer, name: str) -> Callable[..., UnityTable]:
    def make(**given: Any) -> UnityTable:
        create(unity.url, name, **given)
        return UnityTable(unity.url, name)

    return make


def rows(**columns: list[Any]) -> pa.Table:
    types = {"id": pa.int64()}
    return pa.table({key: pa.array(values, types.get(key)) for key, values in columns.items()})


# -- what travels -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({}, [AddColumns([Column("country", "STRING", comment="of the order")])]),
        ({}, [AddColumns([Column("s", "STRUCT<a: ARRAY<INT>, m: MAP<STRING, DECIMAL(10,2)>>", position="FIRST")])]),
        ({}, [ChangeColumn("name", comment="who")]),
        (
            {"properties": {"delta.enableTypeWidening": "true"}, "schema": SCHEMA.replace("long", "integer")},
            [ChangeColumn("id", "BIGINT")],
        ),
        ({}, [SetProperties({"team": "sales", "delta.appendOnly": "true"})]),
        ({"properties": {"team": "sales", "kept": "yes"}}, [UnsetProperties(["team"])]),
        ({}, [SetProperties({"comment": "all orders"})]),
        ({"description": "all orders"}, [SetProperties({"comment": ""})]),
        ({}, [SetProperties(MAPPED)]),
        ({"properties": MAPPED}, [RenameColumn("name", "customer"), DropColumns(["id"])]),
        ({"properties": MAPPED, "partition_columns": ["name"]}, [RenameColumn("name", "customer")]),
        ({"properties": MAPPED}, [ReplaceColumns([Column("name", "STRING"), Column("id", "BIGINT"), Column("x", "DATE")])]),
        ({}, [SetProperties({"delta.enableDeletionVectors": "true"})]),
        ({}, [UpgradeProtocol(features=["changeDataFeed"])]),
        ({}, [SetProperties({"delta.enableRowTracking": "true"}), ClusterBy(["id"])]),
    ],
    ids=lambda value: None if isinstance(value, dict) else "+".join(type(change).__name__ for change in value),
)
def test_alter_table_is_one_version_of_log_and_catalog(made: Any, given: dict[str, Any], changes: list[Change]) -> None:
    table = made(**given)
    assert table.alter(*changes) == 1
    table.check_same()
    assert table.alter(SetProperties({"another": "one"})) == 2
    table.check_same()


def test_a_constraint_goes(made: Any) -> None:
    table = made(properties={"delta.constraints.positive": "id > 0", "delta.appendOnly": "false"})
    table.check_same()
    assert table.alter(DropConstraint("positive")) == 1
    assert not any(key.startswith("delta.constraints") for key in table.log().update().metadata.configuration)
    table.check_same()


def test_no_longer_clustered(made: Any) -> None:
    table = made()
    assert table.alter(ClusterBy(["id"])) == 1
    table.check_same()
    assert table.alter(ClusterBy([])) == 2
    table.check_same()


def test_new_columns_of_rows_are_columns_of_the_catalog(made: Any) -> None:
    table = made()
    assert table.write(rows(id=[1], name=["a"], country=["DE"]), merge_schema=True) == 1
    table.check_same()
    assert table.write(rows(id=[2], other=[True]), mode="overwrite", overwrite_schema=True) == 2
    table.check_same()
    assert read_table(table.log()).to_table().to_pylist() == [{"id": 2, "other": True}]


def test_identity_columns_go_on(made: Any) -> None:
    mark = {"delta.identity.start": 10, "delta.identity.step": 5, "delta.identity.allowExplicitInsert": True}
    fields = json.loads(SCHEMA)
    fields["fields"][0]["metadata"] = mark
    table = made(schema=json.dumps(fields))
    seen: list[int] = []
    for number in range(3):
        table.write(rows(name=[f"a{number}", f"b{number}"]))
        table.check_same()
        seen = sorted(row["id"] for row in read_table(table.log()).to_table().to_pylist())
    assert seen == [10, 15, 20, 25, 30, 35]


def test_a_table_is_replaced_and_stays_one_of_the_catalog(made: Any) -> None:
    table = made(properties={"team": "sales"})
    table.write(rows(id=[1], name=["a"]))
    handle = table.begin()
    schema = '{"type":"struct","fields":[{"name":"day","type":"date","nullable":true,"metadata":{}}]}'
    staged = plan_create(table.view(handle), schema=schema, mode="create_or_replace", properties={"new": "yes"})
    assert table.publish(handle, staged).version == 2
    table.check_same()
    assert "team" not in table.log().update().metadata.configuration
    assert read_table(table.log()).to_table().num_rows == 0


def test_row_ids_of_a_table_with_files(made: Any) -> None:
    table = made()
    table.write(rows(id=[1, 2], name=["a", "b"]))
    enable_row_tracking(table.log())
    table.check_same()
    table.write(rows(id=[3], name=["c"]))
    table.check_same()
    assert table.log().update().row_id_high_water_mark == 2


def test_duckdb_reads_a_new_column(unity: UnityCatalogServer) -> None:
    schema = unity.make_schema()
    name = f"{schema}.t"
    create(unity.url, name)
    table = UnityTable(unity.url, name)
    table.write(rows(id=[1], name=["a"]))
    table.alter(AddColumns([Column("country", "STRING")]))
    table.write(rows(id=[2], name=["b"], country=["DE"]))
    database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for module, extension in (
        (duckdb_extension_httpfs, "httpfs"),
        (duckdb_extension_delta, "delta"),
        (duckdb_extension_unity_catalog, "unity_catalog"),
    ):
        [path] = Path(module.__file__).parent.rglob(f"{extension}.duckdb_extension")
        database.execute(f"LOAD '{path}'")
    database.execute(f"CREATE SECRET (TYPE unity_catalog, TOKEN 'x', ENDPOINT '{unity.url}', AWS_REGION 'us-east-1')")
    database.execute(f"ATTACH 'main' AS lake (TYPE unity_catalog, DEFAULT_SCHEMA '{schema.split('.')[1]}')")
    found = database.execute(f"SELECT id, name, country FROM lake.{schema.split('.')[1]}.t ORDER BY id").fetchall()
    assert found == [(1, "a", None), (2, "b", "DE")]


# -- lost, refused, killed ----------------------------------------------------------------------------------------------------

NEW = AddColumns([Column("country", "STRING")])


@pytest.mark.parametrize("fault", ["lost", "status_after", "reset", "status"])
def test_a_lost_answer_to_a_change(proxied_table: CatalogTable, proxied: FaultProxy, fault: str) -> None:
    table = UnityTable(proxied_table.url, proxied_table.name)
    proxied.set(Rule(fault, **COMMIT, status=500))
    assert table.alter(NEW) == 1
    assert sum(proxied.faults) == 1
    proxied.set()
    table.check_same()
    assert proxied_table.published == [0, 1]


def _killed_when_altering(url: str, name: str, key: str) -> None:
    def publish(self: CatalogCommitter) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    CatalogCommitter.publish = publish  # type: ignore[method-assign]
    UnityTable(url, name).alter(NEW, key=key)


def test_a_change_that_was_killed_after_the_answer_is_made_once(table: CatalogTable) -> None:
    process = spawn.Process(target=_killed_when_altering, args=(table.url, table.name, "key-1"))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    unity = UnityTable(table.url, table.name)
    unity.check_same()
    handle = unity.begin(transaction_key="key-1")
    assert handle.committed is not None
    assert handle.committed.version == 1
    assert append(unity.log(), [(1, "a")]) == 2
    assert table.published == [0, 1, 2]
    unity.check_same()


def test_two_changes_at_once_are_one_and_a_conflict(table: CatalogTable) -> None:
    unity = UnityTable(table.url, table.name)
    first, second = unity.begin(), unity.begin()
    staged = [plan_alter(unity.view(handle), [NEW]) for handle in (first, second)]
    assert unity.publish(first, staged[0]).version == 1
    other = plan_alter(unity.view(second), [SetProperties({"a": "b"})])
    with pytest.raises(MetadataChangedException):
        unity.publish(second, other)
    unity.check_same()
    assert table.known.latest_table_version == 1


def test_a_change_after_an_append_of_another_is_made_at_the_next_version(table: CatalogTable) -> None:
    unity = UnityTable(table.url, table.name)
    handle = unity.begin()
    staged = plan_alter(unity.view(handle), [NEW])
    append(table.log, [(1, "a")])
    assert unity.publish(handle, staged).version == 2
    unity.check_same()


def test_what_the_catalog_has_lost_of_a_change_is_made_again(table: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = UnityCatalogClient.add_commit

    def only_the_version(self: UnityCatalogClient, *args: Any, **given: Any) -> Any:
        return ask(self, *args, **{**given, "also": ()})

    monkeypatch.setattr(UnityCatalogClient, "add_commit", only_the_version)
    unity = UnityTable(table.url, table.name)
    assert unity.alter(NEW, SetProperties({"team": "sales"})) == 1
    unity.check_same()


def test_what_the_catalog_does_not_take_is_no_version(table: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CommittedDefinition,
        "columns",
        {"type": "struct", "fields": [{"name": "x", "type": "nothing it knows", "nullable": True, "metadata": {}}]},
    )
    unity = UnityTable(table.url, table.name)
    with pytest.raises(CatalogException, match="400"):
        unity.alter(NEW)
    monkeypatch.undo()
    assert table.known.latest_table_version == 0
    unity.check_same()


# -- what stays refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["delta.checkpointPolicy", "delta.enableInCommitTimestamps", "io.unitycatalog.tableId"])
def test_what_makes_it_a_table_of_the_catalog_is_not_changed(table: CatalogTable, key: str) -> None:
    unity = UnityTable(table.url, table.name)
    with pytest.raises(DeltaUnsupportedOperationException, match=key):
        unity.alter(UnsetProperties([key]))
    assert table.known.latest_table_version == 0
    unity.check_same()


def test_features_are_not_dropped(made: Any) -> None:
    table = made(properties={"delta.enableDeletionVectors": "true"})
    with pytest.raises(DeltaUnsupportedOperationException, match="DROP FEATURE"):
        drop_feature(table.log(), "deletionVectors")
    table.check_same()


# -- the token ----------------------------------------------------------------------------------------------------------------


def _client(url: str, tokens: list[str | None]) -> UnityCatalogClient:
    return UnityCatalogClient(url, "first", renew=lambda: tokens.pop(0) if tokens else None)


def _log(client: UnityCatalogClient, name: str) -> DeltaLog:
    from airflow_delta.catalog.open import open_in_catalog
    from airflow_delta.contract.catalog_names import TableName

    return DeltaLog(open_in_catalog(client, TableName.parse(name)))


def test_a_token_that_has_expired_is_renewed_once(proxied_table: CatalogTable, proxied: FaultProxy) -> None:
    tokens: list[str | None] = ["second"]
    log = _log(_client(proxied.url, tokens), proxied_table.name)
    proxied.set(Rule("status", **COMMIT, status=401))
    assert append(log, [(1, "a")]) == 1
    assert tokens == []
    assert proxied.faults == [1]
    assert proxied_table.published == [0, 1]


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_not_accepted_is_said_and_nothing_is_committed(
    proxied_table: CatalogTable, proxied: FaultProxy, status: int
) -> None:
    log = proxied_table.log
    txn = log.start_transaction()
    proxied.set(Rule("status", target="/tables/", status=status, times=None))
    with pytest.raises(CatalogAccessException, match=str(status)):
        txn.commit([], Operation.write("Append"))
    proxied.set()
    assert proxied_table.known.latest_table_version == 0


def test_a_lost_answer_and_then_no_access_is_unknown(proxied_table: CatalogTable, proxied: FaultProxy) -> None:
    log = proxied_table.log
    txn = log.start_transaction()
    proxied.set(Rule("lost", **COMMIT), Rule("status", target="/tables/", status=401, times=None))
    with pytest.raises(CommitStateUnknownException):
        txn.commit([], Operation.write("Append"))


# -- the request --------------------------------------------------------------------------------------------------------------


def test_each_kind_of_update_is_there_once(made: Any) -> None:
    table = made(properties={"delta.enableRowTracking": "true", "old": "1"})
    snapshot = table.log().update()
    after = msgspec.structs.replace(
        snapshot.metadata, schema_string=SCHEMA.replace('"name"', '"other"', 1), configuration={"new": "2"}, description="text"
    )
    from airflow_delta.log.actions.actions import DomainMetadata

    data = encode_actions(
        [
            snapshot.protocol,
            after,
            DomainMetadata(domain="delta.clustering", configuration='{"clusteringColumns":[["id"]]}', removed=False),
            DomainMetadata(domain="delta.rowTracking", configuration='{"rowIdHighWaterMark":7}', removed=False),
            DomainMetadata(domain="someone.else", configuration="{}", removed=False),
        ]
    )
    updates = CommittedDefinition(data).updates(snapshot.metadata)
    kinds = [update["action"] for update in updates]
    assert len(kinds) == len(set(kinds))
    by_kind = {update["action"]: update for update in updates}
    assert set(by_kind["remove-properties"]["removals"]) == snapshot.metadata.configuration.keys() - {"new"}
    assert by_kind["set-domain-metadata"]["updates"] == {
        "delta.clustering": {"clusteringColumns": [["id"]]},
        "delta.rowTracking": {"rowIdHighWaterMark": 7},
    }
    assert by_kind["set-table-comment"]["comment"] == "text"
    assert "set-partition-columns" not in by_kind
