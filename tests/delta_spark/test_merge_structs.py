"""MERGE into structs: each statement is run by Delta Spark on one copy of a table and by us on another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from delta_spark.merge_cases import Case, compare, inserted, source, star, updated
from delta_spark.support import sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INNER = "STRUCT<x: INT, y: STRUCT<p: INT, q: STRING>>"
OTHERS = "l ARRAY<STRUCT<u: INT, w: STRING>>, k MAP<STRING, STRUCT<c: INT>>"
COLUMNS = f"id BIGINT, v INT, s STRUCT<a: INT, B: STRING, m: {INNER}>, {OTHERS}"
ROWS = """
    SELECT id, CAST(id * 10 AS INT) AS v,
        CASE WHEN id <> 1 THEN named_struct('a', CAST(id AS INT), 'B', concat('b', id), 'm',
            IF(id = 2, NULL, named_struct('x', 7, 'y', IF(id = 3, NULL, named_struct('p', 8, 'q', 'q'))))) END AS s,
        array(named_struct('u', 1, 'w', 'w'), NULL) AS l, map('k', named_struct('c', 3)) AS k
    FROM range(6)"""


def built(a: str, x: str) -> str:
    """Return the struct of the table with two values."""
    return f"named_struct('a', {a}, 'B', 'n', 'm', named_struct('x', {x}, 'y', named_struct('p', 1, 'q', 'z'))) AS s"


TEXT = "'5'"

UNRESOLVED = "DELTA_MERGE_UNRESOLVED_EXPRESSION"
CONFLICT = "DELTA_CONFLICT_SET_COLUMN"
NO_STRUCT = "DELTA_UNSUPPORTED_NESTED_FIELD_IN_UPDATE"
MISMATCH = "DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION"
UNMERGED = "DELTA_FAILED_TO_MERGE_FIELDS"
OVERFLOW = "DELTA_CAST_OVERFLOW_IN_TABLE_WRITE"
REST = "CAST(1 AS INT) AS v, array(named_struct('u', 5, 'w', 'x')) AS l, map('n', named_struct('c', 4)) AS k"

CASES = [
    # fields
    updated("a field", "1 AS f", {"t.s.a": "s.f"}),
    updated("two fields of different depth", "1 AS f", {"s.m.y.p": "s.f + t.s.a", "s.B": "upper(t.s.b)"}),
    updated("a field that the old value of another decides", "1 AS f", {"s.a": "t.s.m.x", "s.m.x": "t.s.a"}),
    updated("names in another case", "1 AS f", {"T.S.b": "'x'", "`S`.`M`.X": "s.f"}),
    updated("a struct in a struct", "named_struct('p', 5, 'q', 'r') AS f", {"s.m.y": "s.f"}),
    updated("a field to null", "1 AS f", {"s.m": "NULL", "s.a": "NULL"}),
    updated("the default of a field", "1 AS f", {"s.a": "DEFAULT"}, error=UNRESOLVED),
    updated("column and field", "1 AS f", {"s": "t.s", "s.a": "1"}, error=CONFLICT),
    updated("field and its field", "1 AS f", {"s.m.y": "t.s.m.y", "s.m.y.p": "1"}, error=CONFLICT),
    updated("a field twice", "1 AS f", {"s.a": "1", "t.s.a": "2"}, error=CONFLICT),
    updated("a column twice", "1 AS f", {"v": "1", "t.v": "2"}, error=CONFLICT),
    updated("an unknown column", "1 AS f", {"nope": "1"}, error=UNRESOLVED),
    updated("an unknown field", "1 AS f", {"s.nope": "1"}, error="FIELD_NOT_FOUND"),
    updated("a field of an unknown column", "1 AS f", {"nope.a": "1"}, error=UNRESOLVED),
    updated("a field of the structs of an array", "1 AS f", {"l.u": "1"}, error=NO_STRUCT),
    updated("a field of the structs of a map", "1 AS f", {"k.c": "1"}, error=NO_STRUCT),
    updated("a field of a number", "1 AS f", {"v.a": "1"}, error="INVALID_EXTRACT_BASE_FIELD_TYPE"),
    updated("an element of an array", "1 AS f", {"l[0]": "s.f"}, error="PARSE_SYNTAX_ERROR", ours=UNRESOLVED),
    inserted("a field in an insert", "1 AS f", {"id": "s.id", "s.a": "s.f"}, error="DELTA_UNSUPPORTED_NESTED_FIELD_IN_OPERATION"),
    Case(
        "fields by several clauses",
        source("1 AS f"),
        "WHEN MATCHED AND s.id = 0 THEN UPDATE SET s.a = 100 WHEN MATCHED AND s.id = 1 THEN UPDATE SET s.B = 'c', v = 5 "
        "WHEN MATCHED AND s.id = 2 THEN DELETE WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 1) "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 5 THEN UPDATE SET s.m.y.q = concat(t.s.m.y.q, '!'), t.s.m.x = t.s.a",
        [
            when_matched_update({"s.a": "100"}, "s.id = 0"),
            when_matched_update({"s.B": "'c'", "v": "5"}, "s.id = 1"),
            when_matched_delete("s.id = 2"),
            when_not_matched_insert({"id": "s.id", "v": "1"}),
            when_not_matched_by_source_update({"s.m.y.q": "concat(t.s.m.y.q, '!')", "t.s.m.x": "t.s.a"}, "t.id = 5"),
        ],
    ),
    # casts
    updated("a wide field that fits", built("5L", "6L"), {"t.s": "s.s"}),
    updated("a wide field that does not fit", built("5000000000L", "6"), {"t.s": "s.s"}, error=OVERFLOW),
    updated("a wide value for a field", "6L AS f", {"t.s.a": "s.f"}),
    updated("a wide value for a field that does not fit", "5000000000L AS f", {"t.s.a": "s.f"}, error=OVERFLOW),
    updated("text for a number in a struct", built("'5'", "6"), {"t.s": "s.s"}),
    updated("a boolean for a number", "true AS f", {"t.s.a": "s.f"}),
    updated("fields in another order", "named_struct('m', NULL, 'b', 'y', 'a', 9L) AS f", {"s": "s.f"}),
    updated("a struct without a field", "named_struct('a', 9, 'B', 'y') AS f", {"s": "s.f"}, error=MISMATCH),
    updated("a struct with another field", "named_struct('p', 9, 'q', 'y', 'r', 1) AS f", {"s.m.y": "s.f"}, error=MISMATCH),
    updated("elements without a field", "array(named_struct('u', 5)) AS f", {"l": "s.f"}, error=MISMATCH),
    updated("elements with another field", "array(named_struct('u', 5, 'w', 'x', 'z', 1)) AS f", {"l": "s.f"}, error=MISMATCH),
    inserted("a struct without a field in an insert", "named_struct('a', 9) AS f", {"id": "s.id", "s": "s.f"}, error=MISMATCH),
    inserted(
        "a column twice in an insert", "1 AS f", {"id": "s.id", "v": "1", "`v`": "s.f"}, error="DELTA_DUPLICATE_COLUMNS_ON_INSERT"
    ),
    updated("text that is no number", "'abc' AS f", {"t.s.a": "s.f"}, error="CAST_INVALID_INPUT"),
    updated("a date for a number", "DATE'2020-01-01' AS f", {"t.s.a": "s.f"}, error="DATATYPE_MISMATCH"),
    updated("an array for a number", "array(1) AS f", {"t.s.a": "s.f"}, error="DATATYPE_MISMATCH"),
    updated("a number for a struct", "1 AS f", {"t.s.m": "s.f"}, error="DATATYPE_MISMATCH"),
    updated("a struct without a field, with evolution", "named_struct('a', 9) AS f", {"s": "s.f"}, evolve=True),
    updated("elements without a field, with evolution", "array(named_struct('u', 5)) AS f", {"l": "s.f"}, evolve=True),
    star("text for a number, star with evolution", f"{REST}, {built(TEXT, '6')}", evolve=True),
    star("a boolean for a number, star with evolution", f"{REST}, {built('true', '6')}", evolve=True, error=UNMERGED),
    updated(
        "a source column of another kind, with evolution",
        "named_struct('x', 1) AS v",
        {"v": "s.v.x"},
        evolve=True,
        error=UNMERGED,
    ),
    updated("a source column of text, with evolution", "'7' AS v, 'x' AS b", {"v": "s.v"}, evolve=True),
    updated(
        "a new field of elements by its name",
        "array(named_struct('u', 5, 'z', 6)) AS l",
        {"l.z": "s.l.z"},
        evolve=True,
        error=NO_STRUCT,
    ),
    updated("an aliased column, with evolution", "1 AS v", {"t.v": "s.v"}, evolve=True),
    updated("wide elements", "array(named_struct('w', 'a', 'u', 5L), NULL) AS f", {"l": "s.f"}),
    updated(
        "wide elements that do not fit", "array(named_struct('w', 'a', 'u', 5000000000L)) AS f", {"l": "s.f"}, error=OVERFLOW
    ),
    updated("wide values of a map", "map('x', named_struct('c', 5L)) AS f", {"k": "s.f"}),
    star("wide fields, star", f"{REST}, {built('5L', '6L')}"),
    star("wide fields, star with evolution", f"{REST}, {built('5L', '6L')}", evolve=True),
    star("too wide fields, star with evolution", f"{REST}, {built('5L', '6000000000L')}", evolve=True, error=OVERFLOW),
    # new columns
    inserted("new column", "1.5D AS x, 2 AS y", {"id": "s.id", "x": "s.x"}, evolve=True),
    inserted("new column without evolution", "1.5D AS x, 2 AS y", {"id": "s.id", "x": "s.x"}, error=UNRESOLVED),
    updated("new column by update", "1.5D AS x, 2 AS y", {"x": "s.x", "v": "s.y"}, evolve=True),
    updated("new column by update, aliased", "1.5D AS x, 2 AS y", {"t.x": "s.x"}, evolve=True, error=UNRESOLVED),
    updated("new column by an expression", "1.5D AS x, 2 AS y", {"x": "s.x + 1"}, evolve=True),
    updated("new column by another", "1.5D AS x, 2 AS y", {"x": "s.y"}, evolve=True),
    updated("new column by a literal", "1.5D AS x, 2 AS y", {"x": "7"}, evolve=True),
    updated("new column that no side has", "1.5D AS x, 2 AS y", {"nope": "s.x"}, evolve=True, error=UNRESOLVED),
    updated("new column with a cast", "1 AS x, 2 AS y", {"x": "CAST(s.x AS BIGINT)"}, evolve=True),
    updated("new column in another case", "1 AS Xx, 2 AS y", {"xX": "s.XX"}, evolve=True),
    updated("new column without alias", "1 AS x, 2 AS y", {"x": "x"}, evolve=True),
    updated("new field", "named_struct('n', 5, 'a', 6) AS s", {"s.n": "s.s.n"}, evolve=True),
    updated("new field, aliased", "named_struct('n', 5, 'a', 6) AS s", {"t.s.n": "s.s.n"}, evolve=True, error=UNRESOLVED),
    updated("new field of a field", "named_struct('n', 5, 'm', named_struct('n', 6)) AS s", {"s.m.n": "s.s.m.n"}, evolve=True),
    updated("new field in a whole struct", "named_struct('n', 5, 'a', 6) AS s", {"t.s": "s.s"}, evolve=True),
    updated(
        "new field in a whole struct of another name",
        "named_struct('n', 5, 'a', 6) AS o",
        {"t.s": "s.o"},
        evolve=True,
        error=MISMATCH,
    ),
    updated("new field in a field", "named_struct('m', named_struct('x', 4, 'z', 5)) AS s", {"t.s.m": "s.s.m"}, evolve=True),
    updated("new field of elements", "array(named_struct('u', 5, 'z', 6)) AS l", {"l": "s.l"}, evolve=True),
    updated("an unknown field, with evolution", "1 AS f", {"s.nope": "s.f"}, evolve=True, error=UNRESOLVED),
    updated("a whole new struct", "named_struct('n', 5, 'a', 6) AS n, 3 AS o", {"n": "s.n"}, evolve=True),
    updated("a field of a new struct", "named_struct('n', 5, 'a', 6) AS n, 3 AS o", {"n.n": "s.n.n"}, evolve=True),
    Case(
        "new columns by several clauses, in the source's order",
        source("1 AS z, 2 AS y, 3 AS x, 4 AS w"),
        "WHEN MATCHED AND s.id = 0 THEN UPDATE SET x = s.x WHEN MATCHED THEN UPDATE SET y = s.y "
        "WHEN NOT MATCHED THEN INSERT (id, z) VALUES (s.id, s.z)",
        [
            when_matched_update({"x": "s.x"}, "s.id = 0"),
            when_matched_update({"y": "s.y"}),
            when_not_matched_insert({"id": "s.id", "z": "s.z"}),
        ],
        evolve=True,
    ),
    Case(
        "star beside names",
        source("1 AS z, 2 AS v, named_struct('a', 1, 'n', 2) AS s"),
        "WHEN MATCHED THEN UPDATE SET s.a = s.v WHEN NOT MATCHED THEN INSERT *",
        [when_matched_update({"s.a": "s.v"}), when_not_matched_insert()],
        evolve=True,
    ),
    Case(
        "delete and a known column",
        source("1 AS z, 2 AS v"),
        "WHEN MATCHED AND s.id = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.z",
        [when_matched_delete("s.id = 0"), when_matched_update({"v": "s.z"})],
        evolve=True,
    ),
    Case(
        "new column by a clause for rows without a source",
        source("1 AS z"),
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET z = 1",
        [when_not_matched_by_source_update({"z": "1"})],
        evolve=True,
        error=UNRESOLVED,
    ),
]


@pytest.fixture(scope="module")
def original(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("merge-structs") / "table"
    delta.sql(f"CREATE TABLE {sql_name(path)} ({COLUMNS}) USING DELTA")
    delta.sql(f"INSERT INTO {sql_name(path)} SELECT /*+ COALESCE(1) */ * FROM ({ROWS})")
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_statement(delta: SparkSession, original: Path, tmp_path: Path, case: Case) -> None:
    theirs = Path(shutil.copytree(original, tmp_path / "theirs"))
    ours = Table(shutil.copytree(original, tmp_path / "ours"), delta)
    compare(delta, ours, theirs, case)
