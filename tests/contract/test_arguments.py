"""The arguments of each operation in their JSON form: what lies beside a table, and what an earlier release left there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.contract.arguments import Arguments, RewriteArguments, RowIds
from airflow_delta.contract.audit import AuditArguments, SqlCheck
from airflow_delta.contract.merge import ComparedColumns, MergeArguments, MergeClause
from airflow_delta.contract.operations import (
    Assignment,
    ConstraintArguments,
    CreateArguments,
    OptimizeArguments,
    UpdateArguments,
    WriteArguments,
)
from airflow_delta.contract.request import StageRequest
from airflow_delta.exceptions import StagingException

EARLIER: dict[str, Any] = {"after": [], "earlier": []}
PARAMETERS: dict[str, Any] = {"predicate": ["id = 1"]}

FORMS = [
    # arguments, what they are in JSON beside EARLIER
    (Arguments(), {}),
    (RewriteArguments(operation_parameters=PARAMETERS), {"operationParameters": PARAMETERS}),
    (
        UpdateArguments(set=(Assignment(path=("s", "x"), expression="1"),), repeatable=True, operation_parameters=PARAMETERS),
        {"set": [{"path": ["s", "x"], "expression": "1"}], "repeatable": True, "operationParameters": PARAMETERS},
    ),
    (
        MergeArguments(
            condition="t.id = s.id",
            target_alias="t",
            source_alias="s",
            clauses=(MergeClause(kind="matched", action="delete"),),
            keys=(ComparedColumns(column="id", source="`id`", null_safe=False),),
        ),
        {
            "condition": "t.id = s.id",
            "targetAlias": "t",
            "sourceAlias": "s",
            "clauses": [{"kind": "matched", "action": "delete", "condition": None, "set": None}],
            "keys": [{"column": "id", "source": "`id`", "nullSafe": False}],
            "operationParameters": {},
        },
    ),
    (
        OptimizeArguments(
            bins=((0, 1), (2,)),
            outputs=(1, 1),
            z_order_by=(("s", "x"),),
            parallel=4,
            row_ids=RowIds(columns=("a", "b"), base=(0, 3, 7), version=(1, 1, 2)),
            data_change=(False, True),
            removes=({"remove": {"path": "x"}},),
            parameters=PARAMETERS,
            directories=("", "p=1"),
            record_rows=True,
            cluster_by=(("s", "y"),),
            cubes=("one", "two"),
        ),
        {
            "bins": [[0, 1], [2]],
            "outputs": [1, 1],
            "zOrderBy": [["s", "x"]],
            "parallel": 4,
            "rowIds": {"columns": ["a", "b"], "base": [0, 3, 7], "version": [1, 1, 2]},
            "dataChange": [False, True],
            "removes": [{"remove": {"path": "x"}}],
            "parameters": PARAMETERS,
            "directories": ["", "p=1"],
            "recordRows": True,
            "clusterBy": [["s", "y"]],
            "cubes": ["one", "two"],
        },
    ),
    (
        ConstraintArguments(constraints={"c": "a > 0"}, not_null=(("s", "x"),), staged={"stage": "a"}),
        {"constraints": {"c": "a > 0"}, "notNull": [["s", "x"]], "furthest": {}, "staged": {"stage": "a"}},
    ),
    (
        AuditArguments(checks=(SqlCheck(name="c", sql="SELECT true"),), views={"staged": {"contract": 1}}),
        {"checks": [{"name": "c", "sql": "SELECT true", "onFailure": "fail"}], "views": {"staged": {"contract": 1}}},
    ),
    (
        WriteArguments(
            create=CreateArguments(mode="replace", partition_by=("p",), cluster_by=("c",), properties={"a": "b"}),
            replace_on="t.id = s.id",
            keys=(ComparedColumns(column="id", source="`id`", null_safe=False),),
            parameters={"replaceUsingCols": ["id"]},
            optimize_write=1024,
            data_change=False,
            replaced_schema="{}",
            row_ids=RowIds(columns=("a", "b"), base=(0,), version=(1,)),
        ),
        {
            "create": {
                "mode": "replace",
                "partitionBy": ["p"],
                "clusterBy": ["c"],
                "properties": {"a": "b"},
                "description": None,
            },
            "replaceOn": "t.id = s.id",
            "keys": [{"column": "id", "source": "`id`", "nullSafe": False}],
            "parameters": {"replaceUsingCols": ["id"]},
            "optimizeWrite": 1024,
            "dataChange": False,
            "replacedSchema": "{}",
            "rowIds": {"columns": ["a", "b"], "base": [0], "version": [1]},
        },
    ),
]


def request(arguments: dict[str, Any]) -> StageRequest:
    names = {"transaction_id": "t", "stage": "s", "task_id": "s", "attempt": "1-a", "directory": "staged/t/s/1-a"}
    asked = StageRequest(table="/t", read_version=0, arguments=arguments, **names)
    return StageRequest.from_dict(json.loads(json.dumps(asked.to_dict())))


@pytest.mark.parametrize(("arguments", "form"), FORMS, ids=[type(arguments).__name__ for arguments, _ in FORMS])
def test_json_form(arguments: Arguments, form: dict[str, Any]) -> None:
    assert arguments.to_dict() == EARLIER | form
    assert type(arguments).of(request(arguments.to_dict())) == arguments


REQUIRED = {
    UpdateArguments: {"set", "repeatable"},
    MergeArguments: {"condition", "targetAlias", "sourceAlias", "clauses"},
    OptimizeArguments: {"bins", "outputs"},
    ConstraintArguments: {"staged"},
    AuditArguments: {"checks"},
}


@pytest.mark.parametrize(("arguments", "form"), FORMS, ids=[type(arguments).__name__ for arguments, _ in FORMS])
def test_a_request_of_an_earlier_release_has_only_what_it_needed(arguments: Arguments, form: dict[str, Any]) -> None:
    kind = type(arguments)
    required = REQUIRED.get(kind, set())
    kind.of(request({name: value for name, value in form.items() if name in required}))
    for name in required:
        with pytest.raises(StagingException, match=f"{kind.__name__} lacks the field {name}"):
            kind.of(request({other: value for other, value in form.items() if other != name}))


def test_a_plain_write_has_none() -> None:
    assert WriteArguments.of(request({})) == WriteArguments()
    assert WriteArguments().to_dict() == EARLIER | {"keys": [], "dataChange": True}
