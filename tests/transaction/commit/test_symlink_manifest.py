"""Symlink manifests, as the hook and the command write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_delta.exceptions import DeltaUnsupportedOperationException, PostCommitHookFailedException
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from airflow_delta.transaction import Operation, events
from airflow_delta.transaction.commit.symlink_manifest import DIRECTORY, SymlinkManifestHook, absolute_path, generate_manifests
from support.actions import add, remove, schema
from support.table import Table

ENABLED = {"delta.compatibility.symlinkFormatManifest.enabled": "true"}
WRITE = Operation.write()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


@pytest.fixture
def kinds() -> Iterator[list[str]]:
    seen: list[str] = []

    def listen(name: str, uri: str, data: Mapping[str, Any]) -> None:
        if name.startswith("delta.compatibility.symlinkFormatManifest."):
            seen.append(f"{name.split('.')[3]} +{data['filesWritten']} -{data['filesDeleted']}")

    events.add_listener(listen)
    yield seen
    events.remove_listener(listen)


def manifests(table: Table) -> dict[str, list[str]]:
    root = table.path / DIRECTORY
    prefix = f"file:{table.path}/"
    return {
        str(path.parent.relative_to(root)): [line.removeprefix(prefix) for line in path.read_text().splitlines()]
        for path in root.rglob("manifest")
    }


def test_a_table_without_partitions(table: Table, kinds: list[str]) -> None:
    table.create(configuration=ENABLED)
    assert not (table.path / DIRECTORY).exists(), "the first commit has no files"
    table.commit(add("a"), add("b%20c"))
    assert manifests(table) == {".": ["a", "b c"]}
    assert (table.path / DIRECTORY / "manifest").read_text() == f"file:{table.path}/a\nfile:{table.path}/b c\n"
    table.commit(remove("a"), remove("b%20c"), operation=Operation.delete())
    assert manifests(table) == {".": []}, "an empty table has an empty manifest"
    assert kinds == ["full +1 -0", "full +1 -0"]


def test_only_touched_partitions_are_written(table: Table, kinds: list[str]) -> None:
    table.create(("part",), configuration=ENABLED)
    table.commit(add("a", part=1), add("b", part=2), add("n", part=None))
    assert manifests(table) == {"part=1": ["a"], "part=2": ["b"], "part=__HIVE_DEFAULT_PARTITION__": ["n"]}
    untouched = (table.path / DIRECTORY / "part=2" / "manifest").stat().st_mtime_ns
    table.commit(add("c", part=1), add("d", part=3))
    assert manifests(table)["part=1"] == ["a", "c"]
    assert manifests(table)["part=3"] == ["d"]
    assert (table.path / DIRECTORY / "part=2" / "manifest").stat().st_mtime_ns == untouched
    table.commit(remove("d", part=3), add("e", part=2), operation=Operation.update())
    assert manifests(table) == {"part=1": ["a", "c"], "part=2": ["b", "e"], "part=__HIVE_DEFAULT_PARTITION__": ["n"]}
    assert not (table.path / DIRECTORY / "part=3").exists()
    assert kinds == ["full +3 -0", "incremental +2 -0", "incremental +1 -1"]


@pytest.mark.parametrize("before", [("part",), ()])
def test_another_partitioning_leaves_nothing_of_the_old_one(table: Table, before: tuple[str, ...], kinds: list[str]) -> None:
    text = schema(value="integer", part="integer", other="integer")
    table.create(before, configuration=ENABLED, schema_string=text)
    values = dict.fromkeys(before, 1)
    table.commit(add("a", **values))
    changed = msgspec.structs.replace(table.log().snapshot.metadata, partition_columns=["other"])
    overwrite = Operation.write("Overwrite", ["other"], can_overwrite_schema=True)
    table.commit(changed, remove("a", **values), add("b", other=2), operation=overwrite)
    assert manifests(table) == {"other=2": ["b"]}
    assert kinds[-1] == "full +1 -1"


def test_a_tombstone_that_does_not_say_its_partition(table: Table) -> None:
    table.create(("part",), configuration=ENABLED)
    table.commit(add("a", part=1), add("b", part=2))
    bare = RemoveFile(path="a", deletion_timestamp=1, data_change=True)
    table.commit(bare, operation=Operation.delete())
    assert manifests(table) == {"part=2": ["b"]}


def test_directories_are_named_as_spark_names_them(table: Table) -> None:
    text = schema(value="integer", a="string", b="string")
    table.create(("a", "b"), configuration=ENABLED, schema_string=text)
    table.commit(add("f", a="x/y:%", b="ü z"), add("g", a="", b="="))
    assert set(manifests(table)) == {"a=x%2Fy%3A%25/b=ü z", "a=__HIVE_DEFAULT_PARTITION__/b=%3D"}


def test_paths_outside_the_table_stay(table: Table) -> None:
    store = table.create().store
    assert absolute_path(store, "s3://b/x%20y") == "s3://b/x y"
    assert absolute_path(store, "/abs/f") == "/abs/f"
    assert absolute_path(store, "part=a%2520b/f") == f"file:{table.path}/part=a%20b/f"


def test_generate_deletes_what_is_gone(table: Table, kinds: list[str]) -> None:
    table.create(("part",))
    table.commit(add("a", part=1), add("b", part=2))
    log = table.log()
    assert generate_manifests(log) == 2
    table.commit(remove("b", part=2), operation=Operation.delete())
    assert manifests(table) == {"part=1": ["a"], "part=2": ["b"]}, "no hook without the property"
    assert generate_manifests(log) == 1
    assert manifests(table) == {"part=1": ["a"]}
    assert kinds == ["full +2 -0", "full +1 -1"]
    assert generate_manifests(log, log.snapshot_at(1)) == 2


def test_deletion_vectors_are_refused(table: Table) -> None:
    table.create(configuration={"delta.enableDeletionVectors": "true"})
    vector = DeletionVectorDescriptor(storage_type="u", path_or_inline_dv="ab", offset=1, size_in_bytes=9, cardinality=1)
    file: AddFile = add("a", deletion_vector=vector, stats='{"numRecords":5}')
    table.commit(file, add("b"))
    with pytest.raises(DeltaUnsupportedOperationException, match="DELTA_UNSUPPORTED_GENERATE_WITH_DELETION_VECTORS"):
        generate_manifests(table.log())
    transaction = table.log().start_transaction()
    transaction.register_post_commit_hook(SymlinkManifestHook())
    with pytest.raises(DeltaUnsupportedOperationException):
        transaction.commit([add("c")], WRITE)
    assert transaction.committed, "the commit stays"


def test_column_mapping_is_refused_and_the_commit_stays(table: Table) -> None:
    table.create(configuration={**ENABLED, "delta.columnMapping.mode": "name"})
    with pytest.raises(DeltaUnsupportedOperationException, match="DELTA_UNSUPPORTED_MANIFEST_GENERATION_WITH_COLUMN_MAPPING"):
        table.commit(add("a"))
    assert table.live() == {"a"}


def test_a_manifest_that_cannot_be_written_is_told(table: Table) -> None:
    table.create(configuration=ENABLED)
    (table.path / DIRECTORY).write_text("in the way")
    with pytest.raises(PostCommitHookFailedException, match="symlink manifests could not be updated") as caught:
        table.commit(add("a"))
    assert caught.value.version == 1
    assert table.live() == {"a"}


def test_registered_once_and_last(table: Table) -> None:
    table.create(configuration=ENABLED)
    transaction = table.log().start_transaction()
    transaction.register_post_commit_hook(SymlinkManifestHook())
    transaction.commit([add("a")], WRITE)
    assert [hook.name for hook in transaction.post_commit_hooks] == [
        "Post commit checksum",
        "Post commit checkpoint trigger",
        "Generate Symlink Format Manifest",
    ]
    assert json.loads((table.path / "_delta_log" / f"{1:020d}.crc").read_text())["numFiles"] == 1
