"""Shallow clones, read with delta-rs; what Delta Spark says of them: tests/delta_spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    ConcurrentWriteException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.table.files.partitions import spelled_by_java, url_encoded
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.drop_feature.run import drop_feature
from airflow_delta.table.operations.statistics import compute_statistics
from airflow_delta.transaction import Operation
from support.actions import add, column, metadata, protocol, schema
from support.table import Table
from support.tables import write_commit


def clone(table: Table, source: Table, key: str = "clone", **options: Any) -> Any:
    return clone_table(table.log(), source.log(), transaction_key=key, attempt="1-test", **options)


def ids(table: Table) -> list[int]:
    from deltalake import DeltaTable, QueryBuilder

    answer = QueryBuilder().register("t", DeltaTable(table.path)).execute("SELECT id FROM t ORDER BY id").read_all()
    return [int(value.as_py()) for value in answer["id"]]


@pytest.fixture
def source(tmp_path: Path) -> Table:
    path = tmp_path / "src a%b+ü"
    for day, values in (("p=a b%2Fc", [1, 2]), ("p=__HIVE_DEFAULT_PARTITION__", [3])):
        (path / day).mkdir(parents=True)
        pq.write_table(pa.table({"id": values}), path / day / "x y.parquet")
    table = Table(path)
    convert_to_delta(
        table.log(),
        partition_schema="p STRING",
        properties={"user.x": "1", "delta.enableRowTracking": "true"},
        transaction_key="convert",
        attempt="1-test",
    )
    return table


def with_constraint(table: Table) -> None:
    log = table.log()
    metadata = log.update().metadata
    configuration = {**metadata.configuration, "delta.constraints.pos": "id > 0"}
    changed = msgspec.structs.replace(metadata, configuration=configuration)
    log.start_transaction().commit([changed], Operation.add_constraint("pos", "id > 0"))


def test_files_stay_where_they_are(source: Table, tmp_path: Path) -> None:
    with_constraint(source)
    target = Table(tmp_path / "clone")
    result = clone(target, source, properties={"user.x": "2"})
    assert (result.version, result.num_files, result.operation) == (0, 2, "CLONE")
    assert ids(target) == [1, 2, 3]
    prefix = spelled_by_java(url_encoded(f"file:{source.path}"))
    assert {add["path"] for add in target.actions(0)["add"]} == {
        f"{prefix}/p=a%20b%252Fc/x%20y.parquet",
        f"{prefix}/p=__HIVE_DEFAULT_PARTITION__/x%20y.parquet",
    }
    before, after = source.log().update().metadata, target.log().update().metadata
    assert before.id != after.id
    assert after.configuration["user.x"] == "2"
    assert after.configuration["delta.constraints.pos"] == "id > 0"
    key = "delta.rowTracking.materializedRowIdColumnName"
    assert before.configuration[key] != after.configuration[key]
    # Again: the same run finds its clone, another one a table.
    assert clone(target, source).committed_before
    with pytest.raises(DeltaIllegalStateException, match="DELTA_TABLE_ALREADY_EXISTS"):
        clone(target, source, "other")
    with pytest.raises(DeltaIllegalStateException, match="DELTA_UNSUPPORTED_NON_EMPTY_CLONE"):
        clone(target, source, "other", replace=True)
    # Footers of files elsewhere are found; there is nothing new in them. A clone of the clone points to the same files.
    assert compute_statistics(target.log()).attempts == 0
    second = Table(tmp_path / "second")
    clone(second, target)
    assert ids(second) == [1, 2, 3]
    assert {add["path"] for add in second.actions(0)["add"]} == {add["path"] for add in target.actions(0)["add"]}


def test_versions_of_the_source(source: Table, tmp_path: Path) -> None:
    log = source.log()
    txn = log.start_transaction()
    txn.commit([file.remove(1) for file in log.update().add_files("p IS NULL")], Operation.delete())
    old, new = Table(tmp_path / "old"), Table(tmp_path / "new")
    clone(old, source, version=0)
    clone(new, source)
    assert (ids(old), ids(new)) == ([1, 2, 3], [1, 2])
    assert new.info(0)["operationParameters"]["sourceVersion"] == 1
    with pytest.raises(VersionNotFoundException):
        clone(Table(tmp_path / "none"), source, version=9)
    with pytest.raises(DeltaIllegalArgumentException, match="not both"):
        clone(Table(tmp_path / "none"), source, version=0, timestamp=1)
    with pytest.raises(DeltaIllegalArgumentException, match="itself"):
        clone(source, source, "self", replace=True)
    with pytest.raises(DeltaTableNotFoundException, match="to clone"):
        clone(Table(tmp_path / "none"), Table(tmp_path / "nothing"))
    assert not (tmp_path / "none" / "_delta_log").exists()


def test_somebody_else_takes_the_location(source: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Table(tmp_path / "clone")
    real, once = DeltaLog.write_commit, []

    def slow(self: DeltaLog, version: int, data: bytes, *before: Any) -> None:
        if self.uri == target.uri and not once:
            once.append(version)
            clone(target, source, "faster")
        real(self, version, data, *before)

    monkeypatch.setattr(DeltaLog, "write_commit", slow)
    with pytest.raises(ConcurrentWriteException):
        clone(target, source)
    assert len(target.versions()) == 1


def test_uris() -> None:
    assert url_encoded("file:/a b/c%") == "file:/a%20b/c%25"
    assert url_encoded("s3a://bucket/a b/ü:c/") == "s3a://bucket/a%20b/%C3%BC:c"
    assert url_encoded("abfss://box@account.dfs.core.windows.net/t") == "abfss://box@account.dfs.core.windows.net/t"
    assert url_encoded("gs://bucket") == "gs://bucket"


def test_paths_without_a_scheme_are_of_the_source() -> None:
    from airflow_delta.log.storage.factory import store_for
    from airflow_delta.table.operations.clone import _absolute

    def cloned(path: str, root: str) -> str:
        return _absolute(add(path), root, store_for("/t")).path

    assert cloned("/a%20b/x", "s3://bucket/t") == "s3://bucket/a%20b/x"
    assert cloned("/a%20b/x", "file:/t") == "file:/a%20b/x"
    assert cloned("s3a://other/x", "s3://bucket/t") == "s3a://other/x"


@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        ("file:/a%20b/c%25+%C3%BC%2A/d", "file:/a%20b/c%25+ü*/d"),
        ("file:///ü/%E6%97%A5/%F0%9F%98%80", "file:///ü/日/😀"),
        ("s3a://bucket/a%20b/p=c%252Fd/x.parquet", "s3a://bucket/a%20b/p=c%252Fd/x.parquet"),
        ("s3://bucket/p=%C2%A0%E2%80%A8%C2%85/x", "s3://bucket/p=%C2%A0%E2%80%A8%C2%85/x"),
        ("s3://bucket/p=%FF%C3/~a!b;c?", "s3://bucket/p=%FF%C3/~a!b;c%3F"),
    ],
)
def test_a_clone_spells_paths_as_delta_spark_compares_them(path: str, spelled: str) -> None:
    """What Java's ``URI`` makes of a decoded path: tests/delta_spark/test_clone_command.py."""
    assert spelled_by_java(path) == spelled_by_java(spelled) == spelled


def test_a_uri_for_the_readers(source: Table, tmp_path: Path) -> None:
    target = Table(tmp_path / "clone")
    clone(target, source, source_uri="s3a://lake/src a/")
    assert all(add["path"].startswith("s3a://lake/src%20a/p=") for add in target.actions(0)["add"])
    assert target.info(0)["operationParameters"]["source"] == "delta.`s3a://lake/src a`"


def test_change_data_feed_and_column_mapping(tmp_path: Path) -> None:
    mapping = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "p1"}
    configuration = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "1",
        "delta.enableChangeDataFeed": "true",
    }
    write_commit(
        tmp_path / "source",
        0,
        protocol(2, 7, writer_features=["columnMapping", "changeDataFeed"]),
        metadata(
            schema_string=schema({**column("id", "long"), "metadata": mapping}), partition_columns=[], configuration=configuration
        ),
        add("f", partition_values={}),
    )
    made = Table(tmp_path / "clone")
    assert clone(made, Table(tmp_path / "source")).version == 0
    snapshot = made.log().update()
    assert snapshot.schema.fields[0].metadata == mapping
    assert configuration.items() <= snapshot.metadata.configuration.items()


def test_a_clone_protects_versions_of_its_own_only(tmp_path: Path) -> None:
    """checkpointProtection: the version is one of the source's history; a table that is replaced keeps its own."""
    name = "delta.requireCheckpointProtectionBeforeVersion"
    tables = {}
    for which in ("source", "replaced"):
        tables[which] = Table(tmp_path / which)
        tables[which].create(configuration={"delta.enableDeletionVectors": "true"})
        drop_feature(tables[which].log(), "deletionVectors")
        assert name in tables[which].log().update().metadata.configuration
    new = Table(tmp_path / "new")
    clone(new, tables["source"])
    assert name not in new.log().update().metadata.configuration
    own = tables["replaced"].log().update().metadata.configuration[name]
    tables["source"].commit(operation=Operation.delete([]))
    clone(tables["replaced"], tables["source"], replace=True)
    assert tables["replaced"].log().update().metadata.configuration[name] == own
