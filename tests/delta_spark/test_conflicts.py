"""Delta's own transaction decides every race of ``tests/conformance`` as ours does: same reads, same winner, same actions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.log.actions.actions import Action
from airflow_delta.transaction import Operation
from conformance.cases import LEVELS, Case, cases, cells, error_and_partition, metadata_changes
from conformance.races import change_metadata, committed_by, read, run_up, table_for_metadata_changes, table_of, win
from delta_spark.jvm import JvmTransaction, configured, decide
from support.actions import add
from support.table import Table, metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = {
    "enforce_concurrent_feature_enablement": "spark.databricks.delta.conflictChecker.enforceConcurrentFeatureEnablement.enabled"
}
CHANGES = metadata_changes()


@pytest.fixture(scope="module")
def judge(delta: SparkSession) -> Iterator[SparkSession]:
    with configured(delta) as session:
        yield session


def levels(case: Case) -> list[str]:
    """Return the levels at which Delta Spark judges a case: the other one too, if the winner may matter to it."""
    other = any(step.word in ("add", "metadata") for step in case.winner.commits)
    return [level for level in LEVELS if level == "Serializable" or other]


def error_of(transaction: Any, actions: list[Action], operation: Operation) -> tuple[str | None, str]:
    """Commit by Delta Spark; return the error as the tables name it, and its message."""
    name, message = decide(transaction, actions, operation)
    if "DELTA_FEATURE_DROP_CONFLICT_REVALIDATION_FAIL" in message:
        name = "FeatureDropConflictException"
    return None if name is None else name.removesuffix("Exception"), message


@pytest.mark.parametrize(
    ("case", "level"), [pytest.param(case, level, id=f"{case.name}-{level}") for case in cases() for level in levels(case)]
)
def test_case(judge: SparkSession, tmp_path: Path, case: Case, level: str) -> None:
    table = table_of(case, tmp_path, level)
    with configured(judge, {OPTIONS[name]: str(value).lower() for name, value in case.options.items()}):
        transaction = JvmTransaction(judge, str(table.path))
        _, actions, operation = run_up(case, table, transaction)
        error, message = error_of(transaction, actions, operation)
    found = re.search(r"in the partition (\[.*?\])", message)
    expected = error_and_partition(case.delta_spark or case.outcomes[level])
    assert (error, found and found.group(1)) == expected, message


def columns() -> Iterator[Any]:
    """Yield each winner of the matrix and a level, with the cells of all losers."""
    found = defaultdict(list)
    for case in cells():
        for level in levels(case):
            found[case.name.split(" / ")[1], level].append(case)
    for (winner, level), column in found.items():
        yield pytest.param(column, level, id=f"{winner}-{level}")


@pytest.mark.parametrize(("column", "level"), list(columns()))
def test_column(judge: SparkSession, tmp_path: Path, column: list[Case], level: str) -> None:
    """All losers against one winner. They begin before it, and what one of them commits is taken away before the next."""
    table = table_of(column[0], tmp_path, level)
    before = table.log().snapshot.metadata
    losers = []
    for case in column:
        transaction: Any = JvmTransaction(judge, str(table.path))
        read(transaction, case.ours.reads)
        losers.append((case, transaction))
    version = win(column[0], table)
    found = {}
    for case, transaction in losers:
        found[case.name] = error_of(transaction, *committed_by(case.ours, before))[0]
        for file in (table.path / "_delta_log").glob(f"*{version + 1:020d}*"):
            file.unlink()
    assert found == {case.name: case.error(level) for case in column}


@pytest.mark.parametrize("change", CHANGES)
def test_metadata_changes(judge: SparkSession, tmp_path: Path, change: str) -> None:
    table = table_for_metadata_changes(tmp_path)
    transaction = JvmTransaction(judge, str(table.path))
    change_metadata(table, CHANGES[change])
    name, message = decide(transaction, [add("a")], Operation.write())
    assert name == ("MetadataChangedException" if CHANGES[change]["loses"] else None), message


def test_two_that_create_the_table(judge: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    transaction = JvmTransaction(judge, str(tmp_path / "table"))
    table = Table(tmp_path / "table")
    table.create()
    name, message = decide(transaction, [metadata()], Operation.manual_update())
    assert name == "ProtocolChangedException", message
