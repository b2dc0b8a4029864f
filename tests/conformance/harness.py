"""What turns a row of a scenario table into a real table on disk, an action on it, and a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.log.actions.actions import Action
from airflow_delta.transaction import Operation, OptimisticTransaction
from support.table import Table

MANUAL = Operation.manual_update()
DAY = 24 * 3_600_000
Step = Callable[[Table], Any]


@dataclass(frozen=True)
class Raises:
    """An error that a row expects: its class, and words that its message holds. It leaves the log as it was."""

    kind: type[BaseException]
    words: str = ""


@dataclass(frozen=True)
class Row:
    """One rule.

    :param rule: where it stands in the rules of Delta's engine.
    :param name: what it is about.
    :param given: what happened before.
    :param when: what happens, and what is seen then.
    :param expected: what must be seen, or the error.
    """

    rule: str
    name: str
    given: Sequence[Step]
    when: Step
    expected: Any

    def run(self, root: Path) -> None:
        table = Table(root / "table")
        for step in self.given:
            step(table)
        if not isinstance(self.expected, Raises):
            assert self.when(table) == self.expected
            return
        before = table.versions()
        with pytest.raises(self.expected.kind, match=re.escape(self.expected.words) or None):
            self.when(table)
        assert table.versions() == before


def row_id(row: Row) -> str:
    return f"{row.rule} {row.name}"


# -- given ---------------------------------------------------------------------------------------------------------------------


def created(partition_by: Sequence[str] = (), **options: Any) -> Step:
    """A table with the column ``value`` (and integer partition columns); keywords are fields of its metadata."""
    return lambda table: table.create(partition_by, **options)


def with_properties(**properties: str) -> Step:
    """A table with these properties, written without their prefix ``delta.`` and with ``__`` for a dot."""
    return created(configuration=delta(**properties))


def delta(**properties: str) -> dict[str, str]:
    return {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}


def committed(*actions: Action, operation: Operation | None = None, **options: Any) -> Step:
    return lambda table: table.commit(*actions, operation=operation, **options)


# -- when ----------------------------------------------------------------------------------------------------------------------

Use = Callable[[OptimisticTransaction], Any]


def started(use: Use, **options: Any) -> Step:
    """What ``use`` sees of a transaction that has just begun."""
    return lambda table: use(table.log().start_transaction(**options))


def commit(*actions: Action, operation: Operation = MANUAL, reads: Use | None = None, **options: Any) -> Step:
    """Commit the actions, after the reads, and see the version."""

    def run(table: Table) -> int:
        transaction = table.log().start_transaction()
        if reads is not None:
            reads(transaction)
        return transaction.commit(actions, operation, **options)

    return run


def commit_large(*actions: Action, operation: Operation = MANUAL, before: Use | None = None) -> Step:
    def run(table: Table) -> int:
        transaction = table.log().start_transaction()
        if before is not None:
            before(transaction)
        return transaction.commit_large(actions, operation)

    return run


def updated(given: Any, method: str = "update_metadata", **options: Any) -> Step:
    """Set metadata in a transaction and see the metadata that it will commit."""

    def run(table: Table) -> Any:
        transaction = table.log().start_transaction(**options)
        getattr(transaction, method)(given)
        return transaction.metadata

    return run


def then(*steps: Step) -> Step:
    """Do one step after the other, and see what the last one sees."""

    def run(table: Table) -> Any:
        seen = None
        for step in steps:
            seen = step(table)
        return seen

    return run


# -- seen ----------------------------------------------------------------------------------------------------------------------


def kinds(version: int) -> Step:
    """The kinds of actions of a commit, in their order."""
    return lambda table: [next(iter(line)) for line in table.lines(version)]


def info(version: int, *fields: str) -> Step:
    """Fields of a commit's ``commitInfo`` (``None`` for one that is not there); one field alone, or a list."""

    def look(table: Table) -> Any:
        found = table.info(version)
        values = [found.get(field) for field in fields]
        return values[0] if len(values) == 1 else values

    return look


def info_has(version: int, *fields: str) -> Step:
    """Which of these fields a commit's ``commitInfo`` has."""
    return lambda table: [field for field in fields if field in table.info(version)]


def action(version: int, kind: str) -> Step:
    """The one action of a kind in a commit."""
    return lambda table: next(line[kind] for line in table.lines(version) if kind in line)


def raw(version: int) -> Step:
    """The bytes of a commit."""
    return lambda table: (table.path / "_delta_log" / f"{version:020d}.json").read_bytes()


def names(pattern: str = "*") -> Step:
    """Names of the files in the log."""
    return lambda table: sorted(path.name for path in (table.path / "_delta_log").glob(pattern) if path.is_file())


def snapshot(look: Callable[[Any], Any]) -> Step:
    """What ``look`` sees of the latest snapshot, in a new client."""
    return lambda table: look(table.log().snapshot)


def protocol_of(given: Any) -> tuple[int, int, list[str], list[str]]:
    return (
        given.min_reader_version,
        given.min_writer_version,
        sorted(given.reader_features or []),
        sorted(given.writer_features or []),
    )
