"""What a winner's log entry says, without decoding more of it than is asked for."""

from __future__ import annotations

import json

import pytest

from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit

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
    add = {"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}}
    lines = [*([] if info is None else [{"commitInfo": {"operation": "WRITE", **info}}]), add]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    assert WinningCommit(CommitFile(1, data), table="t").is_of(TXN) is own
