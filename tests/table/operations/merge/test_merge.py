"""MERGE before Spark: which files a condition rules out, what the request holds, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.merge import (
    MergeClause,
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.contract.sql_types import column_path_text, parse_column_path
from airflow_delta.exceptions import AppendOnlyException, DeltaAnalysisException, IdentityInsertException
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.table.operations.merge.condition import MergeCondition
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.stage.repeatable import at_one_instant, of_table
from support.actions import column, schema
from support.feature_tables import create, field, identity
from support.table import Table

COLUMNS = schema(column("id", "long"), column("day", "date"), column("ts", "timestamp"), column("s", "string"))
UPSERT = [when_matched_update(), when_not_matched_insert()]


def condition(text: str) -> MergeCondition:
    return MergeCondition(text, parse_schema(COLUMNS), "target", "source", table="t")


@pytest.mark.parametrize(
    ("text", "pruned", "keys"),
    [
        ("target.id = source.id", None, [("id", "`id`", False)]),
        ("TARGET.day = DATE'2024-01-01' and (source.`x y` <=> target.id)", "`day` = DATE '2024-01-01'", [("id", "`x y`", True)]),
        # Without an alias a name is the table's if the table has it.
        ("s = 'target.s' AND key = id", "`s` = 'target.s'", [("id", "`key`", False)]),
        ("target.id = source.id OR target.id = 1", None, []),
        ("target.id IN (1, 2) AND (target.s LIKE 'a%' OR target.id > 5)", "`id` IN (1, 2) AND (`s` LIKE 'a%' OR `id` > 5)", []),
        # Outside of ANSI mode, Spark compares both as text.
        ("target.id = source.id AND target.id NOT IN (1, '03') AND target.s IN ('a')", "`s` IN ('a')", [("id", "`id`", False)]),
        # Outside of ANSI mode, Spark casts text to the type of the number, and '1.5' is 1.
        ("target.id = '1.5' AND (target.id) >= ('0.5') AND target.s = '1.5'", "`s` = '1.5'", []),
        ("target.id BETWEEN '0.5' AND 3 AND target.id <=> '1234567890123456789' AND target.id < '5'", "`id` < 5", []),
        # Timestamps without a zone are the session's.
        ("target.ts > '2024-01-01 00:00:00' AND target.id < source.id", None, []),
        ("source.id = 5 AND target.id + 1 = source.id", None, []),
        ("false", "false", []),
    ],
)
def test_conditions(text: str, pruned: str | None, keys: list[tuple[Any, ...]]) -> None:
    on = condition(text)
    found = on.of_target(lambda alone: Predicate.parse(alone, parse_schema(COLUMNS), ["day"]))
    assert (None if found is None else found.text) == pruned
    assert [(key.column, key.source, key.null_safe) for key in on.compared()] == keys


def test_text_compared_with_a_field_of_a_struct() -> None:
    inner = schema(column("n", "integer"), column("s", "string"))
    known = parse_schema(schema(column("st", json.loads(inner))))
    on = MergeCondition(
        "target.st.n = '1.5' AND target.st.n IN ('3') AND target.st.s IN ('a') AND target.st.n > '3'",
        known,
        "target",
        "source",
        table="t",
    )
    found = on.of_target(lambda alone: Predicate.parse(alone, known, []))
    assert found is not None
    assert found.text == "`st`.`s` IN ('a') AND `st`.`n` > 3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ts < current_timestamp()", "ts < timestamp_micros(5L)"),
        ("NOW ( ) > CURRENT_TIMESTAMP AND now", "timestamp_micros(5L) > timestamp_micros(5L) AND now"),
        ("current_date - 1 = curdate()", "CAST(timestamp_micros(5L) AS DATE) - 1 = CAST(timestamp_micros(5L) AS DATE)"),
        ("localtimestamp() > source.current_date", "CAST(timestamp_micros(5L) AS TIMESTAMP_NTZ) > source.current_date"),
        ("unix_timestamp() > unix_timestamp(ts)", "unix_timestamp(timestamp_micros(5L)) > unix_timestamp(ts)"),
        ("s = 'now()' OR `current_date` -- now()", "s = 'now()' OR `current_date` -- now()"),
    ],
)
def test_one_instant(text: str, expected: str) -> None:
    assert at_one_instant(text, 5, parse_schema(COLUMNS)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 1 and target.s = 'id' AND S is null", "`target`.id = 1 and target.s = 'id' AND `target`.S is null"),
        ("transform(array(id), id -> id + 1)[0] > `id`", "transform(array(`target`.id), id -> id + 1)[0] > `target`.`id`"),
        ("nope > 1", "nope > 1"),
    ],
)
def test_columns_of_the_table(text: str, expected: str) -> None:
    assert of_table(text, parse_schema(COLUMNS), "target") == expected


def test_a_column_may_have_the_name_of_the_alias() -> None:
    inner = json.loads(schema(column("x", "integer"), column("id", "integer")))
    columns = parse_schema(schema(column("id", "long"), column("target", inner)))
    text = "target IS NULL OR `target`.x = 1 OR target.id = 2"
    assert of_table(text, columns, "target") == "`target`.target IS NULL OR `target`.`target`.x = 1 OR target.id = 2"


def plan(table: Table, clauses: Any = UPSERT, on: str = "target.id = source.id", **options: Any) -> Any:
    return plan_merge(table.view(table.begin()), condition=on, clauses=clauses, **options).request


def test_request(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    create(
        table,
        column("id", "long"),
        field("v", "integer", CURRENT_DEFAULT="7"),
        **{"delta.feature.allowColumnDefaults": "supported"},
    )
    clauses = [
        when_matched_delete("source.gone"),
        MergeClause(kind="matched", action="update", set={"Target.V": "default", "`id`": 5}),
        when_not_matched_insert({"ID": "source.id"}),
        when_not_matched_by_source_delete("target.v = 1"),
    ]
    request = plan(table, clauses, source={"sql": "SELECT 1"})
    arguments = request.arguments
    assert [clause["set"] for clause in arguments["clauses"]] == [None, {"v": "7", "id": "5"}, {"id": "source.id"}, None]
    assert arguments["source"] == {"sql": "SELECT 1"}
    assert request.rewrite.predicate is None
    assert arguments["operationParameters"] == {
        "predicate": ["target.id = source.id"],
        "matchedPredicates": [{"predicate": "source.gone", "actionType": "delete"}, {"actionType": "update"}],
        "notMatchedPredicates": [{"actionType": "insert"}],
        "notMatchedBySourcePredicates": [{"predicate": "target.v = 1", "actionType": "delete"}],
    }


def test_every_pass_sees_one_instant(tmp_path: Path) -> None:
    """A row whose clause is decided at two instants would be lost or doubled."""
    table = Table(tmp_path / "table")
    create(table, column("id", "long"), column("ts", "timestamp"))
    request = plan(
        table,
        [
            when_matched_update({"ts": "now()"}, "target.ts < current_timestamp()"),
            when_not_matched_by_source_update({"ts": "current_timestamp()"}, "ts < current_timestamp()"),
        ],
        on="target.id = source.id AND target.ts < current_timestamp()",
    )
    first, second = request.arguments["clauses"]
    instant = first["set"]["ts"]
    assert instant.startswith("timestamp_micros(")
    assert request.arguments["condition"] == f"target.id = source.id AND target.ts < {instant}"
    assert (first["condition"], second["condition"]) == (f"target.ts < {instant}", f"`target`.ts < {instant}")
    assert second["set"] == {"ts": instant}
    assert request.arguments["operationParameters"]["matchedPredicates"][0]["predicate"] == "target.ts < current_timestamp()"


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        ([], "no clause"),
        ([{"kind": "matched", "action": "insert"}], "known are"),
        ([when_matched_delete(), when_matched_update()], "only the last"),
        ([when_matched_update({})], "no column"),
        ([when_matched_update({"x": "1"})], "which the table does not have. The columns are key, id"),
        ([when_matched_update({"id": "1", "`ID`": "2"})], "twice"),
        ([when_matched_update({"id": "max(id)"})], "aggregate"),
        ([when_matched_update({"id": "1 +"})], "is not valid Spark SQL"),
        ([when_matched_delete("uuid() = 'a'")], "uuid"),
    ],
)
def test_refusals(tmp_path: Path, clauses: Any, message: str) -> None:
    table = Table(tmp_path / "table")
    create(table, identity("key", 1, 1), column("id", "long"))
    with pytest.raises(DeltaAnalysisException, match=message):
        plan(table, clauses)
    with pytest.raises(DeltaAnalysisException, match="alias"):
        plan(table, source_alias="Target")
    with pytest.raises(DeltaAnalysisException, match="is not valid Spark SQL"):
        plan(table, on="target.id ==== source.id")
    with pytest.raises(DeltaAnalysisException, match=r"names the column 'idd', .*Did you mean 'id'\? The columns are key, id\."):
        plan(table, on="target.idd = source.id")
    with pytest.raises(IdentityInsertException, match="key"):
        plan(table, [when_matched_update({"key": "1"})])


def test_a_field_is_not_taken_for_a_column_whose_name_has_a_dot(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    create(table, column("id", "long"), column("a", {"type": "struct", "fields": [column("b", "long")]}), column("a.b", "long"))
    for name, path in (("a.b", "a.b"), ("target.A.B", "a.b"), ("`a.b`", "`a.b`"), ("target.`a.b`", "`a.b`")):
        request = plan(table, [when_matched_update({name: "1"})])
        assert request.arguments["clauses"][0]["set"] == {path: "1"}


def with_structs(tmp_path: Path) -> Table:
    """Make a table with a column that has the alias of the table, and one that has a field of its own name."""
    table = Table(tmp_path / "table")
    inner = {"type": "struct", "fields": [column("B", "long"), column("x y", "long")]}
    array = {"type": "array", "elementType": inner, "containsNull": True}
    struct = {"type": "struct", "fields": [column("a", "long"), column("s", inner), column("l", array)]}
    create(table, column("id", "long"), column("s", struct), column("target", struct), **{"delta.columnMapping.mode": "name"})
    return table


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("S.A", "s.a"),
        ("target.s.s.b", "s.s.B"),
        ("`S`.`s`.`X y`", "s.s.`x y`"),
        ("target.a", "target.a"),  # the table has no column a
        ("target.s", "s"),  # the table has a column s
        ("target.target.s", "target.s"),
    ],
)
def test_fields_as_the_table_spells_them(tmp_path: Path, name: str, path: str) -> None:
    request = plan(with_structs(tmp_path), [when_matched_update({name: "1"})])
    assert request.arguments["clauses"][0]["set"] == {path: "1"}


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        (when_matched_update({"s.l.B": "1"}), r"but s.l is array<.*>, which has no fields .*NESTED_FIELD_IN_UPDATE"),
        (when_matched_update({"id.B": "1"}), "but id is bigint, which has no fields .*INVALID_EXTRACT_BASE_FIELD_TYPE"),
        (when_matched_update({"s.": "1"}), "not a valid column path"),
        (when_matched_update({"s.s.B": "1", "S": "NULL"}), "sets both s.s.B and s .DELTA_CONFLICT_SET_COLUMN"),
        (when_matched_update({"s.s": "1", "target.s.S.b": "1"}), "sets both s.s and s.s.B .DELTA_CONFLICT_SET_COLUMN"),
        (when_matched_update({"s.a": "1", "S.A": "2"}), "sets s.a twice .DELTA_CONFLICT_SET_COLUMN"),
        (when_matched_update({"s.a": "DEFAULT"}), "DEFAULT, which only columns have"),
        (when_matched_update({"s.a": "(SELECT 1)"}), "subquery"),
        (when_not_matched_insert({"id": "1", "s.a": "1"}), r"build the struct with named_struct\(\) .*NESTED_FIELD_IN_OPERATION"),
        (when_not_matched_insert({"id": "1", "ID": "1"}), "sets id twice .DELTA_DUPLICATE_COLUMNS_ON_INSERT"),
    ],
)
@pytest.mark.parametrize("merge_schema", [False, True])
def test_fields_that_cannot_be_set(tmp_path: Path, clause: Any, message: str, merge_schema: bool) -> None:
    with pytest.raises(DeltaAnalysisException, match=message):
        plan(with_structs(tmp_path), [clause], merge_schema=merge_schema)


@pytest.mark.parametrize("path", [("a",), ("a.b", "c d"), ("x`y", " z ", "``"), ("ü", "1", "_", "a\nb")])
def test_paths_are_read_as_they_are_written(path: tuple[str, ...]) -> None:
    assert parse_column_path(column_path_text(path)) == path


def test_new_columns_and_fields(tmp_path: Path) -> None:
    """Spark knows whether the source has them."""
    table = with_structs(tmp_path)
    clauses = [when_matched_update({"New": "1", "S.S.n.`o p`": "2"}, "source.id = 1"), when_not_matched_insert({"x": "3"})]
    request = plan(table, clauses, merge_schema=True)
    assert [clause["set"] for clause in request.arguments["clauses"][:2]] == [{"New": "1", "s.s.n.`o p`": "2"}, {"x": "3"}]
    for clause, message in (
        (when_matched_update({"s.nope": "1"}), r"there is no nope \(FIELD_NOT_FOUND\)\. The fields of s are a, s, l"),
        (when_matched_update({"nope.a": "1"}), r"does not have. The columns are id, s, target \(DELTA_MERGE_UNRESOLVED_EXPR"),
    ):
        with pytest.raises(DeltaAnalysisException, match=message):
            plan(table, [clause])
    for clause, message in (
        (when_not_matched_by_source_update({"new": "1"}), "does not have"),
        (when_not_matched_by_source_update({"s.n": "1"}), "FIELD_NOT_FOUND"),
        (when_matched_update({"target.s.n": "1"}), "without the alias of the table"),
        (when_matched_update({"new": "1", "NEW.a": "2"}), "sets both new and NEW.a .DELTA_CONFLICT_SET_COLUMN"),
    ):
        with pytest.raises(DeltaAnalysisException, match=message):
            plan(table, [clause], merge_schema=True)


def test_a_table_that_only_takes_appends(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    create(table, column("id", "long"), **{"delta.appendOnly": "true"})
    assert plan(table, [when_not_matched_insert()]).rewrite.files == ()
    with pytest.raises(AppendOnlyException):
        plan(table)
