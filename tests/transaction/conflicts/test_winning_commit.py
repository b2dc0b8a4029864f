"""What a winner's log entry says, without decoding more of it than is asked for."""

from __future__ import annotations

import json

import pytest

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from support.actions import add, as_json, remove

TXN = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("info", "path", "own"),
    [
        ({"txnId": TXN}, "a", True),
        ({"txnId": "another"}, f"staged/{TXN}/a", False),
        ({}, f"staged/{TXN}/a", False),
        (None, TXN, False),
    ],
)
def test_a_commit_is_ours_by_its_own_id_only(info: dict[str, str] | None, path: str, own: bool) -> None:
    lines = [*([] if info is None else [{"commitInfo": {"operation": "WRITE", **info}}]), as_json(add(path))]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    assert WinningCommit(CommitFile(1, data), table="t").is_of(TXN) is own


Counts = list[int | None]


@pytest.mark.parametrize(
    ("removed", "added", "moves"),
    [
        ([2, 3], [5], True),
        ([2, 3], [4], False),
        ([2, 3], [6], False),
        ([0], [], True),
        ([1], [], False),
        ([], [1], False),
        ([], [], False),
        ([None], [], False),
        ([None], [5], True),
        ([5], [None], True),
        ([None, 3], [2], False),
        ([None, 3], [4], True),
        ([5], [None, 6], False),
        ([5], [None, 4], True),
        ([None, 9], [None, 1], True),
    ],
)
def test_it_only_moves_rows_as_far_as_counts_say(removed: Counts, added: Counts, moves: bool) -> None:
    lines = [
        *(as_json(remove(str(number), records=rows, data_change=False)) for number, rows in enumerate(removed)),
        *(as_json(add(str(10 + number), records=rows, data_change=False)) for number, rows in enumerate(added)),
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines or [{"commitInfo": {}}]).encode()
    assert WinningCommit(CommitFile(1, data), table="t").only_moves_rows is moves


def test_files_are_spelled_as_the_transaction_spells_them() -> None:
    """Also in what is decoded later, and what another winner has spelled first counts for the next one."""
    lines = [
        {"commitInfo": {"operation": "WRITE"}},
        as_json(remove("p=a%3Db/1")),
        as_json(add("p=a%3db/1", records=1)),
        as_json(add("p=a%3db/2", records=1)),
        as_json(add("new", records=1)),
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    known = {"p=a=b/1": "p=a=b/1"}
    winner = WinningCommit(CommitFile(1, data), table="t")
    assert winner.respelled == {}
    winner.spell(known)
    assert winner.respelled == {"p=a%3Db/1": "p=a=b/1", "p=a%3db/1": "p=a=b/1"}
    assert [path for path, _values in winner.removed] == ["p=a=b/1"] == [file.path for file in winner.removed_files]
    assert (
        [path for path, _values in winner.added] == ["p=a=b/1", "p=a%3db/2", "new"] == [file.path for file in winner.added_files]
    )
    assert winner.replaced.keys() == {"p=a=b/1"}
    assert known == {"p=a=b/1": "p=a=b/1", "p=a=b/2": "p=a%3db/2", "new": "new"}
    plain = WinningCommit(CommitFile(2, json.dumps(as_json(remove("new"))).encode() + b"\n"), table="t")
    plain.spell(known)
    assert plain.respelled == {}
    assert [file.path for file in plain.removed_files] == ["new"]


def test_a_commit_that_does_not_parse_is_corrupt() -> None:
    winner = WinningCommit(CommitFile(3, b'{"add": 5}\n'), table="t")
    with pytest.raises(DeltaLogCorruptedException, match="Commit 3 of table t does not parse"):
        _ = winner.added
