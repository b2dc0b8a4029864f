"""The log as a writer leaves it: rules 1.8, 3.1 to 3.9 and 3.11 of Delta's engine.

Partition values of every type (3.4) are the tables of ``log/schema/test_partition_values.py``, statistics of every type (3.5)
and the columns that have them (3.6) those of ``log/statistics/test_statistics.py`` and ``delta_spark/test_statistics.py``.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    DeltaLogCorruptedException,
    DeltaTableNotFoundException,
    VersionsNotContiguousException,
)
from airflow_delta.log.actions.actions import CommitInfo, Metadata, encode_action
from airflow_delta.log.checkpoint.last_checkpoint import canonical_checksum
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.schema.partition_directories import partition_directory
from airflow_delta.log.statistics.footers_to_stats import truncate_max, truncate_min
from airflow_delta.transaction import Operation
from conformance.harness import (
    Raises,
    Row,
    Step,
    commit,
    committed,
    created,
    delta,
    info,
    kinds,
    names,
    raw,
    row_id,
    snapshot,
    then,
    with_properties,
)
from support.actions import add, cdc, domain, protocol, remove, txn, vector
from support.table import Table, metadata

PART = ("part",)
V2 = with_properties(checkpointPolicy="v2")
UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def checkpointed(part_size: int | None = None, *, parquet_manifest: bool = False) -> Step:
    return lambda table: write_checkpoint(table.log().snapshot, part_size=part_size, parquet_manifest=parquet_manifest)


def log_file(table: Table, name: str) -> Path:
    return table.path / "_delta_log" / name


def matching(*patterns: str) -> Step:
    """Whether the log holds exactly one file for each pattern, beside commits and checksums."""

    def look(table: Table) -> bool:
        root = table.path / "_delta_log"
        found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        found = [name for name in found if not re.fullmatch(r"\d{20}\.(json|crc)|_last_checkpoint", name)]
        return len(found) == len(patterns) and all(any(re.fullmatch(one, name) for name in found) for one in patterns)

    return look


def part(number: int, parts: int) -> str:
    return rf"{1:020d}\.checkpoint\.{number:010d}\.{parts:010d}\.parquet"


def live(table: Table) -> list[str]:
    return sorted(table.log().snapshot.files()["path"].to_pylist())


FILES = [
    Row(
        "3.1",
        "commits and checksums",
        [created(), committed(add("a"))],
        names("0*"),
        [f"{version:020d}.{kind}" for version in (0, 1) for kind in ("crc", "json")],
    ),
    Row("3.1", "a checkpoint", [created(), committed(), checkpointed()], matching(rf"{1:020d}\.checkpoint\.parquet"), True),
    Row(
        "3.1",
        "a checkpoint of parts",
        [created(), committed(*(add(name) for name in "abcde")), checkpointed(4)],
        matching(part(1, 2), part(2, 2)),
        True,
    ),
    Row(
        "3.1",
        "a V2 checkpoint",
        [V2, committed(add("a")), checkpointed()],
        matching(rf"{1:020d}\.checkpoint\.{UUID}\.json", rf"_sidecars/{1:020d}\.checkpoint\.{1:010d}\.{1:010d}\.{UUID}\.parquet"),
        True,
    ),
    Row(
        "3.1",
        "a V2 checkpoint with a manifest in Parquet",
        [V2, committed(add("a")), checkpointed(parquet_manifest=True)],
        matching(rf"{1:020d}\.checkpoint\.{UUID}\.parquet", rf"_sidecars/{1:020d}\.checkpoint\..*\.parquet"),
        True,
    ),
    Row("3.1", "the pointer", [created(), committed(), checkpointed()], names("_last_checkpoint"), ["_last_checkpoint"]),
    Row(
        "1.8",
        "an action is a line, each line ends",
        [created()],
        then(commit(add("a"), add("b")), raw(1), lambda t: (raw(1)(t).count(b"\n"), raw(1)(t).endswith(b"}\n"))),
        (3, True),
    ),
    Row(
        "1.8",
        "text is UTF-8",
        [created()],
        then(commit(add("a"), operation=Operation.delete(["x = 'é'"])), lambda t: "é".encode() in raw(1)(t)),
        True,
    ),
    Row("1.8", "nothing is left beside the commit", [created(), committed(add("a"))], names(".*"), []),
    Row(
        "3.1",
        "versions are contiguous",
        [created(), committed(), committed(), lambda t: log_file(t, f"{1:020d}.json").unlink()],
        live,
        Raises(VersionsNotContiguousException),
    ),
    Row(
        "7.5",
        "a log without protocol",
        [lambda t: t.put_foreign(0, {"metaData": json.loads(encode_action(metadata()))["metaData"]})],
        snapshot(lambda s: s.protocol),
        Raises(DeltaLogCorruptedException, "protocol"),
    ),
    Row(
        "7.5",
        "a log without metadata",
        [lambda t: t.put_foreign(0, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})],
        snapshot(lambda s: s.metadata),
        Raises(DeltaLogCorruptedException, "metaData"),
    ),
    Row(
        "7.5",
        "a line that is no JSON",
        [created(), lambda t: log_file(t, f"{1:020d}.json").write_text("{broken\n")],
        live,
        Raises(DeltaLogCorruptedException, "Commit 1"),
    ),
    Row(
        "7.5",
        "a directory that was deleted",
        [created(), committed(add("a")), lambda t: [path.unlink() for path in (t.path / "_delta_log").iterdir()]],
        snapshot(lambda s: s.metadata),
        Raises(DeltaTableNotFoundException),
    ),
]


def line(action: Any) -> dict[str, Any]:
    ((_kind, value),) = json.loads(encode_action(action)).items()
    return dict(value)


DESCRIPTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 36, "cardinality": 2}
PLAIN_ADD = {"path": "a", "partitionValues": {}, "size": 100, "modificationTime": 1_700_000_000_000, "dataChange": True}
RICH = add("a", stats="{}", tags={"k": "v"}, deletion_vector=vector(), base_row_id=7, default_row_commit_version=3,
            clustering_provider="liquid")  # fmt: skip
ACTIONS: list[tuple[str, Any, list[tuple[str, Any]]]] = [
    ("add", add("a"), list(PLAIN_ADD.items())),
    ("add with a null partition value", add("a", part=None), list({**PLAIN_ADD, "partitionValues": {"part": None}}.items())),
    (
        "add with everything",
        RICH,
        [
            *PLAIN_ADD.items(),
            ("stats", "{}"),
            ("tags", {"k": "v"}),
            ("deletionVector", DESCRIPTOR),
            ("baseRowId", 7),
            ("defaultRowCommitVersion", 3),
            ("clusteringProvider", "liquid"),
        ],
    ),
    (
        "remove of that file",
        RICH.remove(5),
        [
            ("path", "a"),
            ("deletionTimestamp", 5),
            ("dataChange", True),
            ("extendedFileMetadata", True),
            ("partitionValues", {}),
            ("size", 100),
            ("tags", {"k": "v"}),
            ("deletionVector", DESCRIPTOR),
            ("baseRowId", 7),
            ("defaultRowCommitVersion", 3),
            ("stats", "{}"),
        ],
    ),
    ("cdc", cdc("_change_data/c"), [("path", "_change_data/c"), ("partitionValues", {}), ("size", 1), ("dataChange", False)]),
    ("txn", txn("app", 3, 1), [("appId", "app"), ("version", 3), ("lastUpdated", 1)]),
    ("domainMetadata", domain("d"), [("domain", "d"), ("configuration", "{}"), ("removed", False)]),
    (
        "metaData",
        Metadata(id="i", schema_string="{}"),
        [
            ("id", "i"),
            ("format", {"provider": "parquet", "options": {}}),
            ("schemaString", "{}"),
            ("partitionColumns", []),
            ("configuration", {}),
        ],
    ),
    (
        "metaData with everything",
        Metadata(id="i", name="n", description="d", schema_string="{}", created_time=9),
        [
            ("id", "i"),
            ("name", "n"),
            ("description", "d"),
            ("format", {"provider": "parquet", "options": {}}),
            ("schemaString", "{}"),
            ("partitionColumns", []),
            ("configuration", {}),
            ("createdTime", 9),
        ],
    ),
    (
        "protocol of versions",
        protocol(),
        [("minReaderVersion", 1), ("minWriterVersion", 2)],
    ),
    (
        "protocol of features",
        protocol(3, 7, [], ["x"]),
        [("minReaderVersion", 3), ("minWriterVersion", 7), ("readerFeatures", []), ("writerFeatures", ["x"])],
    ),
    ("commitInfo", CommitInfo(operation="WRITE", operation_metrics={}), [("operation", "WRITE"), ("operationMetrics", {})]),
]


@pytest.mark.parametrize(("action", "expected"), [row[1:] for row in ACTIONS], ids=[row[0] for row in ACTIONS])
def test_json_of_an_action(action: Any, expected: list[tuple[str, Any]]) -> None:
    """3.2: the order of the fields; what is absent is left out, what is empty is kept."""
    assert list(line(action).items()) == expected


# -- 3.2: reconciliation -------------------------------------------------------------------------------------------------------


DV = with_properties(enableDeletionVectors="true", feature__domainMetadata="supported")
LOOSE = '{"numRecords":5,"tightBounds":false}'

REPLAY = [
    Row("3.2", "a file that is added again is one", [DV, committed(add("a")), committed(add("a"))], live, ["a"]),
    Row("3.2", "a removed file is gone", [DV, committed(add("a")), committed(remove("a"))], live, []),
    Row(
        "3.2",
        "a file that comes back is there",
        [DV, committed(add("a")), committed(remove("a")), committed(add("a"))],
        live,
        ["a"],
    ),
    Row(
        "3.2",
        "a file with a deletion vector is another than the one without",
        [DV, committed(add("a")), committed(remove("a"), add("a", stats=LOOSE, deletion_vector=vector()))],
        live,
        ["a"],
    ),
    Row(
        "3.2",
        "the last version of an application counts",
        [DV, committed(txn("app", 5)), committed(txn("app", 3))],
        snapshot(lambda s: dict(s.transactions)),
        {"app": 3},
    ),
    Row(
        "3.2",
        "the last configuration of a domain counts",
        [DV, committed(domain("d", "1")), committed(domain("d", "2"))],
        snapshot(lambda s: s.domain_metadata["d"].configuration),
        "2",
    ),
    Row(
        "3.2",
        "a removed domain is gone",
        [DV, committed(domain("d")), committed(domain("d", removed=True))],
        snapshot(lambda s: dict(s.domain_metadata)),
        {},
    ),
    Row(
        "3.2",
        "files in a snapshot change no data",
        [DV, committed(add("a"))],
        snapshot(lambda s: s.files()["data_change"].to_pylist() if "data_change" in s.files().column_names else [False]),
        [False],
    ),
]

# -- 3.3, 3.5 ------------------------------------------------------------------------------------------------------------------

DIRECTORIES = [
    ({"col": "value"}, "col=value"),
    ({"col": "10:30"}, "col=10%3A30"),
    ({"col": None}, "col=__HIVE_DEFAULT_PARTITION__"),
    ({"a": "1", "b": "2"}, "a=1/b=2"),
]


@pytest.mark.parametrize(("values", "directory"), DIRECTORIES)
def test_directory_of_a_partition(values: dict[str, str | None], directory: str) -> None:
    """3.3; the directory is URL-encoded as a whole once more where it becomes a path of the log."""
    assert partition_directory(values, list(values)) == directory


BEYOND, ASCII_END = "\U0010ffff", "\x7f"
TRUNCATED = [
    # text, length, least, greatest
    ("abc", 3, "abc", "abc"),
    ("abcd", 3, "abc", "abc" + ASCII_END),
    ("abcé", 3, "abc", "abc" + BEYOND),
    ("abc" + BEYOND + "d", 3, "abc", "abc" + BEYOND + ASCII_END),
    ("a" * 3 + BEYOND * 9, 3, "aaa", None),
]


@pytest.mark.parametrize(("text", "length", "least", "greatest"), TRUNCATED)
def test_bounds_of_text(text: str, length: int, least: str, greatest: str | None) -> None:
    """3.5: a prefix, and what is certainly not less than the text; none where there is no such thing."""
    assert truncate_min(text, length) == least
    assert truncate_max(text, length) == greatest


# -- 3.7, 3.8 ------------------------------------------------------------------------------------------------------------------


def checkpoint_rows(table: Table) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    (path,) = (table.path / "_delta_log").glob("*.checkpoint.parquet")
    return list(pq.read_table(path).to_pylist())


def in_checkpoint(table: Table) -> list[str]:
    """The kinds of actions, each once."""
    return sorted({kind for row in checkpoint_rows(table) for kind, value in row.items() if value is not None})


def fields_of(kind: str) -> Step:
    def look(table: Table) -> set[str]:
        import pyarrow.parquet as pq

        (path,) = (table.path / "_delta_log").glob("*.checkpoint.parquet")
        return {f.name for f in pq.read_schema(path).field(kind).type}

    return look


def manifest(table: Table) -> list[str]:
    (path,) = [path for path in (table.path / "_delta_log").glob("*.checkpoint.*.json") if path.is_file()]
    return [next(iter(json.loads(text))) for text in path.read_text().splitlines()]


def sidecar_kinds(table: Table) -> list[str]:
    import pyarrow.parquet as pq

    (path,) = (table.path / "_delta_log" / "_sidecars").iterdir()
    return sorted(pq.read_schema(path).names)


def pointer(*wanted: str) -> Step:
    def look(table: Table) -> Any:
        content = json.loads(log_file(table, "_last_checkpoint").read_text())
        return {name: content.get(name) for name in wanted}

    return look


def pointer_order(table: Table) -> list[str]:
    return list(json.loads(log_file(table, "_last_checkpoint").read_text()))[:2]


def pointer_checksum(table: Table) -> bool:
    content = json.loads(log_file(table, "_last_checkpoint").read_text())
    stored = content.pop("checksum")
    return bool(stored == canonical_checksum(content))


ADD_COLUMNS = {
    *("path", "partitionValues", "size", "modificationTime", "dataChange", "tags", "deletionVector", "baseRowId"),
    *("defaultRowCommitVersion", "clusteringProvider"),
}
SOON = int(time.time() * 1000)
GONE = remove("a").__class__(path="a", deletion_timestamp=SOON, data_change=True, extended_file_metadata=True, size=1,
                             partition_values={})  # fmt: skip
EVERYTHING = (add("a"), add("b"), txn("app", 1), domain("d"), cdc())

CHECKPOINTS = [
    Row(
        "3.7",
        "what it holds",
        [DV, committed(*EVERYTHING), committed(GONE), checkpointed()],
        in_checkpoint,
        ["add", "domainMetadata", "metaData", "protocol", "remove", "txn"],
    ),
    Row(
        "3.7",
        "columns of files",
        [created(PART), committed(add("a", part=1)), checkpointed()],
        lambda t: fields_of("add")(t) - ADD_COLUMNS,
        {"stats", "stats_parsed", "partitionValues_parsed"},
    ),
    Row(
        "3.7",
        "none of statistics as text",
        [with_properties(checkpoint__writeStatsAsJson="false"), committed(add("a")), checkpointed()],
        lambda t: "stats" in fields_of("add")(t),
        False,
    ),
    Row(
        "3.7",
        "none of typed statistics",
        [with_properties(checkpoint__writeStatsAsStruct="false"), committed(add("a")), checkpointed()],
        lambda t: {"stats_parsed", "partitionValues_parsed"} & fields_of("add")(t),
        set(),
    ),
    Row(
        "3.7",
        "removes have no tags and no statistics",
        [DV, committed(add("a")), committed(GONE), checkpointed()],
        lambda t: {"tags", "stats"} & fields_of("remove")(t),
        set(),
    ),
    Row(
        "3.7",
        "a V2 manifest has everything but files",
        [with_properties(checkpointPolicy="v2", feature__domainMetadata="supported"), committed(*EVERYTHING), checkpointed()],
        lambda t: sorted(manifest(t)),
        ["checkpointMetadata", "domainMetadata", "metaData", "protocol", "sidecar", "txn"],
    ),
    Row("3.7", "a sidecar has nothing but files", [V2, committed(add("a")), checkpointed()], sidecar_kinds, ["add", "remove"]),
    Row(
        "3.7",
        "no change data files in it",
        [DV, committed(*EVERYTHING), checkpointed()],
        lambda t: "cdc" in in_checkpoint(t),
        False,
    ),
    Row(
        "3.11",
        "a tombstone that has expired",
        [created(), committed(add("a")), committed(remove("a")), checkpointed()],
        lambda t: "remove" in in_checkpoint(t),
        False,
    ),
    Row(
        "3.11",
        "a transaction that has expired",
        [with_properties(setTransactionRetentionDuration="interval 1 days"), committed(txn("app", 1, 1)), checkpointed()],
        lambda t: "txn" in in_checkpoint(t),
        False,
    ),
    Row(
        "3.8",
        "what the pointer says",
        [created(), committed(add("a"), add("b")), checkpointed()],
        pointer("version", "size", "numOfAddFiles", "parts"),
        {"version": 1, "size": 4, "numOfAddFiles": 2, "parts": None},
    ),
    Row(
        "3.8", "parts", [created(), committed(*(add(name) for name in "abcde")), checkpointed(4)], pointer("parts"), {"parts": 2}
    ),
    Row("3.8", "the order of the first properties", [created(), committed(), checkpointed()], pointer_order, ["version", "size"]),
    Row("3.8", "its checksum", [created(), committed(add("a")), checkpointed()], pointer_checksum, True),
    Row(
        "3.8",
        "a V2 checkpoint is described",
        [V2, committed(add("a")), checkpointed()],
        lambda t: sorted(pointer("v2Checkpoint")(t)["v2Checkpoint"]),
        ["modificationTime", "nonFileActions", "path", "sidecarFiles", "sizeInBytes"],
    ),
    Row(
        "3.8",
        "it is a hint only",
        [created(), committed(add("a")), checkpointed(), lambda t: log_file(t, "_last_checkpoint").write_text("{")],
        live,
        ["a"],
    ),
    Row(
        "3.7",
        "a file without content is no checkpoint",
        [created(), committed(add("a")), lambda t: log_file(t, f"{1:020d}.checkpoint.parquet").write_bytes(b"")],
        live,
        ["a"],
    ),
    Row(
        "3.7",
        "a checkpoint that lacks a part is none",
        [
            created(),
            committed(*(add(name) for name in "abcde")),
            checkpointed(4),
            lambda t: next((t.path / "_delta_log").glob("*.0000000002.0000000002.parquet")).unlink(),
        ],
        live,
        ["a", "b", "c", "d", "e"],
    ),
]

# -- 3.9 -----------------------------------------------------------------------------------------------------------------------


def crc(version: int, look: Callable[[dict[str, Any]], Any]) -> Step:
    return lambda table: look(json.loads(log_file(table, f"{version:020d}.crc").read_text()))


def without_crc(table: Table) -> None:
    for path in (table.path / "_delta_log").glob("*.crc"):
        path.unlink()


MANY = tuple(txn(f"app{number}", 1) for number in range(101))
DOMAINS = tuple(domain(f"d{number}") for number in range(11))
FILES_51 = tuple(add(f"f{number}") for number in range(51))

CHECKSUMS = [
    Row(
        "3.9",
        "sums",
        [created(), committed(add("a"), add("b")), committed(remove("a"))],
        crc(2, lambda c: (c["numFiles"], c["tableSizeBytes"], c["numMetadata"], c["numProtocol"])),
        (1, 100, 1, 1),
    ),
    Row(
        "3.9",
        "the commit's transaction",
        [created(), committed(add("a"))],
        lambda t: crc(1, lambda c: c["txnId"])(t) == info(1, "txnId")(t),
        True,
    ),
    Row(
        "3.9",
        "metadata and protocol",
        [created()],
        crc(0, lambda c: (c["metadata"]["id"], c["protocol"])),
        (metadata().id, {"minReaderVersion": 1, "minWriterVersion": 2}),
    ),
    Row(
        "3.9",
        "transactions",
        [created(), committed(txn("app", 7, 1))],
        crc(1, lambda c: c["setTransactions"]),
        [{"appId": "app", "version": 7, "lastUpdated": 1}],
    ),
    Row("3.9", "more than 100 transactions", [created(), committed(*MANY)], crc(1, lambda c: "setTransactions" in c), False),
    Row(
        "3.9",
        "a retention of transactions",
        [with_properties(setTransactionRetentionDuration="interval 30 days"), committed(txn("app", 7, 1))],
        crc(1, lambda c: "setTransactions" in c),
        False,
    ),
    Row("3.9", "domains", [DV, committed(domain("d"))], crc(1, lambda c: [d["domain"] for d in c["domainMetadata"]]), ["d"]),
    Row("3.9", "more than 10 domains", [DV, committed(*DOMAINS)], crc(1, lambda c: "domainMetadata" in c), False),
    Row(
        "3.9",
        "all files of a small table",
        [created(), committed(add("a"))],
        crc(1, lambda c: [f["path"] for f in c["allFiles"]]),
        ["a"],
    ),
    Row("3.9", "more than 50 files", [created(), committed(*FILES_51)], crc(1, lambda c: "allFiles" in c), False),
    Row(
        "3.9",
        "in-commit timestamp",
        [with_properties(enableInCommitTimestamps="true")],
        lambda t: crc(0, lambda c: c["inCommitTimestampOpt"])(t) == info(0, "inCommitTimestamp")(t),
        True,
    ),
    Row(
        "3.9",
        "deletion vectors",
        [
            DV,
            committed(add("a")),
            committed(remove("a"), add("a", stats=LOOSE, deletion_vector=vector()), operation=Operation.delete()),
        ],
        crc(2, lambda c: (c["numDeletionVectorsOpt"], c["numDeletedRecordsOpt"])),
        (1, 2),
    ),
    Row(
        "3.9",
        "histogram of sizes",
        [created(), committed(add("a"))],
        crc(1, lambda c: sum(c["fileSizeHistogram"]["fileCounts"])),
        1,
    ),
    Row("3.9", "a table without checksums", [created(), committed(add("a")), without_crc], live, ["a"]),
    Row(
        "3.9",
        "one that is damaged",
        [created(), committed(add("a")), lambda t: log_file(t, f"{1:020d}.crc").write_text("{")],
        live,
        ["a"],
    ),
]

# -- 3.11 ----------------------------------------------------------------------------------------------------------------------


def aged(days: int, *versions: int) -> Step:
    """Make commits as old as that, and their checksums and checkpoints."""

    def run(table: Table) -> None:
        at = time.time() - days * 86_400
        for path in (table.path / "_delta_log").iterdir():
            if path.name[:20].isdigit() and int(path.name[:20]) in versions:
                os.utime(path, (at, at))

    return run


def cleaned(table: Table) -> list[int]:
    log = table.log()
    log.clean_up_expired_logs()
    return table.versions()


FOUR = [created(), *[committed(add(f"f{number}")) for number in range(1, 4)]]
AT_2 = lambda t: write_checkpoint(t.log().snapshot_at(2))  # noqa: E731

RETENTION = [
    Row("3.11", "commits before an old checkpoint", [*FOUR, AT_2, aged(40, 0, 1)], cleaned, [2, 3]),
    Row("3.11", "commits that are not old enough", [*FOUR, AT_2, aged(20, 0, 1)], cleaned, [0, 1, 2, 3]),
    Row("3.11", "no checkpoint, nothing goes", [*FOUR, aged(40, 0, 1, 2)], cleaned, [0, 1, 2, 3]),
    Row("3.11", "the checkpoint itself stays", [*FOUR, AT_2, aged(40, 0, 1, 2, 3)], cleaned, [2, 3]),
    Row(
        "3.11",
        "another retention",
        [with_properties(logRetentionDuration="interval 10 days"), *FOUR[1:], AT_2, aged(20, 0, 1)],
        cleaned,
        [2, 3],
    ),
    Row(
        "3.11",
        "after the cleanup the table is what it was",
        [*FOUR, AT_2, aged(40, 0, 1)],
        then(cleaned, live),
        ["f1", "f2", "f3"],
    ),
    Row(
        "3.11",
        "with the checkpoint, where it is not switched off",
        [created(configuration=delta(checkpointInterval="2")), committed(add("f1")), aged(40, 0, 1), committed(add("f2"))],
        lambda t: t.versions(),
        [2],
    ),
    Row(
        "3.11",
        "switched off",
        [with_properties(enableExpiredLogCleanup="false", checkpointInterval="2"), committed(), aged(40, 0, 1), committed()],
        lambda t: t.versions(),
        [0, 1, 2],
    ),
]


@pytest.mark.parametrize("row", [*FILES, *REPLAY, *CHECKPOINTS, *CHECKSUMS, *RETENTION], ids=row_id)
def test_rule(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


def test_an_existing_commit_is_never_overwritten(tmp_path: Path) -> None:
    """1.8: put-if-absent, whatever stands there."""
    table = Table(tmp_path / "table")
    table.create()
    log = table.log()
    assert log.snapshot.version == 0
    log_file(table, f"{1:020d}.json").write_text("somebody else's\n")
    with pytest.raises(FileExistsError):
        log.write_commit(1, b"{}\n")
    assert raw(1)(table) == b"somebody else's\n"


def test_unknown_fields_and_actions_are_ignored(tmp_path: Path) -> None:
    """3.2: a commit of another writer."""
    table = Table(tmp_path / "table")
    table.create()
    table.put_foreign(1, {"future": {"x": 1}}, {"add": {**PLAIN_ADD, "unknown": [1]}}, {"commitInfo": {"x": {"y": 1}}})
    assert live(table) == ["a"]
    assert kinds(1)(table) == ["future", "add", "commitInfo"]
