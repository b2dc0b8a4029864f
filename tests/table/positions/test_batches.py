"""Batches of a streaming query that a table may have from the table that it is a clone of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.positions.batches import check_batch_not_cloned
from support.actions import txn
from support.table import Table

QUERY = "query"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A clone, with a commit before it and one after it."""
    source, table = Table(tmp_path / "source"), Table(tmp_path / "table")
    source.write(pa.table({"id": [1]}))
    clone_table(table.log(), source.log(), transaction_key="clone", attempt="1-test", deep=True)
    source.write(pa.table({"id": [2]}))
    clone_table(table.log(), source.log(), transaction_key="again", attempt="1-test", deep=True)
    table.commit(txn("other", 1))
    return table


def stored(table: Table, version: int) -> int:
    return int(table.log_file(version).stat().st_mtime * 1000)


def is_refused(table: Table, planned: Callable[[], int | None]) -> bool:
    log = table.log()
    log.update()
    try:
        check_batch_not_cloned(log, QUERY, 7, planned)
    except DeltaIllegalStateException as error:
        return "version 1 made it a clone" in error.message and "assume_new_batch=7" in error.message
    return False


def test_planned_before_the_clone_was_brought_up_to_date(table):
    assert is_refused(table, lambda: stored(table, 1) - 1)
    assert is_refused(table, lambda: stored(table, 0) - 1)


def test_planned_since(table):
    soon = int(time.time() * 1000) + 60_000
    assert not is_refused(table, lambda: soon)
    os.utime(table.log_file(2), (soon, soon))  # committed by another writer since the plan
    assert not is_refused(table, lambda: soon)


def test_planned_recently_as_far_as_is_known(table):
    assert not is_refused(table, lambda: None)


@pytest.mark.parametrize("is_known", [True, False])
def test_planned_at_an_unknown_time(table, is_known):
    if is_known:
        table.commit(txn(QUERY, 6, int(time.time() * 1000)))
    assert is_refused(table, lambda: 0) is not is_known


def test_a_query_that_the_clone_knows_from_before(table):
    """It went on elsewhere since, and the clone was brought up to date from there."""
    table.commit(txn(QUERY, 6, int(time.time() * 1000)))
    assert is_refused(table, lambda: stored(table, 1) - 1)


def test_a_table_that_is_no_clone(tmp_path):
    table = Table(tmp_path / "table")
    assert not is_refused(table, lambda: 0)
    table.write(pa.table({"id": [1]}))
    assert not is_refused(table, lambda: 0)
    assert not is_refused(table, lambda: 1)
