"""What Delta's own transaction writes after a race it survives, ours writes too: row ids, marks, timestamps, tags, tombstones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_delta.log.actions.actions import Action, DomainMetadata
from airflow_delta.transaction import Operation
from delta_spark.jvm import JvmTransaction, configured, decide
from support.actions import add, remove
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPPORTED = {"delta.feature.rowTracking": "supported"}
TIMESTAMPS = {"delta.enableInCommitTimestamps": "true"}
FAR = 4_000_000_000_000


@pytest.fixture(scope="module")
def judge(delta: SparkSession) -> Iterator[SparkSession]:
    with configured(delta) as session:
        yield session


def written(table: Table, version: int) -> list[Any]:
    """What of a commit must be alike, in its order; times are told as how far they lie behind ``FAR``."""
    result: list[Any] = []
    for line in table.lines(version):
        ((key, value),) = line.items()
        if key == "commitInfo":
            stamp = value.get("inCommitTimestamp")
            result.append((key, stamp - FAR if stamp and stamp >= FAR else stamp is not None, value.get("tags")))
        elif key in ("add", "remove"):
            result.append((key, value["path"], value.get("baseRowId"), value.get("defaultRowCommitVersion"), value["dataChange"]))
        elif key == "metaData":
            result.append((key, sorted(value["configuration"].items())))
        elif key == "domainMetadata":  # Delta repeats the domain's name inside; the protocol does not ask for it
            facts = {name: fact for name, fact in json.loads(value["configuration"]).items() if name != "domainName"}
            result.append((key, value["domain"], facts, value["removed"]))
        else:
            result.append((key, value))
    return result


def both(
    judge: SparkSession,
    tmp_path: Path,
    configuration: dict[str, str],
    setup: list[Action],
    ours: list[Action],
    winners: list[list[Action]],
    operation: Operation | None = None,
) -> tuple[list[Any] | str, list[Any] | str]:
    """Carry one race out twice, and return what Delta and what we have written, or the exception."""
    outcomes: list[list[Any] | str] = []
    for engine in ("delta", "ours"):
        table = Table(tmp_path / engine)
        table.create(configuration=configuration)
        if setup:
            table.commit(*setup)
        ready: Any = JvmTransaction(judge, str(table.path)) if engine == "delta" else table.log().start_transaction()
        for actions in winners:
            version = table.commit(*actions)
        if engine == "delta":
            name, message = decide(ready, ours, operation or Operation.truncate())
            outcomes.append(written(table, version + 1) if name is None else message)
        else:
            try:
                ready.commit(ours, operation or Operation.truncate())
            except Exception as error:
                outcomes.append(str(error))
            else:
                outcomes.append(written(table, version + 1))
    return outcomes[0], outcomes[1]


RACES: dict[str, tuple[list[Action], list[Action], list[list[Action]]]] = {
    "both add": ([add("old", records=100)], [add("a", records=10), add("b", records=5)], [[add("w", records=7)]]),
    "first ids of the table": ([], [add("a", records=10)], [[add("w", records=7)]]),
    "no ids at all": ([], [], [[]]),
    "winner adds nothing": ([add("old", records=100)], [add("a", records=10)], [[]]),
    "several winners": ([], [add("a", records=10)], [[add("w", records=7)], [add("x", records=1)], []]),
    "kept and fresh": (
        [add("old", records=100)],
        [
            remove("old", data_change=False),
            add("again", records=100, base_row_id=0, default_row_commit_version=1, data_change=False),
            add("a", records=3, data_change=False),
        ],
        [[add("w", records=7)]],
    ),
    "empty commit": ([add("old", records=100)], [], [[add("w", records=7)]]),
    "domain of the user": (
        [],
        [add("a", records=1), DomainMetadata(domain="user.x", configuration="{}", removed=False)],
        [[add("w", records=7)]],
    ),
}


@pytest.mark.parametrize("race", RACES)
def test_row_ids(judge: SparkSession, tmp_path: Path, race: str) -> None:
    setup, ours, winners = RACES[race]
    theirs, own = both(judge, tmp_path, SUPPORTED, setup, ours, winners)
    assert own == theirs


def test_row_ids_of_files_without_statistics(judge: SparkSession, tmp_path: Path) -> None:
    theirs, own = both(judge, tmp_path, SUPPORTED, [], [add("a")], [[add("w", records=7)]])
    assert "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS" in theirs
    assert "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS" in own


def test_backfill(judge: SparkSession, tmp_path: Path) -> None:
    setup = [add("old", records=100), add("gone", records=5), add("left", records=2)]
    again: list[Action] = [
        add(path, records=count, data_change=False) for path, count in (("old", 100), ("gone", 5), ("left", 2))
    ]
    winners: list[list[Action]] = [[remove("gone")], [add("w", records=7)]]
    theirs, own = both(judge, tmp_path, SUPPORTED, setup, again, winners, Operation("ROW TRACKING BACKFILL"))
    assert own == theirs


def enabling(table: Table, **tags: str) -> None:
    """Switch row tracking on, as another engine does."""
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    names = {f"delta.rowTracking.materialized{name}ColumnName": f"_{name}" for name in ("RowId", "RowCommitVersion")}
    configuration = {**before["configuration"], "delta.enableRowTracking": "true", **names}
    info = {"operation": "SET TBLPROPERTIES", "timestamp": 1, "operationParameters": {}}
    table.put_foreign(1, {"commitInfo": info}, {"metaData": {**before, "configuration": configuration}})


def test_row_tracking_that_a_winner_switches_on(judge: SparkSession, tmp_path: Path) -> None:
    found = []
    for engine in ("delta", "ours"):
        table = Table(tmp_path / engine)
        table.create(configuration=SUPPORTED)
        ready: Any = JvmTransaction(judge, str(table.path)) if engine == "delta" else table.log().start_transaction()
        enabling(table)
        ready.commit([add("a", records=10)], Operation.truncate())
        found.append(written(table, 2))
    assert found[1] == found[0]
    assert found[0][0][2] == {"delta.rowTracking.preserved": "false"}


def test_timestamps(judge: SparkSession, tmp_path: Path) -> None:
    found = []
    for engine in ("delta", "ours"):
        table = Table(tmp_path / engine)
        table.create(configuration=TIMESTAMPS)
        ready: Any = JvmTransaction(judge, str(table.path)) if engine == "delta" else table.log().start_transaction()
        for version in (1, 2):
            info = {"inCommitTimestamp": FAR + version * 10, "operation": "WRITE", "timestamp": 1, "operationParameters": {}}
            table.put_foreign(version, {"commitInfo": info})
        ready.commit([add("a")], Operation.truncate())
        found.append(written(table, 3))
    assert found[1] == found[0]
    assert found[0][0][1] == 21


def test_timestamps_that_we_switch_on(judge: SparkSession, tmp_path: Path) -> None:
    import os

    found = []
    for engine in ("delta", "ours"):
        table = Table(tmp_path / engine)
        table.create(configuration={"delta.feature.inCommitTimestamp": "supported"})
        ready: Any = JvmTransaction(judge, str(table.path)) if engine == "delta" else table.log().start_transaction()
        before = table.log().snapshot.metadata
        switched = replace(before, configuration={**before.configuration, **TIMESTAMPS})
        table.put_foreign(1, {"commitInfo": {"operation": "WRITE", "timestamp": 1, "operationParameters": {}}})
        os.utime(table.path / "_delta_log" / f"{1:020d}.json", ns=(FAR * 1_000_000, FAR * 1_000_000))
        ready.commit([switched], Operation.manual_update())
        found.append(written(table, 2))
    assert found[1] == found[0]
    assert found[0][0][1] == 1
    assert ("delta.inCommitTimestampEnablementVersion", "2") in found[0][1][1]


def test_timestamps_that_a_winner_switches_on(judge: SparkSession, tmp_path: Path) -> None:
    found = []
    for engine in ("delta", "ours"):
        table = Table(tmp_path / engine)
        table.create(configuration={"delta.feature.inCommitTimestamp": "supported"})
        ready: Any = JvmTransaction(judge, str(table.path)) if engine == "delta" else table.log().start_transaction()
        before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
        noted = {"delta.inCommitTimestampEnablementVersion": "1", "delta.inCommitTimestampEnablementTimestamp": str(FAR)}
        info = {"inCommitTimestamp": FAR, "operation": "SET TBLPROPERTIES", "timestamp": 1, "operationParameters": {}}
        configuration = {**before["configuration"], **TIMESTAMPS, **noted}
        table.put_foreign(1, {"commitInfo": info}, {"metaData": {**before, "configuration": configuration}})
        ready.commit([add("a")], Operation.truncate())
        found.append(written(table, 2))
    assert found[1] == found[0]
    assert found[0][0][1] == 1
