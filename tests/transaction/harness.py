"""The machinery of the transaction tests: races written down as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.log.actions.actions import Action, AddFile, RemoveFile
from airflow_delta.transaction import Operation, OptimisticTransaction
from support.table import Table

Reads = Callable[[OptimisticTransaction], Any]


def filters(*texts: str) -> Reads:
    """One read for each text; the empty text reads everything."""

    def read(transaction: OptimisticTransaction) -> None:
        for text in texts:
            transaction.filter_files(*([text] if text else []))

    return read


def whole_table(transaction: OptimisticTransaction) -> None:
    transaction.read_whole_table()


def app_id(name: str) -> Reads:
    return lambda transaction: transaction.txn_version(name)


def both(*reads: Reads) -> Reads:
    def read(transaction: OptimisticTransaction) -> None:
        for one in reads:
            one(transaction)

    return read


@dataclass
class Race:
    """A transaction that loses a race.

    :param setup: actions, each committed on its own after the table was created.
    :param reads: of our transaction, before the winner commits.
    :param winner: actions of the winning commit; ``None`` for no winner.
    :param reads_after: of our transaction, after that.
    :param ours: actions of our commit.
    :param expected: exception of our commit, ``None`` when it must succeed.
    :param partition: the exception's partition hint.
    :param delta_partition: Delta's hint, where it is another one.
    """

    name: str
    partition_by: tuple[str, ...] = ("part",)
    setup: Sequence[Action] = ()
    reads: Reads | None = None
    winner_reads: Reads | None = None
    winner: Sequence[Action] = ()
    reads_after: Reads | None = None
    ours: Sequence[Action] = ()
    expected: type[DeltaConcurrentModificationException] | None = None
    partition: str | None = None
    delta_partition: str | None = None
    operation: Operation = field(default_factory=Operation.truncate)
    winner_operation: Operation = field(default_factory=Operation.truncate)
    configuration: dict[str, str] = field(default_factory=dict)
    winner_is_blind: bool | None = None

    def run(self, root: Path) -> None:
        table = Table(root / "table")
        table.create(self.partition_by, configuration=self.configuration)
        for action in self.setup:
            table.commit(action)
        log = table.log()
        ours = log.start_transaction()
        winner = table.log().start_transaction()
        read_version = ours.read_version
        if self.reads:
            self.reads(ours)
        if self.winner_reads:
            self.winner_reads(winner)
        winning_version = winner.commit(self.winner, self.winner_operation)
        assert winning_version == read_version + 1
        if self.reads_after:
            self.reads_after(ours)
        before = table.live()
        if self.expected is None:
            assert ours.commit(self.ours, self.operation) == winning_version + 1
            removed = {action.path for action in self.ours if isinstance(action, RemoveFile)}
            added = {action.path for action in self.ours if isinstance(action, AddFile)}
            assert table.live() == before - removed | added
            assert ours.outcome is not None
            assert ours.outcome.versions_checked == 1
            assert set(table.log().snapshot.files()["path"].to_pylist()) == table.live()
            return
        with pytest.raises(DeltaConcurrentModificationException) as caught:
            ours.commit(self.ours, self.operation)
        error = caught.value
        assert type(error) is self.expected, error
        assert error.winning_version == winning_version
        assert error.version == winning_version
        assert error.table == str(table.path)
        assert error.winning_commit is not None
        assert error.winning_commit["operation"] == self.winner_operation.name
        assert error.partition == self.partition
        assert f"version {winning_version} ({self.winner_operation.name})" in str(error)
        assert "What to do" in str(error)
        assert not ours.committed
        assert table.versions()[-1] == winning_version
        assert table.live() == before
