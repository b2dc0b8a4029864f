"""A table at one version: small state without the list of files, and files reconciled from checkpoint and commits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaLogCorruptedException, DeltaTableNotFoundException
from airflow_delta.log import DeltaLog, DomainMetadata, Snapshot
from support import tables


def snapshot(table: Path) -> Snapshot:
    return DeltaLog.for_table(str(table)).snapshot


def paths(found: Snapshot) -> list[str]:
    return sorted(found.files(columns=["path"])["path"].to_pylist())


def test_no_table(table: Path) -> None:
    found = snapshot(table)
    assert found.version == -1
    assert found.transactions == {}
    assert found.transaction_version("app") is None
    assert found.domain_metadata == {}
    for read in (
        lambda: found.metadata,
        lambda: found.protocol,
        lambda: found.schema,
        lambda: found.files(),
        lambda: found.segment,
    ):
        with pytest.raises(DeltaTableNotFoundException, match="is not a Delta table") as caught:
            read()
        assert caught.value.table == str(table)


def test_a_table_of_commits(table: Path) -> None:
    tables.create_table(table, tables.add("a", size=1), tables.txn("app", 1))
    tables.write_commit(table, 1, tables.add("b", size=2), tables.remove("a"), tables.txn("app", 2), tables.txn("other", 9))
    tables.write_commit(table, 2, tables.add("a", size=4))
    found = snapshot(table)
    assert (found.version, found.metadata, found.protocol) == (2, tables.metadata(), tables.protocol())
    assert [field.name for field in found.schema.fields] == ["id", "part"]
    assert found.transactions == {"app": 2, "other": 9}
    assert paths(found) == ["a", "b"]
    assert (found.num_files, found.size_in_bytes) == (2, 6)
    assert sorted(add.path for add in found.add_files()) == ["a", "b"]
    assert snapshot(table).files().num_rows == 2


def test_partition_schema_follows_the_partition_columns(table: Path) -> None:
    tables.create_table(table, partition_columns=["part"])
    assert [field.name for field in snapshot(table).partition_schema.fields] == ["part"]


def test_a_partition_column_in_another_case_is_not_in_the_schema(table: Path) -> None:
    """Delta Spark and delta-rs refuse such a table; read by the other name, every value would be null."""
    tables.create_table(table, partition_columns=["PART"])
    with pytest.raises(DeltaLogCorruptedException, match="partitioned by column 'PART', which is not in its schema"):
        snapshot(table).check_readable()


@pytest.mark.parametrize("parts", [1, 3])
def test_a_checkpoint_and_commits_after_it(table: Path, parts: int) -> None:
    base = [
        tables.protocol(),
        tables.metadata(),
        *(tables.add(f"f{number}") for number in range(10)),
        tables.remove("old", deletion_timestamp=int(time.time() * 1000)),
        tables.txn("app", 1),
        tables.txn("early", 5),
        DomainMetadata(domain="d", configuration="{}", removed=False),
    ]
    tables.append(table, 10)
    tables.write_checkpoint_by_hand(table, 10, base, parts=parts)
    tables.write_commit(table, 11, tables.remove("f3"), tables.add("new"), tables.txn("app", 2))
    found = snapshot(table)
    assert found.version == 11
    assert found.metadata == tables.metadata()
    assert found.protocol == tables.protocol()
    assert [found.transaction_version(app) for app in ("app", "early", "nobody")] == [2, 5, None]
    assert found.transactions == {"app": 2, "early": 5}
    assert set(found.domain_metadata) == {"d"}
    assert paths(found) == sorted({f"f{number}" for number in range(10)} - {"f3"} | {"new"})
    assert found.num_files == 10
    assert "old" in found.tombstones()["path"].to_pylist()


def test_a_removed_domain_is_gone(table: Path) -> None:
    tables.create_table(table, DomainMetadata(domain="d", configuration="1", removed=False))
    assert snapshot(table).domain_metadata["d"].configuration == "1"
    tables.write_commit(table, 1, DomainMetadata(domain="d", configuration="", removed=True))
    assert snapshot(table).domain_metadata == {}


def test_a_checksum_newer_than_the_checkpoint_does_not_hide_commits_between(table: Path) -> None:
    """Spark leaves setTransactions out of a checksum; then checkpoint, commits before it and after it all count."""
    base = [tables.protocol(), tables.metadata(), tables.txn("checkpointed", 1), tables.txn("twice", 1)]
    tables.append(table, 10)
    tables.write_checkpoint_by_hand(table, 10, base)
    tables.write_commit(table, 11, tables.txn("between", 2), tables.txn("twice", 2))
    tables.write_commit(table, 12, tables.info(txn_id="of 12"), tables.add("x"))
    tables.write_commit(table, 13, tables.txn("after", 3))
    content = (
        '{"txnId":"of 12","tableSizeBytes":0,"numFiles":0,"numMetadata":1,"numProtocol":1,'
        '"metadata":{"id":"i","format":{"provider":"parquet","options":{}},"schemaString":"{}","partitionColumns":[],"configuration":{}},'
        '"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'
    )
    tables.log_path(table, f"{12:020d}.crc").write_text(content)
    found = snapshot(table)
    assert found.metadata.id == "i"
    expected = {"checkpointed": 1, "twice": 2, "between": 2, "after": 3}
    assert {app: found.transaction_version(app) for app in expected} == expected
    assert found.transaction_version("nobody") is None
    assert found.transactions == expected
    assert snapshot(table).transactions == expected
    assert found.domain_metadata == {}


def test_expired_transactions_of_a_checkpoint_are_not_seen(table: Path) -> None:
    now = int(time.time() * 1000)
    retention = tables.metadata(configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    txns = [tables.txn("old", 1, now - 2 * 86_400_000), tables.txn("young", 2, now), tables.txn("unknown", 3)]
    tables.append(table, 10)
    tables.write_checkpoint_by_hand(table, 10, [tables.protocol(), retention, *txns])
    found = snapshot(table)
    assert [found.transaction_version(app) for app in ("old", "young", "unknown")] == [None, 2, None]
    assert found.transactions == {"young": 2}


def test_the_timestamp_is_the_commit_files(table: Path) -> None:
    tables.create_table(table)
    tables.write_commit(table, 1, tables.add("a"), at=1_650_000_000_123)
    assert snapshot(table).timestamp == 1_650_000_000_123


def test_an_in_commit_timestamp_goes_before(table: Path) -> None:
    configuration = {"delta.enableInCommitTimestamps": "true"}
    tables.create_table(table, configuration=configuration)
    tables.write_commit(table, 1, tables.info(in_commit_timestamp=1_660_000_000_000), tables.add("a"), at=1_650_000_000_123)
    assert snapshot(table).timestamp == 1_660_000_000_000


def row_tracking(mark: object, *, removed: bool = False) -> DomainMetadata:
    return DomainMetadata(
        domain="delta.rowTracking",
        configuration=json.dumps({"rowIdHighWaterMark": mark, "domainName": "delta.rowTracking"}),
        removed=removed,
    )


def test_row_id_high_water_mark(table: Path) -> None:
    assert snapshot(table).row_id_high_water_mark is None
    tables.create_table(table, row_tracking(9))
    tables.write_checkpoint_by_hand(table, 0, [tables.protocol(), tables.metadata(), row_tracking(9)])
    assert snapshot(table).row_id_high_water_mark == 9
    tables.append(table, 1)
    assert snapshot(table).row_id_high_water_mark == 9
    tables.write_commit(table, 2, row_tracking(41))
    # Told by a commit, no checkpoint is opened for it.
    tables.log_path(table, f"{0:020d}.checkpoint.parquet").write_bytes(b"not to be read")
    assert snapshot(table).row_id_high_water_mark == 41
    log = DeltaLog.for_table(str(table))
    tables.write_commit(table, 3, row_tracking(41, removed=True))
    assert log.update().row_id_high_water_mark is None
    assert log.snapshot.domain("delta.rowTracking") is None


def test_row_id_high_water_mark_comes_from_a_checksum(table: Path) -> None:
    tables.create_table(table, row_tracking(9))
    log = DeltaLog.for_table(str(table))
    assert log.write_checksum(log.snapshot)
    tables.write_checkpoint_by_hand(table, 0, [tables.protocol(), tables.metadata()])  # says nothing of it
    assert snapshot(table).row_id_high_water_mark == 9


@pytest.mark.parametrize("configuration", ["", "{}", '{"rowIdHighWaterMark":"x"}'])
def test_a_row_tracking_domain_without_its_mark(table: Path, configuration: str) -> None:
    tables.create_table(table, DomainMetadata(domain="delta.rowTracking", configuration=configuration, removed=False))
    with pytest.raises(DeltaLogCorruptedException, match="no row id high water mark") as caught:
        _ = snapshot(table).row_id_high_water_mark
    assert (caught.value.table, caught.value.version) == (str(table), 0)


STARTS = """
import sys
sys.path.insert(0, {provider!r})
import airflow_delta.log
from airflow_delta.log import DeltaLog, AddFile
snapshot = DeltaLog.for_table({table!r}).snapshot
print(snapshot.version, snapshot.metadata.id, snapshot.protocol.min_writer_version, snapshot.transaction_version("app"))
unused = {{"pyarrow", "sqlglot", "obstore", "tenacity", "pyspark", "deltalake", "difflib", "airflow_delta.contract.payloads"}}
print(sorted(unused & set(sys.modules)))
own = [name for name in sys.modules if name.startswith("airflow_delta")]
assert len(own) <= 78, own
"""


@pytest.mark.parametrize("source", ["commits", "checksum"])
def test_a_start_imports_nothing_heavy(table: Path, source: str) -> None:
    tables.create_table(table, tables.txn("app", 4))
    if source == "checksum":
        log = DeltaLog.for_table(str(table))
        assert log.write_checksum(log.snapshot)
        tables.commit_path(table, 0).rename(tables.log_path(table, "kept"))
        tables.write_checkpoint_by_hand(table, 0, [tables.protocol(), tables.metadata(id="of the checkpoint")])
        tables.log_path(table, "kept").rename(tables.commit_path(table, 0))
    provider = str(Path(__import__("airflow_delta").__file__).parents[1])
    script = STARTS.format(provider=provider, table=str(table))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert result.stdout.splitlines() == [f"0 {tables.TABLE_ID} 2 4", "[]"]


LISTS = """
import sys
from airflow_delta.log import DeltaLog
files = DeltaLog.for_table({table!r}).snapshot.files({predicate!r}, columns={columns!r})
print(files.num_rows)
unused = {{"pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "pandas", "sqlglot", "obstore", "tenacity", "difflib"}}
print(sorted(unused & set(sys.modules)))
"""
SELECTED = {"part = 'a'": 3, "part IN ('b', 'c') AND id > 19": 1, "part = 'a' AND id = 3": 1, "": 5}


@pytest.mark.parametrize("columns", [["path", "size"], None], ids=["two columns", "all columns"])
@pytest.mark.parametrize("predicate", SELECTED)
@pytest.mark.parametrize("source", ["commits", "checkpoint", "checkpoint and commits"])
def test_a_listing_imports_only_what_it_uses(table: Path, source: str, predicate: str, columns: list[str] | None) -> None:
    removed = tables.add("a-0", part="a", stats=stats(1))
    files = [tables.add(f"{part}-{number}", part=part, stats=stats(number)) for part in "ab" for number in (1, 2)]
    base, later = [tables.protocol(), tables.metadata(partition_columns=["part"]), removed, *files], tables.add("a-3", part="a")
    if source == "checkpoint":
        base.append(later)
    tables.write_commit(table, 0, *base)
    if source != "commits":
        tables.write_checkpoint_by_hand(table, 0, base)
    tables.write_commit(table, 1, tables.remove("a-0"), *([] if source == "checkpoint" else [later]))
    provider = str(Path(__import__("airflow_delta").__file__).parents[1])
    script = LISTS.format(table=str(table), predicate=predicate or None, columns=columns)
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": provider},
    )
    expected = ["pyarrow.parquet"] if source != "commits" else []
    assert result.stdout.splitlines() == [str(SELECTED[predicate]), str(expected)]


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_files_that_a_predicate_may_select(table: Path, with_checkpoint: bool) -> None:
    files = [tables.add(f"{part}-{number}", part=part, stats=stats(number)) for part in "ab" for number in (1, 2)]
    base = [tables.protocol(), tables.metadata(partition_columns=["part"]), *files]
    tables.write_commit(table, 0, *base)
    if with_checkpoint:
        tables.write_checkpoint_by_hand(table, 0, base)
    tables.write_commit(table, 1, tables.add("a-3", part="a", stats=stats(3)))
    found = snapshot(table)
    for predicate, expected in {
        "part = 'a'": ["a-1", "a-2", "a-3"],
        "part = 'b' AND id > 19": ["b-2"],
        "id >= 30": ["a-3"],
        "part = 'c'": [],
    }.items():
        assert sorted(found.files(predicate, columns=["path"])["path"].to_pylist()) == expected
        assert sorted(add.path for add in found.add_files(predicate)) == expected


def stats(number: int) -> str:
    low, high = number * 10, number * 10 + 9
    return f'{{"numRecords":10,"minValues":{{"id":{low}}},"maxValues":{{"id":{high}}},"nullCount":{{"id":0}}}}'


@pytest.mark.parametrize("first", [{}, {"schemaString": None}, {"configuration": {"delta.appendOnly": None}}])
def test_a_table_whose_first_commit_has_no_schema(table: Path, first: dict) -> None:
    """As of a pipeline on Databricks: the next commit brings the schema, and what was there before decides nothing."""
    begun = {"id": tables.TABLE_ID, "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], **first}
    lines = [tables.as_json(tables.protocol()), {"metaData": {"configuration": {}, **begun}}]
    path = tables.write_commit(table, 0)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tables.write_commit(table, 1, tables.metadata(), tables.add("a", size=1234))
    later = tables.commit_path(table, 1)
    later.write_text(later.read_text().replace('"size":1234', '"size":1234.0'))
    for checkpoint in (False, True):
        if checkpoint:
            log = DeltaLog.for_table(str(table))
            log.checkpoint(log.snapshot_at(0))
            log.checkpoint()
        found = snapshot(table)
        assert (found.metadata, found.size_in_bytes, paths(found)) == (tables.metadata(), 1234, ["a"])
        before = DeltaLog.for_table(str(table)).snapshot_at(0)
        assert (before.schema.fields, before.properties.append_only, before.num_files) == ((), False, 0)
