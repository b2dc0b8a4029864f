"""Which isolation level a commit runs at, and what it then may overlook."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException, DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import AddCDCFile
from airflow_delta.transaction import IsolationLevel, Operation
from airflow_delta.transaction.prepare.isolation import choose_isolation_level, table_isolation_level
from transaction.harness import Race, Table, add, filters, metadata, remove, txn

SERIALIZABLE = IsolationLevel.SERIALIZABLE
WRITE = IsolationLevel.WRITE_SERIALIZABLE
SNAPSHOT = IsolationLevel.SNAPSHOT_ISOLATION
QUIET = [add("a", data_change=False), remove("b", data_change=False)]
CDC = AddCDCFile(path="_change_data/c", partition_values={}, size=1)


@pytest.mark.parametrize(
    ("actions", "table", "operation", "expected"),
    [
        ([add("a")], SERIALIZABLE, Operation.write(), SERIALIZABLE),
        ([remove("a")], SERIALIZABLE, Operation.delete(), SERIALIZABLE),
        ([], SERIALIZABLE, Operation.write(), SNAPSHOT),
        ([], WRITE, Operation.write(), WRITE),
        ([], WRITE, Operation.optimize(), SNAPSHOT),
        (QUIET, SERIALIZABLE, Operation.optimize(), SNAPSHOT),
        (QUIET, SERIALIZABLE, Operation.write(), SNAPSHOT),
        (QUIET, WRITE, Operation.optimize(), SNAPSHOT),
        (QUIET, WRITE, Operation.write(), WRITE),
        ([*QUIET, txn("app", 1)], SERIALIZABLE, Operation.optimize(), SERIALIZABLE),
        ([metadata()], SERIALIZABLE, Operation.set_table_properties({}), SERIALIZABLE),
        ([CDC], SERIALIZABLE, Operation.manual_update(), SNAPSHOT),
        ([add("a")], WRITE, Operation.optimize(), WRITE),
    ],
)
def test_choice(actions: list, table: IsolationLevel, operation: Operation, expected: IsolationLevel) -> None:
    assert choose_isolation_level(actions, table, operation) is expected


def test_names() -> None:
    assert IsolationLevel.parse("writeserializable") is WRITE
    assert table_isolation_level(metadata()) is SERIALIZABLE
    assert table_isolation_level(metadata(configuration={"delta.isolationLevel": "WriteSerializable"})) is WRITE
    with pytest.raises(DeltaIllegalArgumentException, match="ReadCommitted"):
        IsolationLevel.parse("ReadCommitted")
    with pytest.raises(DeltaIllegalArgumentException, match="SnapshotIsolation cannot be requested"):
        table_isolation_level(metadata(configuration={"delta.isolationLevel": "SnapshotIsolation"}))


def test_a_transaction_may_ask_for_a_level(tmp_path: Path) -> None:
    table = Table(tmp_path)
    log = table.create()
    transaction = log.start_transaction(isolation_level="WriteSerializable")
    transaction.read_whole_table()
    table.commit(add("a"), operation=Operation.write())
    assert transaction.commit([add("b")], Operation.write()) == 2
    assert table.info(2)["isolationLevel"] == "WriteSerializable"
    with pytest.raises(DeltaIllegalArgumentException):
        log.start_transaction(isolation_level=SNAPSHOT)


READ = {"setup": [add("p1", part=1)], "reads": filters("part = 1"), "ours": [add("o", part=1)]}

RACES = [
    Race(
        "Serializable, winner appends blindly",
        winner=[add("w", part=1)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
        **READ,
    ),
    Race(
        "Serializable, winner read first",
        winner_reads=filters("part = 1"),
        winner=[add("w", part=1)],
        expected=ConcurrentAppendException,
        partition="[part=1]",
        **READ,
    ),
    Race(
        "Serializable, winner removes",
        winner=[remove("p1", part=1)],
        expected=ConcurrentDeleteReadException,
        partition="[part=1]",
        **READ,
    ),
]


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
def test_races_under_serializable(race: Race, tmp_path: Path) -> None:
    race.run(tmp_path)


@pytest.mark.parametrize(
    ("blind", "carries_metadata", "conflicts"),
    [(True, False, False), (False, False, True), (True, True, True)],
)
def test_write_serializable_overlooks_blind_appends(tmp_path: Path, blind: bool, carries_metadata: bool, conflicts: bool) -> None:
    table = Table(tmp_path)
    log = table.create(("part",))
    transaction = log.start_transaction(isolation_level=WRITE)
    transaction.filter_files("part = 1")
    winner = table.open().start_transaction()
    if not blind:
        winner.filter_files("part = 1")
    winner.commit([add("w", part=1)], Operation.write())
    extra = [metadata(("part",), description="new")] if carries_metadata else []
    if conflicts:
        with pytest.raises(ConcurrentAppendException):
            transaction.commit([add("o", part=1), *extra], Operation.write())
    else:
        transaction.commit([add("o", part=1), *extra], Operation.write())
