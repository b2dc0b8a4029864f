"""Versions of application ids that a transaction relies on, and winners that set them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_delta.contract.payloads import COPY_APP, POSITION_APP
from airflow_delta.exceptions import ConcurrentTransactionException
from airflow_delta.table.positions.files.load import LOADED_BY_OTHERS
from airflow_delta.table.positions.rows import READ_BY_OTHERS
from airflow_delta.transaction import Operation, OptimisticTransaction
from support.actions import add, txn
from support.table import Table

POSITION, LOADS, KEY = f"{POSITION_APP}loader/a", f"{COPY_APP}loader/b", "dag/task"
KINDS = {POSITION: READ_BY_OTHERS, LOADS: LOADED_BY_OTHERS}
SOURCE, FILES, LOOKED_UP = (
    "new rows of the same source",
    "loaded files of the same consumer",
    "whose version this transaction looked up",
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create()
    return table


@pytest.mark.parametrize(
    ("relies_on", "set_by_winner", "says"),
    [
        ([POSITION], [POSITION], SOURCE),
        ([POSITION, LOADS, KEY], [POSITION, "other"], SOURCE),
        ([LOADS], [LOADS], FILES),
        ([LOADS, KEY], [LOADS, POSITION], FILES),
        ([KEY], [KEY], LOOKED_UP),
        ([POSITION, LOADS], [POSITION, LOADS], LOOKED_UP),
        ([POSITION, KEY], [POSITION, KEY], LOOKED_UP),
        ([POSITION, LOADS, KEY], ["other"], None),
        ([POSITION], [], None),
    ],
)
def test_what_both_know_is_a_conflict(table: Table, relies_on: list[str], set_by_winner: list[str], says: str | None) -> None:
    ours = table.log().start_transaction()
    ours.track_app_ids(*relies_on)
    for app_id in {*relies_on} & KINDS.keys():
        ours.txn_version(app_id, KINDS[app_id])
    table.commit(add("w"), *(txn(app_id, 1) for app_id in set_by_winner))
    if says is None:
        assert ours.commit([add("a")], Operation.write()) == 2
        return
    with pytest.raises(ConcurrentTransactionException, match=says) as caught:
        ours.commit([add("a")], Operation.write())
    assert caught.value.winning_version == 1
    assert "version 1" in str(caught.value)
    assert "What to do:" in str(caught.value)
    common = sorted({*relies_on} & {*set_by_winner})
    assert ", ".join(common) in str(caught.value)
    assert table.versions() == [0, 1]


def relying(table: Table, *rules: Callable[[Mapping[str, int]], str | None]) -> OptimisticTransaction:
    ours = table.log().start_transaction()
    for rule in rules:
        ours.track_app_ids_by(rule)
    return ours


def test_rules_are_given_what_each_winner_sets(table: Table) -> None:
    seen: list[dict[str, int]] = []

    def note(versions: Mapping[str, int]) -> None:
        seen.append(dict(versions))

    ours = relying(table, note, note)
    table.commit(add("v"))
    table.commit(add("w"), txn("one", 7), txn("two", 8))
    assert ours.commit([add("a")], Operation.write()) == 3
    assert seen == [{"one": 7, "two": 8}] * 2


def test_what_a_rule_says_is_the_conflict(table: Table) -> None:
    ours = relying(table, lambda _versions: None, lambda versions: f"Somebody is at {versions['one']}")
    table.commit(add("w"), txn("one", 7))
    with pytest.raises(ConcurrentTransactionException, match=r"Somebody is at 7.*version 1") as caught:
        ours.commit([add("a")], Operation.write())
    assert caught.value.winning_version == 1
    assert "is told what the table has by then" in str(caught.value)
    assert table.versions() == [0, 1]
