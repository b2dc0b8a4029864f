"""The list of live files: reconciliation, projection and pruning, from commits alone and on top of checkpoints."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from urllib.parse import unquote_to_bytes

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log import AddFile, DeletionVectorDescriptor, DeltaLog, RemoveFile, Snapshot
from airflow_delta.log.actions.reconciliation import TailFiles, canonical_path
from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files
from airflow_delta.log.checkpoint.part import CheckpointPart
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.replay import counts
from airflow_delta.log.replay import filter as files_filter
from airflow_delta.log.replay import live_files as files
from airflow_delta.log.replay.path_spellings import CANONICAL, canonical_paths
from support.actions import SCHEMA, add, metadata, protocol, remove
from support.tables import create_table, log_path, write_checkpoint_by_hand, write_commit, write_compaction
from support.work import calls


def snapshot_of(table: Path) -> Snapshot:
    return DeltaLog.for_table(str(table)).snapshot


def paths(snapshot: Snapshot, predicate: str | None = None) -> list[str]:
    return sorted(snapshot.files(predicate, columns=["path"])["path"].to_pylist())


def vector(name: str, offset: int | None = 1) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor(storage_type="u", path_or_inline_dv=name, offset=offset, size_in_bytes=4, cardinality=1)


def removal(file: AddFile) -> RemoveFile:
    return file.remove(1)


# -- reconciliation -----------------------------------------------------------------------------------------------------------

A1, A2, A3 = add("a"), add("a", deletion_vector=vector("v")), add("a", deletion_vector=vector("v", 9))

SCENARIOS = {
    "added": ([[A1, add("b")]], [("a", None), ("b", None)]),
    "removed": ([[A1, add("b")], [removal(A1)]], [("b", None)]),
    "removed, added again": ([[A1], [removal(A1)], [A1]], [("a", None)]),
    "added twice": ([[A1], [add("a", size=7)]], [("a", None)]),
    "removed before it was added": ([[removal(A1)], [A1]], [("a", None)]),
    "removed, never added": ([[add("b")], [removal(A1)]], [("b", None)]),
    "a vector makes another file": ([[A1], [removal(A1), A2]], [("a", "uv@1")]),
    "another vector": ([[A2], [removal(A2), A3]], [("a", "uv@9")]),
    "a vector taken away": ([[A2], [removal(A2), A1]], [("a", None)]),
    "the file without a vector removed": ([[A2, add("b")], [removal(A1)]], [("a", "uv@1"), ("b", None)]),
    "other spelling of an escape": ([[add("p=%2fx/f")], [removal(add("p=%2Fx/f"))]], []),
    "other spelling, mixed": ([[add("%2f%3A")], [removal(add("%2F%3a"))]], []),
    "escaped without need": ([[add("p%3da%41")], [removal(add("p=aA"))]], []),
    "escaped without need, reversed": ([[add("p=aA")], [removal(add("p%3Da%41"))]], []),
    "escaped where it must not be undone": ([[add("a%2541"), add("a%41")], [removal(add("a%2541"))]], [("a%41", None)]),
    "case counts elsewhere": ([[add("A%2f"), add("a%2f")], [removal(add("a%2F"))]], [("A%2f", None)]),
    "file and empty authority": ([[add("file:///x/f")], [removal(add("file:/x/f"))]], []),
    "file and empty authority, reversed": ([[add("file:/x/f")], [removal(add("FILE:///x/f"))]], []),
    "bucket names in another case": (
        [[add("s3://Bucket/Key"), add("s3://Bucket/key")], [removal(add("S3://bucket/Key"))]],
        [("s3://Bucket/key", None)],
    ),
    "as Delta Spark adds, as delta-rs removes": ([[add("p=é/f"), add("p=e/f")], [removal(add("p=%C3%A9/f"))]], [("p=e/f", None)]),
    "as delta-rs adds, as Delta Spark would remove": ([[add("p=%C3%A9/f")], [removal(add("p=é/f"))]], []),
    "removed by one spelling, added by the other": (
        [[add("p=é/f")], [removal(add("p=%c3%a9/f"))], [add("p=%C3%A9/f", size=7)]],
        [("p=%C3%A9/f", None)],
    ),
    "added by both spellings": ([[add("日本/f")], [add("%E6%97%A5%E6%9C%AC/f")]], [("%E6%97%A5%E6%9C%AC/f", None)]),
    "decomposed letters are others": ([[add("e\u0301/f"), add("é/f")], [removal(add("e%CC%81/f"))]], [("é/f", None)]),
    "a vector on the other spelling": (
        [[add("p=😀/f")], [removal(add("p=%F0%9F%98%80/f")), add("p=%F0%9F%98%80/f", deletion_vector=vector("v"))]],
        [("p=%F0%9F%98%80/f", "uv@1")],
    ),
    "not UTF-8": ([[add("%FF/f"), add("%FE/f")], [removal(add("%ff/f"))]], [("%FE/f", None)]),
    "a space, unencoded": ([[add("a b/f")], [removal(add("a%20b/f"))]], []),
    "non-ASCII": ([[add("ü/ß"), add("Ü/ß%20")], [removal(add("ü/ß"))]], [("Ü/ß%20", None)]),
}


@pytest.mark.parametrize("checkpoint_after", [None, 0, 1, 2])
@pytest.mark.parametrize(("commits", "expected"), SCENARIOS.values(), ids=SCENARIOS.keys())
def test_reconciliation(table: Path, commits: list, expected: list, checkpoint_after: int | None) -> None:
    features = protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"])
    for version, actions in enumerate(commits):
        write_commit(table, version, *([features, metadata()] if version == 0 else []), *actions)
        if version == checkpoint_after:
            write_checkpoint(snapshot_of(table))
    if checkpoint_after is not None:
        for version in range(min(checkpoint_after + 1, len(commits))):
            if log_path(table, "_last_checkpoint").exists():
                log_path(table, f"{version:020d}.json").unlink()
    live = snapshot_of(table).files(columns=["path", "deletion_vector", "size"]).to_pylist()
    found = [(f["path"], _id(f["deletion_vector"])) for f in live]
    assert sorted(found, key=str) == sorted(expected, key=str)
    snapshot = snapshot_of(table)
    assert counts.count_files(snapshot.checkpoint_reader(), snapshot.tail_files()) == (
        len(expected),
        sum(f["size"] for f in live),
    )
    assert snapshot.add_files() == to_add_files(snapshot.files(columns=FILE_COLUMNS))


def _id(found: dict | None) -> str | None:
    return None if found is None else f"{found['storage_type']}{found['path_or_inline_dv']}@{found['offset']}"


def test_the_last_add_counts(table: Path) -> None:
    create_table(table, add("a", size=1, tags={"t": "1"}))
    write_checkpoint(snapshot_of(table))
    write_commit(table, 1, add("a", size=2))
    (file,) = snapshot_of(table).files().to_pylist()
    assert (file["size"], file["tags"], file["data_change"]) == (2, None, False)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_files_as_actions_are_those_of_the_table(table: Path, checkpoint: bool) -> None:
    full = {"base_row_id": 0, "default_row_commit_version": 1, "clustering_provider": "liquid", "tags": {"t": None, "u": "1"}}
    stats = json.dumps({"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 4}, "nullCount": {"id": 0}})
    create_table(
        table, add("a", stats=stats, **full), add("b", deletion_vector=vector("v"), tags={}), add("c", data_change=False)
    )
    if checkpoint:
        write_checkpoint(snapshot_of(table))
    write_commit(table, 1, add("d", stats=stats, deletion_vector=vector("v"), **full), add("e"))
    snapshot = snapshot_of(table)
    for predicate in (None, "id = 2", "id = 5"):
        found = snapshot.add_files(predicate)
        assert found == to_add_files(snapshot.files(predicate, FILE_COLUMNS))
        assert len(found) == (3 if predicate == "id = 5" else 5)
        assert not any(file.data_change for file in found)


def test_actions_do_not_become_columns_to_be_actions_again(table: Path) -> None:
    create_table(table, *(add(f"{number}") for number in range(500)))
    snapshot = snapshot_of(table)
    assert len(snapshot.add_files()) == 500
    assert calls(snapshot.add_files) < 5_000


def test_canonical_paths() -> None:
    same = [
        ["file:/a/b", "file:///a/b", "FILE:/a/b"],
        ["s3://b/x%2f", "S3://B/x%2F"],
        ["p=a%3ab/c", "p=a%3Ab/c"],
        ["s3://user@host/x", "s3://user@HOST/x"],
    ]
    for spellings in same:
        assert len({canonical_path(path) for path in spellings}) == 1, spellings
    assert canonical_path("S3://User@Host/X") == "s3://User@host/X"
    assert canonical_path("plain/Path") == "plain/Path"
    assert canonical_path("100%/x") == "100%25/x"
    assert canonical_path("p=é %41/x") == "p=%C3%A9%20A/x"
    assert canonical_path("p=1:2/x") == canonical_path("p=1%3A2/x") == "p=1%3A2/x"
    assert canonical_path("file:///é") == "file:/%C3%A9"


_TEXTS = st.text(st.sampled_from("aZ09/=:+%é日😀 ?#\u0301\x7f~{@") | st.characters(exclude_categories=["Cs"]), max_size=12)
_PIECES = st.sampled_from(["%41", "%2F", "%2f", "%C3%A9", "%c3", "%FF", "%", "file:/", "s3://B/", "S3://a@b:1/", "x/", "///"])


@given(st.lists(st.lists(_TEXTS | _PIECES, max_size=4).map("".join), max_size=8), st.integers(0, 3))
@settings(deadline=None)
def test_columns_of_paths_get_the_same_spelling(texts: list[str], start: int) -> None:
    column = pa.array(texts, pa.string())[start:]
    assert canonical_paths(column).to_pylist() == [canonical_path(text) for text in texts[start:]]
    relative = [text for text in texts if ":" not in text]
    assert len({canonical_path(text) for text in relative}) == len({unquote_to_bytes(text) for text in relative})


def test_a_list_of_files_says_which_spelling_is_cheap() -> None:
    """Every path that is spelled as it should be is left to Arrow."""
    spelled = [canonical_path(text) for text in ("a/é", "p=1%3A2/x", "s3://b/é", "file:/x", "abfss://c@d.e/f:g")]
    assert pc.all(pc.match_substring_regex(pa.array(spelled), CANONICAL)).as_py()


TWICE = {
    "removed by another spelling": ([add("p=é/f")], ["p=%C3%A9/f"], []),
    "removed by another spelling, reversed": ([add("p=%C3%A9/f")], ["p=é/f"], []),
    "removed where escapes have small digits": ([add("p=%c3%a9/f"), add("b")], ["p=%C3%A9/f"], ["b"]),
    "escaped without need": ([add("p%3D1/f"), add("b")], ["p=1/f"], ["b"]),
    "added twice": ([add("p=é/f"), add("p=%C3%A9/f"), add("é")], [], ["p=%C3%A9/f", "é"]),
    "added twice, never as it should be": ([add("p=é%41/f"), add("p=%c3%a9%41/f")], [], ["p=%c3%a9%41/f"]),
    "others were removed": ([add("p=é/f"), add("p=e/f")], ["p=é/g", "p=%C3%A9/h"], ["p=e/f", "p=é/f"]),
    "the same spelling is for others to judge": ([add("é")], ["é"], ["é"]),
}


@pytest.mark.parametrize("columns", [["path"], ["size"]])
@pytest.mark.parametrize(("adds", "removed", "expected"), TWICE.values(), ids=TWICE.keys())
def test_checkpoints_of_writers_that_compare_spellings(
    table: Path, adds: list[AddFile], removed: list[str], expected: list[str], columns: list[str]
) -> None:
    adds = [msgspec.structs.replace(file, size=1 << number) for number, file in enumerate(adds)]
    actions = [protocol(), metadata(), *adds, *(remove(path) for path in removed)]
    create_table(table)
    write_checkpoint_by_hand(table, 0, actions)
    snapshot = snapshot_of(table)
    assert snapshot.segment.checkpoint is not None
    found = {"path": expected, "size": sorted(file.size for file in adds if file.path in expected)}
    assert sorted(snapshot.files(columns=columns)[columns[0]].to_pylist()) == found[columns[0]]
    assert counts.count_files(snapshot.checkpoint_reader(), snapshot.tail_files()) == (len(expected), sum(found["size"]))


def test_a_compaction_that_holds_both_spellings_is_not_read(table: Path) -> None:
    """Which of the two counts, only the commits say."""
    create_table(table, add("p=é/f"), add("p=é/g"))
    write_commit(table, 1, remove("p=%C3%A9/f"), remove("p=%C3%A9/g"))
    write_commit(table, 2, add("p=é/g"))
    both = [add("p=é/f"), add("p=é/g"), remove("p=%C3%A9/f"), remove("p=%C3%A9/g")]
    write_compaction(table, 0, 2, protocol(), metadata(), *both)
    assert paths(snapshot_of(table)) == ["p=é/g"]


def test_a_tail_goes_on_without_changing_the_one_before() -> None:
    class Commit:
        adds, removes = [add("b")], [removal(add("a"))]

    class First:
        adds, removes = [add("a")], []

    first = TailFiles.of([First])
    second = first.copy()
    second.apply(Commit)
    assert list(first.adds) == [("a", None)]
    assert list(second.adds) == [("b", None)]
    assert list(second.removes) == [("a", None)]


# -- tombstones ---------------------------------------------------------------------------------------------------------------


def test_tombstones(table: Path) -> None:
    import time

    now = int(time.time() * 1000)
    week = 7 * 86_400_000
    create_table(table, *(add(name) for name in "abcde"))
    write_commit(
        table, 1, remove("a", deletion_timestamp=now - week - 60_000), remove("b", deletion_timestamp=now - week + 60_000)
    )
    write_checkpoint(snapshot_of(table))
    undated = RemoveFile(path="d", data_change=True)
    write_commit(table, 2, remove("c", deletion_timestamp=now), undated, add("b"))
    found = snapshot_of(table).tombstones()
    assert found["path"].to_pylist() == ["c"]
    assert found["deletion_timestamp"].to_pylist() == [now]
    assert paths(snapshot_of(table)) == ["b", "e"]


# -- columns ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [False, True])
def test_columns(table: Path, checkpoint: bool) -> None:
    create_table(table, add("a", part="x", stats='{"numRecords":1}', tags={"k": None}, base_row_id=4), partition_columns=["part"])
    if checkpoint:
        write_checkpoint(snapshot_of(table))
    snapshot = snapshot_of(table)
    everything = snapshot.files(columns=files.FILE_SCHEMA.names)
    assert everything.schema == files.FILE_SCHEMA
    # Statistics are most of what a list holds, and few want them.
    assert snapshot.files() == everything.drop_columns(["stats"])
    (row,) = everything.to_pylist()
    assert row == {
        "path": "a",
        "partition_values": [("part", "x")],
        "size": 100,
        "modification_time": 1_700_000_000_000,
        "data_change": False,
        "stats": '{"numRecords":1}',
        "tags": [("k", None)],
        "deletion_vector": None,
        "base_row_id": 4,
        "default_row_commit_version": None,
        "clustering_provider": None,
    }
    for name in everything.schema.names:
        assert snapshot.files(columns=[name]).to_pylist() == [{name: row[name]}]
    assert snapshot.files(columns=["size", "path"]).schema.names == ["size", "path"]
    assert snapshot.files(columns=[]).num_columns == 0
    (file,) = snapshot.add_files()
    assert file == add("a", part="x", stats='{"numRecords":1}', tags={"k": None}, base_row_id=4, data_change=False)


def test_unknown_columns(table: Path) -> None:
    create_table(table, add("a"))
    with pytest.raises(DeltaIllegalArgumentException, match="no column nonsense; the columns are path,"):
        snapshot_of(table).files(columns=["path", "nonsense"])


def test_only_what_is_asked_is_decoded(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_table(table, *(add(f"{n}", part=f"p{n}") for n in range(9)), partition_columns=["part"])
    write_checkpoint(snapshot_of(table))
    asked: list[tuple[int, tuple[str, ...]]] = []
    batches = CheckpointPart.batches

    def spy(self, row_groups, columns):
        asked.append((len(row_groups), tuple(columns)))
        return batches(self, row_groups, columns)

    monkeypatch.setattr(CheckpointPart, "batches", spy)
    assert snapshot_of(table).files(columns=["path"]).num_rows == 9
    assert asked == [(1, ("protocol", "metaData")), (1, ("add.path",))]  # may the files be listed?
    asked.clear()
    assert snapshot_of(table).files("part = 'absent'", columns=["path"]).num_rows == 0
    assert not any("add.path" in columns for groups, columns in asked if groups)


# -- pruning ------------------------------------------------------------------------------------------------------------------

TYPES = {
    "integer": (
        ["1", "20", "-3", None],
        ["p = 20", "p < 1", "p in (1, -3)", "p is null", "p is not null", "p <> 1", "not p = 20"],
    ),
    "string": (["a", "b c", "ü", None], ["p = 'b c'", "p >= 'b'", "p like 'a%'", "p is null", "p <=> null", "p in ('ü', 'x')"]),
    "date": (["2024-01-31", "2023-12-01", None], ["p = '2024-01-31'", "p < date '2024-01-01'", "p is null"]),
    "boolean": (["true", "false", None], ["p = true", "p", "not p", "p is null"]),
    "decimal(10,2)": (["1.50", "-20.00", None], ["p = 1.5", "p < 0", "p is null"]),
    "double": (["1.5", "NaN", "-Infinity", None], ["p = 1.5", "p < 0", "p > 2", "p is null"]),
    "timestamp": (
        ["2024-01-01 00:00:00", "2024-01-02T03:04:05.678901Z", None],
        ["p = timestamp '2024-01-01T00:00:00Z'", "p > timestamp '2024-01-01T12:00:00Z'", "p is null"],
    ),
}


@pytest.mark.parametrize("form", ["commits", "checkpoint", "small row groups", "without typed columns", "checkpoint and tail"])
@pytest.mark.parametrize(("type_", "predicate"), [(t, p) for t, (_, ps) in TYPES.items() for p in ps])
def test_partition_pruning(table: Path, form: str, type_: str, predicate: str) -> None:
    schema = json.loads(SCHEMA)
    schema["fields"].append({"name": "p", "type": type_, "nullable": True, "metadata": {}})
    values = TYPES[type_][0]
    adds = [add(f"{i}-{n}", partition_values={"p": value}) for n in range(3) for i, value in enumerate(values)]
    configuration = {"delta.checkpoint.writeStatsAsStruct": str(form != "without typed columns").lower()}
    half = len(adds) // 2 if form == "checkpoint and tail" else len(adds)
    create_table(table, *adds[:half], schema_string=json.dumps(schema), partition_columns=["p"], configuration=configuration)
    if form != "commits":
        write_checkpoint(snapshot_of(table))
    if form == "small row groups":
        file = log_path(table, f"{0:020d}.checkpoint.parquet")
        pq.write_table(pq.read_table(file), file, row_group_size=2)
    if half < len(adds):
        write_commit(table, 1, *adds[half:])
    snapshot = snapshot_of(table)
    from airflow_delta.log.expressions.predicate import Predicate

    bound = Predicate.parse(predicate, snapshot.schema, ["p"])
    expected = sorted(file.path for file in adds if bound.matches_partition(file.partition_values))
    assert 0 < len(expected) < len(adds)
    assert paths(snapshot, predicate) == expected


def test_row_groups_of_other_partitions_are_not_read(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_delta.log.checkpoint import part_files as checkpoint_files

    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 10)
    create_table(table, *(add(f"{n}", part=f"p{n % 10}") for n in range(100)), partition_columns=["part"])
    write_checkpoint(snapshot_of(table))
    kept: list[bool] = []
    keeps = files_filter.FileFilter.keeps

    def spy(self, group):
        kept.append(keeps(self, group))
        return kept[-1]

    monkeypatch.setattr(files_filter.FileFilter, "keeps", spy)
    assert len(paths(snapshot_of(table), "part = 'p4'")) == 10
    assert (len(kept), sum(kept)) == (10, 1)


# -- data skipping ------------------------------------------------------------------------------------------------------------


def stats(low: int, high: int) -> str:
    return json.dumps({"numRecords": 10, "minValues": {"id": low}, "maxValues": {"id": high}, "nullCount": {"id": 0}})


@pytest.mark.parametrize(("as_json", "as_struct"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("where", ["commits", "checkpoint", "both"])
def test_data_skipping(table: Path, where: str, as_json: bool, as_struct: bool) -> None:
    configuration = {
        "delta.checkpoint.writeStatsAsStruct": str(as_struct).lower(),
        "delta.checkpoint.writeStatsAsJson": str(as_json).lower(),
    }
    adds = [add(f"{n}", part=f"p{n % 2}", stats=stats(n * 10, n * 10 + 9)) for n in range(20)] + [add("unknown", part="p0")]
    cut = 12 if where == "both" else len(adds)
    create_table(table, *adds[:cut], partition_columns=["part"], configuration=configuration)
    if where != "commits":
        write_checkpoint(snapshot_of(table))
    if cut < len(adds):
        write_commit(table, 1, *adds[cut:])
    snapshot = snapshot_of(table)
    assert paths(snapshot, "id = 35") == ["3", "unknown"]
    assert paths(snapshot, "id between 100 and 125") == ["10", "11", "12", "unknown"]
    assert paths(snapshot, "id >= 150 and part = 'p1'") == ["15", "17", "19"]
    assert paths(snapshot, "id = 35 and part = 'p0'") == ["unknown"]
    assert {"unknown", *(str(n) for n in range(1, 20, 2))} <= set(paths(snapshot, "id = 35 or part = 'p1'"))
    assert paths(snapshot, "id is null") == ["unknown"]


def test_a_table_of_delta_rs(table: Path) -> None:
    data = pa.table({"id": pa.array(range(60), pa.int64()), "part": pa.array([f"p {n % 6}/%" for n in range(60)])})
    write_deltalake(str(table), data, partition_by=["part"])
    write_deltalake(str(table), data, mode="append")
    DeltaTable(str(table)).create_checkpoint()
    DeltaTable(str(table)).delete("part = 'p 2/%'")
    theirs = DeltaTable(str(table))
    snapshot = snapshot_of(table)
    listed = pa.table(theirs.get_add_actions(flatten=True))
    assert paths(snapshot) == sorted(listed["path"].to_pylist())
    expected = listed.filter(pc.equal(listed["partition.part"], "p 3/%"))
    assert paths(snapshot, "part = 'p 3/%'") == sorted(expected["path"].to_pylist())
    assert paths(snapshot, "part = 'p 2/%'") == []


# -- any history --------------------------------------------------------------------------------------------------------------

_STEP = st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from(["a", "b%2f", "b%2F", "c", "d"])), max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(_STEP, st.booleans()), min_size=1, max_size=6))
def test_any_history_with_any_checkpoints(tmp_path: Path, steps: list) -> None:
    table = tmp_path / uuid.uuid4().hex
    create_table(table, partition_columns=["part"])
    live: dict[str, str] = {}
    for version, (actions, checkpoint) in enumerate(steps, start=1):
        unique = {path.upper(): (kind, path) for kind, path in actions}
        write_commit(table, version, *(add(p, part=p[0]) if kind == "add" else remove(p) for kind, p in unique.values()))
        for kind, path in unique.values():
            live.pop(path.upper(), None)
            if kind == "add":
                live[path.upper()] = path
        if checkpoint:
            write_checkpoint(snapshot_of(table))
    snapshot = snapshot_of(table)
    assert paths(snapshot) == sorted(live.values())
    assert paths(snapshot, "part = 'b'") == sorted(path for path in live.values() if path[0] == "b")
