"""New rows of another table: each source row once, whatever happens between plan and commit; what is not whole is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.contract.payloads import POSITION_APP, SourcePosition, StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    PredicateException,
    StageConflictException,
    StagingException,
    TransactionAlreadyCommittedException,
    TransactionExpiredException,
    VersionNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import SetTransaction
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.table.changes.new_rows import NewRowsOptions, find_new_rows, read_new_rows, scan_new_rows
from airflow_delta.table.operations.restore import restore
from support.actions import AT, add, metadata, protocol, remove
from support.table import Table
from support.tables import write_commit

DAY = 24 * 3600 * 1000


class World:
    """A source that others write, and a table that takes its new rows."""

    def __init__(self, path: Path) -> None:
        self.source = path / "events"
        self.target = Table(path / "facts")
        self.id = 0

    def add(self, rows: int = 1, **options: Any) -> list[int]:
        """Append rows to the source, as another writer does."""
        ids = list(range(self.id, self.id + rows))
        self.id += rows
        write_deltalake(str(self.source), pa.table({"id": pa.array(ids, pa.int64())}), mode="append", **options)
        return ids

    @property
    def log(self) -> DeltaLog:
        return DeltaLog.for_table(str(self.source))

    def find(self, handle: TransactionHandle, consumer: str = "loader", **options: Any):
        return find_new_rows(self.target.view(handle), self.log, NewRowsOptions(consumer=consumer, **options))

    def stage(
        self, handle: TransactionHandle, *, task_id: str = "stage", where: str | None = None, **options: Any
    ) -> StagedWrite:
        found = self.find(handle, **options)
        staged = self.target.stage(handle, read_new_rows(found, where).to_table(), task_id=task_id)
        return dataclasses.replace(staged, sources=(found.position,))

    def run(self, *, begin: dict[str, Any] | None = None, **options: Any):
        handle = self.target.begin(**(begin or {}))
        return self.target.publish(handle, self.stage(handle, **options))

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.target.rows())

    def position(self) -> int | None:
        snapshot = self.target.log().update()
        found = [v for app_id, v in snapshot.transactions.items() if app_id.startswith(POSITION_APP)]
        return found[0] if found else None


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


class TestEachRowOnce:
    def test_from_run_to_run(self, world):
        world.add(3)
        world.run()
        assert (world.ids(), world.position()) == ([0, 1, 2], 0)
        world.add(2)
        world.add(1)
        result = world.run()
        assert (world.ids(), world.position()) == ([0, 1, 2, 3, 4, 5], 2)
        committed = world.target.actions(result.version)
        assert {txn["appId"].startswith(POSITION_APP): txn["version"] for txn in committed["txn"]}[True] == 2
        assert committed["commitInfo"][0]["operation"] == "WRITE"

    def test_nothing_new_is_a_commit_without_rows(self, world):
        world.add(3)
        world.run()
        result = world.run()
        assert (result.num_records, world.ids(), world.position()) == (0, [0, 1, 2], 0)

    def test_two_consumers_each_have_a_position(self, world):
        world.add(1)
        world.run(consumer="a")
        world.add(1)
        world.run(consumer="a")
        world.run(consumer="b")
        assert world.ids() == [0, 0, 1, 1]

    def test_compacted_files_are_not_new(self, world):
        world.add(1)
        world.run()
        world.add(1)
        world.add(1)
        DeltaTable(str(world.source)).optimize.compact()
        world.run()
        assert world.ids() == [0, 1, 2]

    def test_a_range_that_was_compacted_and_not_vacuumed(self, world):
        world.add(1)
        world.run()
        for _ in range(40):  # more than are looked up one by one
            world.add(1)
        DeltaTable(str(world.source)).optimize.compact()
        world.add(1)
        world.run()
        assert world.ids() == list(range(42))

    def test_only_rows_that_satisfy_a_predicate(self, world):
        world.add(4)
        world.run(where="id >= 2")
        assert world.ids() == [2, 3]
        with pytest.raises(PredicateException):
            world.run(where="nowhere = 1")

    def test_files_without_rows_that_satisfy_a_predicate_are_not_opened(self, world):
        for _ in range(4):
            world.add(1)
        found = world.find(world.target.begin())
        for file in found.files:
            if '"id":2' not in (file.stats or ""):
                (world.source / file.path).unlink()
        assert read_new_rows(found, "id = 2").to_table().to_pylist() == [{"id": 2}]
        assert len(scan_new_rows(found, "id = 2").files) == 1


class TestWhereAConsumerBegins:
    @pytest.mark.parametrize(
        ("starting_version", "expected"), [(None, [0, 1, 2]), (0, [0, 1, 2]), (1, [1, 2]), (3, []), ("latest", [])]
    )
    def test_first_run(self, world, starting_version, expected):
        for _ in range(3):
            world.add(1)
        world.run(starting_version=starting_version)
        assert (world.ids(), world.position()) == (expected, 2)
        world.add(1)
        world.run(starting_version=starting_version)
        assert world.ids() == [*expected, 3]

    def test_the_snapshot_has_what_was_deleted_left_out(self, world):
        world.add(3)
        DeltaTable(str(world.source)).delete("id = 1")
        world.run()
        assert world.ids() == [0, 2]

    def test_up_to_a_version(self, world):
        for _ in range(4):
            world.add(1)
        world.run(starting_version=0, ending_version=1)
        assert world.ids() == [0, 1]
        world.run(ending_version=0)
        assert (world.ids(), world.position()) == ([0, 1], 1)
        world.run()
        assert world.ids() == [0, 1, 2, 3]

    @pytest.mark.parametrize("options", [{"starting_version": 9}, {"starting_version": 2, "ending_version": 0}])
    def test_a_version_that_does_not_exist(self, world, options):
        world.add(1)
        with pytest.raises(VersionNotFoundException, match="starting_version="):
            world.run(**options)

    @pytest.mark.parametrize(
        "options",
        [
            {"starting_version": "earliest"},
            {"starting_version": -1},
            {"ending_version": True},
            {"consumer": " "},
            {"consumer": None},
        ],
    )
    def test_what_is_no_option(self, world, options):
        with pytest.raises(DeltaIllegalArgumentException):
            world.run(**options)

    def test_no_source(self, world):
        with pytest.raises(DeltaTableNotFoundException, match="has no new rows"):
            world.run()

    def test_the_table_itself(self, world):
        world.add(1)
        world.run()
        handle = world.target.begin()
        with pytest.raises(DeltaIllegalArgumentException, match="is the table of the transaction"):
            find_new_rows(world.target.view(handle), world.target.log(), NewRowsOptions(consumer="me"))


class TestRetriesAndClears:
    def test_a_later_attempt_reads_the_pinned_range(self, world):
        world.add(1)
        handle = world.target.begin()
        world.stage(handle)  # killed after staging
        world.add(1)
        staged = world.stage(handle)
        world.target.publish(handle, staged)
        assert (world.ids(), world.position()) == ([0], 0)
        world.run()
        assert world.ids() == [0, 1]

    def test_two_stages_read_the_same_range(self, world):
        world.add(4)
        handle = world.target.begin()
        first = world.stage(handle, task_id="even", where="id < 2")
        world.add(4)
        world.target.publish(handle, first, world.stage(handle, task_id="odd", where="id >= 2"))
        assert world.ids() == [0, 1, 2, 3]

    def test_a_transaction_that_was_given_up_leaves_the_position(self, world):
        world.add(1)
        handle = world.target.begin()
        world.stage(handle)
        world.target.abort(handle)
        world.run()
        assert world.ids() == [0]

    def test_a_commit_that_runs_again(self, world):
        world.add(1)
        handle = world.target.begin()
        staged = world.stage(handle)
        world.target.publish(handle, staged)
        assert world.target.publish(handle, staged).committed_before
        assert world.ids() == [0]

    def test_a_cleared_run_does_nothing(self, world):
        world.add(1)
        world.run(begin={"transaction_key": "monday"})
        world.add(1)
        assert world.target.begin(transaction_key="monday").committed is not None

    def test_a_cleared_run_that_may_append_adds_what_is_new(self, world):
        world.add(1)
        world.run(begin={"transaction_key": "monday"})
        world.add(1)
        world.run(begin={"transaction_key": "monday", "rerun_policy": "append"})
        assert world.ids() == [0, 1]

    def test_a_cleared_run_that_would_take_back_its_rows(self, world):
        world.add(1)
        replaces = {"transaction_key": "monday", "rerun_policy": "replace"}
        world.run(begin=replaces)
        world.add(1)
        with pytest.raises(TransactionAlreadyCommittedException, match="count as read and would not come again"):
            world.target.begin(**replaces)  # whatever its stages would read
        world.run()
        assert world.ids() == [0, 1]

    def test_a_cleared_run_that_reads_new_rows_for_the_first_time(self, world):
        world.add(1)
        replaces = {"transaction_key": "monday", "rerun_policy": "replace"}
        handle = world.target.begin(**replaces)
        world.target.publish(handle, world.target.stage(handle, pa.table({"id": pa.array([7], pa.int64())})))
        with pytest.raises(DeltaIllegalStateException, match="rerun_policy='replace' would take back"):
            world.run(begin=replaces)
        assert world.ids() == [7]

    def test_the_pin_goes_with_the_commit(self, world):
        world.add(1)
        handle = world.target.begin()
        staged = world.stage(handle)
        pins = list(Path(handle.staging_path).rglob("new-rows-*.json"))
        assert len(pins) == 1
        world.target.publish(handle, staged)
        assert not pins[0].exists()

    @pytest.mark.parametrize(
        "damage", [lambda pin: pin[:-9], lambda pin: b"\xff" + pin, lambda pin: pin.replace(b"loader", b"l0ader")]
    )
    def test_a_damaged_pin(self, world, damage, monkeypatch):
        monkeypatch.setattr("airflow_delta.log.storage.puts._LOOKS", ())
        world.add(1)
        handle = world.target.begin()
        staged = world.stage(handle)
        (pin,) = Path(handle.staging_path).rglob("new-rows-*.json")
        pin.write_bytes(damage(pin.read_bytes()))
        with pytest.raises(StagingException, match="Nothing was staged"):
            world.find(handle)
        with pytest.raises(StagingException, match="not what the transaction has pinned"):
            world.target.publish(handle, staged)


class TestTwoAtOnce:
    @pytest.mark.parametrize("exists", [True, False])
    def test_the_second_begins_again(self, world, exists):
        world.add(1)
        if exists:
            world.run()
            world.add(1)
        one, other = world.target.begin(), world.target.begin()
        staged = [world.stage(one), world.stage(other)]
        world.target.publish(one, staged[0])
        with pytest.raises(ConcurrentTransactionException, match=r"same source and consumer|has moved the position"):
            world.target.publish(other, staged[1])
        world.run()
        assert world.ids() == list(range(world.id))

    @pytest.mark.parametrize("exists", [True, False])
    def test_one_that_reads_the_source_at_another_location(self, world, tmp_path, exists):
        world.add(1)
        if exists:
            world.run(consumer="before")
        one, other = world.target.begin(), world.target.begin()
        staged = [world.stage(one)]
        link = tmp_path / "link"
        link.symlink_to(world.source)
        world.source = link
        staged.append(world.stage(other))
        world.target.publish(one, staged[0])
        with pytest.raises(ConcurrentTransactionException, match=r"'loader' has read the table .* at another location"):
            world.target.publish(other, staged[1])
        assert world.ids() == [0] * (1 + exists)

    @pytest.mark.parametrize("exists", [True, False])
    def test_one_that_reads_another_table_there(self, world, exists):
        world.add(1)
        if exists:
            world.run(consumer="before")
        one, other = world.target.begin(), world.target.begin()
        staged = [world.stage(one)]
        shutil.rmtree(world.source)
        world.add(1)
        staged.append(world.stage(other))
        world.target.publish(one, staged[0])
        with pytest.raises(ConcurrentTransactionException, match="is another one than 'loader' has read"):
            world.target.publish(other, staged[1])
        assert world.ids() == [0] * (1 + exists)

    def test_another_consumer_is_no_conflict(self, world):
        world.add(1)
        world.run()
        one, other = world.target.begin(), world.target.begin()
        staged = [world.stage(one, consumer="a"), world.stage(other, consumer="b")]
        world.target.publish(one, staged[0])
        world.target.publish(other, staged[1])
        assert world.ids() == [0, 0, 0]

    def test_many_with_a_source_that_grows(self, world):
        """Eight threads take what is new until all is taken, while the source grows."""
        world.add(1)
        world.run()
        errors: list[BaseException] = []

        def take() -> None:
            for _ in range(6):
                try:
                    handle = Table(world.target.path).begin(transaction_key=f"{threading.get_ident()}-{time.monotonic_ns()}")
                    world.target.publish(handle, world.stage(handle))
                except ConcurrentTransactionException:
                    continue
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            world.add(2)
        for thread in threads:
            thread.join()
        world.run()
        assert not errors
        assert Counter(world.ids()) == Counter(range(world.id))


class TestXComIsNotBelieved:
    @pytest.mark.parametrize("change", [{"version": 7}, {"before": 5}, {"consumer": "other"}, {"table_id": "x"}, {"first": 0}])
    def test_another_position(self, world, change):
        world.add(1)
        handle = world.target.begin()
        staged = world.stage(handle)
        forged = dataclasses.replace(staged.sources[0], **change)
        with pytest.raises(StagingException, match="not what the transaction has pinned"):
            world.target.publish(handle, dataclasses.replace(staged, sources=(forged,)))
        assert not world.target.log().table_exists()

    def test_two_stages_that_disagree(self, world):
        world.add(1)
        handle = world.target.begin()
        one, other = world.stage(handle, task_id="a"), world.stage(handle, task_id="b")
        forged = dataclasses.replace(other.sources[0], version=3)
        with pytest.raises(StageConflictException, match="have read different versions"):
            world.target.publish(handle, one, dataclasses.replace(other, sources=(forged,)))

    def test_two_stages_that_read_one_source_at_two_locations(self, world, tmp_path):
        world.add(1)
        handle = world.target.begin()
        one = world.stage(handle, task_id="a")
        link = tmp_path / "link"
        link.symlink_to(world.source)
        world.source = link
        other = world.stage(handle, task_id="b")
        with pytest.raises(StageConflictException, match="at another location"):
            world.target.publish(handle, one, other)

    def test_a_key_that_looks_like_a_position(self, world):
        with pytest.raises(DeltaIllegalArgumentException, match="must not begin with"):
            world.target.begin(transaction_key=f"{POSITION_APP}loader/x")

    def test_it_travels(self, world):
        world.add(1)
        staged = world.stage(world.target.begin())
        assert StagedWrite.from_dict(json.loads(json.dumps(staged.to_dict()))) == staged


class TestWhatIsNotOnlyAdded:
    def test_a_delete(self, world):
        world.add(3)
        world.run()
        DeltaTable(str(world.source)).delete("id = 1")
        world.add(1)
        with pytest.raises(DeltaUnsupportedOperationException, match=r"Version 1 .*IGNORE_CHANGES"):
            world.run()
        assert world.ids() == [0, 1, 2]
        with pytest.raises(DeltaUnsupportedOperationException, match="skip_change_commits=True passes over"):
            world.run(ignore_deletes=True)
        world.run(skip_change_commits=True)
        assert world.ids() == [0, 1, 2, 3]

    def test_a_delete_of_all_rows(self, world):
        world.add(3)
        world.run()
        DeltaTable(str(world.source)).delete()
        world.add(1)
        with pytest.raises(DeltaUnsupportedOperationException, match="IGNORE_DELETE"):
            world.run()
        world.run(ignore_deletes=True)
        assert world.ids() == [0, 1, 2, 3]

    def test_an_overwrite(self, world):
        world.add(1)
        world.run()
        write_deltalake(str(world.source), pa.table({"id": pa.array([7], pa.int64())}), mode="overwrite")
        with pytest.raises(DeltaUnsupportedOperationException, match="IGNORE_CHANGES"):
            world.run()

    def test_rows_that_a_restore_brings_back(self, world):
        world.add(2)
        world.run()
        DeltaTable(str(world.source)).delete()
        restore(world.log, version=0, attempt="1-aaaaaaaa", transaction_key="back")
        with pytest.raises(DeltaUnsupportedOperationException, match="IGNORE_DELETE"):
            world.run()
        with pytest.raises(DeltaUnsupportedOperationException, match="brought back rows"):
            world.run(ignore_deletes=True)
        world.run(skip_change_commits=True)
        assert world.ids() == [0, 1]


class TestWhatIsNoLongerThere:
    def test_a_vacuumed_file(self, world):
        world.add(1)
        world.run()
        world.add(1)
        world.add(1)
        DeltaTable(str(world.source)).optimize.compact()
        DeltaTable(str(world.source)).vacuum(0, dry_run=False, enforce_retention_duration=False)
        with pytest.raises(DeltaFileNotFoundException, match="VACUUM has deleted 2 of 2"):
            world.run()
        assert (world.ids(), world.position()) == ([0], 0)

    def test_many_vacuumed_files(self, world):
        world.add(1)
        world.run()
        for _ in range(40):
            world.add(1)
        DeltaTable(str(world.source)).optimize.compact()
        DeltaTable(str(world.source)).vacuum(0, dry_run=False, enforce_retention_duration=False)
        with pytest.raises(DeltaFileNotFoundException, match="VACUUM has deleted 40 of 40"):
            world.run()

    def test_a_truncated_log(self, world):
        world.add(1)
        world.run()
        for _ in range(3):
            world.add(1)
        write_checkpoint(world.log.update())
        for version in range(3):
            (world.source / "_delta_log" / f"{version:020d}.json").unlink()
        with pytest.raises(VersionNotFoundException, match="versions 1 to 3, and some of these commits"):
            world.run()
        assert world.ids() == [0]
        world.run(consumer="again", starting_version=3)
        assert world.ids() == [0, 3]

    def test_a_source_that_lost_versions(self, world, tmp_path):
        world.add(1)
        world.add(1)
        world.run()
        (world.source / "_delta_log" / f"{1:020d}.json").unlink()
        with pytest.raises(DeltaIllegalStateException, match="its log has lost commits"):
            world.run()


class TestAnotherTable:
    def test_at_the_same_location(self, world):
        world.add(1)
        world.run()
        shutil.rmtree(world.source)
        world.add(1)
        with pytest.raises(DeltaIllegalStateException, match="DIFFERENT_DELTA_TABLE_READ"):
            world.run()
        world.run(assume_new=True)
        assert world.ids() == [0, 1]
        world.run()
        assert world.ids() == [0, 1]

    def test_the_same_at_another_location(self, world):
        world.add(1)
        world.run()
        world.source.rename(world.source.with_name("moved"))
        world.source = world.source.with_name("moved")
        with pytest.raises(DeltaIllegalStateException, match="the source has moved"):
            world.run()

    def test_a_second_source_of_the_same_consumer(self, world, tmp_path):
        world.add(1)
        world.run()
        world.source = tmp_path / "more"
        world.add(1)
        world.run()
        assert world.ids() == [0, 1]


class TestThePositionMayHaveExpired:
    @pytest.fixture
    def forgetful(self, world):
        """A table whose log begins with a checkpoint that no longer has the position, and a source older than its memory."""
        world.source.mkdir()
        text = metadata(created_time=AT)
        write_commit(world.source, 0, protocol(), text)
        world.target.create(**{"delta.setTransactionRetentionDuration": "interval 1 days"})
        return world

    def cut(self, world) -> None:
        world.target.commit(add("x.parquet", size=1))
        log = world.target.log()
        write_checkpoint(log.update())
        for version in world.target.versions()[:-1]:
            world.target.log_file(version).unlink()

    def test_it_is_new_as_long_as_the_log_shows_it(self, forgetful):
        assert forgetful.find(forgetful.target.begin()).position.before == -1

    def test_it_cannot_be_known(self, forgetful):
        self.cut(forgetful)
        with pytest.raises(TransactionExpiredException, match="assume_new=True"):
            forgetful.find(forgetful.target.begin())
        assert forgetful.find(forgetful.target.begin(), assume_new=True).position.before == -1

    def test_a_source_that_is_younger(self, forgetful):
        text = metadata(created_time=int(time.time() * 1000))
        write_commit(forgetful.source, 0, protocol(), text)
        self.cut(forgetful)
        assert forgetful.find(forgetful.target.begin()).position.before == -1

    def test_one_that_has_expired_but_is_still_in_the_log(self, forgetful):
        app_id = SourcePosition(table=forgetful.log.uri, table_id=metadata().id, consumer="loader", version=0).app_id
        forgetful.target.commit(SetTransaction(app_id=app_id, version=0, last_updated=int(time.time() * 1000) - 9 * DAY))
        for assume_new in (False, True):
            assert forgetful.find(forgetful.target.begin(), assume_new=assume_new).position.before == 0

    def test_the_commit_knows_it_too(self, forgetful):
        app_id = SourcePosition(table=forgetful.log.uri, table_id=metadata().id, consumer="loader", version=0).app_id
        forgetful.target.commit(SetTransaction(app_id=app_id, version=0, last_updated=int(time.time() * 1000) - 9 * DAY))
        handle = forgetful.target.begin()
        found = forgetful.find(handle)
        staged = forgetful.target.stage(handle, pa.table({"value": pa.array([], pa.int32())}))
        forgetful.target.publish(handle, dataclasses.replace(staged, sources=(found.position,)))
        assert forgetful.position() == 0


class TestSchemas:
    def test_added_columns(self, world):
        world.add(1)
        world.run()
        world.add(1)
        more = pa.table({"id": pa.array([world.id], pa.int64()), "more": pa.array([1], pa.int64())})
        write_deltalake(str(world.source), more, mode="append", schema_mode="merge")
        found = world.find(world.target.begin())
        assert [(row["id"], row["more"]) for row in read_new_rows(found).to_table().to_pylist()] == [(1, None), (2, 1)]

    def test_a_change_in_between(self, tmp_path):
        """The rows before it cannot be read with the columns after it; those after it can."""
        world = World(tmp_path)
        old, new = metadata(), msgspec.structs.replace(metadata(), schema_string='{"type":"struct","fields":[]}')
        write_commit(world.source, 0, protocol(), old)
        world.target.create()
        handle = world.target.begin()
        staged = world.target.stage(handle, pa.table({"value": pa.array([], pa.int32())}))
        world.target.publish(handle, dataclasses.replace(staged, sources=(world.find(handle).position,)))
        for name in ("a.parquet", "b.parquet"):
            (world.source / name).touch()
        write_commit(world.source, 1, add("a.parquet", part=None))
        write_commit(world.source, 2, new)
        write_commit(world.source, 3, add("b.parquet"))
        with pytest.raises(DeltaAnalysisException, match=r"version 1, whose rows 'loader' has not read.*ending_version="):
            world.find(world.target.begin())
        assert [f.path for f in world.find(world.target.begin(), ending_version=1).files] == ["a.parquet"]
        handle = world.target.begin()
        staged = world.target.stage(handle, pa.table({"value": pa.array([], pa.int32())}))
        position = world.find(handle, ending_version=1).position
        world.target.publish(handle, dataclasses.replace(staged, sources=(position,)))
        assert [f.path for f in world.find(world.target.begin()).files] == ["b.parquet"]

    def test_another_id_within_the_range(self, tmp_path):
        world = World(tmp_path)
        write_commit(world.source, 0, protocol(), metadata(id="before"), add("a.parquet"))
        write_commit(world.source, 1, metadata(id="after"), remove("a.parquet"))
        with pytest.raises(DeltaIllegalStateException, match="has the table id before, the latest has after"):
            world.find(world.target.begin(), starting_version=0)


def test_ten_thousand_files(tmp_path):
    """A range of a hundred commits with a hundred files each: found in seconds, each file once."""
    world = World(tmp_path)
    write_commit(world.source, 0, protocol(), metadata())
    names = [[f"{version}-{number}.parquet" for number in range(100)] for version in range(1, 101)]
    for version, files in enumerate(names, 1):
        write_commit(world.source, version, *map(add, files))
    began = time.monotonic()
    found = world.find(world.target.begin(), starting_version=0)
    assert time.monotonic() - began < 20
    assert sorted(f.path for f in found.files) == sorted(name for files in names for name in files)


def test_a_partitioned_source(world):
    """Partition values come from the log, also of files that are no longer in the table."""
    for part in ("a b", None, "c"):
        rows = pa.table({"id": pa.array([world.id], pa.int64()), "part": pa.array([part], pa.string())})
        world.id += 1
        write_deltalake(str(world.source), rows, mode="append", partition_by=["part"])
        if world.id == 1:
            world.run()
    DeltaTable(str(world.source)).optimize.compact()
    world.run()
    assert world.target.rows() == [(0, "a b"), (1, None), (2, "c")]
