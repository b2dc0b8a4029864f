"""FSCK REPAIR TABLE: the entries of files that are gone; what Delta Spark reads afterwards: tests/delta_spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    AppendOnlyException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    PathOutsideTableException,
    TransactionAlreadyCommittedException,
)
from airflow_delta.log import DeltaLog, delta_log
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.storage.base import FileStatus, LogStore
from airflow_delta.log.storage.errors import StoreAccessError
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.operations import repair
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.repair import MissingFiles, RepairResult, find_missing_files, repair_table
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.transaction import Operation
from airflow_delta.transaction.commit.symlink_manifest import DIRECTORY
from faults.shared.layers import Remote
from support.actions import add, vector
from support.table import Table


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Twelve files of a row each, in partitions whose names need to be encoded."""
    table = Table(tmp_path_factory.mktemp("original") / "table")
    for value in range(12):
        rows = pa.table({"id": [value], "p": [("x y", "50%", "ü/=:", None)[value % 4]]})
        deltalake.write_deltalake(table.uri, rows, mode="append", partition_by=["p"])
    return table


@pytest.fixture
def table(tmp_path: Path, original: Table) -> Table:
    table = Table(tmp_path / "a b")
    table.copy_from(original)
    return table


def run(table: Table, key: str = "repair", **options: Any) -> RepairResult:
    return repair_table(table.log(), transaction_key=key, attempt="1-0", **options)


def files(table: Table) -> dict[int, AddFile]:
    """Return the files by their row."""
    found = {}
    for file in table.log().update().add_files():
        stats = file.stats or ""
        found[int(stats.partition('"minValues":{"id":')[2].partition("}")[0].partition(",")[0])] = file
    return found


def lose(table: Table, *ids: int) -> list[str]:
    """Delete the files of some rows, and return their paths in the log."""
    lost = [files(table)[id_].path for id_ in ids]
    for path in lost:
        (table.path / unquote(path)).unlink()
    return sorted(lost)


def ids(table: Table) -> list[int]:
    return sorted(row[0] for row in table.rows())


def paths(missing: MissingFiles | None) -> list[str]:
    assert missing is not None
    return [file.path for file in missing.files]


def through(monkeypatch: pytest.MonkeyPatch, layer: Callable[[LogStore], LogStore]) -> None:
    """Have tables opened through a layer from here on."""
    opened = delta_log.store_for
    monkeypatch.setattr(delta_log, "store_for", lambda *args, **options: layer(opened(*args, **options)))


def meanwhile(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], Any]) -> list[set[str] | None]:
    """Have something happen after each look, and return a list of what was looked for."""
    look, looks, left = repair._look, [], list(others)

    def slow(snapshot: Any, only: set[str] | None = None) -> MissingFiles:
        looks.append(only)
        found = look(snapshot, only)
        if left:
            left.pop(0)()
        return found

    monkeypatch.setattr(repair, "_look", slow)
    return looks


def test_nothing_is_missing(table: Table) -> None:
    missing = find_missing_files(table.log())
    assert (missing.num_files, missing.files, missing.missing_share, missing.refusal(0.1)) == (12, (), 0, None)
    result = run(table)
    assert (result.commit.version, result.commit.attempts, result.commit.committed_nothing) == (11, 0, True)
    assert paths(result.missing) == []


def test_a_file_is_gone(table: Table) -> None:
    lost = lose(table, 5)
    found = find_missing_files(table.log()).to_dict()
    assert found["paths"] == lost
    assert (found["numMissingFiles"], found["numMissingRecords"], found["missingShare"] > 1 / 13) == (1, 1, True)
    assert table.versions()[-1] == 11, "a look commits nothing"
    result = run(table)
    assert (result.commit.version, result.commit.operation, result.commit.num_removed_files) == (12, "FSCK", 1)
    commit = table.actions(12)
    assert commit.keys() == {"commitInfo", "txn", "remove"}
    [removed] = commit["remove"]
    assert (removed["path"], removed["dataChange"]) == (lost[0], True)
    info = commit["commitInfo"][0]
    assert (info["operation"], info["isBlindAppend"], info["operationMetrics"]) == (
        "FSCK",
        False,
        {"numRemovedFiles": "1", "numRemovedBytes": str(removed["size"]), "numScannedFiles": "12", "numDeletedRows": "1"},
    )
    assert ids(table) == [id_ for id_ in range(12) if id_ != 5]
    assert table.log().history()[0].operation == "FSCK"


def test_it_removes_what_delta_rs_removes(table: Table, tmp_path: Path) -> None:
    lose(table, 2, 3, 5)
    peer = Table(tmp_path / "peer")
    peer.copy_from(table)
    theirs = deltalake.DeltaTable(peer.uri).repair(dry_run=True)["files_removed"]
    assert sorted(theirs) == sorted(map(unquote, paths(find_missing_files(table.log()))))
    deltalake.DeltaTable(peer.uri).repair()
    run(table, max_missing_share=0.5)
    ours, peers = ({unquote(a["path"]) for a in t.actions(12)["remove"]} for t in (table, peer))
    assert ours == peers
    assert [t.info(12)["operation"] for t in (table, peer)] == ["FSCK", "FSCK"]
    assert ids(table) == ids(peer)


def test_once_for_its_identity(table: Table) -> None:
    """A try that was killed after its commit: the next one tells the same, and does not look again."""
    lost = lose(table, 5)
    first = run(table)
    more = lose(table, 6)
    again = run(table)
    assert (again.commit.committed_before, again.commit.version) == (True, first.commit.version)
    assert paths(again.missing) == lost
    assert again.missing is not None
    assert again.missing.to_dict()["numMissingRecords"] == 1
    assert paths(run(table, rerun_policy="append").missing) == more
    with pytest.raises(TransactionAlreadyCommittedException):
        run(table, rerun_policy="fail")
    assert ids(table) == [*range(5), *range(7, 12)]


class TestRefusals:
    @pytest.mark.parametrize("share", [None, "0.5", 0, -1, 1.5, float("nan"), True])
    def test_shares(self, table: Table, share: Any) -> None:
        lose(table, 5)
        with pytest.raises(DeltaIllegalArgumentException, match="max_missing_share"):
            run(table, max_missing_share=share)
        with pytest.raises(DeltaIllegalArgumentException, match="max_missing_share"):
            find_missing_files(table.log()).refusal(share)

    def test_more_than_the_share(self, table: Table) -> None:
        lose(table, 5, 6)
        with pytest.raises(DeltaFileNotFoundException, match=r"2 of its 12 files are gone .* max_missing_share=0\.1"):
            run(table)
        assert table.versions()[-1] == 11
        assert run(table, max_missing_share=0.5).commit.num_removed_files == 2

    def test_the_share_is_also_of_bytes(self, tmp_path: Path) -> None:
        table = Table(tmp_path / "table")
        table.create()
        table.commit(add("large", size=9_000), *(add(f"small-{number}", size=10) for number in range(99)))
        for number in range(99):
            (table.path / f"small-{number}").touch()
        missing = find_missing_files(table.log())
        assert missing.missing_share > 0.9
        assert missing.missing_records is None, "its statistics do not say"
        with pytest.raises(DeltaFileNotFoundException, match="1 of its 100 files"):
            run(table)

    def test_nothing_is_found(self, table: Table) -> None:
        """A mount that is not there looks like this: no share allows it."""
        for directory in table.path.glob("p=*"):
            shutil.rmtree(directory)
        refusal = find_missing_files(table.log()).refusal(1)
        assert refusal is not None
        assert "None of its 12 files was found" in refusal.message
        with pytest.raises(DeltaFileNotFoundException, match="None of its 12 files was found"):
            run(table, max_missing_share=1)
        shutil.rmtree(table.path)
        for attempt in (find_missing_files, lambda log: repair_table(log, transaction_key="k", attempt="1-0")):
            with pytest.raises(DeltaTableNotFoundException):
                attempt(table.log())
        assert not table.path.exists()

    @pytest.mark.parametrize("error", [StoreAccessError("403"), PermissionError("no"), TimeoutError("late")])
    @pytest.mark.parametrize("method", ["head", "list_recursive"])
    def test_the_store_does_not_say(self, table: Table, monkeypatch: pytest.MonkeyPatch, error: OSError, method: str) -> None:
        lost = unquote(lose(table, 5)[0])

        class Silent(Remote):
            def head(self, path: str) -> FileStatus | None:
                if method == "head" and path == lost:
                    raise error
                return super().head(path)

            def list_recursive(self, directory: str, **options: Any) -> Any:
                yield from list(super().list_recursive(directory, **options))[:3]
                if method == "list_recursive":
                    raise error

        monkeypatch.setattr(repair, "_LISTING_PAYS", 0)
        through(monkeypatch, Silent)
        for attempt in (find_missing_files, lambda log: repair_table(log, transaction_key="k", attempt="1-0")):
            with pytest.raises(type(error)):
                attempt(table.log())
        assert table.versions()[-1] == 11

    def test_a_directory_that_may_not_be_opened(self, table: Table) -> None:
        if os.geteuid() == 0:
            pytest.skip("nothing is closed to root")
        directory = next(table.path.glob("p=*"))
        directory.chmod(0)
        try:
            with pytest.raises(PermissionError):
                run(table)
        finally:
            directory.chmod(0o700)

    @pytest.mark.parametrize("path", ["s3://other/t/f.parquet", "../../f.parquet"])
    def test_files_of_other_stores(self, table: Table, path: str) -> None:
        lose(table, 5)
        table.commit(add(path, p="x"))
        with pytest.raises(PathOutsideTableException):
            run(table)

    def test_an_append_only_table(self, table: Table) -> None:
        """As every writer of Delta: rows of it must not be removed (DELTA_CANNOT_MODIFY_APPEND_ONLY)."""
        deltalake.DeltaTable(table.uri).alter.set_table_properties({"delta.appendOnly": "true"})
        assert not run(table, "first").commit.attempts
        lose(table, 5)
        assert isinstance(find_missing_files(table.log()).refusal(0.5), AppendOnlyException)
        with pytest.raises(AppendOnlyException):
            run(table)


class TestDeletionVectors:
    @pytest.fixture
    def marked(self, tmp_path: Path) -> Table:
        """Two files whose vectors are in one file that is not there, one with an inline vector, seventeen without."""
        table = Table(tmp_path / "table")
        table.create(configuration={"delta.enableDeletionVectors": "true"})
        inline = vector(None, storage_type="i", path_or_inline_dv="wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L")
        given = {"a": vector(1, cardinality=2), "b": vector(9, cardinality=2), "c": inline}
        loose = '{"numRecords":5,"tightBounds":false}'
        names = [*given, *(str(number) for number in range(17))]
        table.commit(*(add(name, stats=loose, deletion_vector=given.get(name)) for name in names))
        for name in names:
            (table.path / name).touch()
        return table

    def test_a_vector_that_is_lost_is_never_dropped(self, marked: Table) -> None:
        """The rows that it marks would come back."""
        missing = find_missing_files(marked.log())
        assert [lost.path for lost in missing.lost_vectors] == ["a", "b"]
        assert missing.to_dict(max_paths=1)["lostDeletionVectors"] == [
            {"path": "a", "deletionVector": missing.lost_vectors[0].vector}
        ]
        for lost in ((), ("0",)):
            for name in lost:
                (marked.path / name).unlink()
            with pytest.raises(DeltaFileNotFoundException, match=r"2 deletion vectors are gone.*would all come back"):
                run(marked, max_missing_share=1)
        assert marked.versions() == [0, 1]

    def test_vectors_of_files_that_are_gone_go_with_them(self, marked: Table) -> None:
        (marked.path / "a").unlink()
        (marked.path / "b").unlink()
        missing = find_missing_files(marked.log())
        assert (missing.lost_vectors, missing.missing_records) == ((), 6)
        run(marked, max_missing_share=0.2)
        removed = {action["path"]: action for action in marked.actions(2)["remove"]}
        assert {path: action["deletionVector"]["offset"] for path, action in removed.items()} == {"a": 1, "b": 9}

    def test_a_vector_that_is_there(self, marked: Table) -> None:
        there = marked.path / find_missing_files(marked.log()).lost_vectors[0].vector
        there.parent.mkdir()
        there.touch()
        (marked.path / "0").unlink()
        assert paths(run(marked).missing) == ["0"]


class TestNames:
    @pytest.mark.parametrize("lists", [False, True])
    def test_how_a_path_is_spelled_costs_no_entry(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
        """Of writers that do not encode, and names that are not UTF-8."""
        table = Table(tmp_path / "table")
        table.create()
        names = ["a%20b", "p=%25/x", "_hidden/f", "c%2Bd", "deep/er/f", "plain"]
        table.commit(*map(add, [*names, "p=%2525/gone"]))
        for place in ("a b", "p=%25/x", "_hidden/f", "c%2Bd", "deep/er/f", "plain"):  # the second and fourth not encoded
            (table.path / place).parent.mkdir(parents=True, exist_ok=True)
            (table.path / place).touch()
        if lists:
            monkeypatch.setattr(repair, "_LISTING_PAYS", 0)
            through(monkeypatch, Remote)
        else:
            table.commit(add("n%FF"))
            (table.path / os.fsdecode(b"n\xff")).touch()
        assert paths(run(table, max_missing_share=0.5).missing) == ["p=%2525/gone"]
        assert table.live() - {"n%FF"} == set(names)

    def test_a_dangling_link_and_a_directory_that_is_a_file(self, tmp_path: Path) -> None:
        table = Table(tmp_path / "table")
        table.create()
        table.commit(add("link"), add("d/f"), add("there"))
        (table.path / "link").symlink_to(table.path / "nowhere")
        (table.path / "d").touch()
        (table.path / "there").touch()
        assert paths(find_missing_files(table.log())) == ["d/f", "link"]


class TestListings:
    def test_one_listing_for_many_files(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a listing shows is there; what it does not show is asked for, since it may be behind."""
        lost = lose(table, 5)
        hidden = unquote(files(table)[4].path)
        asked: list[str] = []

        class Behind(Remote):
            def head(self, path: str) -> FileStatus | None:
                if path.endswith(".parquet"):
                    asked.append(path)
                return super().head(path)

            def list_recursive(self, directory: str, **options: Any) -> Any:
                return (status for status in super().list_recursive(directory, **options) if status.path != hidden)

        through(monkeypatch, Behind)
        assert paths(find_missing_files(table.log())) == lost
        assert len(asked) == 13, "a few files: a request for each, and one for another spelling"
        asked.clear()
        monkeypatch.setattr(repair, "_LISTING_PAYS", 12)
        assert paths(find_missing_files(table.log())) == lost
        assert sorted(asked) == sorted([hidden, unquote(lost[0]), lost[0]])


class TestClones:
    @pytest.fixture
    def clone(self, table: Table, tmp_path: Path) -> Table:
        clone = Table(tmp_path / "clone")
        clone_table(clone.log(), table.log(), transaction_key="k", attempt="1-0")
        return clone

    def test_a_source_that_has_lost_files(self, table: Table, clone: Table) -> None:
        lost = lose(table, 5)
        found = paths(find_missing_files(clone.log()))
        assert [unquote(path).removeprefix(f"file:{table.path}/") for path in found] == list(map(unquote, lost))
        run(clone)
        assert len(clone.live()) == 11
        assert table.versions()[-1] == 11, "the source is left alone"

    def test_a_source_that_is_gone(self, table: Table, clone: Table, tmp_path: Path) -> None:
        """Or whose mount is: then nothing is there, and the clone's own files prove nothing."""
        clone.commit(*(add(f"own-{number}", p="x", size=10**6) for number in range(200)))
        for number in range(200):
            (clone.path / f"own-{number}").touch()
        moved = table.path.rename(tmp_path / "elsewhere")
        missing = find_missing_files(clone.log())
        assert missing.empty_places == (f"file:{table.path}",)
        with pytest.raises(DeltaFileNotFoundException, match="where there is nothing at all"):
            run(clone, max_missing_share=1)
        (table.path / "_delta_log").mkdir(parents=True)  # the place is there, and says that the files are not
        assert len(paths(run(clone).missing)) == 12
        assert moved.exists()


class TestOthersCommitMeanwhile:
    def test_an_append(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        lost = lose(table, 5)

        def append() -> None:
            deltalake.write_deltalake(table.uri, pa.table({"id": [20], "p": ["n"]}), mode="append")

        looks = meanwhile(monkeypatch, append)
        result = run(table)
        assert (result.commit.version, result.commit.read_version) == (13, 12)
        assert looks == [None, set(lost)], "the second look is at what was missing"
        assert ids(table) == [*range(5), *range(6, 12), 20]

    def test_a_file_that_comes_back(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = files(table)[5].path
        copy = (table.path / unquote(kept)).read_bytes()
        lost = lose(table, 5, 6)

        def bring_back() -> None:
            (table.path / unquote(kept)).write_bytes(copy)
            table.commit(operation=Operation.manual_update())

        meanwhile(monkeypatch, bring_back)
        assert paths(run(table, max_missing_share=0.5).missing) == [path for path in lost if path != kept]
        assert ids(table) == [*range(6), *range(7, 12)]

    @pytest.mark.parametrize("other", ["delete", "overwrite", "restore", "fsck"])
    def test_another_removes_the_entry(self, table: Table, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
        lost = lose(table, 5)[0]

        def act() -> None:
            if other == "delete":
                table.commit(files_before[5].remove(1), operation=Operation.delete())
            elif other == "overwrite":
                deltalake.write_deltalake(table.uri, pa.table({"id": [20], "p": ["n"]}), mode="overwrite")
            elif other == "restore":
                restore(table.log(), version=4, transaction_key="r", attempt="1-0")
            else:
                run(table, "another")

        files_before = files(table)
        meanwhile(monkeypatch, act)
        result = run(table)
        assert (result.commit.version, result.commit.committed_nothing) == (12, True)
        assert lost not in table.live()

    def test_another_rewrites_it(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of two that are missing, one is replaced by a file with its rows: that one stays."""
        lost = lose(table, 5, 6)
        old = files(table)[5]

        def rewrite() -> None:
            pq.write_table(pa.table({"id": [5]}), table.path / "p=50%25" / "new.parquet")
            size = (table.path / "p=50%25" / "new.parquet").stat().st_size
            new = add("p=50%2525/new.parquet", stats='{"numRecords":1}', size=size, p="50%")
            table.commit(old.remove(1), new, operation=Operation.manual_update())

        meanwhile(monkeypatch, rewrite)
        assert paths(run(table, max_missing_share=0.5).missing) == [path for path in lost if path != old.path]
        assert ids(table) == [*range(6), *range(7, 12)]

    def test_again_and_again(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        lose(table, 5)
        others = [lambda: table.commit(operation=Operation.manual_update())] * 3
        looks = meanwhile(monkeypatch, *others)
        with pytest.raises(ConcurrentWriteException):
            run(table, max_restarts=2)
        assert (len(looks), table.versions()[-1]) == (3, 14)
        assert run(table).commit.version == 15

    def test_two_tries_of_one_task(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        lost = lose(table, 5)
        meanwhile(monkeypatch, lambda: run(table))
        assert paths(run(table).missing) == lost
        assert table.versions()[-1] == 12

    def test_vacuum(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        """It deletes no file of the table, before or after."""
        lose(table, 5)
        meanwhile(monkeypatch, lambda: vacuum(table.log(), retention_hours=0, retention_check=False))
        run(table)
        vacuum(table.log(), retention_hours=0, retention_check=False)
        assert ids(table) == [*range(5), *range(6, 12)]

    def test_a_transaction_that_has_read_the_file(self, table: Table) -> None:
        lose(table, 5)
        other = table.log().start_transaction()
        other.filter_files()
        run(table)
        with pytest.raises(ConcurrentDeleteReadException):
            other.commit([add("new", p="x"), *[f.remove(1) for f in other.snapshot.add_files()]], Operation.manual_update())


def test_the_change_data_feed_cannot_tell_the_rows(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Nor could Delta Spark: they are in files that are gone. Versions after it are read as ever."""
    deltalake.DeltaTable(table.uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    lose(table, 5)
    version = run(table).commit.version
    assert "cannot read the version of this repair" in caplog.text
    deltalake.write_deltalake(table.uri, pa.table({"id": [20], "p": ["n"]}), mode="append")
    plan_changes(table.log(), starting_version=version + 1)


def test_a_checkpoint_and_the_features_of_a_table(tmp_path: Path) -> None:
    """Row ids, timestamps in commits, column mapping; the entry is in a checkpoint."""
    table = Table(tmp_path / "table")
    table.create(
        configuration={
            "delta.enableRowTracking": "true",
            "delta.enableInCommitTimestamps": "true",
            "delta.columnMapping.mode": "name",
            "delta.checkpointInterval": "2",
        }
    )
    table.commit(*(add(f"{number}", stats='{"numRecords":3}') for number in range(20)))
    table.commit(operation=Operation.manual_update())
    for number in range(1, 20):
        (table.path / f"{number}").touch()
    assert table.log().update().segment.checkpoint is not None
    result = run(table)
    info, [removed] = table.info(3), table.actions(3)["remove"]
    assert "inCommitTimestamp" in info
    assert removed["baseRowId"] is not None
    assert result.commit.num_removed_files == 1
    assert len(table.log().update().add_files()) == 19


def test_symlink_manifests_follow(table: Table) -> None:
    properties = {"delta.compatibility.symlinkFormatManifest.enabled": "true"}
    metadata = DeltaLog.for_table(table.uri).update().metadata
    txn = table.log().start_transaction()
    txn.update_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, **properties}))
    txn.commit([], Operation.set_table_properties(properties))
    lost = lose(table, 5)
    run(table)
    text = "".join(path.read_text() for path in (table.path / DIRECTORY).rglob("manifest"))
    assert text
    assert Path(unquote(lost[0])).name not in text
