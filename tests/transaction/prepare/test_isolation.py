"""The isolation level that a table asks for. Which one a commit runs at: ``conformance/test_isolation_and_conflicts.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.transaction import IsolationLevel
from airflow_delta.transaction.prepare.isolation import table_isolation_level
from support.table import Table, metadata


def test_the_level_of_a_table() -> None:
    assert table_isolation_level(metadata()) is IsolationLevel.SERIALIZABLE
    write = metadata(configuration={"delta.isolationLevel": "WriteSerializable"})
    assert table_isolation_level(write) is IsolationLevel.WRITE_SERIALIZABLE
    with pytest.raises(DeltaIllegalArgumentException, match="SnapshotIsolation cannot be requested"):
        table_isolation_level(metadata(configuration={"delta.isolationLevel": "SnapshotIsolation"}))


def test_a_level_that_no_transaction_may_ask_for(tmp_path: Path) -> None:
    log = Table(tmp_path / "table").create()
    with pytest.raises(DeltaIllegalArgumentException):
        log.start_transaction(isolation_level=IsolationLevel.SNAPSHOT_ISOLATION)
