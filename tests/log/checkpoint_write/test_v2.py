"""V2 checkpoints: written by the rules of the protocol, read in all forms, and never misread when damaged (CheckpointsSuite)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log import AddFile, DeletionVectorDescriptor, DeltaLog, DomainMetadata, RemoveFile, Snapshot
from airflow_delta.log.actions.actions import encode_actions
from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS
from airflow_delta.log.checkpoint.last_checkpoint import canonical_checksum, read_last_checkpoint
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from support.actions import add, metadata, protocol, remove, txn
from support.tables import append, commit_path, log_path, write_commit

NOW_IS_EARLY = 4_000_000_000_000
FEATURES = ["v2Checkpoint", "domainMetadata"]
V2_PROTOCOL = protocol(3, 7, reader_features=["v2Checkpoint"], writer_features=FEATURES)
V2 = {"delta.checkpointPolicy": "v2"}
STATS = '{"numRecords":3,"minValues":{"id":%d},"maxValues":{"id":%d},"nullCount":{"id":0}}'


def build(table: Path, *, configuration: dict[str, str] | None = None, latest: int = 4) -> DeltaLog:
    """A partitioned table with every kind of action, 5 files a version and two tombstones."""
    rich = AddFile(
        path="rich",
        partition_values={"part": None},
        size=7,
        modification_time=1,
        data_change=True,
        tags={"k": "v"},
        deletion_vector=DeletionVectorDescriptor(
            storage_type="u", path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^", offset=4, size_in_bytes=40, cardinality=6
        ),
        base_row_id=5,
        default_row_commit_version=6,
        clustering_provider="liquid",
    )
    write_commit(
        table,
        0,
        V2_PROTOCOL,
        metadata(configuration={**V2, **(configuration or {})}, partition_columns=["part"]),
        rich,
        txn("app", 1, NOW_IS_EARLY),
        DomainMetadata(domain="d", configuration="{}", removed=False),
    )
    for version in range(1, latest + 1):
        files = [add(f"{version}-{n}", part=f"p{n}", stats=STATS % (10 * n, 10 * n + version)) for n in range(5)]
        write_commit(table, version, *files, txn("app", version + 1, NOW_IS_EARLY), txn(f"app-{version}", 1))
    gone = [remove(f"1-{n}", part=f"p{n}", deletion_timestamp=NOW_IS_EARLY) for n in (0, 3)]
    write_commit(table, latest + 1, *(msgspec.structs.replace(r, stats="{}", tags={"a": "b"}) for r in gone))
    return DeltaLog.for_table(str(table))


def state(snapshot: Snapshot) -> dict:
    return {
        "files": sorted(map(str, snapshot.files(columns=FILE_COLUMNS).to_pylist())),
        "tombstones": sorted(map(str, snapshot.tombstones().to_pylist())),
        "transactions": dict(snapshot.set_transactions),
        "domains": snapshot.domain_metadata,
        "protocol": snapshot.protocol,
        "metadata": snapshot.metadata,
        "version": snapshot.version,
    }


def only_checkpoints(table: Path) -> None:
    """Delete what a reader could use instead, except the last commit, which Delta requires."""
    commits = sorted((table / "_delta_log").glob("[0-9]*.json"))
    for file in [path for path in commits if path.stem.isdigit()][:-1] + list((table / "_delta_log").glob("*.crc")):
        file.unlink()


def manifest_of(table: Path) -> Path:
    (found,) = [path for path in (table / "_delta_log").iterdir() if path.name[20:].count("-") == 4]
    return found


def sidecars(table: Path) -> list[Path]:
    return sorted((table / "_delta_log" / "_sidecars").iterdir())


def rows_of(file: Path) -> list[dict]:
    if file.suffix == ".json":
        return [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in row.items() if v is not None} for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("parquet_manifest", [False, True], ids=["json", "parquet"])
@pytest.mark.parametrize("part_size", [None, 1, 7])
def test_a_v2_checkpoint_says_what_the_commits_say(table: Path, parquet_manifest: bool, part_size: int | None) -> None:
    log = build(table)
    expected = state(log.snapshot)
    for _ in range(2):  # the second one is made from the first
        info = write_checkpoint(DeltaLog.for_table(str(table)).snapshot, part_size=part_size, parquet_manifest=parquet_manifest)
        only_checkpoints(table)
        fresh = DeltaLog.for_table(str(table)).snapshot
        assert fresh.segment.checkpoint is not None
        assert fresh.segment.checkpoint.parts[0].path.endswith("parquet" if parquet_manifest else "json")
        assert state(fresh) == expected
        assert fresh.transaction_version("app") == 5
        assert fresh.transaction_version("nobody") is None
        assert fresh.files("part = 'p2'").num_rows == 4
        assert fresh.files("id > 33 AND part = 'p3'").num_rows == 1
        files = {None: 1, 1: 21, 7: 3}[part_size]
        assert info.v2_checkpoint is not None
        assert len(fresh.checkpoint_reader().sidecars) == files
        for old in (table / "_delta_log").glob("*checkpoint*-*"):
            if old.name != info.v2_checkpoint.path:
                old.unlink()


@pytest.mark.parametrize("parquet_manifest", [False, True], ids=["json", "parquet"])
def test_what_stands_where(table: Path, parquet_manifest: bool) -> None:
    log = build(table)
    info = write_checkpoint(log.snapshot, part_size=9, parquet_manifest=parquet_manifest)
    for sidecar in sidecars(table):
        content = pq.read_table(sidecar)
        assert content.schema.names == ["add", "remove"]
        assert not {"stats", "tags"} & {field.name for field in content.schema.field("remove").type}
        assert content.num_rows <= 9
    rows = rows_of(manifest_of(table))
    kinds = [next(iter(row)) for row in rows]
    assert kinds[0] == "checkpointMetadata"
    assert kinds[1:4] == ["sidecar"] * 3
    assert set(kinds[4:]) == {"txn", "domainMetadata", "metaData", "protocol"}
    tags = dict(rows[0]["checkpointMetadata"]["tags"])
    schema = json.loads(tags.pop("sidecarFileSchema"))
    assert [field["name"] for field in schema["fields"]] == ["add", "remove"]
    sizes = {row["sidecar"]["path"]: row["sidecar"]["sizeInBytes"] for row in rows[1:4]}
    assert sizes == {path.name: path.stat().st_size for path in sidecars(table)}
    total = sum(sizes.values())
    assert tags == {"sidecarNumActions": "21", "sidecarSizeInBytes": str(total), "numOfAddFiles": "19"}
    hint = json.loads(log_path(table, "_last_checkpoint").read_text())
    assert hint["checksum"] == canonical_checksum(hint)
    assert (hint["version"], hint["size"], hint["numOfAddFiles"]) == (5, 21 + len(rows), 19)
    assert hint["sizeInBytes"] == total + manifest_of(table).stat().st_size
    assert hint["v2Checkpoint"]["path"] == manifest_of(table).name
    assert len(hint["v2Checkpoint"]["sidecarFiles"]) == 3
    assert {next(iter(action)) for action in hint["v2Checkpoint"]["nonFileActions"]} == set(kinds) - {"sidecar"}
    assert ("checkpointSchema" in hint) == parquet_manifest
    assert info.parts is None


def test_many_actions_are_not_repeated_in_the_hint(table: Path) -> None:
    build(table)
    write_commit(table, 6, *(txn(f"more-{n}", n) for n in range(40)))
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot, part_size=None)
    hint = read_last_checkpoint(DeltaLog.for_table(str(table)).store)
    assert hint is not None
    assert hint.v2_checkpoint is not None
    assert hint.v2_checkpoint.non_file_actions is None
    assert hint.v2_checkpoint.sidecar_files is not None


@pytest.mark.parametrize(
    ("features", "policy", "is_v2"),
    [
        (["v2Checkpoint"], "v2", True),
        (["v2Checkpoint"], "classic", False),
        (["v2Checkpoint"], None, False),
        ([], "v2", False),
    ],
)
def test_which_kind_is_written(table: Path, features: list[str], policy: str | None, is_v2: bool) -> None:
    configuration = {} if policy is None else {"delta.checkpointPolicy": policy}
    write_commit(
        table,
        0,
        protocol(3, 7, reader_features=features, writer_features=features),
        metadata(configuration=configuration),
        add("a"),
    )
    log = DeltaLog.for_table(str(table))
    log.checkpoint()
    assert log_path(table, f"{0:020d}.checkpoint.parquet").exists() != is_v2
    assert (table / "_delta_log" / "_sidecars").exists() == is_v2


def test_an_empty_table(table: Path) -> None:
    write_commit(table, 0, V2_PROTOCOL, metadata(configuration=V2))
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    assert DeltaLog.for_table(str(table)).snapshot.files().num_rows == 0
    assert len(sidecars(table)) == 1


@pytest.mark.parametrize("parquet_manifest", [False, True], ids=["json", "parquet"])
def test_delta_rs_reads_it(table: Path, parquet_manifest: bool) -> None:
    log = build(table)
    expected = sorted(log.snapshot.files(columns=["path"])["path"].to_pylist())
    write_checkpoint(log.snapshot, part_size=7, parquet_manifest=parquet_manifest)
    only_checkpoints(table)
    found = DeltaTable(str(table))
    assert found.version() == 5
    assert sorted(uri.rpartition("/")[2] for uri in found.file_uris()) == expected
    assert found.transaction_version("app") == 5


def test_sidecars_of_other_partitions_are_not_read(table: Path) -> None:
    log = build(table)
    write_checkpoint(log.snapshot, part_size=4)
    only_checkpoints(table)
    wanted = "part = 'p4'"
    expected = DeltaLog.for_table(str(table)).snapshot.files(wanted).to_pylist()
    assert len(expected) == 4
    spoiled = 0
    for file in sidecars(table):
        parts = [row["add"]["partitionValues_parsed"]["part"] for row in pq.read_table(file).to_pylist() if row["add"]]
        if "p4" not in parts and None not in parts and parts:
            data = bytearray(file.read_bytes())
            footer = int.from_bytes(data[-8:-4], "little") + 8
            data[4:-footer] = b"\0" * (len(data) - footer - 4)  # pages, not the footer
            file.write_bytes(data)
            spoiled += 1
    assert spoiled >= 2
    assert DeltaLog.for_table(str(table)).snapshot.files(wanted).to_pylist() == expected


# -- forms that other writers choose -----------------------------------------------------------------------------------


def rewrite_manifest(table: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    path = manifest_of(table)
    path.write_text("".join(json.dumps(row) + "\n" for row in change(rows_of(path))))


def test_sidecars_named_by_longer_paths(table: Path) -> None:
    log = build(table)
    expected = state(log.snapshot)
    write_checkpoint(log.snapshot, part_size=7)
    only_checkpoints(table)
    odd = sidecars(table)[0].rename(sidecars(table)[0].with_name("an odd%name.parquet"))

    def change(rows: list[dict]) -> list[dict]:
        sidecar_rows = [row["sidecar"] for row in rows if "sidecar" in row]
        sidecar_rows[0]["path"] = odd.name.replace("%", "%25").replace(" ", "%20")
        sidecar_rows[1]["path"] = f"file://{table}/_delta_log/_sidecars/{sidecar_rows[1]['path']}"
        sidecar_rows[2]["path"] = f"_sidecars/{sidecar_rows[2]['path']}"
        return rows

    rewrite_manifest(table, change)
    assert state(DeltaLog.for_table(str(table)).snapshot) == expected


@pytest.mark.parametrize("with_sidecars", [False, True])
def test_files_in_the_manifest_itself(table: Path, with_sidecars: bool) -> None:
    log = build(table)
    expected = state(log.snapshot)
    files = log.snapshot.add_files()
    tombstones = [
        RemoveFile(path=f"1-{n}", deletion_timestamp=NOW_IS_EARLY, data_change=False, extended_file_metadata=True,
                   partition_values={"part": f"p{n}"}, size=100)
        for n in (0, 3)
    ]  # fmt: skip
    write_checkpoint(log.snapshot, part_size=100)
    only_checkpoints(table)
    inline = [json.loads(line) for line in encode_actions([*files, *tombstones]).splitlines()]
    if with_sidecars:  # what stands in the sidecar already is another table's: leave it out
        rewrite_manifest(table, lambda rows: [*rows, {"add": {**inline[0]["add"], "path": "inline"}}])
        found = DeltaLog.for_table(str(table)).snapshot
        assert found.files().num_rows == 20
        assert found.files("part IS NULL", columns=["path"])["path"].to_pylist() == ["inline", "rich"]
        return

    def change(rows: list[dict]) -> list[dict]:
        del rows[0]["checkpointMetadata"]["tags"]
        return [row for row in rows if "sidecar" not in row] + inline

    rewrite_manifest(table, change)
    assert state(DeltaLog.for_table(str(table)).snapshot) == expected


def test_v2_content_under_a_classic_name(table: Path) -> None:
    log = build(table)
    expected = state(log.snapshot)
    write_checkpoint(log.snapshot, part_size=7, parquet_manifest=True)
    only_checkpoints(table)
    manifest_of(table).rename(log_path(table, f"{5:020d}.checkpoint.parquet"))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert state(snapshot) == expected
    assert len(snapshot.checkpoint_reader().sidecars) == 3


# -- damage ------------------------------------------------------------------------------------------------------------


def cut(path: Path, keep: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def drop_line(kind: str) -> Callable[[Path], None]:
    def damage(table: Path) -> None:
        rewrite_manifest(table, lambda rows: [row for row in rows if kind not in row])

    return damage


def drop_one_sidecar(table: Path) -> None:
    rewrite_manifest(table, lambda rows: [row for number, row in enumerate(rows) if number != 2])


def move_a_sidecar_out_of_the_table(table: Path) -> None:
    sidecars(table)[1].rename(table.parent / "outside.parquet")

    def change(rows: list[dict]) -> list[dict]:
        [row for row in rows if "sidecar" in row][1]["sidecar"]["path"] = "..%2F..%2F..%2Foutside.parquet"
        return rows

    rewrite_manifest(table, change)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a sidecar is missing": lambda table: sidecars(table)[1].unlink(),
    "a sidecar lies outside of the table": move_a_sidecar_out_of_the_table,
    "a sidecar is empty": lambda table: sidecars(table)[1].write_bytes(b""),
    "a sidecar is truncated": lambda table: cut(sidecars(table)[1]),
    "a sidecar is garbage": lambda table: sidecars(table)[1].write_bytes(b"PAR1" + b"x" * 3000 + b"PAR1"),
    "all sidecars are missing": lambda table: [path.unlink() for path in sidecars(table)],
    "the manifest is garbage": lambda table: manifest_of(table).write_bytes(b"garbage"),
    "the manifest is cut off": lambda table: cut(manifest_of(table)),
    "the manifest lacks its last line": lambda table: rewrite_manifest(table, lambda rows: rows[:-1]),
    "the manifest lacks half of its lines": lambda table: rewrite_manifest(table, lambda rows: rows[: len(rows) // 2]),
    "no checkpointMetadata": drop_line("checkpointMetadata"),
    "no protocol": drop_line("protocol"),
    "no metadata": drop_line("metaData"),
    "a sidecar is not named": drop_one_sidecar,
    "a line of another kind": lambda table: rewrite_manifest(
        table, lambda rows: [{"sidecbr": row["sidecar"]} if "sidecar" in row else row for row in rows]
    ),
    "of another version": lambda table: rewrite_manifest(table, lambda rows: [{"checkpointMetadata": {"version": 4}}, *rows[1:]]),
    "the manifest is empty": lambda table: manifest_of(table).write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_v2_checkpoint_is_replaced_by_commits(table: Path, damage: Callable[[Path], object]) -> None:
    log = build(table)
    expected = state(log.snapshot)
    write_checkpoint(log.snapshot, part_size=7)
    damage(table)
    assert state(DeltaLog.for_table(str(table)).snapshot) == expected


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_v2_checkpoint_is_replaced_by_an_older_one(table: Path, damage: Callable[[Path], object]) -> None:
    log = build(table)
    expected = state(log.snapshot)
    write_checkpoint(log.snapshot, part_size=7)
    damage(table)
    log.snapshot_at(3)
    older = DeltaLog.for_table(str(table)).snapshot_at(3)
    write_checkpoint(older, parquet_manifest=True)
    for version in range(4):
        commit_path(table, version).unlink()
    assert state(DeltaLog.for_table(str(table)).snapshot) == expected


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_v2_checkpoint_without_a_replacement(table: Path, damage: Callable[[Path], object]) -> None:
    log = build(table)
    write_checkpoint(log.snapshot, part_size=7)
    only_checkpoints(table)
    damage(table)
    with pytest.raises((DeltaLogCorruptedException, LookupError)):
        DeltaLog.for_table(str(table)).snapshot.files()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_parquet_manifest(table: Path, part: float) -> None:
    log = build(table)
    expected = state(log.snapshot)
    write_checkpoint(log.snapshot, part_size=7, parquet_manifest=True)
    cut(manifest_of(table), part)
    assert state(DeltaLog.for_table(str(table)).snapshot) == expected


# -- an object store ---------------------------------------------------------------------------------------------------


@pytest.mark.s3
@pytest.mark.parametrize("parquet_manifest", [False, True], ids=["json", "parquet"])
def test_on_an_object_store(s3_table: str, s3_options: dict[str, str], tmp_path: Path, parquet_manifest: bool) -> None:
    local = build(tmp_path)
    append(tmp_path, 6, part="p1")
    expected = state(local.update())
    log = DeltaLog.for_table(s3_table, s3_options)
    for file in (tmp_path / "_delta_log").glob("*.json"):
        log.store.put(f"_delta_log/{file.name}", file.read_bytes())
    write_checkpoint(log.snapshot_at(5), part_size=4, parquet_manifest=parquet_manifest)
    log.store.delete([f"_delta_log/{version:020d}.json" for version in range(5)])
    fresh = DeltaLog.for_table(s3_table, s3_options)
    assert fresh.snapshot.segment.checkpoint is not None
    assert state(fresh.snapshot) == expected
    hint = read_last_checkpoint(fresh.store)
    assert hint is not None
    assert hint.version == 5
    missing = fresh.snapshot.checkpoint_reader().sidecars[2].status.path
    log.store.delete([missing])
    with pytest.raises((DeltaLogCorruptedException, LookupError)):
        DeltaLog.for_table(s3_table, s3_options).snapshot.files()
