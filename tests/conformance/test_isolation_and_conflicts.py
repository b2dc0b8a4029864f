"""Isolation levels, and what surrounds a conflict: rules 1.5, 2.9, 2.10 and 7.3 of Delta's engine.

Who conflicts with whom (2.2 to 2.8, 2.11, 7.1, 7.2) is judged by ``test_conflicts.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    DeltaUnsupportedTableFeatureException,
    MetadataChangedException,
)
from airflow_delta.log.actions.actions import Action
from airflow_delta.transaction import Operation
from conformance.harness import (
    MANUAL,
    Raises,
    Row,
    Step,
    commit,
    committed,
    created,
    delta,
    info,
    row_id,
    started,
    then,
    with_properties,
)
from support.actions import add, cdc, column, domain, listed, protocol, remove, schema, txn
from support.table import Table, metadata

PART = ("part",)
LOOSE = '{"numRecords":5,"tightBounds":false}'
MOVED = {"data_change": False}

# -- 1.5: the level of a commit ------------------------------------------------------------------------------------------------

QUIET = (add("n", **MOVED), remove("a", **MOVED))
TRACKED = with_properties(enableRowTracking="true")


def level(*actions: Action, operation: Operation = MANUAL, asked: str | None = None) -> Step:
    options = {} if asked is None else {"isolation_level": asked}
    return then(started(lambda t: t.commit(list(actions), operation), **options), info(1, "isolationLevel"))


WRITE = "WriteSerializable"
gone = then(started(lambda t: t.commit([remove("a")], Operation.delete())), info(2, "isolationLevel"))

LEVELS = [
    Row("1.5", "data that change", [created()], level(add("n")), "Serializable"),
    Row("1.5", "data that go", [created(), committed(add("a"))], gone, "Serializable"),
    Row("1.5", "nothing", [created()], level(), "SnapshotIsolation"),
    Row("1.5", "data that move", [created()], level(*QUIET, operation=Operation.optimize()), "SnapshotIsolation"),
    Row(
        "1.5",
        "data that move, by an operation that changes data",
        [created()],
        level(*QUIET, operation=Operation.write()),
        "SnapshotIsolation",
    ),
    Row("1.5", "change data files never change data", [created()], level(cdc()), "SnapshotIsolation"),
    Row(
        "1.5",
        "the domain of row tracking does not count",
        [TRACKED],
        level(add("n", stats=LOOSE, **MOVED), operation=Operation.optimize()),
        "SnapshotIsolation",
    ),
    Row("1.5 rule 1", "metadata", [created()], level(metadata(description="d")), "Serializable"),
    Row("1.5 rule 1", "a protocol", [created()], level(listed((), "domainMetadata")), "Serializable"),
    Row(
        "1.5 rule 1",
        "a transaction id with a compaction",
        [created()],
        level(*QUIET, txn("app", 1), operation=Operation.optimize()),
        "Serializable",
    ),
    Row(
        "1.5 rule 1", "another domain", [with_properties(feature__domainMetadata="supported")], level(domain("d")), "Serializable"
    ),
    Row(
        "1.5 rule 3",
        "WriteSerializable, data that move",
        [created()],
        level(*QUIET, operation=Operation.optimize(), asked=WRITE),
        "SnapshotIsolation",
    ),
    Row(
        "1.5 rule 3",
        "WriteSerializable, data that move, by an operation that changes data",
        [created()],
        level(*QUIET, operation=Operation.write(), asked=WRITE),
        WRITE,
    ),
    Row(
        "1.5 rule 3",
        "WriteSerializable, nothing",
        [created()],
        level(operation=Operation.optimize(), asked=WRITE),
        "SnapshotIsolation",
    ),
    Row(
        "1.5 rule 3",
        "WriteSerializable, nothing, by an operation that changes data",
        [created()],
        level(operation=Operation.write(), asked=WRITE),
        WRITE,
    ),
    Row(
        "1.5 rule 3",
        "WriteSerializable, a compaction that changes data",
        [created()],
        level(add("n"), operation=Operation.optimize(), asked=WRITE),
        WRITE,
    ),
    Row("1.5", "the name in any case of letters", [created()], level(add("n"), asked="writeserializable"), WRITE),
    Row(
        "1.5",
        "no level of this name",
        [created()],
        level(add("n"), asked="ReadCommitted"),
        Raises(DeltaIllegalArgumentException, "ReadCommitted"),
    ),
    Row(
        "1.5",
        "SnapshotIsolation is not for the asking",
        [created()],
        level(add("n"), asked="SnapshotIsolation"),
        Raises(DeltaIllegalArgumentException, "SnapshotIsolation"),
    ),
    Row(
        "1.5",
        "a property other than Serializable is refused",
        [],
        started(lambda t: t.update_metadata(metadata(configuration=delta(isolationLevel=WRITE)))),
        Raises(DeltaIllegalArgumentException, "delta.isolationLevel"),
    ),
    Row("1.5", "Serializable as property", [with_properties(isolationLevel="Serializable")], level(add("n")), "Serializable"),
]

# Which operations change data, whatever their files say: the only ones that stay at WriteSerializable with moved files.
CHANGES_DATA = {
    True: [
        Operation.write(),
        Operation.streaming_update("Append", "q", 1),
        Operation.delete(),
        Operation.truncate(),
        Operation.convert(1),
        Operation.merge("a = b"),
        Operation.update(),
        Operation("CREATE TABLE AS SELECT"),
        Operation("REPLACE TABLE"),
        Operation("CREATE OR REPLACE TABLE"),
        Operation("REPLACE TABLE AS SELECT"),
        Operation("CREATE OR REPLACE TABLE AS SELECT"),
        Operation.restore(0),
        Operation.clone("s", 1),
    ],
    False: [
        Operation.optimize(),
        Operation.reorg(),
        Operation.compute_stats(),
        Operation.set_table_properties({}),
        Operation.add_columns([]),
        Operation.vacuum_end("COMPLETED"),
        Operation.manual_update(),
        Operation("CREATE TABLE"),
    ],
}


@pytest.mark.parametrize("row", LEVELS, ids=row_id)
def test_level(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


@pytest.mark.parametrize(
    ("operation", "changes"),
    [(operation, changes) for changes, operations in CHANGES_DATA.items() for operation in operations],
    ids=lambda value: value.name if isinstance(value, Operation) else "",
)
def test_which_operations_change_data(operation: Operation, changes: bool, tmp_path: Path) -> None:
    expected = WRITE if changes else "SnapshotIsolation"
    Row("1.5", operation.name, [created()], level(*QUIET, operation=operation, asked=WRITE), expected).run(tmp_path)


# -- 2.3 ----------------------------------------------------------------------------------------------------------------------


def test_a_protocol_that_this_client_cannot_write_is_no_conflict(tmp_path: Path) -> None:
    """2.3: the first check asks whether the winner's protocol is understood at all."""
    table = Table(tmp_path / "table")
    table.create()
    ours = table.log().start_transaction()
    unknown = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "invariants", "fromTheFuture"]}
    table.put_foreign(1, {"commitInfo": {"operation": "UPGRADE PROTOCOL", "timestamp": 1}}, {"protocol": unknown})
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="fromTheFuture"):
        ours.commit([add("o")], MANUAL)


# -- 2.9: in-commit timestamps ---------------------------------------------------------------------------------------------------

ON = delta(enableInCommitTimestamps="true")


def stamps(table: Table) -> list[int]:
    return [table.info(version)["inCommitTimestamp"] for version in table.versions()]


def raced(our_clock: int, winner_clock: int) -> Step:
    """Commit after a winner, each at its own time, and see the timestamps of all versions."""

    def run(table: Table) -> list[int]:
        ours = table.log().start_transaction(clock=lambda: our_clock)
        table.log().start_transaction(clock=lambda: winner_clock).commit([add("w")], MANUAL)
        ours.commit([add("o")], MANUAL)
        return stamps(table)

    return run


def timed(table: Table) -> None:
    transaction = table.log().start_transaction(clock=lambda: 1_000)
    transaction.update_metadata_for_new_table(metadata(configuration=ON))
    transaction.commit([], MANUAL)


def in_order(*clocks: int) -> Step:
    def run(table: Table) -> list[int]:
        for clock in clocks:
            table.log().start_transaction(clock=lambda clock=clock: clock).commit([], MANUAL)
        return stamps(table)

    return run


TIMESTAMPS = [
    Row("2.9", "the clock's", [timed], in_order(2_000), [1_000, 2_000]),
    Row("2.9", "a clock that stands still or goes back", [timed], in_order(1_000, 500), [1_000, 1_001, 1_002]),
    Row("2.9", "a race that was lost to somebody later", [timed], raced(2_000, 3_000), [1_000, 3_000, 3_001]),
    Row("2.9", "a race that was lost to somebody earlier", [timed], raced(3_000, 2_000), [1_000, 2_000, 3_000]),
    Row(
        "2.9",
        "enabled in the first commit, no version and time are noted",
        [timed],
        lambda t: sorted(t.log().snapshot.metadata.configuration),
        ["delta.enableInCommitTimestamps"],
    ),
]

# -- 2.10: identity columns -----------------------------------------------------------------------------------------------------

ID = column("id", "long", delta__identity__start=1, delta__identity__step=1, delta__identity__allowExplicitInsert=False)


def identities(table: Table) -> None:
    table.create(schema_string=schema(ID, column("value")))


def writes_ids(table: Table, last: int, *actions: Any) -> Any:
    transaction = table.log().start_transaction()
    transaction.update_identity_high_water_marks({"id": last})
    return transaction, list(actions)


def two_writers(table: Table) -> list[int]:
    (first, one), (second, two) = writes_ids(table, 5, add("a")), writes_ids(table, 7, add("b"))
    first.commit(one, MANUAL)
    with pytest.raises(MetadataChangedException):
        second.commit(two, MANUAL)
    return table.versions()


def append_after_writer(table: Table) -> int:
    ours = table.log().start_transaction()
    writer, actions = writes_ids(table, 5, add("a"))
    writer.commit(actions, MANUAL)
    return ours.commit([add("b")], MANUAL)


IDENTITY = [
    Row("2.10", "two that give values", [identities], two_writers, [0, 1]),
    Row("2.10", "an append that gives none", [identities], append_after_writer, 2),
    Row(
        "2.10",
        "a commit that only gives values says so",
        [identities],
        then(append_after_writer, info(1, "tags")),
        {"delta.identity.schemaUpdate": "true"},
    ),
]


@pytest.mark.parametrize("row", [*TIMESTAMPS, *IDENTITY], ids=row_id)
def test_rule(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


# -- what an error tells (2.2) ---------------------------------------------------------------------------------------------------

CHANGED = metadata(PART, configuration={"delta.enableDeletionVectors": "true"}, description="changed")

TELLS = [
    # winner, condition, partition hint
    ((add("n", part=1),), "DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT", "[part=1]"),
    ((remove("a", part=1),), "DELTA_CONCURRENT_DELETE_READ.WITH_PARTITION_HINT", "[part=1]"),
    ((CHANGED,), "DELTA_METADATA_CHANGED", None),
    ((txn("app", 1),), "DELTA_CONCURRENT_TRANSACTION", None),
]


@pytest.mark.parametrize(("winner", "condition", "partition"), TELLS, ids=[condition for _, condition, _ in TELLS])
def test_what_a_conflict_tells(winner: Sequence[Action], condition: str, partition: str | None, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(PART, configuration={"delta.enableDeletionVectors": "true"})
    table.commit(add("a", part=1))
    ours = table.log().start_transaction()
    ours.filter_files("part = 1")
    ours.txn_version("app")
    table.commit(*winner, operation=Operation.merge("x = y"))
    with pytest.raises(DeltaConcurrentModificationException) as caught:
        ours.commit([remove("a", part=1)], Operation.delete())
    error = caught.value
    assert (error.condition, error.sql_state, error.partition) == (condition, "2D521", partition)
    assert (error.operation, error.winning_version) == ("MERGE", 2)
    assert error.winning_commit is not None
    assert error.winning_commit["txnId"] == table.info(2)["txnId"]


def test_the_partition_schema_is_that_of_the_version_that_was_read(tmp_path: Path) -> None:
    """2.1: new metadata of ours do not change how the winner's files are looked at."""
    table = Table(tmp_path / "table")
    table.create(PART)
    ours = table.log().start_transaction()
    ours.filter_files("part = 1")
    table.commit(add("w", part=2))
    widened = metadata(PART, schema_string=schema(column("value"), column("part"), column("more")))
    assert ours.commit([add("o", part=1), widened], Operation.write()) == 2


def test_the_protocol_that_a_winner_brings_is_followed(tmp_path: Path) -> None:
    """2.3: an upgrade is adopted; from then on new files get row ids."""
    table = Table(tmp_path / "table")
    table.create()
    ours = table.log().start_transaction()
    upgraded = protocol(1, 7, writer_features=["appendOnly", "domainMetadata", "invariants", "rowTracking"])
    table.commit(upgraded)
    assert commit()(table) == 2
    ours.commit([add("o", stats=LOOSE)], MANUAL)
    assert next(line["add"]["baseRowId"] for line in table.lines(3) if "add" in line) == 0
    assert committed(add("p", stats=LOOSE))(table) == 4
    assert next(line["add"]["baseRowId"] for line in table.lines(4) if "add" in line) == 5


# -- 7.3: dynamic partition overwrite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["part", "partitionValues"])
def test_which_files_a_dynamic_overwrite_replaces(name: str, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create((name,))
    table.commit(add("one", **{name: 1}), add("two", **{name: 2}))
    files = table.log().start_transaction().filter_files(new_files=[add("new", **{name: 1})])
    assert files["path"].to_pylist() == ["one"]


@pytest.mark.parametrize(
    ("kind", "spelled", "wanted", "same"),
    [
        ("timestamp", "2024-01-01 00:00:00", "2024-01-01 00:00:00", True),
        ("timestamp", "2024-01-01T00:00:00.000000Z", "2024-01-01T01:00:00+01:00", True),
        ("timestamp", "2024-01-01T00:00:00.000000Z", "2024-01-03 00:00:00", False),
        ("integer", "1", "01", True),
        ("string", "1", "01", False),
        ("date", "no date", "no date", True),
        ("date", "no date", "2024-01-01", False),
    ],
)
def test_partitions_in_another_spelling(kind: str, spelled: str, wanted: str, same: bool, tmp_path: Path) -> None:
    """Values are compared as their type; what is none of its type is compared as text."""
    table = Table(tmp_path / "table")
    table.create(("part",), schema_string=schema(column("value"), column("part", kind)))
    table.commit(add("old", part=spelled))
    found = table.log().start_transaction().filter_files(new_files=[add("new", part=wanted)])
    assert found["path"].to_pylist() == (["old"] if same else [])


def test_partitions_that_are_the_same_in_some_time_zones_alone(tmp_path: Path) -> None:
    """Delta compares in the time zone of its session, which the worker does not know."""
    table = Table(tmp_path / "table")
    table.create(("part",), schema_string=schema(column("value"), column("part", "timestamp")))
    table.commit(add("old", part="2024-01-01T00:00:00.000000Z"))
    with pytest.raises(DeltaAnalysisException, match="depends on the time zone of the reader"):
        table.log().start_transaction().filter_files(new_files=[add("new", part="2024-01-01 00:00:00")])
