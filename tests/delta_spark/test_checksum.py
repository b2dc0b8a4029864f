"""Checksums, both ways: Delta verifies what we derived, and we derive and verify what Delta wrote, field by field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, AddFile, DeletionVectorDescriptor, DomainMetadata, encode_actions
from delta_spark.checksums import assert_valid_to_delta, checksum
from delta_spark.jvm import exception_name
from support import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def comparable(content: dict[str, Any]) -> dict[str, Any]:
    """Return a checksum without the order of what has none, and without our own key."""
    content = {key: value for key, value in content.items() if key != "airflowDelta"}
    for key, name in (("setTransactions", "appId"), ("domainMetadata", "domain"), ("allFiles", "path")):
        if key in content:
            content[key] = sorted(content[key], key=lambda item, name=name: item[name])
    return content


# -- Delta writes -----------------------------------------------------------------------------------------------------


def append(path: Path, files: int, rows: int = 100, **options: object) -> Callable[[SparkSession], object]:
    def run(spark: SparkSession) -> None:
        writer = spark.range(0, rows, 1, files).write.format("delta").mode("append")
        writer.options(**{key: str(value) for key, value in options.items()}).save(str(path))

    return run


def plain(path: Path) -> Sequence[str | Callable[[SparkSession], object]]:
    return [
        "CREATE TABLE TABLE_ (id BIGINT) USING delta",
        append(path, 3, txnAppId="app", txnVersion=1),
        "DELETE FROM TABLE_ WHERE id = 5",
        "UPDATE TABLE_ SET id = id + 1000 WHERE id < 20",
        append(path, 2, txnAppId="app", txnVersion=2),
        "OPTIMIZE TABLE_",
        "ALTER TABLE TABLE_ SET TBLPROPERTIES ('theirs' = 'x')",
        "DELETE FROM TABLE_",
    ]


def many_files(path: Path) -> Sequence[str | Callable[[SparkSession], object]]:
    return [
        "CREATE TABLE TABLE_ (id BIGINT) USING delta",
        append(path, 45),
        append(path, 9),
        append(path, 1),
        "DELETE FROM TABLE_",
    ]


def deletion_vectors(path: Path) -> Sequence[str | Callable[[SparkSession], object]]:
    return [
        "CREATE TABLE TABLE_ (id BIGINT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        append(path, 2, rows=400),
        "DELETE FROM TABLE_ WHERE id % 10 = 1",
        "DELETE FROM TABLE_ WHERE id % 10 = 2",
        append(path, 1),
        "ALTER TABLE TABLE_ SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
        "DELETE FROM TABLE_ WHERE id = 3",
        "REORG TABLE TABLE_ APPLY (PURGE)",
    ]


def tracked_and_timed(path: Path) -> Sequence[str | Callable[[SparkSession], object]]:
    return [
        "CREATE TABLE TABLE_ (id BIGINT) USING delta",
        append(path, 2),
        "ALTER TABLE TABLE_ SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
        "ALTER TABLE TABLE_ SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
        append(path, 1),
        "DELETE FROM TABLE_ WHERE id = 3",
    ]


def clustered(path: Path) -> Sequence[str | Callable[[SparkSession], object]]:
    return ["CREATE TABLE TABLE_ (id BIGINT) USING delta CLUSTER BY (id)", append(path, 3), "OPTIMIZE TABLE_"]


def with_a_retention(path: Path) -> Sequence[str | Callable[[SparkSession], object]]:
    retention = "'delta.setTransactionRetentionDuration' = 'interval 1 days'"
    return [
        f"CREATE TABLE TABLE_ (id BIGINT) USING delta TBLPROPERTIES ({retention})",
        append(path, 1, txnAppId="app", txnVersion=1),
        append(path, 1),
    ]


STORIES = [plain, many_files, deletion_vectors, tracked_and_timed, clustered, with_a_retention]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_we_derive_what_delta_derives(delta: SparkSession, tmp_path: Path, story: Callable[[Path], Sequence[Any]]) -> None:
    table = tmp_path / "table"
    for step in story(table):
        if isinstance(step, str):
            delta.sql(step.replace("TABLE_", f"delta.`{table}`")).collect()
        else:
            step(delta)
    latest = DeltaLog.for_table(str(table)).snapshot.version
    assert latest >= len(story(table)) - 1
    compared = 0
    for version in range(latest + 1):
        theirs = checksum(table, version)
        if theirs is None:
            continue
        assert DeltaLog.for_table(str(table)).snapshot_at(version).validate_checksum()
        copy = tmp_path / f"at-{version}"
        shutil.copytree(table / "_delta_log", copy / "_delta_log")
        for path in copy.glob("_delta_log/*"):
            if path.name[:20].isdigit() and (int(path.name[:20]) > version or path.name == f"{version:020d}.crc"):
                path.unlink()
        log = DeltaLog.for_table(str(copy))
        for path in copy.glob("_delta_log/*.checkpoint*"):
            if int(path.name[:20]) == version:  # it would spare the derivation
                path.unlink()
        assert log.write_checksum(log.snapshot), version
        ours = comparable(checksum(copy, version) or {})
        expected = comparable(theirs)
        if ("allFiles" in ours) != ("allFiles" in expected):
            # After there were too many files, Delta counts them anew when it likes to, we when the next checkpoint is due or no
            # file is left. What we list has been verified above or is verified below.
            ours.pop("allFiles", None)
            expected.pop("allFiles", None)
        if "delta.setTransactionRetentionDuration" in theirs["metadata"]["configuration"]:
            expected.pop("setTransactions", None)  # empty, where Delta replayed the log of the first version
        assert ours == expected, version
        assert log.snapshot.validate_checksum()
        compared += 1
    assert compared > latest // 2


# -- we write ---------------------------------------------------------------------------------------------------------


VECTORS = {"reader_features": ["deletionVectors"], "writer_features": ["deletionVectors", "domainMetadata", "inCommitTimestamp"]}
ENABLED = {"delta.enableDeletionVectors": "true", "delta.enableInCommitTimestamps": "true"}


def vector(add: AddFile, cardinality: int) -> AddFile:
    descriptor = DeletionVectorDescriptor(
        storage_type="u",
        path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^",
        offset=cardinality,
        size_in_bytes=40,
        cardinality=cardinality,
    )
    return msgspec.structs.replace(add, deletion_vector=descriptor)


A, B = tables.add("a", size=9_000, stats='{"numRecords":1000}'), tables.add("b%20c", size=5)
OURS: list[list[Action]] = [
    [tables.protocol(3, 7, **VECTORS), tables.metadata(configuration=ENABLED)],
    [A, B, tables.txn("app", 1, 5), DomainMetadata(domain="mine", configuration="{}", removed=False)],
    [vector(A, 7), A.remove(1)],
    [vector(A, 100), vector(A, 7).remove(1), tables.txn("app", 2)],
    [tables.add("a", size=9_000, stats='{"numRecords":1000}', tags={"x": "y"}, data_change=False), vector(A, 100).remove(1)],
    [tables.add(f"f{number}", size=number << 20) for number in range(60)],
    [tables.add("big", size=1 << 38), tables.add("f3", size=3 << 20).remove(1)],
    [DomainMetadata(domain="mine", configuration="", removed=True), *(tables.txn(f"app{number}", 1) for number in range(120))],
    [B.remove(1)],
    [tables.add("z")],
    [tables.add("zz")],
    [tables.add("zzz")],
]


def test_delta_verifies_what_we_wrote(delta: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    for version, actions in enumerate(OURS):
        info = tables.info("WRITE", in_commit_timestamp=1_700_000_000_000 + version, is_blind_append=False)
        log.write_commit(version, encode_actions([info, *actions]))
        snapshot = log.update()
        assert log.write_checksum(snapshot), version
        if version == 10:
            log.checkpoint()
        assert snapshot.validate_checksum()
        assert_valid_to_delta(delta, table)
    content = checksum(table, 4) or {}
    assert (content["numDeletedRecordsOpt"], content["numDeletionVectorsOpt"], len(content["allFiles"])) == (0, 0, 2)


def test_delta_goes_on_from_our_checksum_and_we_from_its(delta: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    delta.range(0, 10, 1, 2).write.format("delta").save(str(table))
    for round_ in range(3):
        log = DeltaLog.for_table(str(table), {"durable": "false"})
        version = log.snapshot.version + 1
        first = log.snapshot.add_files()[0]
        actions = [msgspec.structs.replace(first, tags={"round": str(round_)}, data_change=False), tables.txn("ours", round_)]
        log.write_commit(version, encode_actions([tables.info("TAG FILES"), *actions]))
        assert log.write_checksum(log.update())
        assert_valid_to_delta(delta, table)
        delta.range(10).write.format("delta").mode("append").save(str(table))
        after = DeltaLog.for_table(str(table)).snapshot
        assert (after.version, after.transactions, after.validate_checksum()) == (version + 1, {"ours": round_}, True)


@pytest.mark.parametrize("field", ["numFiles", "tableSizeBytes"])
def test_delta_would_tell_if_we_were_wrong(delta: SparkSession, tmp_path: Path, field: str) -> None:
    table = tmp_path / "table"
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), tables.metadata(), tables.add("a")]))
    assert log.write_checksum(log.update())
    assert_valid_to_delta(delta, table)
    content = checksum(table, 0) or {}
    tables.log_path(table, f"{0:020d}.crc").write_text(json.dumps({**content, field: content[field] + 1}))
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        assert_valid_to_delta(delta, table)
    assert exception_name(caught.value) == "DeltaIllegalStateException"


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b'{"txnId": "'], ids=["empty", "zeros", "torn"])
def test_both_read_past_a_checksum_that_a_crash_of_the_machine_left(delta: SparkSession, tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "table"
    tables.write_commit(path, 0, [tables.protocol(), tables.metadata()])
    tables.write_commit(path, 1, [tables.add("a", size=7)])
    log = DeltaLog.for_table(str(path))
    assert log.write_checksum(log.snapshot)
    tables.crc_path(path, 1).write_bytes(left)
    assert delta.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0].numFiles == 1
    assert DeltaLog.for_table(str(path)).snapshot.num_files == 1
