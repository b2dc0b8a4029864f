"""Rows that a transaction marks, when a winner counts the rows of the file wrongly."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyroaring import BitMap64

from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vector
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.transaction.conflicts.marked_rows import MarkedRows
from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows
from support.actions import add


@pytest.mark.parametrize("claimed", [3, 2, 1])
def test_whether_a_file_stays_is_not_the_winners_to_say(tmp_path: Path, claimed: int) -> None:
    store = LocalStore(str(tmp_path), {})
    file = add("f", stats='{"numRecords":3}')
    own = msgspec.structs.replace(file, deletion_vector=inline_deletion_vector(BitMap64([1])))
    marked = MarkedRows(store, WinnersRows(store, 1 << 20), None)
    actions = [file.remove(0), own]
    marked.look(actions)
    first = BitMap64([0])
    winner = msgspec.structs.replace(file, stats=f'{{"numRecords":{claimed}}}', deletion_vector=inline_deletion_vector(first))
    assert marked.unite(winner, first, first) == 0
    [kept] = [action for action in marked.applied(actions) or () if isinstance(action, AddFile)]
    assert kept.deletion_vector is not None
    assert list(read_deletion_vector(store, kept.deletion_vector)) == [0, 1]


def test_a_file_without_rows_goes(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), {})
    file = add("f", stats='{"numRecords":2}')
    own = msgspec.structs.replace(file, deletion_vector=inline_deletion_vector(BitMap64([1])))
    marked = MarkedRows(store, WinnersRows(store, 1 << 20), None)
    actions = [file.remove(0), own]
    marked.look(actions)
    first = BitMap64([0])
    winner = msgspec.structs.replace(file, stats='{"numRecords":9}', deletion_vector=inline_deletion_vector(first))
    assert marked.unite(winner, first, first) == 0
    assert not [action for action in marked.applied(actions) or () if isinstance(action, AddFile)]
