"""Delta's own transaction decides every race as ours does: same reads, same winner, same actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.transaction import Operation
from delta_spark.jvm import JvmTransaction, exception_name, java_exception
from support.actions import add
from support.table import Table, metadata
from transaction.conflicts.test_scenarios_legacy import SCENARIOS as LEGACY
from transaction.conflicts.test_scenarios_optimistic import SCENARIOS as OPTIMISTIC
from transaction.harness import Race
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LETTERS = {
    "A": "ConcurrentAppendException",
    "R": "ConcurrentDeleteReadException",
    "D": "ConcurrentDeleteDeleteException",
    "M": "MetadataChangedException",
    "P": "ProtocolChangedException",
    "T": "ConcurrentTransactionException",
}
OF_NAME: dict[str | None, str] = {None: "-", **{name: letter for letter, name in LETTERS.items()}}
MAY_DIFFER = ("append 1", "append 2", "update 1", "vector 1", "optimize 1", "stats 1", "alter")
QUIET = {
    # Files of these tables do not exist, and what follows a commit is not what is judged here.
    "spark.databricks.delta.incremental.commit.verify": "false",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.stats.skipping": "false",
}


def quiet(delta: SparkSession) -> Iterator[SparkSession]:
    """Yield the session with what is not judged here switched off."""
    before = {key: delta.conf.get(key, None) for key in QUIET}
    for key, value in QUIET.items():
        delta.conf.set(key, value)
    yield delta
    for key, value in before.items():
        if value is None:
            delta.conf.unset(key)
        else:
            delta.conf.set(key, value)


@pytest.fixture(scope="module")
def judge(delta: SparkSession) -> Iterator[SparkSession]:
    yield from quiet(delta)


def decide(transaction: JvmTransaction, actions: Any, operation: Operation) -> tuple[str | None, str]:
    """Return the exception of a commit (``None`` when it succeeds) and its message."""
    try:
        transaction.commit(actions, operation)
    except Exception as error:
        java = java_exception(error)
        if java is None:
            raise
        return exception_name(error), str(java.getMessage())
    return None, ""


def judged() -> Iterator[tuple[str, str, list[tuple[Loser, str]]]]:
    """Return the columns of the matrix: at WriteSerializable those that may differ from Serializable."""
    for level in LEVELS:
        for winner in COLUMNS:
            if level == "Serializable" or winner in MAY_DIFFER:
                yield winner, level, [(cell[0], cell[3]) for cell in cells() if cell[1:3] == (winner, level)]


@pytest.mark.parametrize(
    ("winner", "level", "column"), [pytest.param(*column, id=f"{column[0]}-{column[1]}") for column in judged()]
)
def test_column(judge: SparkSession, tmp_path: Path, winner: str, level: str, column: list[tuple[Loser, str]]) -> None:
    """All losers against one winner. They begin before it, and what one of them commits is taken away before the next."""
    table = start(tmp_path, level)
    losers = []
    for loser, letter in column:
        transaction = JvmTransaction(judge, str(table.path))
        losers.append((loser.__name__, transaction, loser(transaction, level), letter))
    version = win(table, winner, level)
    found, expected = {}, {}
    for name, transaction, (actions, operation), letter in losers:
        kind, message = decide(transaction, actions, operation)
        found[name] = (
            "F" if "DELTA_FEATURE_DROP_CONFLICT_REVALIDATION_FAIL" in message else OF_NAME.get(kind, f"{kind}: {message}")
        )
        expected[name] = letter
        for file in (table.path / "_delta_log").glob(f"*{version + 1:020d}*"):
            file.unlink()
    assert found == expected


@pytest.mark.parametrize("race", [*OPTIMISTIC, *LEGACY], ids=lambda race: race.name.split()[0])
def test_scenario(judge: SparkSession, tmp_path: Path, race: Race) -> None:
    table = Table(tmp_path / "table")
    table.create(race.partition_by, configuration=race.configuration)
    for action in race.setup:
        table.commit(action)
    transaction: Any = JvmTransaction(judge, str(table.path))
    winner = table.log().start_transaction()
    if race.reads:
        race.reads(transaction)
    if race.winner_reads:
        race.winner_reads(winner)
    winner.commit(race.winner, race.winner_operation)
    if race.reads_after:
        race.reads_after(transaction)
    name, message = decide(transaction, race.ours, race.operation)
    assert name == (race.expected.__name__ if race.expected else None), message
    if race.expected is not None and race.expected.has_hint:
        found = re.search(r"in the partition (\[.*?\])", message)
        assert (found.group(1) if found else None) == (race.delta_partition or race.partition), message


@pytest.mark.parametrize("change", METADATA_CHANGES)
def test_metadata_changes(judge: SparkSession, tmp_path: Path, change: str) -> None:
    table = start_for_metadata_changes(tmp_path)
    transaction = JvmTransaction(judge, str(table.path))
    what, conflicts = METADATA_CHANGES[change]
    change_metadata(table, what)
    name, message = decide(transaction, [add("a")], Operation.write())
    assert name == ("MetadataChangedException" if conflicts else None), message


def test_two_that_create_the_table(judge: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    transaction = JvmTransaction(judge, str(tmp_path / "table"))
    table = Table(tmp_path / "table")
    table.create()
    name, message = decide(transaction, [metadata()], Operation.manual_update())
    assert name == "ProtocolChangedException", message
