"""The machinery of the transaction tests: small tables on local disk, races written down as data."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, AddFile, CommitInfo, Metadata, Protocol, RemoveFile, SetTransaction
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction

FAST = {"durable": "false"}


def schema(**columns: str) -> str:
    """Return a schema string: column -> Spark type name."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def metadata(partition_by: Sequence[str] = (), **options: Any) -> Metadata:
    columns = dict.fromkeys(partition_by, "integer")
    options.setdefault("id", "11111111-2222-3333-4444-555555555555")
    options.setdefault("created_time", 1_700_000_000_000)
    options.setdefault("schema_string", schema(value="integer", **columns))
    return Metadata(partition_columns=list(partition_by), **options)


def add(path: str, *, data_change: bool = True, **partition: Any) -> AddFile:
    values = {name: None if value is None else str(value) for name, value in partition.items()}
    return AddFile(path=path, partition_values=values, size=1, modification_time=1, data_change=data_change)


def remove(path: str, *, data_change: bool = True, **partition: Any) -> RemoveFile:
    values = {name: None if value is None else str(value) for name, value in partition.items()}
    return RemoveFile(
        path=path, deletion_timestamp=4, data_change=data_change, extended_file_metadata=True, partition_values=values, size=1
    )


def txn(app_id: str, version: int) -> SetTransaction:
    return SetTransaction(app_id=app_id, version=version, last_updated=1)


class Table:
    """A table below a directory; every :meth:`open` is another client."""

    def __init__(self, root: Path, name: str = "table") -> None:
        self.root = root / name

    def open(self) -> DeltaLog:
        return DeltaLog.for_table(str(self.root), FAST)

    def create(self, partition_by: Sequence[str] = (), **options: Any) -> DeltaLog:
        log = self.open()
        transaction = log.start_transaction()
        transaction.update_metadata_for_new_table(metadata(partition_by, **options))
        transaction.commit([], Operation.manual_update())
        return log

    def commit(self, *actions: Action, operation: Operation | None = None, **options: Any) -> int:
        return self.open().start_transaction().commit(list(actions), operation or Operation.manual_update(), **options)

    def lines(self, version: int) -> list[dict[str, Any]]:
        text = (self.root / "_delta_log" / f"{version:020d}.json").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def info(self, version: int) -> dict[str, Any]:
        return dict(self.lines(version)[0]["commitInfo"])

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.root / "_delta_log").glob("*.json"))

    def put_foreign(self, version: int, *actions: dict[str, Any]) -> None:
        """Write a commit as another engine would."""
        directory = self.root / "_delta_log"
        directory.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(action) + "\n" for action in actions)
        with (directory / f"{version:020d}.json").open("x") as file:
            file.write(text)

    def live(self) -> set[str]:
        """Replay the JSON log without the code under test."""
        files: set[str] = set()
        for version in self.versions():
            for line in self.lines(version):
                if "remove" in line:
                    files.discard(line["remove"]["path"])
                if "add" in line:
                    files.add(line["add"]["path"])
        return files


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
        table = Table(root)
        table.create(self.partition_by, configuration=self.configuration)
        for action in self.setup:
            table.commit(action)
        log = table.open()
        ours = log.start_transaction()
        winner = table.open().start_transaction()
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
            assert set(table.open().snapshot.files()["path"].to_pylist()) == table.live()
            return
        with pytest.raises(DeltaConcurrentModificationException) as caught:
            ours.commit(self.ours, self.operation)
        error = caught.value
        assert type(error) is self.expected, error
        assert error.winning_version == winning_version
        assert error.version == winning_version
        assert error.table == str(table.root)
        assert error.winning_commit is not None
        assert error.winning_commit["operation"] == self.winner_operation.name
        assert error.partition == self.partition
        assert f"version {winning_version} ({self.winner_operation.name})" in str(error)
        assert "What to do" in str(error)
        assert not ours.committed
        assert table.versions()[-1] == winning_version
        assert table.live() == before


def foreign_info(**fields: Any) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": 1_700_000_000_000, "operation": "WRITE", "txnId": str(uuid.uuid4()), **fields}}


def bounded(**options: Any) -> CommitPolicy:
    return CommitPolicy(**{"total_timeout": 30.0, **options})


__all__ = [
    "FAST",
    "CommitFile",
    "CommitInfo",
    "Protocol",
    "Race",
    "Table",
    "add",
    "app_id",
    "both",
    "bounded",
    "filters",
    "foreign_info",
    "metadata",
    "remove",
    "schema",
    "txn",
    "whole_table",
]
