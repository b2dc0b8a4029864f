"""Timestamps inside the commits: strictly increasing, also through races, and when they were switched on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_delta.exceptions import MetadataChangedException, MissingCommitTimestampException
from airflow_delta.transaction import Operation
from support.actions import add
from support.table import Table, metadata

ENABLED = {"delta.enableInCommitTimestamps": "true"}
VERSION = "delta.inCommitTimestampEnablementVersion"
TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
FAR = 4_000_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(configuration=ENABLED)
    return table


@pytest.fixture
def plain(tmp_path: Path) -> Table:
    table = Table(tmp_path / "plain")
    table.create()
    return table


def timestamp(table: Table, version: int) -> int | None:
    value = table.info(version).get("inCommitTimestamp")
    return None if value is None else int(value)


def configuration(table: Table, version: int) -> dict[str, str]:
    return dict(next(line["metaData"]["configuration"] for line in table.lines(version) if "metaData" in line))


def foreign(table: Table, version: int, at: int | None, *actions: dict[str, Any], file_time: int | None = None) -> None:
    info: dict[str, Any] = {"operation": "WRITE", "timestamp": 1, "operationParameters": {}}
    table.put_foreign(version, {"commitInfo": info if at is None else {"inCommitTimestamp": at, **info}}, *actions)
    if file_time is not None:
        path = table.path / "_delta_log" / f"{version:020d}.json"
        os.utime(path, ns=(file_time * 1_000_000, file_time * 1_000_000))


def enabling(table: Table) -> Any:
    """A transaction that switches timestamps on, begun but not committed."""
    transaction = table.log().start_transaction()
    before = transaction.snapshot.metadata
    transaction.update_metadata(replace(before, configuration={**before.configuration, **ENABLED}))
    return transaction


def test_the_first_commit_has_one_and_no_properties(table: Table) -> None:
    now = time.time() * 1000
    first = timestamp(table, 0)
    assert first is not None
    assert now - 60_000 < first <= now
    assert configuration(table, 0) == ENABLED
    assert next(iter(table.info(0))) == "inCommitTimestamp"


def test_tables_without_them_have_none(plain: Table) -> None:
    plain.commit(add("a"))
    assert timestamp(plain, 1) is None


def test_a_clock_that_goes_back_does_not_turn_the_order(table: Table) -> None:
    foreign(table, 1, FAR)
    table.commit(add("a"))
    table.commit(add("b"))
    assert timestamp(table, 2) == FAR + 1
    assert timestamp(table, 3) == FAR + 2
    assert table.log().snapshot.timestamp == FAR + 2


def test_a_race_moves_it_past_the_winner(table: Table) -> None:
    ours = table.log().start_transaction()
    foreign(table, 1, FAR)
    foreign(table, 2, FAR + 10)
    assert ours.commit([add("a")], Operation.write()) == 3
    assert timestamp(table, 3) == FAR + 11
    assert ours.outcome is not None
    assert ours.outcome.commit_info.in_commit_timestamp == FAR + 11


def test_a_race_keeps_it_when_it_is_late_enough(table: Table) -> None:
    ours = table.log().start_transaction()
    foreign(table, 1, 5)
    ours.commit([add("a")], Operation.write())
    now = timestamp(table, 2)
    assert now is not None
    assert now > 1_700_000_000_000


def test_large_commits_have_one(table: Table) -> None:
    foreign(table, 1, FAR)
    table.log().start_transaction().commit_large([add("a")], Operation.restore(version=0))
    assert timestamp(table, 2) == FAR + 1


def test_switching_them_on_notes_version_and_time(plain: Table) -> None:
    plain.commit(add("a"))
    assert enabling(plain).commit([], Operation.set_table_properties(ENABLED)) == 2
    assert configuration(plain, 2) == {**ENABLED, VERSION: "2", TIMESTAMP: str(timestamp(plain, 2))}
    assert [next(iter(line)) for line in plain.lines(2)] == ["commitInfo", "metaData", "protocol"]
    plain.commit(add("b"))
    assert (timestamp(plain, 3) or 0) > (timestamp(plain, 2) or 0)
    assert not any("metaData" in line for line in plain.lines(3))


def test_a_race_moves_what_was_noted(plain: Table) -> None:
    ours = enabling(plain)
    foreign(plain, 1, None, file_time=FAR)
    foreign(plain, 2, None, file_time=FAR - 5)
    assert ours.commit([], Operation.set_table_properties(ENABLED)) == 3
    assert timestamp(plain, 3) == FAR + 1
    assert configuration(plain, 3) == {**ENABLED, VERSION: "3", TIMESTAMP: str(FAR + 1)}
    snapshot = plain.log().snapshot
    assert snapshot.metadata.configuration[VERSION] == "3"


def test_a_winner_that_switches_them_on_is_followed(plain: Table) -> None:
    winner, ours = enabling(plain), plain.log().start_transaction()
    winner.commit([], Operation.set_table_properties(ENABLED))
    assert ours.commit([add("a")], Operation.write()) == 2
    assert (timestamp(plain, 2) or 0) > (timestamp(plain, 1) or 0)


def test_a_winner_that_switches_them_on_with_a_slow_clock(plain: Table) -> None:
    ours = plain.log().start_transaction()
    before = next(line["metaData"] for line in plain.lines(0) if "metaData" in line)
    after = {**before, "configuration": {**ENABLED, VERSION: "1", TIMESTAMP: "5"}}
    listed = ["appendOnly", "inCommitTimestamp", "invariants"]
    foreign(
        plain, 1, 5, {"metaData": after}, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": listed}}
    )
    assert ours.commit([add("a")], Operation.write()) == 2
    assert timestamp(plain, 2) == plain.info(2)["timestamp"]


def test_a_winner_without_one_is_refused(table: Table) -> None:
    """Of a writer that does not know them; what its time was, nobody can say."""
    ours = table.log().start_transaction()
    foreign(table, 1, None)
    with pytest.raises(MissingCommitTimestampException, match="commit 1"):
        ours.commit([add("a")], Operation.write())
    assert table.versions() == [0, 1]


def test_two_that_switch_them_on(plain: Table) -> None:
    winner, ours = enabling(plain), enabling(plain)
    winner.commit([], Operation.set_table_properties(ENABLED))
    with pytest.raises(Exception, match="DELTA_PROTOCOL_CHANGED"):
        ours.commit([], Operation.set_table_properties(ENABLED))


def test_switching_on_with_another_property_is_a_conflict_for_others(plain: Table) -> None:
    winner, ours = enabling(plain), plain.log().start_transaction()
    other = replace(winner.metadata, configuration={**winner.metadata.configuration, "user": "x"})
    second = plain.log().start_transaction()
    second.update_metadata(other)
    second.commit([], Operation.set_table_properties({"user": "x"}))
    with pytest.raises(MetadataChangedException, match="user"):
        ours.commit([add("a")], Operation.write())


@pytest.mark.parametrize("race", [False, True])
def test_a_replaced_table_keeps_what_was_noted(plain: Table, race: bool) -> None:
    enabling(plain).commit([], Operation.set_table_properties(ENABLED))
    noted = {key: value for key, value in configuration(plain, 1).items() if key in (VERSION, TIMESTAMP)}
    ours = plain.log().start_transaction()
    ours.update_metadata(metadata(name="replaced", configuration=ENABLED))
    if race:
        plain.commit(add("w"))
    version = ours.commit([], Operation.replace_table())
    assert configuration(plain, version) == {**ENABLED, **noted}
    assert (timestamp(plain, version) or 0) > (timestamp(plain, version - 1) or 0)


def test_many_at_once_stay_in_order(table: Table) -> None:
    opened = [table.log().start_transaction() for _ in range(6)]
    commits: list[Callable[[], int]] = [
        lambda number=number, txn=txn: txn.commit([add(f"f{number}")], Operation.write()) for number, txn in enumerate(opened)
    ]
    assert [commit() for commit in commits] == [1, 2, 3, 4, 5, 6]
    stamps = [timestamp(table, version) or 0 for version in range(7)]
    assert stamps == sorted(set(stamps))
