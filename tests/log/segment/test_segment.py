"""Which files make up a version (Delta's SnapshotManagementSuite, FindLastCompleteCheckpointSuite)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_delta.exceptions import VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.log.segment.segment import LogSegment, load_segment
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.factory import store_for
from support import tables


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(storage: str, tmp_path: Path, request: pytest.FixtureRequest):
    """Make a log of files by name (content or size), on either storage."""

    def build(names: dict[str, bytes]) -> LogStore:
        if storage == "local":
            store = store_for(str(tmp_path / "t"), {"durable": "false"})
        else:
            store = store_for(request.getfixturevalue("s3_table"), request.getfixturevalue("s3_options"))
        for name, content in names.items():
            store.put(f"_delta_log/{name}", content)
        return store

    return build


def commits(*versions: int) -> dict[str, bytes]:
    return {f"{version:020d}.json": b"{}" for version in versions}


def checkpoint(version: int, content: bytes = b"x") -> dict[str, bytes]:
    return {f"{version:020d}.checkpoint.parquet": content}


def parts(version: int, present: list[int], total: int, content: bytes = b"x") -> dict[str, bytes]:
    return {f"{version:020d}.checkpoint.{part:010d}.{total:010d}.parquet": content for part in present}


def hint(version: object) -> dict[str, bytes]:
    return {"_last_checkpoint": b'{"version":%s,"size":1}' % str(version).encode()}


def segment(store: LogStore, version: int | None = None) -> LogSegment:
    found = load_segment(store, version)
    assert found is not None
    return found


def summary(found: LogSegment) -> tuple[int, int | None, list[int]]:
    return found.version, found.checkpoint.version if found.checkpoint else None, list(found.commit_versions)


LONG = commits(*range(13))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (commits(0), (0, None, [0])),
        (commits(0, 1, 2), (2, None, [0, 1, 2])),
        ({**LONG, **checkpoint(10)}, (12, 10, [11, 12])),
        ({**LONG, **checkpoint(10), **hint(10)}, (12, 10, [11, 12])),
        ({**commits(11, 12), **checkpoint(10), **hint(10)}, (12, 10, [11, 12])),
        ({**checkpoint(10), **hint(10)}, (10, 10, [])),
        ({**LONG, **checkpoint(5), **checkpoint(10), **hint(5)}, (12, 10, [11, 12])),
        ({**LONG, **checkpoint(5), **hint(10)}, (12, 5, list(range(6, 13)))),
        ({**LONG, **checkpoint(5), **hint(99)}, (12, 5, list(range(6, 13)))),
        ({**LONG, **hint(5)}, (12, None, list(range(13)))),
        ({**LONG, **checkpoint(10), "_last_checkpoint": b'{"version":'}, (12, 10, [11, 12])),
        ({**LONG, **checkpoint(10), "_last_checkpoint": b""}, (12, 10, [11, 12])),
        ({**LONG, **checkpoint(10), **hint('"ten"')}, (12, 10, [11, 12])),
        ({**LONG, **checkpoint(10), **hint(-1)}, (12, 10, [11, 12])),
        ({**LONG, **parts(10, [1, 2, 3], 3), **hint(10)}, (12, 10, [11, 12])),
        ({**LONG, **checkpoint(5), **parts(10, [1, 3], 3), **hint(10)}, (12, 5, list(range(6, 13)))),
        ({**LONG, **checkpoint(5), **checkpoint(10, b""), **hint(10)}, (12, 5, list(range(6, 13)))),
        ({**LONG, **checkpoint(10, b""), **parts(10, [1, 2], 2)}, (12, 10, [11, 12])),
        ({**LONG, **parts(10, [1], 2), **parts(10, [1, 2, 3], 3)}, (12, 10, [11, 12])),
        ({**commits(0, 1), "_staged_commits": b"", "1.json": b"", "x.tmp": b"", f"{5:020d}.json.tmp": b""}, (1, None, [0, 1])),
        ({**commits(0, 1), f"{0:020d}.{1:020d}.compacted.json": b"{}"}, (1, None, [0, 1])),
    ],
)
def test_latest_version(make, names: dict[str, bytes], expected: tuple[int, int | None, list[int]]) -> None:
    assert summary(segment(make(names))) == expected


def test_multi_part_checkpoints_keep_the_order_of_their_parts(make) -> None:
    found = segment(make({**LONG, **parts(10, [2, 1, 3], 3)}))
    assert found.checkpoint is not None
    assert [part.name[-24:] for part in found.checkpoint.parts] == [f"{n:010d}.{3:010d}.parquet"[-24:] for n in (1, 2, 3)]
    assert [part.size for part in found.checkpoint.parts] == [1, 1, 1]


@pytest.mark.parametrize("names", [{}, hint(3), {"_last_checkpoint": b"garbage", "something": b""}, checkpoint(10, b"")])
def test_no_table(make, names: dict[str, bytes]) -> None:
    assert load_segment(make(names)) is None


@pytest.mark.parametrize(
    ("version", "expected"),
    [(12, (12, 10, [11, 12])), (10, (10, 10, [])), (9, (9, 5, [6, 7, 8, 9])), (5, (5, 5, [])), (4, (4, None, [0, 1, 2, 3, 4]))],
)
def test_an_older_version_uses_an_older_checkpoint(make, version: int, expected: tuple[int, int | None, list[int]]) -> None:
    assert summary(segment(make({**LONG, **checkpoint(5), **checkpoint(10), **hint(10)}), version)) == expected


@pytest.mark.parametrize("version", [-1, 0, 4, 13, 99])
def test_versions_that_are_not_there(make, version: int) -> None:
    store = make({**commits(*range(3, 13)), **checkpoint(5), **checkpoint(10), **hint(10)})
    with pytest.raises(VersionNotFoundException, match="holds versions 5 to 12") as caught:
        load_segment(store, version)
    assert (caught.value.earliest, caught.value.latest, caught.value.version) == (5, 12, version)
    assert store.root in str(caught.value)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (commits(0, 2), 1),
        (commits(1, 2), 0),
        ({**commits(0, 1, 2, 12), **checkpoint(10), **hint(10)}, 11),
        ({**commits(0, 1, 4), **checkpoint(1)}, 2),
        ({**commits(8, 9, 10), **checkpoint(9, b"")}, 0),
    ],
)
def test_gaps(make, names: dict[str, bytes], missing: int) -> None:
    store = make(names)
    with pytest.raises(VersionsNotContiguousException) as caught:
        load_segment(store)
    assert caught.value.version == missing
    assert store.root in str(caught.value)
    assert "backup" in str(caught.value)


def test_a_gap_below_the_checkpoint_does_not_matter(make) -> None:
    assert summary(segment(make({**commits(0, 1, 7, 11), **checkpoint(10)}))) == (11, 10, [11])


UUIDS = ["80a083e8-7026-4e79-81be-64bd76c43a11", "90a083e8-7026-4e79-81be-64bd76c43a11"]


def manifest(version: int, extension: str = "json", content: bytes = b"x", unique: str = UUIDS[0]) -> dict[str, bytes]:
    return {f"{version:020d}.checkpoint.{unique}.{extension}": content}


def compacted(*runs: tuple[int, int]) -> dict[str, bytes]:
    return {f"{first:020d}.{last:020d}.compacted.json": b"{}" for first, last in runs}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (manifest(10), UUIDS[0]),
        ({**manifest(10, "parquet"), **checkpoint(10)}, UUIDS[0]),
        ({**manifest(10), **checkpoint(10), **parts(10, [1, 2], 2)}, UUIDS[0]),
        ({**checkpoint(10), **parts(10, [1, 2], 2)}, "0000000002"),
        ({**parts(10, [1, 2], 2), **parts(10, [1, 2, 3], 3)}, "0000000003"),
        ({**checkpoint(10), **parts(10, [1], 2)}, "checkpoint.parquet"),
        ({**manifest(10), **manifest(10, unique=UUIDS[1])}, UUIDS[1]),
        ({**manifest(10, content=b""), **checkpoint(10)}, "checkpoint.parquet"),
        ({**manifest(10), **checkpoint(9)}, UUIDS[0]),
        ({**manifest(9), **checkpoint(10)}, "checkpoint.parquet"),
    ],
)
@pytest.mark.parametrize("tail", [commits(11, 12), LONG])
def test_which_checkpoint_of_several(make, names: dict[str, bytes], chosen: str, tail: dict[str, bytes]) -> None:
    """Delta's CheckpointInstance: the later version, then SINGLE < WITH_PARTS < V2."""
    found = segment(make({**tail, **names}))
    assert found.version == 12
    assert found.checkpoint is not None
    assert chosen in found.checkpoint.parts[-1].name


@pytest.mark.parametrize(
    ("files", "version", "chosen"),
    [
        (compacted((1, 4)), None, [(1, 4)]),
        (compacted((11, 12)), None, [(11, 12)]),
        (compacted((1, 4), (5, 8)), None, [(1, 4), (5, 8)]),
        (compacted((1, 4), (4, 8), (5, 6)), None, [(1, 4), (5, 6)]),
        (compacted((1, 4), (1, 6)), None, [(1, 4)]),
        (compacted((1, 13)), None, []),
        (compacted((5, 12)), 8, []),
        ({**compacted((9, 11), (11, 12)), **checkpoint(10)}, None, [(11, 12)]),
        (compacted((4, 1)), None, []),
    ],
)
def test_which_compaction_files(make, files: dict[str, bytes], version: int | None, chosen: list[tuple[int, int]]) -> None:
    """Delta's ``useCompactedDeltasForLogSegment``; commits stay in the segment."""
    found = segment(make({**LONG, **files}), version)
    assert [(run.first, run.last) for run in found.compactions] == chosen
    assert found.commit_versions.stop == found.version + 1


def test_checksums_are_listed_newest_first_from_the_checkpoint_on(make) -> None:
    crcs = {f"{version:020d}.crc": b"{}" for version in (3, 10, 11)}
    store = make({**LONG, **checkpoint(10), **crcs})
    assert segment(store).checksum_versions == (11, 10)
    assert segment(store, 9).checksum_versions == (3,)


def test_excluded_checkpoints_are_not_used(make) -> None:
    store = make({**LONG, **checkpoint(5), **checkpoint(10), **hint(10)})
    found = load_segment(store, exclude=frozenset({10}))
    assert found is not None
    assert summary(found) == (12, 5, list(range(6, 13)))


def test_a_commit_that_a_directory_listing_missed_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.table_with_commits(tmp_path, 5)
    store = store_for(str(tmp_path))
    complete = store.list_from
    monkeypatch.setattr(
        store,
        "list_from",
        lambda *args, **options: [status for status in complete(*args, **options) if not status.name.endswith("4.json")],
    )
    assert summary(segment(store)) == (5, None, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("version", [None, 10])
def test_a_checkpoint_after_the_last_commit_is_refused(tmp_path: Path, version: int | None) -> None:
    """One that was copied under another name would be another table."""
    tables.table_with_commits(tmp_path, 8)
    store = store_for(str(tmp_path))
    store.put(f"_delta_log/{10:020d}.checkpoint.parquet", b"PAR1")
    with pytest.raises(VersionsNotContiguousException, match="checkpoint of version 10, but its commits end at version 8"):
        segment(store, version)
    assert summary(segment(store, 8)) == (8, None, list(range(9)))


def test_a_checkpoint_whose_commit_a_listing_missed_is_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.table_with_commits(tmp_path, 5)
    store = store_for(str(tmp_path))
    store.put(f"_delta_log/{5:020d}.checkpoint.parquet", b"PAR1")
    complete = store.list_from
    monkeypatch.setattr(
        store,
        "list_from",
        lambda *args, **options: [status for status in complete(*args, **options) if not status.name.endswith("5.json")],
    )
    assert segment(store).version == 5


@pytest.mark.s3
def test_a_hint_that_does_not_hold_is_logged(s3_table, s3_options, caplog: pytest.LogCaptureFixture) -> None:
    store = store_for(s3_table, s3_options)
    for name, content in {**commits(0, 1), **hint(7)}.items():
        store.put(f"_delta_log/{name}", content)
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert segment(store).version == 1
    assert "_last_checkpoint names version 7" in caplog.text
