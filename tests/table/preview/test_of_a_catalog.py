"""Previews of tables whose versions a catalog decides on; tests/catalog has them with a real one."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.catalog.store import CatalogLogStore
from airflow_delta.catalog.versions import CatalogVersions, KnownVersions
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.exceptions import DeltaUnsupportedTableFeatureException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import CommitInfo, Metadata, Protocol, encode_actions
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.spelling import guarded, owned
from airflow_delta.table.preview.table_preview import preview_table
from support.previews import rows
from support.table import FAST, Table, metadata

FEATURES = ["catalogManaged", "inCommitTimestamp", "v2Checkpoint", "vacuumProtocolCheck"]
READER_FEATURES = ["catalogManaged", "v2Checkpoint", "vacuumProtocolCheck"]
PROPERTIES = {
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpointPolicy": "v2",
    "io.unitycatalog.tableId": "0d2b94c4-7a0f-4a4e-9d5c-2f1f2f3f4f5f",
}


class OneVersion(CatalogVersions):
    """What a catalog says of a table that has nothing but what is published."""

    def __init__(self, uri: str) -> None:
        super().__init__(None, TableName.parse("main.sales.orders"), "", uri)  # type: ignore[arg-type]
        self._known, self._exists = KnownVersions(0, {}, 0), True

    def refresh(self) -> KnownVersions:
        return self._known


class ManagedTable(Table):
    """A table that is opened through a catalog."""

    def log(self) -> DeltaLog:
        store = DeltaLog.for_table(self.uri, FAST).store
        return DeltaLog(CatalogLogStore(OneVersion(f"file://{self.uri}"), lambda fresh=False: store))


@pytest.fixture
def managed(table: Table) -> ManagedTable:
    now = int(time.time() * 1000)
    created = CommitInfo(
        timestamp=now,
        in_commit_timestamp=now,
        operation="CREATE TABLE",
        operation_parameters={},
        txn_id="created",
        engine_info="another engine",
    )
    protocol = Protocol(
        min_reader_version=3, min_writer_version=7, reader_features=READER_FEATURES, writer_features=sorted(FEATURES)
    )
    table.log_file(0).parent.mkdir(parents=True)
    table.log_file(0).write_bytes(encode_actions([created, protocol, metadata(configuration=PROPERTIES)]))
    return ManagedTable(table.path)


@pytest.mark.parametrize("make", [preview_table, preview_changes])
def test_every_reader_reads_it_by_its_path(managed: ManagedTable, make: Any) -> None:
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="catalogManaged"):
        DeltaLog.for_table(managed.uri).update().check_readable()
    handle = managed.begin()
    assert managed.log().store.committer.managed_as == "main.sales.orders"
    staged = managed.stage(handle, pa.table({"value": pa.array([1, 2], pa.int32())}))
    found = make(managed.log(), handle, [staged])
    assert [row[0] for row in rows(found.path)] == [1, 2]
    preview = DeltaLog.for_table(found.path).update()
    assert "airflowPreview" in (preview.protocol.writer_features or ())
    assert not [name for name in preview.metadata.configuration if name.startswith("io.unitycatalog.")]


@pytest.mark.parametrize("name", ["catalogManaged", "catalogOwned-preview", "vacuumProtocolCheck"])
def test_nothing_of_a_catalog_is_left(name: str) -> None:
    both = ["deletionVectors", name]
    protocol = guarded(Protocol(min_reader_version=3, min_writer_version=7, reader_features=both, writer_features=both))
    assert (protocol.reader_features, protocol.writer_features) == (["deletionVectors"], ["airflowPreview", "deletionVectors"])
    kept = {"delta.appendOnly": "true", "delta.feature.deletionVectors": "supported"}
    given: Metadata = metadata(configuration={**kept, f"delta.feature.{name}": "supported", "io.unitycatalog.tableId": "1"})
    assert dict(owned(given, "another").configuration) == kept
