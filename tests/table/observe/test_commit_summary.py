"""What a commit did, and which commits somebody waits for: read from the log alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    PredicateException,
    VersionNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.table.observe import commit_summary as observing
from airflow_delta.table.observe.commit_summary import MAX_PARTITIONS, commit_summary, commits_after, recent_commits
from airflow_delta.table.observe.watch import (
    CommitConditions,
    Watermark,
    check_table_exists,
    first_match,
    matches_after,
    version_reached,
    watermark_now,
)
from support import tables

TIME = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def log(path: Path) -> DeltaLog:
    return DeltaLog.for_table(str(path))


class TestSummary:
    def test_all_that_a_commit_says(self, path, log):
        tables.create_table(path, partition_columns=["part"])
        tables.write_commit(
            path,
            1,
            tables.info(
                "MERGE",
                operation_parameters={"predicate": "[]"},
                operation_metrics={"numOutputRows": "3", "numTargetRowsInserted": 2},
                read_version=0,
                isolation_level="Serializable",
                is_blind_append=False,
                engine_info="some engine",
                user_metadata="note",
                txn_id="t-1",
                tags={"airflow.dagId": "d"},
            ),
            tables.txn("app", 7),
            tables.add("a.parquet", part="x", size=10, stats='{"numRecords":3}'),
            tables.add("b.parquet", part="y", size=20, stats='{"numRecords":4}'),
            tables.remove("c.parquet", part="x", size=5),
            at=TIME,
        )
        found = commit_summary(log, 1)
        assert found.to_dict() == {
            "version": 1,
            "timestamp": found.timestamp,
            "operation": "MERGE",
            "operation_parameters": {"predicate": "[]"},
            "operation_metrics": {"numOutputRows": "3", "numTargetRowsInserted": "2"},
            "read_version": 0,
            "isolation_level": "Serializable",
            "is_blind_append": False,
            "engine_info": "some engine",
            "user_metadata": "note",
            "txn_id": "t-1",
            "tags": {"airflow.dagId": "d"},
            "app_transactions": {"app": 7},
            "num_added_files": 2,
            "num_removed_files": 1,
            "bytes_added": 30,
            "bytes_removed": 5,
            "num_records": 7,
            "data_change": True,
            "num_partitions": 2,
            "partitions": [{"part": "x"}, {"part": "y"}],
            "changes_metadata": False,
            "changes_protocol": False,
        }
        assert json.loads(json.dumps(found.to_dict())) == found.to_dict()

    def test_the_first_commit_and_one_that_says_nothing(self, path, log):
        tables.create_table(path)
        tables.commit_path(path, 1).write_bytes(b'{"txn":{"appId":"a","version":1}}\n')
        first, silent = commit_summary(log, 0), commit_summary(log, 1)
        assert (first.changes_metadata, first.changes_protocol, first.data_change, first.num_records) == (True, True, False, 0)
        assert (silent.operation, silent.read_version, silent.tags, silent.app_transactions) == (None, None, {}, {"a": 1})

    def test_a_foreign_writers_own_types_are_left_out(self, path, log):
        tables.create_table(path)
        tables.commit_path(path, 1).write_bytes(
            b'{"commitInfo":{"operation":"WRITE","readVersion":"zero","isBlindAppend":"yes"}}\n'
        )
        assert (commit_summary(log, 1).operation, commit_summary(log, 1).read_version) == ("WRITE", None)

    @pytest.mark.parametrize(
        ("stats", "vector", "rows"),
        [(None, None, None), ("{}", None, None), ('{"numRecords":5}', None, 5), ('{"numRecords":5}', 2, 3)],
    )
    def test_rows_of_the_added_files(self, path, log, stats, vector, rows):
        descriptor = vector and DeletionVectorDescriptor(
            storage_type="i", path_or_inline_dv="x", size_in_bytes=1, cardinality=vector
        )
        tables.create_table(path)
        tables.write_commit(path, 1, tables.add("a.parquet", stats=stats, deletion_vector=descriptor))
        assert commit_summary(log, 1).num_records == rows

    def test_optimize_changes_no_data(self, path, log):
        tables.create_table(path)
        file = tables.add("a.parquet", data_change=False)
        tables.write_commit(path, 1, tables.info("OPTIMIZE"), file, tables.add("b.parquet").remove(1, data_change=False))
        assert commit_summary(log, 1).data_change is False

    def test_at_most_100_partitions_are_listed(self, path, log):
        tables.create_table(path, partition_columns=["part"])
        tables.write_commit(path, 1, *(tables.add(f"{n}.parquet", part=str(n % 150)) for n in range(300)))
        found = commit_summary(log, 1)
        assert (found.num_partitions, len(found.partitions), found.num_added_files) == (150, MAX_PARTITIONS, 300)


class TestTime:
    """The same times as the history gives."""

    def test_of_files(self, path, log):
        tables.create_table(path)
        for version, at in ((1, TIME), (2, TIME - 5), (3, TIME + 9)):
            tables.write_commit(path, version, at=at)
        history = {record.version: record.timestamp for record in log.history()}
        assert {found.version: found.timestamp for found in recent_commits(log)} == history

    def test_recorded_in_the_commits_from_their_enablement_on(self, path, log):
        tables.create_table(path)
        enabled = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "1"}
        feature = tables.protocol(3, 7, reader_features=[], writer_features=["inCommitTimestamp"])
        stamp = tables.info(in_commit_timestamp=TIME)
        tables.write_commit(path, 1, stamp, feature, tables.metadata(configuration=enabled))
        tables.write_commit(path, 2, tables.info(in_commit_timestamp=TIME + 1))
        assert [found.timestamp for found in recent_commits(log, 2)] == [TIME + 1, TIME]
        assert commit_summary(log, 0).timestamp == log.history()[-1].timestamp

    def test_a_time_that_a_commit_carries_does_not_count_on_a_table_without_the_property(self, path, log):
        tables.create_table(path)
        tables.write_commit(path, 1, tables.info(in_commit_timestamp=5), at=TIME)
        assert commit_summary(log, 1).timestamp == log.history(1)[0].timestamp != 5

    def test_far_from_the_end_a_store_is_asked_one_by_one(self, path, log, monkeypatch):
        """A listing would go on to the end of the log."""
        monkeypatch.setattr(observing, "_LISTED_AS_CHEAPLY", 3)
        tables.create_table(path)
        for version in range(1, 101):
            tables.write_commit(path, version, at=TIME + version * 1000)
        log.store.probes = False  # type: ignore[misc]
        log.update()
        listed: list[str] = []
        original = log.store.list_from

        def list_from(directory, start, **options):
            listed.append(start)
            return original(directory, start, **options)

        monkeypatch.setattr(log.store, "list_from", list_from)
        far, near = commits_after(log, 9, limit=10), commits_after(log, 79, limit=10)
        assert [start for start in listed if start[:20] in (f"{9:020d}", f"{79:020d}")] == [f"{79:020d}"]
        assert {found.version: found.timestamp for found in (*far, *near)} == {
            version: TIME + version * 1000 for version in (*range(10, 20), *range(80, 90))
        }

    def test_of_a_store_that_lists(self, path, log):
        """An object store tells the times of many commits in one listing."""
        for version, at in enumerate([TIME, TIME + 7, TIME + 3, TIME + 20]):
            tables.write_commit(path, version, *([tables.protocol(), tables.metadata()] if not version else []), at=at)
        by_probing = [found.timestamp for found in recent_commits(DeltaLog.for_table(str(path)))]
        log.store.probes = False  # type: ignore[misc]
        assert [found.timestamp for found in recent_commits(log)] == by_probing
        assert [found.timestamp for found in commits_after(log, 0)] == by_probing[2::-1]


class TestPages:
    def test_after_a_version_oldest_first(self, path, log):
        tables.table_with_commits(path, 150)
        assert [found.version for found in commits_after(log, 147)] == [148, 149, 150]
        assert [found.version for found in commits_after(log, -1, limit=130)] == list(range(130))
        assert commits_after(log, 150) == commits_after(log, 999) == []

    def test_large_commits_are_not_decoded_all_at_once(self, path, log):
        tables.create_table(path)
        stats = '{"numRecords":5,"minValues":{"id":1},"maxValues":{"id":99999}}'
        for version in range(1, 21):
            tables.append(path, version, files=1000, stats=stats)
        raw = sum(tables.commit_path(path, version).stat().st_size for version in range(21))
        log.update()
        tracemalloc.start()
        try:
            assert len(recent_commits(log, 20)) == 20
            assert tracemalloc.get_traced_memory()[1] < 2 * raw
        finally:
            tracemalloc.stop()

    def test_newest_first_page_by_page(self, path, log):
        tables.table_with_commits(path, 150)
        assert [found.version for found in recent_commits(log, 3)] == [150, 149, 148]
        assert [found.version for found in recent_commits(log, 100, before=148)] == list(range(147, 47, -1))
        assert [found.version for found in recent_commits(log, 100, before=2)] == [1, 0]
        assert recent_commits(log, 10, before=0) == recent_commits(log, 0) == []

    def test_without_a_table(self, log):
        assert commits_after(log, -1) == recent_commits(log) == []
        with pytest.raises(VersionNotFoundException, match="no table is there"):
            commit_summary(log, 0)

    def test_new_commits_are_seen(self, path, log):
        tables.table_with_commits(path, 1)
        assert recent_commits(log, 1)[0].version == 1
        tables.append(path, 2)
        assert recent_commits(log, 1)[0].version == 2
        assert [found.version for found in commits_after(log, 1)] == [2]


@pytest.fixture
def cleaned_up(path) -> Path:
    """A table whose log begins with the checkpoint of version 10 and holds the commits 8 to 12."""
    tables.table_with_commits(path, 12)
    tables.write_checkpoint_by_hand(path, 10, [tables.protocol(), tables.metadata()])
    for version in range(8):
        tables.commit_path(path, version).unlink()
    return path


class TestCleanedUp:
    def test_recent_commits_end_where_the_log_begins(self, cleaned_up, log):
        assert [found.version for found in recent_commits(log)] == [12, 11, 10, 9, 8]
        assert [found.version for found in recent_commits(log, 2, before=10)] == [9, 8]
        assert recent_commits(log, 2, before=8) == []

    @pytest.mark.parametrize(("version", "what"), [(3, "cleaned up"), (13, "no version 13 yet"), (-1, "versions begin at 0")])
    def test_a_version_that_is_not_there_is_named(self, cleaned_up, log, version, what):
        with pytest.raises(VersionNotFoundException, match=what) as raised:
            commit_summary(log, version)
        error = raised.value
        assert (error.table, error.version, error.earliest, error.latest) == (str(cleaned_up), version, 8, 12)

    def test_what_follows_a_version_is_refused_when_its_beginning_is_gone(self, cleaned_up, log):
        with pytest.raises(VersionNotFoundException, match="version 4 ") as raised:
            commits_after(log, 3)
        assert [found.version for found in commits_after(log, raised.value.earliest - 1)] == [8, 9, 10, 11, 12]

    def test_it_says_how_to_go_on_waiting(self, cleaned_up, log):
        with pytest.raises(VersionNotFoundException, match=r"after version 3 were cleaned up.*begins at version 8"):
            first_match(log, Watermark(3), CommitConditions())
        with pytest.raises(VersionNotFoundException, match="cleaned up"):
            version_reached(log, 3)


@pytest.fixture
def partitioned(path) -> Path:
    """Versions: 1 writes x, 2 merges y, 3 optimizes y, 4 alters, 5 deletes from x, 6 writes null."""
    tables.create_table(path, partition_columns=["part"])
    tables.write_commit(path, 1, tables.info("WRITE"), tables.add("1.parquet", part="x"))
    tables.write_commit(path, 2, tables.info("MERGE"), tables.add("2.parquet", part="y"), tables.remove("0.parquet", part="y"))
    tables.write_commit(path, 3, tables.info("OPTIMIZE"), tables.add("3.parquet", part="y", data_change=False))
    tables.write_commit(path, 4, tables.info("SET TBLPROPERTIES"), tables.metadata(partition_columns=["part"]))
    tables.write_commit(path, 5, tables.info("DELETE"), tables.remove("1.parquet", part="x"))
    null = tables.add("6.parquet")
    tables.write_commit(path, 6, tables.info("WRITE"), type(null)(**{**_fields(null), "partition_values": {"part": None}}))
    return path


def _fields(action) -> dict:
    return {name: getattr(action, name) for name in action.__struct_fields__}


MATCHES = [
    ({}, [1, 2, 5, 6]),
    ({"data_change_only": False}, [0, 1, 2, 3, 4, 5, 6]),
    ({"operations": ("write",)}, [1, 6]),
    ({"operations": ("MERGE", "DELETE")}, [2, 5]),
    ({"operations": ("OPTIMIZE",), "data_change_only": False}, [3]),
    ({"partitions": "part = 'x'"}, [1, 5]),
    ({"partitions": "part = 'y'", "data_change_only": False}, [2, 3]),
    ({"partitions": "part is null"}, [6]),
    ({"partitions": "part > 'w'", "operations": ("WRITE",)}, [1]),
    ({"partitions": " "}, [1, 2, 5, 6]),
    ({"partitions": "part = 'z'"}, []),
]


class TestConditions:
    @pytest.mark.parametrize(("conditions", "versions"), MATCHES)
    def test_which_commits_match(self, partitioned, log, conditions, versions):
        wanted = CommitConditions(**conditions)
        found = [match.summary.version for match, _ in matches_after(log, Watermark(-1), wanted) if match is not None]
        assert found == versions
        match, seen = first_match(log, Watermark(-1), wanted)
        assert (None if match is None else match.summary.version, seen.version) == ((versions or [None])[0], (versions or [6])[0])

    def test_a_file_without_its_partition_may_have_been_in_any(self, partitioned, log):
        unknown = type(tables.remove("x"))(path="2.parquet", data_change=True)
        tables.write_commit(partitioned, 7, tables.info("DELETE"), unknown)
        match, _ = first_match(log, Watermark(6), CommitConditions(partitions="part = 'z'"))
        assert match is not None
        assert (match.summary.version, match.summary.partitions) == (7, ())

    @pytest.mark.parametrize("before", [{}, {"day": "2026-01-01"}, {"part": "x"}])
    def test_a_commit_from_before_the_table_was_partitioned_anew_may_have_touched_any(self, path, log, before):
        tables.create_table(path)
        file = tables.add("1.parquet", partition_values=before)
        tables.write_commit(path, 1, file)
        number = tables.SCHEMA.replace('"string"', '"integer"')
        tables.write_commit(path, 2, tables.metadata(schema_string=number, partition_columns=["part"]))
        for version, value in ((3, "1"), (4, "2")):
            tables.write_commit(path, version, tables.add(f"{version}.parquet", part=value))
        wanted = CommitConditions(partitions="part = 2")
        found = [match.summary.version for match, _ in matches_after(log, Watermark(0), wanted) if match is not None]
        assert found == [1, 4]

    @pytest.mark.parametrize("predicate", ["id = 1", "part = 'x' and id > 3", "part = 'x' or id = 1"])
    def test_a_predicate_on_rows_is_refused(self, partitioned, log, predicate):
        with pytest.raises(DeltaIllegalArgumentException, match="partition columns: part"):
            first_match(log, Watermark(-1), CommitConditions(partitions=predicate))

    @pytest.mark.depends("sqlglot")
    def test_an_unknown_column(self, partitioned, log):
        with pytest.raises(PredicateException, match="nope"):
            first_match(log, Watermark(-1), CommitConditions(partitions="nope = 1"))


class TestWaiting:
    def test_only_what_comes_after_the_watermark(self, partitioned, log):
        seen = watermark_now(log)
        assert (seen.version, seen.table_id) == (6, tables.TABLE_ID)
        assert first_match(log, seen, CommitConditions()) == (None, seen)
        tables.write_commit(partitioned, 7, tables.info("OPTIMIZE"), tables.add("7.parquet", part="x", data_change=False))
        match, seen = first_match(log, seen, CommitConditions())
        assert (match, seen.version) == (None, 7)
        tables.write_commit(partitioned, 8, tables.add("8.parquet", part="x"))
        tables.write_commit(partitioned, 9, tables.add("9.parquet", part="x"))
        match, seen = first_match(log, seen, CommitConditions())
        assert match is not None
        assert (match.summary.version, match.observed_version, match.table_id, seen.version) == (8, 9, tables.TABLE_ID, 8)

    def test_a_table_that_comes_into_being(self, path, log):
        seen = watermark_now(log)
        assert seen == Watermark(-1)
        assert first_match(log, seen, CommitConditions()) == (None, seen)
        assert version_reached(log, 0) is None
        with pytest.raises(DeltaTableNotFoundException, match="fail_if_missing"):
            check_table_exists(log)
        tables.create_table(path, tables.add("0.parquet"))
        match, _ = first_match(log, seen, CommitConditions())
        assert match is not None
        assert match.summary.version == 0
        check_table_exists(log)

    def test_another_table_at_the_same_place_is_new_as_a_whole(self, path, log):
        tables.table_with_commits(path, 5)
        seen = watermark_now(log)
        for version in range(6):
            tables.commit_path(path, version).unlink()
        tables.create_table(path, tables.add("new.parquet"), id="another")
        match, seen = first_match(log, seen, CommitConditions())
        assert match is not None
        assert (match.summary.version, seen) == (0, Watermark(0, "another"))

    def test_a_version_whatever_it_did(self, partitioned, log):
        match = version_reached(log, 4)
        assert match is not None
        assert (match.summary.operation, match.observed_version) == ("SET TBLPROPERTIES", 6)
        assert version_reached(log, 7) is None

    @pytest.mark.parametrize("value", [None, "5", {}, {"version": "5"}, [5]])
    def test_what_is_no_watermark(self, value):
        assert Watermark.from_dict(value) is None
        assert Watermark.from_dict(Watermark(5, "id").to_dict()) == Watermark(5, "id")

    def test_each_commit_is_read_once(self, path, log):
        tables.table_with_commits(path, 300)
        seen = watermark_now(log)
        tables.append(path, 301)
        read: list[str] = []
        original = log.store.read
        log.store.read = lambda path: read.append(path) or original(path)  # type: ignore[method-assign,func-returns-value]
        assert first_match(log, seen, CommitConditions())[1].version == 301
        # The new one, and the one that is not there yet.
        assert {int(name[-10:-5]) for name in read if name.endswith(".json")} == {301, 302}


def test_neither_arrow_nor_the_predicate_parser_is_loaded(path):
    tables.table_with_commits(path, 3)
    code = (
        "import sys; from airflow_delta.log import DeltaLog; from airflow_delta.table.observe.watch import *\n"
        f"log = DeltaLog.for_table({str(path)!r})\n"
        "from airflow_delta.table.observe.commit_summary import recent_commits\n"
        "assert len(recent_commits(log)) == 4 and first_match(log, Watermark(-1), CommitConditions())[0]\n"
        "print([name for name in ('pyarrow', 'sqlglot', 'pyspark', 'obstore', 'airflow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
