"""The write-conflict matrix (reference: Delta's engine, section 2.11), every cell that plain tables can express.

Rows are losers, columns are winners. A letter says what the loser gets: ``-`` nothing, ``A`` ConcurrentAppend, ``R`` DeleteRead,
``D`` DeleteDelete, ``M`` MetadataChanged, ``P`` ProtocolChanged, ``T`` ConcurrentTransaction, ``W`` ConcurrentWrite.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from airflow_delta.log.actions import Protocol
from airflow_delta.transaction import Operation, OptimisticTransaction
from transaction.harness import Table, add, metadata, remove, txn

LETTERS: dict[str, type[DeltaConcurrentModificationException]] = {
    "A": ConcurrentAppendException,
    "R": ConcurrentDeleteReadException,
    "D": ConcurrentDeleteDeleteException,
    "M": MetadataChangedException,
    "P": ProtocolChangedException,
    "T": ConcurrentTransactionException,
    "W": ConcurrentWriteException,
}
PART = ("part",)
LISTED = ["appendOnly", "invariants", "domainMetadata"]
UPGRADED = Protocol(min_reader_version=1, min_writer_version=7, writer_features=[*LISTED, "vacuumProtocolCheck"])
DROPPED = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "invariants"]}
MOVED = {"data_change": False}

# Files at the start: a and b in part 1, c in part 2. A winner works on part 1 (and 2 where it works on the whole table).
WINNERS: dict[str, tuple[list[Any], Operation]] = {
    "append 1": ([add("w", part=1)], Operation.write()),
    "append 2": ([add("w", part=2)], Operation.write()),
    "delete 1": ([remove("a", part=1)], Operation.delete(["part = 1"])),
    "update 1": ([remove("a", part=1), add("w", part=1)], Operation.update("value = 1")),
    "update 2": ([remove("c", part=2), add("w", part=2)], Operation.update("value = 1")),
    "overwrite": (
        [remove("a", part=1), remove("b", part=1), remove("c", part=2), add("w", part=3)],
        Operation.write("overwrite"),
    ),
    "optimize 1": ([remove("a", part=1, **MOVED), remove("b", part=1, **MOVED), add("w", part=1, **MOVED)], Operation.optimize()),
    "stats 1": ([add("a", part=1, **MOVED)], Operation.compute_stats()),
    "alter": ([metadata(PART, description="new")], Operation.set_table_properties({"k": "v"})),
    "upgrade": ([UPGRADED], Operation.upgrade_protocol({})),
    "drop": ([], Operation("DROP FEATURE")),
    "empty": ([], Operation.vacuum_end("COMPLETED")),
    "same app": ([txn("app", 1)], Operation.manual_update()),
}
COLUMNS = list(WINNERS)

Loser = Callable[[OptimisticTransaction], tuple[list[Any], Operation]]


def append(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    return [add("o", part=1)], Operation.write()


def append_with_app(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    transaction.txn_version("app")
    return [add("o", part=1), txn("app", 2)], Operation.streaming_update("Append", "app", 2)


def insert_select(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1")
    return [add("o", part=3)], Operation.write()


def update_rows(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1 AND value > 0")
    return [remove("a", part=1), add("o", part=1)], Operation.update("part = 1")


def delete_all(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    files = transaction.filter_files()["path"].to_pylist()
    return [remove(path, part=2 if path == "c" else 1) for path in files], Operation.delete()


def replace_where(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    files = transaction.filter_files("part = 1")["path"].to_pylist()
    return [*[remove(path, part=1) for path in files], add("o", part=1)], Operation.write("overwrite", predicate="part = 1")


def dynamic_overwrite(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    new = add("o", part=1)
    files = transaction.filter_files_for_partitions([new])["path"].to_pylist()
    assert sorted(files) == ["a", "b"]
    return [*[remove(path, part=1) for path in files], new], Operation.write("overwrite", dynamic_partition_overwrite=True)


def optimize(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    transaction.track_files_read(["a", "b"])
    transaction.track_read_predicates("part = 1")
    moved = [remove("a", part=1, data_change=False), remove("b", part=1, data_change=False), add("o", part=1, data_change=False)]
    return moved, Operation.optimize()


def compute_stats(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    transaction.filter_files("part = 1")
    return [add("a", part=1, data_change=False), add("b", part=1, data_change=False)], Operation.compute_stats()


def alter(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    return [metadata(PART, name="renamed")], Operation.set_table_properties({"k": "w"})


def add_constraint(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    transaction.filter_files()
    return [metadata(PART, name="checked")], Operation("ADD CONSTRAINT")


def upgrade_protocol(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    return [UPGRADED], Operation.upgrade_protocol({})


def vacuum(transaction: OptimisticTransaction) -> tuple[list[Any], Operation]:
    return [], Operation.vacuum_end("COMPLETED")


MATRIX: list[tuple[Loser, str]] = [
    #                     append1 append2 delete1 update1 update2 overwrite optimize1 stats1 alter upgrade drop empty app
    (append, "            -       -       -       -       -       -         -         -      M     -       P    -     -"),
    (append_with_app, "   -       -       -       -       -       -         -         -      M     -       P    -     T"),
    (insert_select, "     A       -       R       A       -       R         A         A      M     -       P    -     -"),
    (update_rows, "       A       -       R       A       -       R         A         A      M     -       P    -     -"),
    (delete_all, "        A       A       R       A       A       A         A         A      M     -       P    -     -"),
    (replace_where, "     A       -       R       A       -       R         A         A      M     -       P    -     -"),
    (dynamic_overwrite, " A       -       D       A       -       D         A         A      M     -       P    -     -"),
    (optimize, "          -       -       R       R       -       R         R         -      M     -       P    -     -"),
    (compute_stats, "     -       -       R       R       -       R         R         -      M     -       P    -     -"),
    (alter, "             -       -       -       -       -       -         -         -      M     -       P    -     -"),
    (add_constraint, "    A       A       R       A       A       A         A         A      M     -       P    -     -"),
    (upgrade_protocol, "  -       -       -       -       -       -         -         -      M     P       P    -     -"),
    (vacuum, "            -       -       -       -       -       -         -         -      M     -       P    -     -"),
]

CELLS = [
    pytest.param(loser, winner, letter, id=f"{loser.__name__}-{winner}")
    for loser, row in MATRIX
    for winner, letter in zip(COLUMNS, row.split(), strict=True)
]


def start(tmp_path: Path) -> Table:
    table = Table(tmp_path)
    table.create(PART, configuration={"delta.feature.domainMetadata": "supported"})
    table.commit(add("a", part=1), add("b", part=1), add("c", part=2))
    return table


def win(table: Table, winner: str) -> int:
    actions, operation = WINNERS[winner]
    if winner == "drop":  # this provider drops no features, others do
        info = {"commitInfo": {"operation": operation.name, "timestamp": 1}}
        table.put_foreign(2, info, {"protocol": DROPPED})
        return 2
    return table.commit(*actions, operation=operation)


@pytest.mark.parametrize(("loser", "winner", "letter"), CELLS)
def test_cell(tmp_path: Path, loser: Loser, winner: str, letter: str) -> None:
    table = start(tmp_path)
    transaction = table.open().start_transaction()
    actions, operation = loser(transaction)
    version = win(table, winner)
    if letter == "-":
        assert transaction.commit(actions, operation) == version + 1
        return
    with pytest.raises(DeltaConcurrentModificationException) as caught:
        transaction.commit(actions, operation)
    assert type(caught.value) is LETTERS[letter], caught.value
    assert caught.value.winning_version == version
    assert table.versions()[-1] == version


@pytest.mark.parametrize("winner", COLUMNS)
def test_commit_large_loses_against_everything(tmp_path: Path, winner: str) -> None:
    table = start(tmp_path)
    transaction = table.open().start_transaction()
    win(table, winner)
    with pytest.raises(ConcurrentWriteException):
        transaction.commit_large([add("o", part=1)], Operation.restore(version=0))


@pytest.mark.parametrize("winner", COLUMNS)
def test_nothing_to_commit_is_never_checked(tmp_path: Path, winner: str) -> None:
    table = start(tmp_path)
    transaction = table.open().start_transaction()
    transaction.filter_files()
    transaction.txn_version("app")
    win(table, winner)
    assert transaction.commit_if_needed([], Operation.delete()) is None


def test_two_that_create_the_table(tmp_path: Path) -> None:
    table = Table(tmp_path)
    first, second = table.open().start_transaction(), table.open().start_transaction()
    for transaction in (first, second):
        transaction.update_metadata_for_new_table(metadata())
    assert first.commit([], Operation.create_table()) == 0
    with pytest.raises(ProtocolChangedException, match="create it before"):
        second.commit([], Operation.create_table())


@pytest.mark.parametrize(
    ("change", "conflicts"),
    [
        ({}, False),
        ({"id": "other"}, True),
        ({"created_time": 7}, True),
        ({"name": "other"}, True),
        ({"description": "other"}, True),
        ({"configuration": {"user": "x"}}, True),
        ({"configuration": {"delta.enableDeletionVectors": "true"}}, False),
        ({"configuration": {"delta.enableDeletionVectors": "false"}}, True),
        ({"configuration": {"delta.columnMapping.maxColumnId": "4"}}, False),
        ({"schema_string": '{"type":"struct","fields":[]}'}, True),
    ],
)
def test_metadata_changes_that_can_be_lived_with(tmp_path: Path, change: dict[str, Any], conflicts: bool) -> None:
    table = Table(tmp_path)
    table.create(configuration={"delta.feature.deletionVectors": "supported"})
    transaction = table.open().start_transaction()
    before = table.lines(0)[2]["metaData"]
    after = metadata(**change)
    configuration = {**before["configuration"], **after.configuration}
    foreign = {
        **before,
        "id": after.id,
        "createdTime": after.created_time,
        "schemaString": after.schema_string,
        "configuration": configuration,
    }
    foreign |= {key: value for key, value in (("name", after.name), ("description", after.description)) if value is not None}
    table.put_foreign(1, {"commitInfo": {"operation": "SET TBLPROPERTIES"}}, {"metaData": foreign})
    if conflicts:
        with pytest.raises(MetadataChangedException):
            transaction.commit([add("a")], Operation.write())
    else:
        assert transaction.commit([add("a")], Operation.write()) == 2
