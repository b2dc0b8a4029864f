"""Tables of the catalog: how they are made, read and read by others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import duckdb_extension_unity_catalog
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.catalog.answers import CatalogCommit, Credential
from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.catalog.committer import CatalogCommitter
from airflow_delta.catalog.open import CatalogStorage, stage_in_catalog
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    CatalogConflictException,
    CatalogNotFoundException,
    CatalogUnavailableException,
    CredentialsUnavailableException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.table_preview import preview_table
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin
from catalog.unity import CatalogTable, UnityCatalogServer, append, create, open_log
from stores.proxy import FaultProxy, Rule
from support import previews

NESTED = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},{"name":"s","type":{"type":"struct",'
    '"fields":[{"name":"l","type":{"type":"array","elementType":"integer","containsNull":true},"nullable":true,"metadata":{}},'
    '{"name":"m","type":{"type":"map","keyType":"string","valueType":"decimal(10,2)","valueContainsNull":false},"nullable":true,'
    '"metadata":{"comment":"c"}}]},"nullable":true,"metadata":{}}]}'
)


def rows(log: DeltaLog) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in read_table(log).to_table().to_pylist())


# -- new tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"properties": {"delta.columnMapping.mode": "name"}},
        {"properties": {"delta.enableDeletionVectors": "true"}},
        {"schema": NESTED},
        {"partition_columns": ["name"]},
        {"description": "all orders"},
    ],
    ids=["mapped", "deletion vectors", "nested", "partitioned", "described"],
)
def test_a_new_table_is_one_of_the_catalog(unity: UnityCatalogServer, name: str, given: dict[str, Any]) -> None:
    created = create(unity.url, name, **given)
    opened = open_log(unity.url, name).update()
    assert opened.version == 0
    assert opened.metadata.configuration["io.unitycatalog.tableId"] == created.store.versions.table_uuid  # type: ignore[attr-defined]
    assert {"catalogManaged", "inCommitTimestamp", "v2Checkpoint", "vacuumProtocolCheck"} <= set(
        opened.protocol.writer_features or ()
    )
    assert opened.metadata == created.snapshot.metadata


def test_row_ids_go_on_and_the_catalog_learns_of_them(unity: UnityCatalogServer, name: str) -> None:
    create(unity.url, name, properties={"delta.enableRowTracking": "true"})
    for number in range(3):
        append(open_log(unity.url, name), [(number, "x"), (number, "y")])
    log = open_log(unity.url, name)
    assert log.update().row_id_high_water_mark == 5
    known = CatalogTable(unity, name, unity.url).known
    assert known.metadata.properties["delta.rowTracking.rowIdHighWaterMark"] == "5"


def test_of_two_that_create_a_table_one_does(unity: UnityCatalogServer, name: str) -> None:
    create(unity.url, name)
    client = UnityCatalogClient(unity.url)
    with pytest.raises(CatalogConflictException):
        create(unity.url, name)
    assert client.load_table(TableName.parse(name)).latest_table_version == 0


@pytest.mark.parametrize("fault", ["lost", "status_after"])
def test_a_swallowed_answer_to_create_is_found(name: str, proxied: FaultProxy, unity: UnityCatalogServer, fault: str) -> None:
    proxied.set(Rule(fault, method="POST", target="/tables$", status=500))
    create(proxied.url, name)
    assert proxied.faults == [1]
    proxied.set()
    assert append(open_log(unity.url, name), [(1, "a")]) == 1


def test_a_table_of_which_it_was_not_known_whether_it_was_made(name: str, proxied: FaultProxy, unity: UnityCatalogServer) -> None:
    proxied.set(
        Rule("lost", method="POST", target="/tables$"), Rule("status", method="GET", target="/tables/", times=5, status=503)
    )
    create(proxied.url, name)
    assert proxied.faults == [1, 5]
    proxied.set()
    assert append(open_log(unity.url, name), [(1, "a")]) == 1


def test_a_required_property_cannot_have_another_value(unity: UnityCatalogServer, name: str) -> None:
    log = DeltaLog(stage_in_catalog(UnityCatalogClient(unity.url), TableName.parse(name)))
    with pytest.raises(DeltaIllegalArgumentException, match="checkpointPolicy"):
        begin(log, transaction_key="k", configuration={"delta.checkpointPolicy": "classic"})


# -- reading ------------------------------------------------------------------------------------------------------------------


def test_unpublished_commits_are_read_and_what_no_catalog_accepted_is_not(
    table: CatalogTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table.log, [(1, "a")])
    with monkeypatch.context() as patched:
        patched.setattr(CatalogCommitter, "publish", lambda self: None)
        append(table.log, [(2, "b")])
    log_directory = table.path / "_delta_log"
    stray = (log_directory / f"{1:020d}.json").read_bytes()
    (log_directory / f"{3:020d}.json").write_bytes(stray)  # by a client that does not know of the catalog
    (log_directory / f"{2:020d}.json").write_bytes(stray)

    log = table.log
    assert log.update().version == 2
    assert rows(log) == [(1, "a"), (2, "b")], "the accepted commit, not the file of its version"
    assert [record.version for record in log.history()] == [2, 1, 0]
    assert log.snapshot_at(1).version == 1


def test_a_reader_goes_on_while_others_write(table: CatalogTable) -> None:
    reader, writer = table.log, table.log
    for number in range(12):
        append(writer, [(number, "x")])
        assert [row for row, _ in rows(reader)] == list(range(number + 1))


def test_staged_files_that_are_gone_are_read_as_published(table: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(CatalogCommitter, "publish", lambda self: None)
        append(table.log, [(1, "a")])
    log = table.log
    log.store.versions.refresh()  # type: ignore[attr-defined]
    [staged] = (table.path / "_delta_log" / "_staged_commits").glob("*.json")
    (table.path / "_delta_log" / f"{1:020d}.json").write_bytes(staged.read_bytes())
    staged.unlink()
    assert rows(log) == [(1, "a")]


def test_duckdb_reads_the_same_rows_through_the_catalog(unity: UnityCatalogServer) -> None:
    table = CatalogTable(unity, f"{unity.make_schema()}.t", unity.url)  # it looks at all tables of the schema
    create(unity.url, table.name)
    for number in range(12):
        append(table.log, [(number, "x")])
    catalog, schema, name = table.name.split(".")
    database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for module, extension in (
        (duckdb_extension_httpfs, "httpfs"),
        (duckdb_extension_delta, "delta"),
        (duckdb_extension_unity_catalog, "unity_catalog"),
    ):
        [path] = Path(module.__file__).parent.rglob(f"{extension}.duckdb_extension")
        database.execute(f"LOAD '{path}'")
    database.execute(f"CREATE SECRET (TYPE unity_catalog, TOKEN 'x', ENDPOINT '{table.server.url}', AWS_REGION 'us-east-1')")
    database.execute(f"ATTACH '{catalog}' AS lake (TYPE unity_catalog, DEFAULT_SCHEMA '{schema}')")
    found = database.execute(f'SELECT id, name FROM lake.{schema}."{name}" ORDER BY id').fetchall()
    assert found == rows(table.log)


def test_a_preview_is_read_by_its_path_alone(table: CatalogTable) -> None:
    append(table.log, [(1, "a")])
    handle = begin(table.log, transaction_key="previewed")
    place = Path(handle.staging_path.removeprefix("file://")) / "new"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([2], pa.int64()), "name": ["b"]}), place / "part-0.parquet")
    staged = collect_files(open_stage(table.log, handle, task_id="new", attempt=new_attempt()), path="new")

    whole, changes = (make(table.log, handle, [staged]).path for make in (preview_table, preview_changes))

    assert previews.rows(whole.removeprefix("file://")) == [(1, "a"), (2, "b")]
    assert previews.rows(changes.removeprefix("file://")) == [(2, "b", "insert")]
    assert sorted(previews.delta_rs(whole)["id"].to_pylist()) == [1, 2]
    assert rows(table.log) == [(1, "a")]


# -- the client ---------------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_said_by_name(unity: UnityCatalogServer, name: str) -> None:
    with pytest.raises(DeltaTableNotFoundException, match="There is no table"):
        open_log(unity.url, name)
    with pytest.raises((CatalogNotFoundException, DeltaTableNotFoundException)):
        open_log(unity.url, "nothing.of.it")


def test_an_older_server_is_told_from_one_without_the_table(proxied: FaultProxy, name: str) -> None:
    proxied.set(Rule("status", target="/config", status=404))
    with pytest.raises(CatalogNotFoundException, match="older server"):
        open_log(proxied.url, name)
    proxied.set()


def test_requests_that_may_be_repeated_are(table: CatalogTable, proxied: FaultProxy) -> None:
    proxied.set(Rule("reset", target="/tables/"), Rule("status", target="/tables/"), Rule("lost", target="/tables/"))
    assert open_log(proxied.url, table.name).update().version == 0
    assert proxied.faults == [1, 1, 1]
    proxied.set(Rule("status", target="/tables/", times=None, status=503))
    with pytest.raises(CatalogUnavailableException):
        open_log(proxied.url, table.name)
    proxied.set()


def test_a_file_name_of_the_catalog_leads_to_no_other_file() -> None:
    import msgspec

    for wrong in ("../../x.json", f"{2:020d}.a.json", f"{1:020d}.json", f"{1:020d}.a/b.json"):
        answer = {"version": 1, "timestamp": 1, "file-name": wrong, "file-size": 1, "file-modification-timestamp": 1}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(answer, CatalogCommit)


def test_credentials_are_fetched_again_before_they_expire() -> None:
    import time

    asked: list[int] = []
    secrets: list[str] = []

    def credentials() -> list[Credential]:
        asked.append(1)
        config = {"s3.access-key-id": f"key{len(asked)}", "s3.secret-access-key": "hidden", "s3.session-token": "token"}
        wrong = Credential("s3://bucket/other", "READ_WRITE", config)
        return [wrong, Credential("s3://bucket/t", "READ_WRITE", config, int((time.time() + 2) * 1000))]

    def storage_of(given: Callable[[], list[Credential]], *, own: bool = False) -> CatalogStorage:
        return CatalogStorage(
            given, "s3://bucket/t/1", lambda _: {"aws_region": "eu-west-1"}, None, lambda _: own, secrets.append
        )

    storage = storage_of(credentials)
    first = storage()
    assert first is storage()
    assert first.options["aws_access_key_id"] == "key1"
    assert "hidden" in secrets
    time.sleep(1.2)
    assert storage().options["aws_access_key_id"] == "key2"
    assert "hidden" not in repr(credentials())

    with pytest.raises(CredentialsUnavailableException):
        storage_of(list)()
    assert "aws_access_key_id" not in storage_of(credentials, own=True)().options
