"""The keys that the condition of a MERGE names, as each writer puts it into the log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.log.actions.decode import decode_commits
from airflow_delta.table.effects.merge_keys import merge_keys
from support.actions import info
from support.tables import commit_path, write_commit

COLUMNS = ["id", "Day", "a b", "v"]


def keys(tmp_path, operation: str, parameters: Any) -> list[str]:
    from airflow_delta.log.actions.decode import CommitFile

    write_commit(tmp_path, 0, info(operation, operation_parameters=parameters))
    (commit,) = decode_commits([CommitFile(0, commit_path(tmp_path, 0).read_bytes())], table="t")
    return merge_keys(commit, COLUMNS)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("target.id = source.id", ["id"]),
        ("(t.id <=> s.ID) AND (t.day = s.day)", ["id", "Day"]),
        ("((id#12L = id#34L) AND (day#13 = day#35))", ["id", "Day"]),
        ("t.`a b` = s.`a b`", ["a b"]),
        ("t.id = s.id AND t.v > 3", ["id"]),
        ("t.id = s.id OR t.v = s.v", []),
        ("NOT (t.id = s.id)", []),
        ("t.id = s.other", []),
        ("t.gone = s.gone", []),
        ("t.id = 3", []),
        ("this is (not SQL", []),
        ("(" * 5000 + "t.id = s.id" + ")" * 5000, []),
    ],
)
def test_a_condition(tmp_path, condition, found):
    assert keys(tmp_path, "MERGE", {"predicate": json.dumps([condition])}) == found
    assert keys(tmp_path, "MERGE", {"predicate": condition}) == found
    assert keys(tmp_path, "MERGE", {"mergePredicate": condition}) == found


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("UPDATE", {"predicate": '["t.id = s.id"]'}),
        ("MERGE", None),
        ("MERGE", {}),
        ("MERGE", {"predicate": 3}),
        ("MERGE", {"predicate": "{}"}),
        ("MERGE", {"predicate": "[1, null]"}),
    ],
)
def test_no_condition_no_keys(tmp_path, operation, parameters):
    assert keys(tmp_path, operation, parameters) == []
