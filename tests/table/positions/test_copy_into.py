"""Files loaded into a table: each once, whatever happens between listing and commit; what is not whole is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.payloads import COPY_APP, StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    SchemaMismatchException,
    StageConflictException,
    StagingException,
    TransactionAlreadyCommittedException,
    TransactionExpiredException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import SetTransaction
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.cleanup import clean_up_expired_logs
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.arrow.source_files import read_arrow_files
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.positions.files.pattern import SourcePattern, matching
from airflow_delta.table.positions.files.records import RECORD_DIRECTORY, Loaded, LoadedFile, LoadRecord, RecordName, new_record
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, SourceFiles, find_source_files
from support.readers import READERS
from support.source_files import csv_rows
from support.table import Table

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})
OPTIONS = ("consumer", "force", "modified_after", "assume_new")


class World:
    """A directory that others put files into, and a table that loads them."""

    def __init__(self, path: Path) -> None:
        self.source = path / "raw"
        self.source.mkdir()
        self.target = Table(path / "facts")
        self.id = 0

    def put(self, name: str, rows: int = 1) -> list[int]:
        """Put a CSV file under a name, with ids that no other has."""
        ids = list(range(self.id, self.id + rows))
        self.id += rows
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("id\n" + "".join(f"{number}\n" for number in ids))
        return ids

    def begin(self, **options: Any) -> TransactionHandle:
        return self.target.begin(schema=SCHEMA, **options)

    def find(self, handle: TransactionHandle, names: str = "", **options: Any) -> SourceFiles:
        found = SourcePattern.parse(f"{self.source}/{names}", recursive=options.pop("recursive", False))
        view = self.target.view(handle, task_id=options.pop("task_id", "stage"))
        return find_source_files(view, store_for(found.base), found, CopyIntoOptions(**options))

    def stage(self, handle: TransactionHandle, names: str = "", *, task_id: str = "stage", **options: Any) -> StagedWrite | None:
        found = self.find(handle, names, task_id=task_id, **options)
        if found.load is None:
            return None
        found.check()
        rows = csv_rows(found)
        staged = self.target.stage(handle, rows, task_id=task_id)
        found.check()
        return dataclasses.replace(staged, loads=(found.load,))

    def run(self, names: str = "", *, begin: dict[str, Any] | None = None, **options: Any):
        handle = self.begin(**(begin or {}))
        staged = self.stage(handle, names, **options)
        return None if staged is None else self.target.publish(handle, staged)

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.target.rows())

    def loads(self) -> int:
        snapshot = self.target.log().update()
        return max(
            (v for a, v in snapshot.transactions.items() if a.startswith(COPY_APP) and not a.endswith("#record")), default=0
        )

    def records(self) -> list[Path]:
        return sorted((self.target.path / RECORD_DIRECTORY).rglob("*.json"))


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


class TestEachFileOnce:
    def test_from_run_to_run(self, world):
        world.put("a.csv", 2)
        world.put("b.csv")
        world.run()
        assert (world.ids(), world.loads()) == ([0, 1, 2], 1)
        world.put("c.csv")
        result = world.run()
        assert (world.ids(), world.loads()) == ([0, 1, 2, 3], 2)
        committed = world.target.actions(result.version)
        assert sorted(txn["version"] for txn in committed["txn"] if txn["appId"].startswith(COPY_APP))[0] == 2
        assert len(world.records()) == 2
        files = json.loads(world.records()[1].read_text())["files"]
        assert [Path(file["path"]).name for file in files] == ["c.csv"], "what a run writes is what it has loaded"

    def test_nothing_new_commits_nothing(self, world):
        world.put("a.csv")
        world.run()
        assert world.run() is None
        assert world.target.versions() == [0]

    def test_a_wider_pattern_does_not_load_again(self, world):
        world.put("a.csv")
        world.put("b.txt")
        world.run("*.csv")
        world.run("*")
        world.run("", consumer=None)
        assert world.ids() == [0, 1]

    def test_a_directory_above_does_not_load_again(self, world):
        world.put("2024/a.csv")
        world.run("2024/*.csv")
        world.put("2025/a.csv")
        with pytest.raises(DeltaIllegalStateException, match="has loaded them"):
            world.run("*/*.csv")
        assert world.ids() == [0]

    def test_two_consumers_that_are_named(self, world):
        world.put("a.csv")
        world.run(consumer="a")
        world.run(consumer="b")
        assert world.ids() == [0, 0]

    def test_a_cleared_run_does_nothing(self, world):
        world.put("a.csv")
        world.run(begin={"transaction_key": "run"})
        world.put("b.csv")
        assert world.begin(transaction_key="run").committed is not None

    def test_an_empty_file(self, world):
        (world.source / "empty.csv").touch()
        world.put("a.csv")
        world.run()
        assert world.ids() == [0]
        assert world.run() is None

    def test_awkward_names(self, world):
        names = [
            "plain",
            "with space",
            "per%cent",
            "per%20cent",
            "per cent",
            "pl+us",
            "grüße",
            "q?x[1]{2}*",
            "h#sh",
            "a=b",
            "b\\s",
        ]
        for name in names:
            world.put(f"in a%20b #c/{name}.csv")
        world.run("in a%20b #c/*")
        assert world.run("in a%20b #c") is None
        world.put("in a%20b #c/per%2520cent.csv")
        world.put("in a b #c/plain.csv")
        world.run("in a%20b #c/")
        assert world.ids() == list(range(len(names) + 1))

    @pytest.mark.parametrize("target", ["../elsewhere.csv", "a.csv"])
    def test_a_link(self, world, target):
        world.put("a.csv")
        world.put("../elsewhere.csv")
        (world.source / "link.csv").symlink_to(world.source / target)
        with pytest.raises(DeltaIllegalArgumentException, match=r"link\.csv .* is a symbolic link"):
            world.run()
        world.run("[!l]*.csv")
        assert world.ids() == [0]

    def test_through_checkpoints_and_log_cleanup(self, world):
        for number in range(5):
            world.put(f"{number}.csv")
            world.run()
        log = world.target.log()
        write_checkpoint(log.update())
        clean_up_expired_logs(log.update(), retention=0, now=2**42, granularity=1)
        assert min(world.target.versions()) > 0
        assert len(world.records()) == 5
        assert world.run() is None
        world.put("5.csv")
        world.run()
        assert world.ids() == list(range(6))

    def test_restore_brings_no_file_again(self, world):
        world.put("a.csv")
        world.run()
        world.put("b.csv")
        world.run()
        restore(world.target.log(), version=0, attempt="1-aaaaaaaa", transaction_key="back")
        assert world.run() is None
        world.run("b.csv", force=True)
        assert world.ids() == [0, 1]

    def test_vacuum_keeps_records(self, world):
        for number in range(3):
            world.put(f"{number}.csv")
            world.run()
        vacuum(world.target.log(), retention_hours=0, retention_check=False, transaction_timeout_hours=0, clock=lambda: 2**43)
        assert len(world.records()) == 3
        assert world.run() is None

    @pytest.mark.slow
    def test_ten_thousand_files(self, world):
        for number in range(10_000):
            (world.source / f"{number:05}.csv").write_text(f"id\n{number}\n")
        world.run()
        for number in range(10_000, 10_010):
            (world.source / f"{number:05}.csv").write_text(f"id\n{number}\n")
        world.run()
        table = world.target.log().update()
        assert world.run() is None
        assert Counter(world.ids()) == Counter(range(10_010))
        assert table.version == 1
        assert sum(len(json.loads(path.read_text())["files"]) for path in world.records()) == 10_010


class TestTheSameFiles:
    def test_a_second_attempt_reads_what_the_first_one_did(self, world):
        world.put("a.csv")
        handle = world.begin()
        first = world.stage(handle)
        world.put("b.csv")
        second = world.stage(handle)
        assert first.loads == second.loads
        world.target.publish(handle, second)
        assert world.ids() == [0]
        world.run()
        assert world.ids() == [0, 1]

    def test_killed_before_the_commit(self, world):
        world.put("a.csv")
        world.stage(world.begin())
        world.run()
        assert (world.ids(), world.loads()) == ([0], 1)

    def test_a_record_without_its_commit_does_not_count(self, world):
        world.put("a.csv")
        world.run()
        (record,) = world.records()
        data = json.loads(record.read_text())
        more = {"path": f"file://{world.source}/b.csv", "size": 5, "modificationTime": 1}
        forged = json.dumps({**data, "number": 2, "first": 2, "files": [more], "earlier": []}).encode()
        (record.parent / f"{2:020d}.{hashlib.sha256(forged).hexdigest()[:15]}.json").write_bytes(forged)
        world.put("b.csv")
        world.run()
        assert world.ids() == [0, 1]

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_record_that_is_there_before_the_commit(self, world, whole):
        world.put("a.csv")
        handle = world.begin()
        staged = world.stage(handle)
        (load,) = staged.loads
        (pin,) = world.target.path.rglob("copy-into-*.json")
        data = pin.read_bytes().split(b"\n", 2)[2]
        consumer = hashlib.sha256(load.consumer.encode()).hexdigest()[:16]
        record = world.target.path / RECORD_DIRECTORY / consumer / f"{1:020d}.{load.record[:15]}.json"
        record.parent.mkdir(parents=True)
        record.write_bytes(data if whole else data[:-1])
        if whole:
            world.target.publish(handle, staged)
            assert world.run() is None
        else:
            with pytest.raises(DeltaIllegalStateException, match="is there already, with other content"):
                world.target.publish(handle, staged)
            assert not world.target.log().table_exists()

    def test_replaced_before_the_read(self, world):
        world.put("a.csv")
        handle = world.begin()
        world.find(handle)
        os.utime(world.source / "a.csv", (1, 1))
        with pytest.raises(DeltaIllegalStateException, match="have changed since they were found"):
            world.stage(handle)

    def test_gone_before_the_read(self, world):
        world.put("a.csv")
        world.put("b.csv")
        handle = world.begin()
        world.find(handle)
        (world.source / "b.csv").unlink()
        with pytest.raises(DeltaFileNotFoundException, match=r"1 of 2 files .* are gone, such as b.csv"):
            world.stage(handle)

    def test_all_gone_before_the_second_attempt(self, world):
        world.put("a.csv")
        handle = world.begin()
        world.find(handle)
        (world.source / "a.csv").unlink()
        with pytest.raises(DeltaFileNotFoundException, match="1 of 1 files"):
            world.stage(handle)

    def test_many_of_which_one_is_gone(self, world):
        for number in range(40):
            world.put(f"{number}.csv")
        handle = world.begin()
        found = world.find(handle)
        (world.source / "7.csv").unlink()
        with pytest.raises(DeltaFileNotFoundException, match="1 of 40"):
            found.check()

    def test_replaced_during_the_read(self, world):
        world.put("a.csv")
        found = world.find(world.begin())
        found.check()
        world.put("a.csv", 30)
        with pytest.raises(DeltaIllegalStateException, match="have changed"):
            found.check()

    def test_a_source_that_the_author_changes_between_attempts(self, world):
        world.put("x/a.csv")
        world.put("y/a.csv")
        handle = world.begin()
        world.find(handle, "x/*", consumer="c")
        with pytest.raises(StagingException, match="the source was changed"):
            world.find(handle, "y/*", consumer="c")


class TestChangedAfterLoading:
    def test_is_refused_and_loaded_again_by_force(self, world):
        world.put("a.csv")
        world.put("b.csv")
        world.run()
        world.put("a.csv", 3)
        with pytest.raises(DeltaIllegalStateException, match=r"have changed since, such as file://.*a.csv"):
            world.run()
        world.run("a.csv", force=True)
        assert world.ids() == [0, 1, 2, 3, 4]
        assert world.run() is None

    def test_force_loads_everything_again(self, world):
        world.put("a.csv")
        world.put("b.csv")
        world.run()
        world.run(force=True)
        assert (world.ids(), world.loads()) == ([0, 0, 1, 1], 2)
        assert world.run() is None

    def test_a_loaded_file_may_go(self, world):
        world.put("a.csv")
        world.run()
        (world.source / "a.csv").unlink()
        world.put("b.csv")
        world.run()
        assert world.ids() == [0, 1]

    def test_an_etag_decides_where_there_is_one(self):
        one = LoadedFile(path="x", size=1, modification_time=1, etag="a")
        assert one.is_same(LoadedFile(path="x", size=1, modification_time=2, etag="a"))
        assert not one.is_same(LoadedFile(path="x", size=1, modification_time=1, etag="b"))
        assert not one.is_same(LoadedFile(path="x", size=2, modification_time=1, etag="a"))
        assert one.is_same(LoadedFile(path="x", size=1, modification_time=1))


class TestTwoAtOnce:
    def test_the_second_is_refused(self, world):
        world.put("a.csv")
        one, other = world.begin(), world.begin()
        first, second = world.stage(one), world.stage(other)
        world.target.publish(one, first)
        with pytest.raises(ConcurrentTransactionException):
            world.target.publish(other, second)
        assert world.ids() == [0]

    def test_the_second_of_a_table_that_exists(self, world):
        world.put("a.csv")
        world.run()
        world.put("b.csv")
        one, other = world.begin(), world.begin()
        first, second = world.stage(one), world.stage(other)
        world.target.publish(one, first)
        with pytest.raises(ConcurrentTransactionException, match="has loaded files of the same consumer"):
            world.target.publish(other, second)
        assert world.ids() == [0, 1]

    def test_other_directories_do_not_conflict(self, world):
        world.put("x/a.csv")
        world.run("x/*")
        world.put("x/b.csv")
        world.put("y/a.csv")
        one, other = world.begin(), world.begin()
        first, second = world.stage(one, "x/*"), world.stage(other, "y/*")
        world.target.publish(one, first)
        world.target.publish(other, second)
        assert world.ids() == [0, 1, 2]

    @pytest.mark.parametrize("exists", [True, False], ids=["a table", "none yet"])
    @pytest.mark.parametrize(("winner", "loser"), [("x/*", "[xy]/*"), ("[xy]/*", "x/*")])
    def test_one_file_by_two_directories(self, world, winner, loser, exists):
        if exists:
            world.put("other/a.csv")
            world.run("other/*")
        world.put("x/a.csv")
        one, other = world.begin(), world.begin()
        first, second = world.stage(one, winner), world.stage(other, loser)
        world.target.publish(one, first)
        with pytest.raises(ConcurrentTransactionException, match=r"such as .*x/a\.csv, have been loaded by"):
            world.target.publish(other, second)
        assert world.ids() == list(range(world.id))

    def test_one_file_by_two_consumers_that_are_named(self, world):
        world.put("x/a.csv")
        one, other = world.begin(), world.begin()
        first, second = world.stage(one, "x/*", consumer="one"), world.stage(other, "x/*", consumer="other")
        world.target.publish(one, first)
        world.target.publish(other, second)
        assert world.ids() == [0, 0]

    def test_many_with_a_source_that_grows(self, world):
        world.put("first.csv")
        world.run()
        errors: list[BaseException] = []

        def take(name: int) -> None:
            for number in range(6):
                try:
                    handle = Table(world.target.path).begin(transaction_key=f"{name}-{number}")
                    staged = world.stage(handle)
                    if staged is not None:
                        world.target.publish(handle, staged)
                except ConcurrentTransactionException:
                    continue
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=take, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for number in range(8):
            ids = [world.id]
            world.id += 1
            part = world.source / f".part-{number}"
            part.write_text(f"id\n{ids[0]}\n")
            part.rename(world.source / f"{number}.csv")
        for thread in threads:
            thread.join()
        world.run()
        assert not errors
        assert Counter(world.ids()) == Counter(range(world.id))


class TestWhatIsLost:
    def test_a_record(self, world):
        for number in range(3):
            world.put(f"{number}.csv")
            world.run()
        world.records()[1].unlink()
        world.put("more.csv")
        with pytest.raises(DeltaFileNotFoundException, match=r"1 of the records .* are gone, such as .*modified_after"):
            world.run()
        assert world.ids() == [0, 1, 2]

    def test_the_last_record(self, world):
        world.put("a.csv")
        world.run()
        world.records()[0].unlink()
        with pytest.raises(DeltaFileNotFoundException, match="are gone"):
            world.run()

    def test_the_way_out(self, world):
        world.put("a.csv")
        os.utime(world.source / "a.csv", (1000, 1000))
        world.run()
        world.records()[0].unlink()
        world.put("b.csv")
        world.run(consumer="again", modified_after=1_000_000)
        assert world.ids() == [0, 1]

    @pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data.replace(b'"number":1', b'"number":3')])
    def test_a_damaged_record(self, world, damage):
        world.put("a.csv")
        world.run()
        (record,) = world.records()
        record.write_bytes(damage(record.read_bytes()))
        with pytest.raises(DeltaIllegalStateException, match="checksum does not match"):
            world.run()

    def test_a_number_that_may_have_expired(self, world, monkeypatch):
        world.put("a.csv")
        world.run()
        for record in world.records():
            os.utime(record, (1000, 1000))
        find = "airflow_delta.table.positions.position.last_txn_version"

        def expired(*args: Any, **kwargs: Any) -> None:
            raise TransactionExpiredException("expired")

        monkeypatch.setattr(find, expired)
        with pytest.raises(TransactionExpiredException, match="assume_new=True"):
            world.run()
        assert world.find(world.begin(), assume_new=True).load.number == 1

    def test_another_consumer_whose_number_has_expired(self, world):
        world.put("x/a.csv")
        world.put("y/a.csv")
        world.run("x/*", begin={"configuration": {"delta.setTransactionRetentionDuration": "interval 1 days"}})
        numbers = {key: n for key, n in world.target.log().update().transactions.items() if key.startswith(COPY_APP)}
        old = int(time.time() * 1000) - 9 * 86_400_000
        world.target.commit(*(SetTransaction(app_id=key, version=n, last_updated=old) for key, n in numbers.items()))
        assert not numbers.keys() & world.target.log().update().transactions.keys()
        with pytest.raises(DeltaIllegalStateException, match=r"x/a\.csv, are in table .* has loaded them"):
            world.run("[xy]/*")
        world.run("y/*")
        assert world.ids() == [0, 1]

    def test_rows_that_a_replacement_would_take_back(self, world):
        world.put("a.csv")
        world.run(begin={"transaction_key": "run"})
        with pytest.raises(TransactionAlreadyCommittedException, match="count as read and would not come again"):
            world.begin(transaction_key="run", rerun_policy="replace")  # whatever its stages would load


class TestXComIsNotBelieved:
    @pytest.mark.parametrize("change", [{"number": 7}, {"record": "0" * 64}, {"num_files": 5}, {"consumer": "other"}])
    def test_another_load(self, world, change):
        world.put("a.csv")
        handle = world.begin()
        staged = world.stage(handle)
        forged = dataclasses.replace(staged.loads[0], **change)
        with pytest.raises(StagingException, match="not what the transaction has pinned"):
            world.target.publish(handle, dataclasses.replace(staged, loads=(forged,)))
        assert not world.target.log().table_exists()

    def test_two_stages_of_one_consumer(self, world):
        world.put("a.csv")
        handle = world.begin()
        one = world.stage(handle, task_id="a")
        other = dataclasses.replace(world.target.stage(handle, pa.table({"id": [9]}), task_id="b"), loads=one.loads)
        with pytest.raises(StageConflictException, match="would be in the table twice"):
            world.target.publish(handle, one, other)

    def test_the_second_task_of_one_consumer_loads_nothing(self, world):
        world.put("a.csv")
        (world.source / "b.json").write_text('{"id": 1}')
        handle = world.begin()
        world.stage(handle, "*.csv", task_id="a")
        with pytest.raises(StageConflictException, match=r"The task 'a' loads files as .*, so 'b' cannot"):
            world.find(handle, "*.json", task_id="b")
        world.put("c.csv")
        assert [file.path for file in world.find(handle, "*.csv", task_id="a").files] == ["a.csv"]

    def test_two_stages_with_the_same_file(self, world):
        world.put("x/a.csv")
        handle = world.begin()
        one, other = world.stage(handle, "x/*", task_id="a"), world.stage(handle, "*/*", task_id="b")
        with pytest.raises(StageConflictException, match="have loaded 1 files, such as"):
            world.target.publish(handle, one, other)

    def test_a_key_that_looks_like_a_load(self, world):
        with pytest.raises(DeltaIllegalArgumentException, match="must not begin with"):
            world.begin(transaction_key=f"{COPY_APP}x")

    def test_it_travels(self, world):
        world.put("a.csv")
        staged = world.stage(world.begin())
        assert StagedWrite.from_dict(json.loads(json.dumps(staged.to_dict()))) == staged


class TestRecords:
    def test_a_few_hold_what_many_loads_have_loaded(self):
        before = Loaded()
        written = 0
        for number in range(1, 600):
            file = LoadedFile(path=f"f{number}", size=1, modification_time=number)
            record = new_record(before, "c", [file])
            written += len(record.files)
            kept = [each for each in before.records if each[0].number < record.first]
            name = RecordName(number=record.number, first=record.first, sha256=f"{number:064x}")
            assert [each.number for each in record.earlier] == [each[0].number for each in kept]
            before = Loaded.of(number, [*kept, (name, record.files)])
            assert len(before.files) == number
            assert record.new == (file,)
            assert len(before.records) <= 45
        assert written < 600 * 4

    def test_the_file_that_was_loaded_last_counts(self):
        before = Loaded()
        for number in range(1, 33):
            record = new_record(before, "c", [LoadedFile(path="same", size=number, modification_time=number)])
            kept = [each for each in before.records if each[0].number < record.first]
            name = RecordName(number=record.number, first=record.first, sha256="")
            before = Loaded.of(number, [*kept, (name, record.files)])
            assert before.files["same"].size == number

    def test_forty_runs(self, world):
        for number in range(40):
            world.put(f"{number}.csv")
            world.run()
        head = msgspec.json.decode(world.records()[-1].read_bytes(), type=LoadRecord)
        assert [(name.first, name.number) for name in head.earlier][:3] == [(1, 16), (17, 32), (33, 33)]
        for path in world.records()[:15]:
            path.unlink()  # record 16 has what they had
        assert world.run() is None
        world.put("more.csv")
        world.run()
        assert world.ids() == list(range(41))


class TestPatterns:
    FILES = (
        "a.csv",
        "b.csv",
        "ab.csv",
        "a.json",
        "_a.csv",
        ".a.csv",
        "x/a.csv",
        "x/y/b.csv",
        "_x/a.csv",
        "z[1].csv",
        "x/.h/a.csv",
    )

    @pytest.mark.parametrize(
        ("source", "recursive", "expected"),
        [
            ("", False, ["a.csv", "a.json", "ab.csv", "b.csv", "z[1].csv"]),
            ("*.csv", False, ["a.csv", "ab.csv", "b.csv", "z[1].csv"]),
            ("?.csv", False, ["a.csv", "b.csv"]),
            ("[ab].csv", False, ["a.csv", "b.csv"]),
            ("[!a].csv", False, ["b.csv"]),
            ("[a-z].*", False, ["a.csv", "a.json", "b.csv"]),
            ("{a,ab}.csv", False, ["a.csv", "ab.csv"]),
            ("a.{csv,json}", False, ["a.csv", "a.json"]),
            ("*/*.csv", False, ["x/a.csv"]),
            ("*.csv", True, ["a.csv", "ab.csv", "b.csv", "x/a.csv", "x/y/b.csv", "z[1].csv"]),
            ("x/*", True, ["a.csv", "y/b.csv"]),
            ("x", False, ["x/a.csv"]),
            ("x/", False, ["a.csv"]),
            ("x", True, ["x/a.csv", "x/y/b.csv"]),
            ("z\\[1\\].csv", False, ["z[1].csv"]),
            ("a.csv", False, ["a.csv"]),
            ("none.csv", False, []),
        ],
    )
    def test_what_is_selected(self, tmp_path, source, recursive, expected):
        for name in self.FILES:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        pattern = SourcePattern.parse(f"{tmp_path}/{source}", recursive=recursive)
        _, found = matching(store_for(pattern.base), pattern)
        assert sorted(status.path for status in found) == expected

    @pytest.mark.parametrize(
        ("source", "pattern", "base", "names"),
        [
            ("s3://raw/in/*.csv", None, "s3://raw/in", "*.csv"),
            ("s3://raw/in", None, "s3://raw", "in"),
            ("s3://raw/in/", None, "s3://raw/in", ""),
            ("s3://raw", None, "s3://raw", ""),
            ("s3://raw/*", None, "s3://raw", "*"),
            ("s3://raw/in", "*.csv", "s3://raw/in", "*.csv"),
            ("s3://raw/in/", "2024/*.csv", "s3://raw/in/2024", "*.csv"),
            ("/*.csv", None, "/", "*.csv"),
            ("in/*.csv", None, "in", "*.csv"),
            ("in", None, "in", ""),
            ("/a\\*b/*.csv", None, "/a*b", "*.csv"),
        ],
    )
    def test_how_it_is_split(self, source, pattern, base, names):
        found = SourcePattern.parse(source, pattern)
        assert (found.base, found.names) == (base, names)

    @pytest.mark.parametrize("source", ["", " ", "None", "*.csv", "s3://b*/x", "/x/[a.csv", "/x/{a,b.csv", "/x/**/*.csv"])
    def test_what_is_refused(self, source):
        with pytest.raises(DeltaIllegalArgumentException):
            SourcePattern.parse(source)

    def test_a_hidden_file_by_its_name(self, world):
        world.put("_a.csv")
        with pytest.raises(DeltaIllegalArgumentException, match="hidden"):
            world.run("_a.csv")

    @pytest.mark.parametrize("consumer", ["", " ", "None", "a#record", 3])
    def test_a_consumer_that_is_none(self, consumer):
        with pytest.raises(DeltaIllegalArgumentException, match="consumer"):
            CopyIntoOptions(consumer=consumer)


def column(name: str, kind: str = "long", **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {key.replace("__", "."): v for key, v in metadata.items()}}


KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "partitioned": ([column("id"), column("p", "string")], {"partition_by": ["p"]}),
    "column mapping": ([column("id"), column("p", "string")], {"configuration": {"delta.columnMapping.mode": "name"}}),
    "partitioned by a mapped column": (
        [column("id"), column("p", "string")],
        {"partition_by": ["p"], "configuration": {"delta.columnMapping.mode": "id"}},
    ),
    "change data feed": ([column("id"), column("p", "string")], {"configuration": {"delta.enableChangeDataFeed": "true"}}),
    "row tracking": ([column("id"), column("p", "string")], {"configuration": {"delta.enableRowTracking": "true"}}),
    "in-commit timestamps": (
        [column("id"), column("p", "string")],
        {"configuration": {"delta.enableInCommitTimestamps": "true"}},
    ),
    "deletion vectors": ([column("id"), column("p", "string")], {"configuration": {"delta.enableDeletionVectors": "true"}}),
    "identity": (
        [
            column("id"),
            column("p", "string"),
            column(
                "number",
                delta__identity__start=1,
                delta__identity__step=1,
                delta__identity__allowExplicitInsert=False,
            ),
        ],
        {},
    ),
    "NOT NULL": ([{**column("id"), "nullable": False}, column("p", "string")], {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_every_kind(world, kind):
    fields, options = KINDS[kind]
    begin = {**options, "schema": json.dumps({"type": "struct", "fields": fields})}
    (world.source / "a.csv").write_text("id,p\n1,x y\n2,\n")
    handle = world.target.begin(**begin)
    world.target.publish(handle, world.stage(handle))
    (world.source / "b.csv").write_text("P,ID\nz%/ü,3\n")
    world.run()
    assert world.run() is None
    assert world.loads() == 2
    rows = READERS["Polars"](world.target.uri, None).sort_by("id").to_pylist()  # DuckDB finds no values of mapped partitions
    assert [(row["id"], row["p"]) for row in rows] == [(1, "x y"), (2, None), (3, "z%/ü")]
    if kind == "identity":
        assert len({row["number"] for row in rows} - {None}) == 3


class TestTablesInTheSource:
    def test_the_table_itself(self, world):
        world.put("a.csv")
        world.run()
        for source in (world.target.path, world.target.path.parent / "*", world.target.path / "x" / "*"):
            (world.target.path / "x").mkdir(exist_ok=True)
            (world.target.path / "x" / "a.csv").write_text("id\n1\n")
            pattern = SourcePattern.parse(str(source), "*.{csv,parquet}" if source == world.target.path else None, recursive=True)
            view = world.target.view(world.begin())
            with pytest.raises(DeltaIllegalArgumentException, match=r"in the directory of (a Delta table|table .* itself)"):
                find_source_files(view, store_for(pattern.base), pattern, CopyIntoOptions())

    def test_another_table(self, world):
        Table(world.source / "other").write(pa.table({"id": [1]}))
        world.put("a.csv")
        world.run()
        assert world.ids() == [0], "its files are not directly in the source"
        with pytest.raises(DeltaIllegalArgumentException, match="is in the directory of a Delta table"):
            world.run("*", recursive=True)


class TestFormats:
    SCHEMA = {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (
                ("id", "long"),
                ("name", "string"),
                ("day", "date"),
                ("at", "timestamp"),
                ("price", "decimal(10,2)"),
            )
        ],
    }

    def read(self, path: Path) -> pa.Table:
        from airflow_delta.log.schema.types import struct_of

        table = Table(path / "t")
        handle = table.begin(schema=json.dumps(self.SCHEMA))
        pattern = SourcePattern.parse(f"{path}/in/")
        found = find_source_files(table.view(handle), store_for(pattern.base), pattern, CopyIntoOptions())
        return read_arrow_files(found, struct_of(self.SCHEMA)).read_all()

    def put(self, path: Path, name: str, text: str | bytes) -> None:
        (path / "in").mkdir(exist_ok=True)
        (path / "in" / name).write_bytes(text.encode() if isinstance(text, str) else text)

    def test_parquet(self, tmp_path):
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "in" / "a.parquet")
        pq.write_table(pa.table({"id": pa.array([2], pa.int64()), "name": ["x"]}), tmp_path / "in" / "b.parquet")
        assert self.read(tmp_path).to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "x"}]

    def test_types_that_do_not_go_together(self, tmp_path):
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"id": pa.array([1])}), tmp_path / "in" / "a.parquet")
        pq.write_table(pa.table({"id": ["x"]}), tmp_path / "in" / "b.parquet")
        with pytest.raises(SchemaMismatchException, match="apart from each other"):
            self.read(tmp_path)

    def test_a_file_that_is_not_parquet(self, tmp_path):
        self.put(tmp_path, "a.parquet", "no")
        with pytest.raises(SchemaMismatchException, match="cannot be read as Parquet"):
            self.read(tmp_path)

    def test_avro_of_two_schemas(self, tmp_path):
        def header(schema: str, *, blocks: bool = False) -> bytes:
            entries = b"".join(
                bytes([len(key) * 2]) + key + bytes([(len(value) * 2) & 0x7F | 0x80, (len(value) * 2) >> 7]) + value
                for key, value in ((b"avro.codec", b"null"), (b"avro.schema", schema.encode()))
            )
            count = b"\x03" + bytes([len(entries) * 2 & 0x7F | 0x80, len(entries) * 2 >> 7]) if blocks else b"\x04"
            return b"Obj\x01" + count + entries + b"\x00" + b"x" * 16

        one, other = '{"type": "record", "name": "r", "fields": []}', '{"type": "record", "name": "s", "fields": []}'
        self.put(tmp_path, "a.avro", header(one))
        self.put(tmp_path, "b.avro", header(one.replace(" ", ""), blocks=True))
        pattern = SourcePattern.parse(f"{tmp_path}/in/")
        table = Table(tmp_path / "t")

        def find() -> SourceFiles:
            view = table.view(table.begin(schema=SCHEMA))
            return find_source_files(view, store_for(pattern.base), pattern, CopyIntoOptions())

        find().check_one_avro_schema()
        self.put(tmp_path, "c.avro", header(other))
        with pytest.raises(SchemaMismatchException, match=r"a\.avro and c\.avro .* different Avro schemas"):
            find().check_one_avro_schema()
        self.put(tmp_path, "c.avro", header(one)[:40])
        with pytest.raises(SchemaMismatchException, match=r"c\.avro .* is not Avro"):
            find().check_one_avro_schema()


def test_a_log_of_the_table_lists_no_record_as_its_own(world):
    world.put("a.csv")
    world.run()
    log = DeltaLog.for_table(str(world.target.path))
    assert log.update().version == 0
    assert world.target.live()
