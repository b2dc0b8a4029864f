"""The write-conflict matrix at level ``delta``, every cell at both isolation levels that a table can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaError,
    FeatureDropConflictException,
    MetadataChangedException,
    ProtocolChangedException,
)
from airflow_delta.transaction import CommitPolicy, Operation
from support.actions import add
from support.table import Table, metadata
from transaction.matrix import (
    COLUMNS,
    LEVELS,
    METADATA_CHANGES,
    Loser,
    cells,
    change_metadata,
    start,
    start_for_metadata_changes,
    win,
)

LETTERS: dict[str, type[DeltaError]] = {
    "A": ConcurrentAppendException,
    "R": ConcurrentDeleteReadException,
    "D": ConcurrentDeleteDeleteException,
    "M": MetadataChangedException,
    "P": ProtocolChangedException,
    "T": ConcurrentTransactionException,
    "F": FeatureDropConflictException,
}
CELLS = [
    pytest.param(loser, winner, level, letter, id=f"{loser.__name__}-{winner}-{level}")
    for loser, winner, level, letter in cells()
]


@pytest.mark.parametrize(("loser", "winner", "level", "letter"), CELLS)
def test_cell(tmp_path: Path, loser: Loser, winner: str, level: str, letter: str) -> None:
    table = start(tmp_path, level)
    transaction = table.log().start_transaction(policy=CommitPolicy(conflict_detection="delta"))
    actions, operation = loser(transaction, level)
    version = win(table, winner, level)
    if letter == "-":
        assert transaction.commit(actions, operation) == version + 1
        return
    with pytest.raises(DeltaError) as caught:
        transaction.commit(actions, operation)
    assert type(caught.value) is LETTERS[letter], caught.value
    assert caught.value.version == version
    assert table.versions()[-1] == version


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("winner", COLUMNS)
def test_commit_large_loses_against_everything(tmp_path: Path, winner: str, level: str) -> None:
    table = start(tmp_path, level)
    transaction = table.log().start_transaction()
    win(table, winner, level)
    with pytest.raises(ConcurrentWriteException):
        transaction.commit_large([add("o", part=1)], Operation.restore(version=0))


@pytest.mark.parametrize("winner", COLUMNS)
def test_nothing_to_commit_is_never_checked(tmp_path: Path, winner: str) -> None:
    table = start(tmp_path)
    transaction = table.log().start_transaction()
    transaction.filter_files()
    transaction.txn_version("app")
    win(table, winner)
    assert transaction.commit_if_needed([], Operation.delete()) is None


def test_two_that_create_the_table(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    first, second = table.log().start_transaction(), table.log().start_transaction()
    for transaction in (first, second):
        transaction.update_metadata_for_new_table(metadata())
    assert first.commit([], Operation.create_table()) == 0
    with pytest.raises(ProtocolChangedException, match="create it before"):
        second.commit([], Operation.create_table())


@pytest.mark.parametrize("change", METADATA_CHANGES)
def test_metadata_changes_that_can_be_lived_with(tmp_path: Path, change: str) -> None:
    table = start_for_metadata_changes(tmp_path)
    transaction = table.log().start_transaction()
    what, conflicts = METADATA_CHANGES[change]
    change_metadata(table, what)
    if conflicts:
        with pytest.raises(MetadataChangedException):
            transaction.commit([add("a")], Operation.write())
    else:
        assert transaction.commit([add("a")], Operation.write()) == 2
