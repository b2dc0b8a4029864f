"""Winning commits of other engines, which may write what this one never would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import ConcurrentAppendException
from airflow_delta.transaction import Operation
from support.actions import add, as_json, foreign_info
from support.table import Table

PART = ("part",)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(PART)
    return table


def test_a_domain_on_a_table_that_has_no_domains_is_no_conflict(table: Table) -> None:
    ours = table.log().start_transaction()
    table.put_foreign(1, foreign_info(), {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}})
    assert ours.commit([add("o", part=1)], Operation.write()) == 2


@pytest.mark.parametrize(("value", "conflicts"), [("1", True), ("2", False), ("no number", True), (None, False)])
def test_a_partition_value_that_is_none_cannot_be_ruled_out(table: Table, value: str | None, conflicts: bool) -> None:
    ours = table.log().start_transaction()
    ours.filter_files("part = 1")
    file = as_json(add("w"))
    file["add"]["partitionValues"] = {"part": value}
    table.put_foreign(1, foreign_info(), file)
    if conflicts:
        with pytest.raises(ConcurrentAppendException):
            ours.commit([add("o", part=1)], Operation.write())
    else:
        assert ours.commit([add("o", part=1)], Operation.write()) == 2


def test_a_commit_of_this_transaction_with_fields_of_other_types(table: Table) -> None:
    """Something between this client and the store rewrote the entry: it is ours all the same."""
    ours = table.log().start_transaction()
    fields = {"txnId": ours.txn_id, "timestamp": "yesterday", "isBlindAppend": "yes", "tags": {"k": "v"}, "operation": "WRITE"}
    table.put_foreign(1, {"commitInfo": fields}, as_json(add("o", part=1)))
    assert ours.commit([add("o", part=1)], Operation.write()) == 1
    outcome = ours.outcome
    assert outcome is not None
    assert outcome.recognised
    assert (outcome.commit_info.operation, outcome.commit_info.tags) == ("WRITE", {"k": "v"})
    assert (outcome.commit_info.timestamp, outcome.commit_info.is_blind_append, outcome.timestamp) == (None, None, 0)


@pytest.mark.parametrize(
    "info",
    [{}, {"isBlindAppend": "yes"}, {"operation": 5}, {"operation": None, "operationParameters": []}, {"tags": "none"}],
)
def test_a_commit_info_of_any_form(table: Table, info: dict[str, Any]) -> None:
    """A winner that does not say that it appended blindly did not: at WriteSerializable it counts."""
    ours = table.log().start_transaction(isolation_level="WriteSerializable")
    ours.filter_files("part = 1")
    table.put_foreign(1, {"commitInfo": info}, as_json(add("w", part=1)))
    with pytest.raises(ConcurrentAppendException) as caught:
        ours.commit([add("o", part=1)], Operation.write())
    assert caught.value.winning_version == 1
