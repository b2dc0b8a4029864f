"""``<version>.crc``: derived from the previous state and the commit, read on start, never trusted blindly (ChecksumSuite)."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import msgspec
import pytest

from airflow_delta.exceptions import DeltaChecksumMismatchException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor, encode_actions
from airflow_delta.log.checksum.histograms import FILE_SIZE_BINS
from support import tables


def crc(table: Path, version: int) -> dict:
    return json.loads(tables.crc_path(table, version).read_bytes())


def commit(log: DeltaLog, version: int, *actions, operation: str = "WRITE") -> bool:
    log.write_commit(version, encode_actions([tables.info(operation), *actions]))
    return log.write_checksum(log.update())


@pytest.fixture
def log(table: Path) -> DeltaLog:
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    assert commit(log, 0, tables.protocol(), tables.metadata(), tables.add("a", size=10))
    return log


def test_content(log: DeltaLog, table: Path) -> None:
    assert commit(log, 1, tables.txn("app", 7, 5), tables.add("b", size=5), tables.add("c", size=1))
    assert commit(log, 2, tables.remove("a", size=10))
    content = crc(table, 2)
    assert content == {
        "txnId": json.loads(tables.commit_path(table, 2).read_text().splitlines()[0])["commitInfo"]["txnId"],
        "tableSizeBytes": 6,
        "numFiles": 2,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [{"appId": "app", "version": 7, "lastUpdated": 5}],
        "domainMetadata": [],
        "metadata": json.loads(encode_actions([tables.metadata()]))["metaData"],
        "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
        "fileSizeHistogram": {
            "sortedBinBoundaries": list(FILE_SIZE_BINS),
            "fileCounts": [2] + [0] * 94,
            "totalBytes": [6] + [0] * 94,
        },
        "allFiles": [
            {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1_700_000_000_000, "dataChange": False}
            for path, size in (("b", 5), ("c", 1))
        ],
    }
    assert list(content) == [  # the order in which Delta writes them
        "txnId",
        "tableSizeBytes",
        "numFiles",
        "numMetadata",
        "numProtocol",
        "setTransactions",
        "domainMetadata",
        "metadata",
        "protocol",
        "fileSizeHistogram",
        "allFiles",
    ]


def test_a_start_reads_the_checksum_and_nothing_else(log: DeltaLog, table: Path) -> None:
    for version in range(1, 8):
        assert commit(log, version, tables.txn("app", version), tables.add(f"{version}"))
    reads: list[str] = []
    fresh = DeltaLog.for_table(str(table))
    read = fresh.store.read
    fresh.store.read = lambda path: reads.append(path) or read(path)  # type: ignore[method-assign,func-returns-value]
    snapshot = fresh.snapshot
    assert (snapshot.version, snapshot.metadata, snapshot.protocol) == (7, tables.metadata(), tables.protocol())
    assert snapshot.transaction_version("app") == 7
    assert snapshot.transaction_version("never") is None
    assert snapshot.num_files == 8
    assert reads == [f"_delta_log/{7:020d}.crc"]


def test_commits_without_a_checksum_are_added_to_an_older_one(log: DeltaLog, table: Path) -> None:
    commit(log, 1, tables.txn("app", 1), tables.add("b"))
    tables.write_commit(table, 2, tables.txn("app", 2), tables.metadata(name="new"), tables.remove("b"))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.metadata.name == "new"
    assert snapshot.transactions == {"app": 2}
    assert (snapshot.num_files, snapshot.size_in_bytes) == (1, 10)


def test_an_existing_checksum_is_not_overwritten(log: DeltaLog, table: Path) -> None:
    tables.crc_path(table, 0).write_text("{}")
    assert not log.write_checksum(log.snapshot)
    assert tables.crc_path(table, 0).read_text() == "{}"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda content: b"", "truncated"),
        (lambda content: content[:-30], "truncated"),
        (lambda content: content.replace(b'"metadata"', b'"other"'), "missing required field `metadata`"),
        (lambda content: content.replace(b'"protocol"', b'"other"'), "missing required field `protocol`"),
        (lambda content: content.replace(b'"numMetadata":1', b'"numMetadata":2'), "counts 2 metadata"),
        (lambda content: content.replace(b'"numFiles":1', b'"numFiles":-1'), "counts -1 files"),
        (lambda content: content.replace(b'"txnId":"', b'"txnId":"x'), "commit 0 is of another"),
        (lambda content: b"\xff" + content, "malformed"),
    ],
)
def test_a_bad_checksum_is_ignored_with_a_warning(
    log: DeltaLog, table: Path, change, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tables.crc_path(table, 0)
    path.write_bytes(change(path.read_bytes()))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert snapshot.metadata == tables.metadata()
    assert why in caplog.text
    assert path.name in caplog.text
    assert snapshot.num_files == 1


def test_another_writers_checksum_with_more_fields_is_read(log: DeltaLog, table: Path) -> None:
    content = crc(table, 0)
    content |= {"histogramOpt": {"sortedBinBoundaries": [0]}, "allFiles": [], "setTransactions": None}
    tables.crc_path(table, 0).write_text(json.dumps(content))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.metadata == tables.metadata()
    assert snapshot.transactions == {}


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(log: DeltaLog) -> DeltaLog:
    """Version 1 has more files than a checksum lists: a, and 60 of 100 bytes."""
    assert commit(log, 1, *(tables.add(f"f{number}") for number in range(60)))
    return log


UNTOLD = [
    ("WRITE", [tables.remove("f1", size=None)]),
    ("WRITE", [msgspec.structs.replace(tables.remove("f1"), extended_file_metadata=None)]),
    ("Manual Update", [tables.add("z")]),
    ("TAG FILES", [tables.add("f1", data_change=False)]),
]


@pytest.mark.parametrize(("operation", "actions"), UNTOLD)
def test_where_totals_are_not_known_there_is_no_checksum(large: DeltaLog, table: Path, operation: str, actions: list) -> None:
    assert not commit(large, 2, *actions, operation=operation)
    assert not commit(large, 3, tables.add("later"))
    assert not tables.crc_path(table, 3).exists()


@pytest.mark.parametrize(("operation", "actions"), UNTOLD)
def test_few_files_are_followed_one_by_one(log: DeltaLog, table: Path, operation: str, actions: list) -> None:
    assert commit(log, 1, tables.add("f1"), tables.add("f2"))
    assert commit(log, 2, *actions, operation=operation)
    assert log.snapshot.validate_checksum()
    assert crc(table, 2)["numFiles"] == DeltaLog.for_table(str(table)).snapshot.files().num_rows


@pytest.mark.parametrize(
    ("operation", "actions", "files"),
    [
        ("COMPUTE STATS", [tables.add("f1", stats='{"numRecords":1}', data_change=False)], 61),
        ("ROW TRACKING BACKFILL", [tables.add("f1", base_row_id=1, data_change=False)], 61),
        ("ROW TRACKING UNBACKFILL", [tables.add("f1", data_change=False)], 61),
        ("DROP FEATURE", [tables.add("f1", data_change=False)], 61),
        ("Deletion Vector Tombstones", [tables.remove("deletion_vector_x.bin", size=7)], 61),
        ("OPTIMIZE", [tables.add("z", size=200, data_change=False), tables.remove("f1"), tables.remove("f2")], 60),
    ],
)
def test_operations_that_repeat_files(large: DeltaLog, table: Path, operation: str, actions: list, files: int) -> None:
    assert commit(large, 2, *actions, operation=operation)
    content = crc(table, 2)
    assert (content["numFiles"], content["tableSizeBytes"]) == (files, 6_010)
    assert "allFiles" not in content
    assert large.snapshot.validate_checksum()


@pytest.mark.parametrize("again", [tables.add("a", size=10), tables.add("a", size=30, tags={"x": "y"})])
def test_a_live_file_that_is_added_again_counts_once(log: DeltaLog, table: Path, again) -> None:
    assert commit(log, 1, again)
    content = crc(table, 1)
    assert (content["numFiles"], content["tableSizeBytes"]) == (1, again.size)
    assert [file["path"] for file in content["allFiles"]] == ["a"]
    assert log.snapshot.validate_checksum()


def test_removing_what_is_not_there_changes_nothing_while_all_files_are_known(log: DeltaLog, table: Path) -> None:
    assert commit(log, 1, tables.remove("x"), tables.remove("y"))
    assert crc(table, 1)["numFiles"] == 1


def test_removing_more_than_there_is_ends_the_chain(large: DeltaLog, table: Path) -> None:
    assert not commit(large, 2, *(tables.remove(f"x{number}") for number in range(62)))
    assert not tables.crc_path(table, 2).exists()


def test_a_table_that_becomes_empty_lists_no_files(large: DeltaLog, table: Path) -> None:
    assert "allFiles" not in crc(table, 1)
    assert commit(large, 2, tables.remove("a", size=10), *(tables.remove(f"f{number}") for number in range(60)))
    assert (crc(table, 2)["numFiles"], crc(table, 2)["allFiles"]) == (0, [])
    assert commit(large, 3, tables.add("new"))
    assert [file["path"] for file in crc(table, 3)["allFiles"]] == ["new"]


def test_a_wrong_sum_is_found_and_put_right_by_a_checkpoint(large: DeltaLog, table: Path) -> None:
    assert commit(large, 2, tables.add("f1"))  # it is there already: nothing in the commit tells
    assert crc(table, 2)["numFiles"] == 62
    with pytest.raises(DeltaChecksumMismatchException):
        large.snapshot.validate_checksum()
    large.checkpoint()
    assert crc(table, 2)["numFiles"] == 61
    assert DeltaLog.for_table(str(table)).snapshot.validate_checksum()
    assert commit(large, 3, tables.add("z"))
    assert large.snapshot.validate_checksum()


def test_files_stand_in_the_bins_of_their_sizes(log: DeltaLog, table: Path) -> None:
    sizes = [0, 8_191, 8_192, 4 << 20, 128 << 20, (132 << 20) - 1, 1 << 40]
    assert commit(log, 1, *(tables.add(f"s{size}", size=size) for size in sizes))
    histogram = crc(table, 1)["fileSizeHistogram"]
    found = {
        bound: (files, total)
        for bound, files, total in zip(
            *(histogram[key] for key in ("sortedBinBoundaries", "fileCounts", "totalBytes")), strict=True
        )
        if files
    }
    assert found == {
        0: (3, 10 + 8_191),
        8_192: (1, 8_192),
        4 << 20: (1, 4 << 20),
        128 << 20: (2, (260 << 20) - 1),
        256 << 30: (1, 1 << 40),
    }
    assert log.snapshot.validate_checksum()


def test_deletion_vectors_are_counted(table: Path) -> None:
    def vector(number: int, cardinality: int) -> DeletionVectorDescriptor:
        return DeletionVectorDescriptor(
            storage_type="u", path_or_inline_dv=f"ab{number}", offset=1, size_in_bytes=40, cardinality=cardinality
        )

    log = DeltaLog.for_table(str(table), {"durable": "false"})
    features = {"reader_features": ["deletionVectors"], "writer_features": ["deletionVectors"]}
    files = [tables.add(f"f{number}", deletion_vector=vector(number, 10**number)) for number in range(5)]
    assert commit(log, 0, tables.protocol(3, 7, **features), tables.metadata(), *files, tables.add("whole"))
    content = crc(table, 0)
    assert (content["numDeletedRecordsOpt"], content["numDeletionVectorsOpt"]) == (11_111, 5)
    assert content["deletedRecordCountsHistogramOpt"] == {"deletedRecordCounts": [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]}
    before = files[4]
    after = msgspec.structs.replace(before, deletion_vector=vector(9, 20_000))
    assert commit(log, 1, before.remove(1), after, operation="DELETE")
    content = crc(table, 1)
    assert (content["numFiles"], content["numDeletedRecordsOpt"], content["numDeletionVectorsOpt"]) == (6, 21_111, 5)
    fresh = DeltaLog.for_table(str(table)).snapshot
    assert fresh.validate_checksum()
    # beyond the files that are listed, too
    assert commit(log, 2, *(tables.add(f"g{number}") for number in range(60)))
    assert commit(DeltaLog.for_table(str(table)), 3, after.remove(1), operation="OPTIMIZE")
    content = crc(table, 3)
    assert (content["numFiles"], content["numDeletedRecordsOpt"], content["numDeletionVectorsOpt"]) == (65, 1_111, 4)
    assert content["deletedRecordCountsHistogramOpt"]["deletedRecordCounts"][0] == 61
    assert DeltaLog.for_table(str(table)).snapshot.validate_checksum()
    log.update()
    log.checkpoint()
    assert DeltaLog.for_table(str(table)).snapshot.validate_checksum()


def test_a_histogram_under_its_older_key_is_carried_on(large: DeltaLog, table: Path) -> None:
    content = crc(table, 1)
    content["histogramOpt"] = content.pop("fileSizeHistogram")
    tables.crc_path(table, 1).write_text(json.dumps(content))
    assert commit(DeltaLog.for_table(str(table)), 2, tables.add("z"))
    assert crc(table, 2)["fileSizeHistogram"]["fileCounts"][0] == 62


@pytest.mark.parametrize(
    "histogram",
    [
        None,
        {"sortedBinBoundaries": [0, 10], "fileCounts": [61, 0], "totalBytes": [6_010, 0]},
        {"sortedBinBoundaries": list(FILE_SIZE_BINS), "fileCounts": [3] + [0] * 94, "totalBytes": [6_010] + [0] * 94},
        "nonsense",
    ],
)
def test_a_histogram_that_cannot_be_carried_on_is_left_out_until_files_are_counted(
    large: DeltaLog, table: Path, histogram: object
) -> None:
    tables.crc_path(table, 1).write_text(json.dumps({**crc(table, 1), "fileSizeHistogram": histogram}))
    other = DeltaLog.for_table(str(table))
    assert commit(other, 2, tables.add("z"))
    assert "fileSizeHistogram" not in crc(table, 2)
    for version in range(3, 10):
        assert commit(other, version)
    assert not commit(other, 10)  # its checkpoint is due
    other.checkpoint()
    assert crc(table, 10)["fileSizeHistogram"]["fileCounts"][0] == 62
    assert other.snapshot.validate_checksum()


@pytest.mark.parametrize(
    "files",
    [
        None,
        "nonsense",
        [],
        [{"path": "a"}],
        [{"path": "b", "partitionValues": {}, "size": 9, "modificationTime": 1, "dataChange": False}],
    ],
)
def test_a_list_of_files_that_does_not_fit_is_not_built_on(log: DeltaLog, table: Path, files: object) -> None:
    tables.crc_path(table, 0).write_text(json.dumps({**crc(table, 0), "allFiles": files}))
    assert commit(DeltaLog.for_table(str(table)), 1, tables.add("b", size=5))
    content = crc(table, 1)
    assert (content["numFiles"], content["tableSizeBytes"], "allFiles" in content) == (2, 15, False)


def test_many_statistics_are_not_rewritten_with_every_commit(log: DeltaLog, table: Path) -> None:
    assert commit(log, 1, *(tables.add(f"f{number}", stats="{" + "x" * 4_000 + "}") for number in range(40)))
    assert "allFiles" not in crc(table, 1)
    assert crc(table, 1)["numFiles"] == 41


def test_another_writers_commits_in_between(log: DeltaLog, table: Path) -> None:
    tables.write_commit(table, 1, tables.add("b", size=1), tables.info("WRITE", in_commit_timestamp=7))
    tables.commit_path(table, 2).write_bytes(encode_actions([tables.remove("a", size=10)]))  # no commitInfo at all
    assert log.write_checksum(log.update())
    content = crc(table, 2)
    assert (content["numFiles"], content["tableSizeBytes"], "txnId" in content) == (1, 1, False)
    assert "inCommitTimestampOpt" not in content


# -- transactions -----------------------------------------------------------------------------------------------------


def test_up_to_a_hundred_transactions_stand_in_deltas_field(log: DeltaLog, table: Path) -> None:
    commit(log, 1, *(tables.txn(f"app{number}", 1) for number in range(100)))
    assert len(crc(table, 1)["setTransactions"]) == 100
    commit(log, 2, tables.txn("one more", 1))
    content = crc(table, 2)
    assert "setTransactions" not in content
    assert len(content["airflowDelta"]["setTransactions"]) == 101
    fresh = DeltaLog.for_table(str(table)).snapshot
    assert fresh.transaction_version("one more") == 1
    assert len(fresh.transactions) == 101


def test_too_many_transactions_are_left_to_the_log(log: DeltaLog, table: Path) -> None:
    commit(log, 1, *(tables.txn(f"app{number}", number) for number in range(1_001)))
    content = crc(table, 1)
    assert "setTransactions" not in content
    assert content["airflowDelta"] == {"intents": []}
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.transaction_version("app1000") == 1000
    assert snapshot.transaction_version("nobody") is None


def test_with_a_retention_deltas_field_stays_empty_and_ours_holds_the_unexpired(log: DeltaLog, table: Path) -> None:
    now = int(time.time() * 1000)
    retention = tables.metadata(configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    old, young, unknown = tables.txn("old", 1, now - 2 * 86_400_000), tables.txn("young", 2, now), tables.txn("unknown", 3)
    commit(log, 1, retention, old, young, unknown)
    content = crc(table, 1)
    assert "setTransactions" not in content
    assert content["airflowDelta"] == {"setTransactions": [{"appId": "young", "version": 2, "lastUpdated": now}]}
    for snapshot in (log.snapshot, DeltaLog.for_table(str(table)).snapshot):
        assert snapshot.transactions == {"young": 2}
        assert [snapshot.transaction_version(app) for app in ("old", "young", "unknown", "nobody")] == [None, 2, None, None]


def test_a_transaction_expires_while_it_stands_in_the_checksum(log: DeltaLog, table: Path) -> None:
    now = int(time.time() * 1000)
    retention = tables.metadata(configuration={"delta.setTransactionRetentionDuration": "interval 1 seconds"})
    commit(log, 1, retention, tables.txn("app", 1, now + 60_000))
    assert "app" in tables.crc_path(table, 1).read_text()
    content = tables.crc_path(table, 1).read_text().replace(str(now + 60_000), str(now - 60_000))
    tables.crc_path(table, 1).write_text(content)
    assert DeltaLog.for_table(str(table)).snapshot.transactions == {}


@pytest.mark.parametrize("from_checksum", [False, True])
@pytest.mark.parametrize("changed", ["interval 365 days", None])
def test_an_expired_transaction_counts_again_when_the_retention_is_changed(
    log: DeltaLog, table: Path, changed: str | None, from_checksum: bool
) -> None:
    now = int(time.time() * 1000)
    retention = tables.metadata(configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    commit(log, 1, retention, tables.txn("old", 1, now - 2 * 86_400_000), tables.txn("young", 2, now))
    commit(log, 2, tables.add("b"))
    assert DeltaLog.for_table(str(table)).snapshot.transactions == {"young": 2}
    if from_checksum:  # knows only what that holds, which lacks the expired one
        log = DeltaLog.for_table(str(table))
    after = tables.metadata(configuration={"delta.setTransactionRetentionDuration": changed} if changed else {})
    commit(log, 3, after)
    commit(log, 4, tables.add("c"))
    for snapshot in (log.snapshot, DeltaLog.for_table(str(table)).snapshot):
        assert snapshot.transactions == {"old": 1, "young": 2}
        assert snapshot.transaction_version("old") == 1


# -- of which entry it is -------------------------------------------------------------------------------------------------------


def written_again(table: Path, version: int, *lines: dict) -> None:
    """Who deletes a damaged entry by hand leaves its checksum behind; another writer commits that version again."""
    path = tables.commit_path(table, version)
    path.unlink()
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")


OTHER_INFOS = {
    "of another transaction": {"txnId": "another"},
    "of delta-rs before 1.0": {"engineInfo": "delta-rs:0.8"},
    "of Trino": {"engineInfo": "Trino 400", "clusterId": "trino", "readVersion": 0},
    "of Spark with a long predicate": {"operationParameters": {"predicate": "x" * 20_000}, "txnId": "another"},
    "of a long predicate and no id": {"operationParameters": {"predicate": "x" * 20_000}},
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("info", OTHER_INFOS.values(), ids=OTHER_INFOS)
def test_a_checksum_of_the_entry_that_was_there_before_is_not_believed(
    log: DeltaLog, table: Path, info: dict, last: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert commit(log, 1, tables.txn("run", 1), tables.add("b", size=5))
    new = tables.as_json(tables.metadata(name="new"))
    lines = [{"commitInfo": {"timestamp": 1, "operation": "WRITE", **info}}, new, tables.as_json(tables.add("c", size=7))]
    written_again(table, 1, *(reversed(lines) if last else lines))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.metadata.name == "new"
    assert snapshot.transactions == {}, "the run that was taken back"
    assert snapshot.size_in_bytes == 17
    assert "ignoring the checksum" in caplog.text


def test_neither_of_an_entry_that_is_gone(log: DeltaLog, table: Path) -> None:
    assert commit(log, 1, tables.add("b", size=5))
    log.checkpoint()
    stale = crc(table, 1)
    stale["metadata"]["description"], stale["numFiles"] = "stale", 3
    tables.crc_path(table, 1).write_text(json.dumps(stale))
    tables.commit_path(table, 0).unlink()
    tables.commit_path(table, 1).unlink()
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert (snapshot.metadata, snapshot.num_files) == (tables.metadata(), 2)


@pytest.mark.parametrize("info", [{}, {"txnId": None}, {"operationParameters": {"predicate": "x" * 20_000}}])
def test_an_entry_without_a_transaction_is_known_by_its_digest(log: DeltaLog, table: Path, info: dict) -> None:
    lines = [{"commitInfo": {"operation": "WRITE", **info}}, tables.as_json(tables.txn("other", 3))]
    tables.commit_path(table, 1).write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    assert log.write_checksum(log.update())
    content = crc(table, 1)
    assert "txnId" not in content
    assert len(content["airflowDelta"]["entry"]) == 64
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.transactions == {"other": 3}
    assert snapshot.known_state.checksum is not None
    written_again(table, 1, lines[0], tables.as_json(tables.txn("other", 4)))
    assert DeltaLog.for_table(str(table)).snapshot.transactions == {"other": 4}
    del content["airflowDelta"]["entry"]
    tables.crc_path(table, 1).write_text(json.dumps(content))
    assert DeltaLog.for_table(str(table)).snapshot.transactions == {"other": 4}, "nothing shows whose it is"
