"""What the log says of a key's users, rule by rule, on logs written by hand."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException, TransactionAlreadyCommittedException
from airflow_delta.log import DeltaLog
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.start.begin import begin
from airflow_delta.table.state.key_users import KeyUser
from support.actions import add, info, txn
from support.tables import commit_path, create_table, write_commit

NOW = int(time.time() * 1000)
HOUR = 3_600_000
MINE = {"airflow.dagId": "d", "airflow.runId": "r", "airflow.taskId": "t.start", "airflow.mapIndex": "-1"}
DEFAULT = "d/t/r/-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_table(tmp_path)
    return tmp_path


def user(told: list[str] | None = None, **options: Any) -> KeyUser:
    return KeyUser(
        **{
            "tags": MINE,
            "committers": frozenset({"t.start", "t.commit"}),
            "tasks": frozenset({"t.start", "t.commit", "other.start", "other.commit", "single"}),
            "default_prefix": "d/t/r/",
            "since": lambda: NOW - HOUR,
            "tell": (told if told is not None else []).append,
            **options,
        }
    )


def commit(path: Path, version: int, key: str, *, operation: str = "WRITE", at: int = NOW, number: int = 0, **tags: str) -> None:
    named = {**MINE, "airflow.taskId": "t.commit", **{f"airflow.{name}": value for name, value in tags.items()}}
    written = info(operation=operation, timestamp=at, txn_id=f"txn-{version}", tags={**named, "airflow.appId": key})
    write_commit(path, version, written, add(f"f{version}"), txn(key, number), at=at)


def start(path: Path, key: str, by: KeyUser | None, **options: Any):
    return begin(DeltaLog.for_table(str(path)), transaction_key=key, user=by, **options)


def expire(path: Path, *, before: int) -> None:
    DeltaLog.for_table(str(path)).checkpoint()
    for version in range(before):
        commit_path(path, version).unlink()


# -- a key that somebody else has used ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "who"),
    [
        ({"runId": "r2"}, "task 't.commit' in run 'r2' of Dag 'd'"),
        ({"dagId": "d2"}, "task 't.commit' in run 'r' of Dag 'd2'"),
        ({"taskId": "other.commit"}, "task 'other.commit' in run 'r' of Dag 'd'"),
        ({"runId": "r2", "mapIndex": "3"}, r"task 't.commit\[3\]' in run 'r2'"),
    ],
)
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_another_run_or_task_is_named(path, tags, who, policy):
    commit(path, 1, "orders", **tags)
    told: list[str] = []
    handle = start(path, "orders", user(told), rerun_policy=policy)
    assert (handle.committed is not None) == (policy == "skip")
    assert len(told) == 1
    assert "committed to table" in told[0]
    assert who.replace("\\", "") in told[0]
    assert ("its rows are not published" in told[0]) == (policy == "skip")
    assert ("its rows replace those" in told[0]) == (policy == "replace")
    with pytest.raises(TransactionAlreadyCommittedException, match=who) as raised:
        start(path, "orders", user(check="fail"), rerun_policy=policy)
    assert (raised.value.table, raised.value.version) == (str(path), 1)
    told.clear()
    start(path, "orders", user(told, check="off"), rerun_policy=policy)
    start(path, "orders", user(told, check="fail"), rerun_policy="append")
    assert told == []


DAYS = [f"2026-01-0{day}T00:00:00+00:00/2026-01-0{day + 1}T00:00:00+00:00" for day in (1, 2)]


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize(
    ("mine", "other", "refused"),
    [
        (DAYS[0], {"scheduledFor": DAYS[1]}, True),
        (DAYS[0], {"scheduledFor": DAYS[0]}, False),
        (DAYS[0], {"scheduledFor": DAYS[1], "dagId": "d2"}, False),
        (DAYS[0], {}, False),
        (None, {"scheduledFor": DAYS[1]}, False),
    ],
)
def test_a_run_that_was_scheduled_for_something_else(path, mine, other, refused, policy):
    commit(path, 1, "orders", **{"runId": "r2", **other})
    told: list[str] = []
    tags = MINE if mine is None else {**MINE, "airflow.scheduledFor": mine}
    if refused:
        with pytest.raises(
            TransactionAlreadyCommittedException, match=re.escape(f"scheduled for {DAYS[1]}, and this run for {DAYS[0]}")
        ):
            start(path, "orders", user(told, tags=tags), rerun_policy=policy)
        start(path, "orders", user(told, tags=tags, check="off"), rerun_policy=policy)
        assert told == []
    else:
        start(path, "orders", user(told, tags=tags), rerun_policy=policy)
        assert len(told) == 1


@pytest.mark.parametrize(("version", "refused"), [(20260101, True), (20251231, False)])
def test_a_version_of_a_run_that_was_scheduled_for_something_else(path, version, refused):
    """A lower version than the table's is skipped, as Delta's scheme says; the same one is two runs with one version."""
    commit(path, 1, "orders", number=20260101, runId="r2", scheduledFor=DAYS[1])
    by = user(tags={**MINE, "airflow.scheduledFor": DAYS[0]})
    log = DeltaLog.for_table(str(path))
    if refused:
        with pytest.raises(TransactionAlreadyCommittedException, match="scheduled for"):
            begin(log, app_id="orders", txn_version=version, user=by)
    else:
        assert begin(log, app_id="orders", txn_version=version, user=by).committed is not None


@pytest.mark.parametrize("tags", [{}, {"mapIndex": "3"}, {"taskId": "t.start"}, {"taskId": "gone.commit"}])
def test_the_own_key_is_found_without_a_word(path, tags):
    commit(path, 1, "orders", **tags)
    told: list[str] = []
    assert start(path, "orders", user(told, check="fail")).committed.version == 1
    assert told == []


def test_another_instance_of_a_mapped_task_is_told(path):
    """It may be the same work at another index, or a key that two instances share."""
    commit(path, 1, "orders", mapIndex="3")
    for index, warnings in (("3", 0), ("4", 1)):
        told: list[str] = []
        mapped = user(told, check="fail", tags={**MINE, "airflow.mapIndex": index})
        assert start(path, "orders", mapped).committed is not None
        assert len(told) == warnings


def test_who_has_committed_is_told_by_the_policy_fail(path):
    commit(path, 1, "orders", runId="r2")
    with pytest.raises(
        TransactionAlreadyCommittedException, match=r"by task 't.commit' in run 'r2' of Dag 'd', and rerun_policy"
    ):
        start(path, "orders", user(), rerun_policy="fail")


def test_a_writer_that_names_no_run(path):
    write_commit(path, 1, info(txn_id=None), add("f"), txn("orders", 0))
    told: list[str] = []
    start(path, "orders", user(told))
    assert "by another writer, which names no Dag run" in told[0]


def test_a_commit_that_has_left_the_log(path):
    commit(path, 1, "orders", runId="r2")
    commit(path, 2, DEFAULT)
    write_commit(path, 3, add("f"))
    expire(path, before=3)
    told: list[str] = []
    assert start(path, "orders", user(told)).committed.transaction_id == ""
    assert "the commit has left the log, so which run wrote it is unknown" in told[0]
    with pytest.raises(TransactionAlreadyCommittedException, match="is unknown"):
        start(path, "orders", user(check="fail"))
    told.clear()
    assert start(path, "orders", user(told), rerun_policy="replace", takes_back=False).txn_version == 1
    assert "is unknown: under rerun_policy='replace' its rows replace those" in told[0]
    told.clear()
    assert start(path, DEFAULT, user(told, check="fail")).committed is not None  # nobody else's
    assert told == []


def test_a_version_of_an_application(path):
    commit(path, 1, "load", number=5, runId="r2")
    told: list[str] = []
    log = DeltaLog.for_table(str(path))
    begin(log, app_id="load", txn_version=5, user=user(told))
    begin(log, app_id="load", txn_version=4, user=user(told))
    assert ["in version 1 before, by task" in text for text in told] == [True, True]
    begin(log, app_id="load", txn_version=6, user=user(told))
    assert len(told) == 2


@pytest.mark.parametrize("check", ["warn", "fail"])
def test_a_run_that_commits_meanwhile(path, check):
    told: list[str] = []
    by = user(told, check=check)
    handle = start(path, "orders", by)
    commit(path, 1, "orders", runId="r2")
    log = DeltaLog.for_table(str(path))
    if check == "fail":
        with pytest.raises(TransactionAlreadyCommittedException, match="run 'r2'"):
            publish(log, handle, [], attempt="1", user=by)
    else:
        assert publish(log, handle, [], attempt="1", user=by).committed_by["runId"] == "r2"
        assert len(told) == 1


def test_a_check_that_does_not_exist(path):
    with pytest.raises(DeltaIllegalArgumentException, match="key_check must be one of warn, fail, off, got 'never'"):
        start(path, "orders", user(check="never"))


# -- a run that has published under another key ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["skip", "replace", "fail"])
def test_a_task_that_the_dag_no_longer_has(path, policy):
    commit(path, 1, "d/old/r/-1", taskId="old.commit")
    with pytest.raises(TransactionAlreadyCommittedException) as raised:
        start(path, DEFAULT, user(), rerun_policy=policy)
    for part in ("'old.commit'", "'d/old/r/-1'", f"{DEFAULT!r}", "'t.start'", "transaction_key='d/old/{{ run_id }}/-1'"):
        assert part in str(raised.value)
    assert (raised.value.table, raised.value.version) == (str(path), 1)
    assert start(path, DEFAULT, user(), rerun_policy="append").committed is None
    assert start(path, DEFAULT, user(check="off"), rerun_policy=policy).committed is None
    assert start(path, DEFAULT, user(tasks=None), rerun_policy=policy).committed is None
    assert start(path, "d/old/r/-1", user()).committed.version == 1  # the way out


@pytest.mark.parametrize(
    "commits",
    [
        {"taskId": "other.commit"},  # it is still there
        {"taskId": "old.commit", "runId": "r2"},
        {"taskId": "old.commit", "dagId": "d2"},
        {"taskId": "old.commit", "at": NOW - 2 * HOUR},  # of a run of the same id that was deleted
        {"taskId": "old.commit", "operation": "OPTIMIZE"},
        {"taskId": "old.commit", "operation": "STREAMING UPDATE"},
    ],
)
def test_what_is_no_second_publication(path, commits):
    commit(path, 1, "another", **commits)
    write_commit(path, 2, info(timestamp=NOW), add("f"))  # of another writer
    write_commit(path, 3, add("g"))
    assert start(path, DEFAULT, user()).committed is None


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("orders/1", "orders/2"),
        (DEFAULT, "orders/1"),
        ("orders/1", DEFAULT),
    ],
)
def test_a_key_that_was_changed(path, was, now):
    commit(path, 1, was)
    with pytest.raises(TransactionAlreadyCommittedException, match=r"If the key of 't.start' was changed in the Dag file"):
        start(path, now, user())


@pytest.mark.parametrize(
    ("was", "now", "refused"),
    [
        ("d/t/r/x=1", "d/t/r/x=2", False),  # other values: other work
        ("orders/1", "orders/2", False),
        ("d/t/r/x=1", "orders/1", True),
        ("orders/1", "d/t/r/x=1", True),
    ],
)
def test_keys_of_instances(path, was, now, refused):
    commit(path, 1, was, mapIndex="0")
    mapped = user(tags={**MINE, "airflow.mapIndex": "1"})
    if refused:
        with pytest.raises(TransactionAlreadyCommittedException, match="changed"):
            start(path, now, mapped)
    else:
        assert start(path, now, mapped).committed is None


def test_a_run_without_a_known_start_is_not_looked_for(path):
    commit(path, 1, "another", taskId="old.commit")
    assert start(path, DEFAULT, user(since=lambda: None)).committed is None


def test_commits_before_the_run_began_are_not_read(path, monkeypatch):
    for version in range(1, 30):
        commit(path, version, f"key {version}", runId="r2", at=NOW - 2 * HOUR)
    read: list[int] = []
    original = DeltaLog.read_commit_range

    def reading(self, versions):
        read.extend(versions)
        return original(self, versions)

    DeltaLog.for_table(str(path)).checkpoint()
    log = DeltaLog.for_table(str(path))
    monkeypatch.setattr(DeltaLog, "read_commit_range", reading)
    for since in (int(time.time() * 1000) + HOUR, NOW - HOUR):
        begin(log, transaction_key=DEFAULT, user=user(since=lambda since=since: since))
        assert read == [29]  # older by its writer's clock and the store's
        read.clear()


@pytest.mark.parametrize("claim", [NOW - HOUR, NOW // 1000, 0], ids=["an hour behind", "in seconds", "zero"])
@pytest.mark.parametrize("name", ["timestamp", "in_commit_timestamp"])
def test_a_writer_whose_clock_is_wrong_does_not_hide_what_the_run_has_published(path, name, claim):
    """Else the renamed group publishes a second time."""
    commit(path, 1, "d/old/r/-1", taskId="old.commit")
    write_commit(path, 2, info(**{name: claim}), add("f"))
    with pytest.raises(TransactionAlreadyCommittedException, match=r"'old.commit'"):
        start(path, DEFAULT, user(since=lambda: NOW - 60_000))


def test_keys_outlive_their_commits(path):
    commit(path, 1, "d/old/r/-1", taskId="old.commit")
    commit(path, 2, "d/other/r/-1", taskId="other.commit")
    commit(path, 3, "d/single/r/-1", taskId="single")
    write_commit(path, 4, info(timestamp=NOW), add("f"))
    expire(path, before=4)
    with pytest.raises(TransactionAlreadyCommittedException, match="no longer has a task or group 'old'"):
        start(path, DEFAULT, user())
    more = user()
    assert start(path, DEFAULT, replace(more, tasks=more.tasks | {"old.start"})).committed is None


def test_a_commit_that_comes_between_start_and_commit(path):
    by = user()
    handle = start(path, DEFAULT, by)
    commit(path, 1, "d/old/r/-1", taskId="old.commit")
    with pytest.raises(TransactionAlreadyCommittedException, match=r"'old.commit'"):
        publish(DeltaLog.for_table(str(path)), handle, [], attempt="1", user=by)


# -- replace --------------------------------------------------------------------------------------------------------------------


def test_start_refuses_what_the_commit_would_not_replace(path):
    from support.actions import remove

    commit(path, 1, DEFAULT)
    assert start(path, DEFAULT, user(), rerun_policy="replace").txn_version == 1
    write_commit(path, 2, remove("f1"), add("repaired"))
    with pytest.raises(TransactionAlreadyCommittedException, match=r"rewritten or removed 1 of its 1 files.*replace_where"):
        start(path, DEFAULT, user(), rerun_policy="replace")
    assert start(path, DEFAULT, user(), rerun_policy="replace", takes_back=False).txn_version == 1
