"""Checkpoints that we write: complete, sorted, without expired actions, and readable by delta-rs."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.log import DeletionVectorDescriptor, DeltaLog, DomainMetadata, Snapshot
from airflow_delta.log.checkpoint import part_files as checkpoint_files
from airflow_delta.log.checkpoint import sort as checkpoint_sort
from airflow_delta.log.checkpoint_write import source as checkpoint_source
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from support import readers
from support.actions import add, metadata, protocol, remove, txn
from support.tables import append, commit_path, create_table, log_path, write_commit

NOW = int(time.time() * 1000)

TYPED = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "amount": pa.array(
            [decimal.Decimal("1.25"), None, decimal.Decimal("-3.50"), decimal.Decimal("0.00")], pa.decimal128(12, 2)
        ),
        "at": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)] * 4, pa.timestamp("us", "UTC")),
        "name": pa.array(["é", "b", None, "d"]),
        "day": pa.array([dt.date(2024, 1, 1), None, dt.date(2023, 12, 31), dt.date(2024, 1, 1)]),
        "price": pa.array(
            [decimal.Decimal("1.50"), decimal.Decimal("10.00"), None, decimal.Decimal("2.00")], pa.decimal128(10, 2)
        ),
        "flag": pa.array([True, False, None, True]),
        "moment": pa.array(
            [dt.datetime(2024, 1, 1, 1, 2, 3, 456000), None, dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1)],
            pa.timestamp("us", "UTC"),
        ),
    }
)
PARTITIONS = ["day", "price", "flag", "moment"]


def only_checkpoint(table: Path, version: int) -> None:
    """Delete everything that a reader could use instead of the checkpoint."""
    for file in (table / "_delta_log").iterdir():
        if file.suffix == ".crc" or (file.suffix == ".json" and int(file.stem) <= version):
            file.unlink()


def rows(table: Path, version: int) -> list[dict]:
    return pq.read_table(log_path(table, f"{version:020d}.checkpoint.parquet")).to_pylist()


def of_kind(table: Path, version: int, kind: str) -> list[dict]:
    return [row[kind] for row in rows(table, version) if row[kind] is not None]


def listing(snapshot: Snapshot) -> list[dict]:
    return sorted(snapshot.files().to_pylist(), key=lambda file: file["path"])


def test_delta_rs_reads_our_checkpoint_of_its_table(table: Path) -> None:
    app = CommitProperties(app_transactions=[Transaction("app", 7)])
    write_deltalake(str(table), TYPED, partition_by=PARTITIONS, commit_properties=app)
    write_deltalake(str(table), TYPED, mode="append")
    DeltaTable(str(table)).delete("id = 2")
    before = DeltaTable(str(table))
    expected_files, expected_rows = sorted(before.file_uris()), before.to_pyarrow_table().sort_by([("id", "ascending")])

    info = write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    only_checkpoint(table, 2)

    assert (info.version, info.num_of_add_files) == (2, len(expected_files))
    after = DeltaTable(str(table))
    assert after.version() == 2
    assert after.schema() == before.schema()
    assert sorted(after.file_uris()) == expected_files
    assert len(readers.files(table)) == len(expected_files)
    assert after.to_pyarrow_table().sort_by([("id", "ascending")]).equals(expected_rows)
    assert len(readers.rows(table)) == expected_rows.num_rows
    assert after.transaction_version("app") == 7
    assert sorted(after.file_uris(file_pruning_predicate="flag = true")) == sorted(
        before.file_uris(file_pruning_predicate="flag = true")
    )


def test_a_checkpoint_says_what_the_commits_say(table: Path) -> None:
    write_deltalake(str(table), TYPED, partition_by=PARTITIONS)
    write_deltalake(str(table), TYPED, mode="append")
    DeltaTable(str(table)).delete("id = 2")
    log = DeltaLog.for_table(str(table))
    expected, tombstones = listing(log.snapshot), log.snapshot.tombstones().num_rows
    write_checkpoint(log.snapshot)
    only_checkpoint(table, 2)
    for _ in range(2):  # the second checkpoint is made from the first
        fresh = DeltaLog.for_table(str(table)).snapshot
        assert fresh.segment.checkpoint is not None
        assert listing(fresh) == [{**file, "partition_values": file["partition_values"]} for file in expected]
        assert fresh.tombstones().num_rows == tombstones == 2
        write_checkpoint(fresh)


def test_typed_columns(table: Path) -> None:
    write_deltalake(str(table), TYPED, partition_by=PARTITIONS)
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    adds = of_kind(table, 0, "add")
    values = [tuple(add["partitionValues_parsed"].values()) for add in adds]
    days = [value[0] for value in values]
    assert days == [*sorted((d for d in days if d), key=str), None], "sorted by partition, nulls last"
    assert (dt.date(2024, 1, 1), decimal.Decimal("1.50"), True, dt.datetime(2024, 1, 1, 1, 2, 3, 456000, tzinfo=dt.UTC)) in values
    for file in adds:
        stats, parsed = json.loads(file["stats"]), file["stats_parsed"]
        assert parsed["numRecords"] == stats["numRecords"] == 1
        assert parsed["minValues"]["id"] == stats["minValues"]["id"]
        assert parsed["nullCount"]["name"] == stats["nullCount"]["name"]
        if "amount" in stats["minValues"]:
            assert parsed["minValues"]["amount"] == decimal.Decimal(str(stats["minValues"]["amount"]))
        assert parsed["maxValues"]["at"].replace(microsecond=0) == dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
        assert file["dataChange"] is False


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("as_struct", [True, False])
def test_forms_of_statistics(table: Path, as_json: bool, as_struct: bool) -> None:
    stats = '{"numRecords":3,"minValues":{"id":1},"maxValues":{"id":9},"nullCount":{"id":0}}'
    configuration = {
        "delta.checkpoint.writeStatsAsJson": str(as_json).lower(),
        "delta.checkpoint.writeStatsAsStruct": str(as_struct).lower(),
    }
    create_table(table, add("a", part="x", stats=stats), configuration=configuration, partition_columns=["part"])
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    (file,) = of_kind(table, 0, "add")
    assert file.get("stats") == (stats if as_json else None)
    assert ("stats_parsed" in file) == ("partitionValues_parsed" in file) == as_struct
    if as_struct:
        assert file["stats_parsed"]["maxValues"] == {"id": 9}
        assert file["partitionValues_parsed"] == {"part": "x"}
    only_checkpoint(table, 0)
    (listed,) = DeltaLog.for_table(str(table)).snapshot.files(columns=["stats"]).to_pylist()
    assert (listed["stats"] and json.loads(listed["stats"])) == (json.loads(stats) if as_json or as_struct else None)


@pytest.mark.parametrize(
    "stats",
    [
        '{"numRecords":1,"minValues":{"id":"x"}}',
        '{"numRecords":1',
        "[]",
        '{"numRecords":\n1}',
        '{"numRecords":1,"minValues":{"id":NaN}}',
    ],
)
def test_odd_statistics_do_not_hinder_a_checkpoint(table: Path, stats: str) -> None:
    good = '{"numRecords":2,"minValues":{"id":1},"maxValues":{"id":9},"nullCount":{"id":0}}'
    create_table(table, add("odd", stats=stats), add("good", stats=good), add("none"))
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    files = {file["path"]: file for file in of_kind(table, 0, "add")}
    assert files["odd"]["stats"] == stats
    assert files["good"]["stats_parsed"]["maxValues"]["id"] == 9
    assert files["none"]["stats_parsed"] is None
    assert (files["odd"]["stats_parsed"] or {}).get("minValues") in (None, {"id": None, "part": None})


def test_expired_tombstones_and_transactions_are_left_out(table: Path) -> None:
    configuration = {
        "delta.deletedFileRetentionDuration": "interval 1 days",
        "delta.setTransactionRetentionDuration": "interval 1 days",
    }
    old, new = NOW - 2 * 86_400_000, NOW - 3_600_000
    create_table(
        table,
        add("a"),
        add("b"),
        add("c"),
        txn("old", 1, old),
        txn("new", 2, new),
        txn("undated", 3),
        configuration=configuration,
    )
    write_commit(table, 1, remove("a", deletion_timestamp=old), remove("b", deletion_timestamp=new))
    for round_ in range(2):
        info = write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
        assert [file["path"] for file in of_kind(table, 1, "remove")] == ["b"], round_
        assert [(t["appId"], t["version"], t["lastUpdated"]) for t in of_kind(table, 1, "txn")] == [("new", 2, new)]
        assert (info.size, info.num_of_add_files) == (5, 1)
        only_checkpoint(table, 1)


def test_what_files_carry_is_kept(table: Path) -> None:
    vector = DeletionVectorDescriptor(storage_type="u", path_or_inline_dv="ab^-aqEH", offset=4, size_in_bytes=40, cardinality=6)
    inline = DeletionVectorDescriptor(storage_type="i", path_or_inline_dv="wi5b", size_in_bytes=40, cardinality=1)
    rich = add(
        "rich",
        deletion_vector=vector,
        base_row_id=11,
        default_row_commit_version=12,
        clustering_provider="liquid",
        tags={"k": "v"},
    )
    domain = DomainMetadata(domain="d", configuration="{}", removed=False)
    gone = DomainMetadata(domain="gone", configuration="{}", removed=True)
    features = protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors", "domainMetadata"])
    write_commit(
        table, 0, features, metadata(), rich, add("plain"), add("inline", deletion_vector=inline), domain, gone, txn("a", 1)
    )
    expected = listing(DeltaLog.for_table(str(table)).snapshot)
    assert next(f for f in expected if f["path"] == "rich")["deletion_vector"]["cardinality"] == 6
    for _ in range(2):
        write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
        only_checkpoint(table, 0)
        snapshot = DeltaLog.for_table(str(table)).snapshot
        assert listing(snapshot) == expected
        assert list(snapshot.domain_metadata) == ["d"]
        assert snapshot.protocol == features
        assert snapshot.metadata == metadata()
        assert dict(snapshot.transactions) == {"a": 1}


def test_last_checkpoint(table: Path) -> None:
    create_table(table, add("a"), add("b"))
    append(table, 1)
    log = DeltaLog.for_table(str(table))
    info = write_checkpoint(log.snapshot)
    file = log_path(table, f"{1:020d}.checkpoint.parquet")
    expected = {"version": 1, "size": 5, "sizeInBytes": file.stat().st_size, "numOfAddFiles": 3}
    hint = json.loads(log_path(table, "_last_checkpoint").read_text())
    assert {name: hint[name] for name in expected} == expected
    assert list(hint) == [*expected, "checkpointSchema", "checksum"]
    assert info.parts is None
    write_checkpoint(log.snapshot_at(0))
    assert json.loads(log_path(table, "_last_checkpoint").read_text()) == hint, "the hint never goes back"
    assert DeltaTable(str(table)).version() == 1


@pytest.mark.parametrize(("part_size", "parts"), [(1, 9), (4, 3), (9, 1), (100, 1)])
def test_parts(table: Path, part_size: int, parts: int) -> None:
    create_table(table, *(add(f"{n}", part=f"p{n % 2}") for n in range(6)), txn("a", 1), partition_columns=["part"])
    info = write_checkpoint(DeltaLog.for_table(str(table)).snapshot, part_size=part_size)
    assert info.parts == (parts if parts > 1 else None)
    assert len(list((table / "_delta_log").glob("*.checkpoint*.parquet"))) == parts
    only_checkpoint(table, 0)
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.files().num_rows == 6
    assert dict(snapshot.transactions) == {"a": 1}
    assert len(readers.files(table)) == 6


def test_part_size_must_be_positive(table: Path) -> None:
    create_table(table)
    with pytest.raises(DeltaIllegalArgumentException, match="at least one"):
        write_checkpoint(DeltaLog.for_table(str(table)).snapshot, part_size=0)


def test_an_empty_table(table: Path) -> None:
    create_table(table)
    assert write_checkpoint(DeltaLog.for_table(str(table)).snapshot).num_of_add_files == 0
    only_checkpoint(table, 0)
    assert DeltaLog.for_table(str(table)).snapshot.files().num_rows == 0
    assert readers.files(table) == set()


def test_a_wrong_checksum_does_not_hinder_a_checkpoint(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    create_table(table, add("a"))
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    append(table, 1)
    log = DeltaLog.for_table(str(table))
    snapshot = log.snapshot
    log.write_checksum(snapshot) or snapshot.num_files
    crc = log_path(table, f"{1:020d}.crc")
    if not crc.exists():
        snapshot.complete_state()
        assert log.write_checksum(snapshot)
    state = json.loads(crc.read_text())
    crc.write_text(json.dumps({**state, "numFiles": 5}))
    assert write_checkpoint(DeltaLog.for_table(str(table)).snapshot).num_of_add_files == 2
    assert "add up to 5 files, but there are 2" in caplog.text


def test_a_checkpoint_that_lost_files_is_not_published(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_table(table, add("a", part="x"), add("b", part="y"), partition_columns=["part"])
    drain = checkpoint_sort.Buckets.drain
    monkeypatch.setattr(checkpoint_sort.Buckets, "drain", lambda self: (batch.slice(1) for batch in drain(self)))
    with pytest.raises(DeltaIllegalStateException, match="would hold 1 files, but the table has 2"):
        write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    assert not list((table / "_delta_log").glob("*checkpoint*"))


def test_many_partitions_go_through_buckets(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_source, "BUCKET_ROWS", 7)
    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 5)
    create_table(
        table, *(add(f"{n}", part=f"p{n * 7 % 10}") for n in range(40)), add("big", part="p3"), partition_columns=["part"]
    )
    append(table, 1, files=3, part="p9")
    expected = {file["path"] for file in listing(DeltaLog.for_table(str(table)).snapshot)}
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    # On top of a sorted checkpoint the tail is merged in.
    write_commit(table, 2, add("new-first", part="a"), add("new", part="p5"), add("new-last", part="z"), add("null"), remove("7"))
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    for version, more in ((1, set()), (2, {"new-first", "new", "new-last", "null"})):
        adds = of_kind(table, version, "add")
        parts = [dict(file["partitionValues"]).get("part") for file in adds]
        assert parts == sorted(p for p in parts if p) + [p for p in parts if not p]
        assert {file["path"] for file in adds} == (expected | more) - ({"7"} if version == 2 else set())
        groups = pq.ParquetFile(log_path(table, f"{version:020d}.checkpoint.parquet")).metadata
        assert groups.num_row_groups > 8
    assert commit_path(table, 2).exists()


def test_on_an_object_store(s3_table: str, s3_options: dict[str, str]) -> None:
    write_deltalake(s3_table, TYPED, partition_by=PARTITIONS, storage_options=s3_options)
    write_deltalake(s3_table, TYPED, mode="append", storage_options=s3_options)
    log = DeltaLog.for_table(s3_table, s3_options)
    expected = listing(log.snapshot)
    write_checkpoint(log.snapshot, part_size=5)
    fresh = DeltaLog.for_table(s3_table, s3_options).snapshot
    assert fresh.segment.checkpoint is not None
    assert listing(fresh) == expected
    assert len(DeltaTable(s3_table, storage_options=s3_options).file_uris()) == len(expected)
