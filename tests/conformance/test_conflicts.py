"""Who conflicts with whom: this engine and an oracle judge the cases of the tables; Delta Spark does in ``tests/delta_spark``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_delta import exceptions
from airflow_delta.exceptions import ConcurrentWriteException, DeltaError, MetadataChangedException, ProtocolChangedException
from airflow_delta.transaction import CommitPolicy, Operation
from airflow_delta.transaction.policy import ConflictOptions
from conformance.cases import LEVELS, Case, cases, cells, error_and_partition, metadata_changes
from conformance.races import change_metadata, run_up, table_for_metadata_changes, table_of, win
from conformance.serial_order import has_serial_order
from support.actions import add
from support.table import Table, metadata

CASES = list(cases())
CELLS = list(cells())
OF_EACH_WINNER = {case.name.split(" / ")[1]: case for case in CELLS}
CHANGES = metadata_changes()
AT_EACH_LEVEL = [pytest.param(case, level, id=f"{case.name}-{level}") for case in [*CASES, *CELLS] for level in LEVELS]


@pytest.mark.parametrize(("case", "level"), AT_EACH_LEVEL)
def test_ours(tmp_path: Path, case: Case, level: str) -> None:
    table = table_of(case, tmp_path, level)
    policy = CommitPolicy(conflict_detection="delta", conflicts=ConflictOptions(**case.options))
    ours = table.log().start_transaction(policy=policy)
    version, actions, operation = run_up(case, table, ours)
    before = table.live()
    if (expected := case.error(level)) is None:
        assert ours.commit(actions, operation) == version + 1
        assert ours.outcome is not None
        assert ours.outcome.versions_checked == 1
        removed = {step.name for step in case.ours.commits if step.word == "remove"}
        added = {step.name for step in case.ours.commits if step.word == "add"}
        assert table.live() == before - removed | added
        assert set(table.log().snapshot.files()["path"].to_pylist()) == table.live()
        return
    with pytest.raises(DeltaError) as caught:
        ours.commit(actions, operation)
    error: Any = caught.value
    assert type(error) is getattr(exceptions, f"{expected}Exception"), error
    assert (error.table, error.version) == (table.uri, version)
    assert not ours.committed
    assert table.versions()[-1] == version
    assert table.live() == before
    if expected == "FeatureDropConflict":
        return
    assert error.winning_version == version
    assert error.winning_commit["operation"] == table.info(version)["operation"]
    assert f"version {version} ({error.winning_commit['operation']})" in str(error)
    assert "What to do" in str(error)
    assert not case.names_partition or error.partition == error_and_partition(case.outcomes[level])[1]


@pytest.mark.parametrize("case", [*CASES, *CELLS], ids=lambda case: case.name)
def test_oracle(case: Case) -> None:
    """What commits has a serial order; what does not commit has none, or the tables say that Delta is cautious there."""
    found = {level: has_serial_order(case, level) for level in LEVELS}
    assert found == {level: case.error(level) is None or level in case.cautious for level in LEVELS}


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) > 90


# -- what every winner of the matrix does to -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("winner", OF_EACH_WINNER)
def test_commit_large_loses_against_everything(tmp_path: Path, winner: str, level: str) -> None:
    table = table_of(OF_EACH_WINNER[winner], tmp_path, level)
    transaction = table.log().start_transaction()
    win(OF_EACH_WINNER[winner], table)
    with pytest.raises(ConcurrentWriteException):
        transaction.commit_large([add("o", part=1)], Operation.restore(version=0))


@pytest.mark.parametrize("winner", OF_EACH_WINNER)
def test_nothing_to_commit_is_never_checked(tmp_path: Path, winner: str) -> None:
    table = table_of(OF_EACH_WINNER[winner], tmp_path, "Serializable")
    transaction = table.log().start_transaction()
    transaction.filter_files()
    transaction.txn_version("app")
    win(OF_EACH_WINNER[winner], table)
    assert transaction.commit_if_needed([], Operation.delete()) is None


# -- metadata ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_metadata_changes_against_a_blind_append(tmp_path: Path, change: str) -> None:
    table = table_for_metadata_changes(tmp_path)
    transaction = table.log().start_transaction()
    change_metadata(table, CHANGES[change])
    if CHANGES[change]["loses"]:
        with pytest.raises(MetadataChangedException):
            transaction.commit([add("a")], Operation.write())
    else:
        assert transaction.commit([add("a")], Operation.write()) == 2


def test_two_that_create_the_table(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    first, second = table.log().start_transaction(), table.log().start_transaction()
    for transaction in (first, second):
        transaction.update_metadata_for_new_table(metadata())
    assert first.commit([], Operation.create_table()) == 0
    with pytest.raises(ProtocolChangedException, match="create it before"):
        second.commit([], Operation.create_table())
