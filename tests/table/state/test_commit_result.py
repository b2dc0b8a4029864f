"""The result of a commit, from the transaction that made it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_delta.log import DeltaLog
from airflow_delta.table.state.commit_result import result_of_transaction
from airflow_delta.transaction import Operation
from support.tables import create_table


def test_it_tells_the_conflicts_that_the_commit_resolved(tmp_path: Path) -> None:
    create_table(tmp_path)
    txn = DeltaLog.for_table(str(tmp_path)).start_transaction()
    txn.commit([], Operation("TEST", {}))
    assert result_of_transaction(txn, "TEST", []).resolved == {}
    assert txn.outcome is not None
    txn.outcome = replace(txn.outcome, resolved={"statistics": "3-12"})
    result = result_of_transaction(txn, "TEST", [])
    assert result.resolved == {"statistics": "3-12"}
    assert result.to_dict()["resolved"] == {"statistics": "3-12"}
