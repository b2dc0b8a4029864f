"""Types of structs in a MERGE, without a session: what clauses may set, and what of a source's schema they bring."""

from __future__ import annotations

import pytest

from airflow_delta.contract.merge_columns import absent_fields, is_alike, named_fields
from airflow_delta.contract.schema import written_schema
from airflow_delta.contract.sql_types import parse_sql_type
from airflow_delta.exceptions import SchemaMismatchException


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ("date", "int", True),
        ("int", "struct<a: int>", False),
        ("struct<a: int>", "struct<A: string, b: int>", True),
        ("struct<a: array<int>>", "struct<a: array<array<int>>>", False),
        ("array<struct<u: bigint>>", "array<struct<u: int>>", True),
        ("map<string, struct<c: int>>", "map<string, int>", False),
        ("map<struct<c: int>, int>", "map<int, int>", False),
        ("array<void>", "array<struct<a: int>>", True),
    ],
)
def test_kinds_of_types(given: str, wanted: str, expected: bool) -> None:
    assert is_alike(parse_sql_type(given), parse_sql_type(wanted)) is expected


def test_fields_that_a_struct_lacks() -> None:
    given = parse_sql_type("struct<A: struct<x: int>, l: array<map<string, struct<u: int>>>>")
    known = parse_sql_type("struct<a: struct<x: int, y: int>, l: array<map<string, struct<u: int, w: int>>>, z: int>")
    assert absent_fields(given, known) == ["a.y", "z"]
    assert absent_fields(given, known, within=True) == ["a.y", "l.w", "z"]
    assert absent_fields(known, given, within=True) == []


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([("z",), ("s", "n", "k")], "struct<S: struct<N: struct<k: int>>, z: int>"),
        ([("s", "n")], "struct<S: struct<N: struct<k: int, l: int>>>"),
        ([("nope",), ("z", "k")], "struct<>"),
    ],
)
def test_fields_that_clauses_name(paths: list[tuple[str, ...]], expected: str) -> None:
    source = parse_sql_type("struct<id: int, S: struct<a: int, N: struct<k: int, l: int>>, z: int>")
    assert named_fields(source, set(paths)) == parse_sql_type(expected)


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        ("struct<s: struct<a: string>>", True),
        ("struct<s: struct<a: bigint>>", True),
        ("struct<l: array<struct<u: double>>>", True),
        ("struct<s: struct<a: boolean>>", False),
        ("struct<s: struct<b: string>>", False),
        ("struct<s: struct<d: int>>", False),
        ("struct<s: struct<a: struct<x: int>>>", False),
    ],
)
def test_types_that_merge_by_implicit_casts(data: str, fits: bool) -> None:
    table = parse_sql_type("struct<s: struct<a: int, b: boolean, d: date>, l: array<struct<u: int>>>")
    given = parse_sql_type(data)
    if fits:
        assert written_schema(given, table, merge=True, table_name="t", version=1, implicit=True) == table
    else:
        with pytest.raises(SchemaMismatchException):
            written_schema(given, table, merge=True, table_name="t", version=1, implicit=True)
    with pytest.raises(SchemaMismatchException):  # a write makes none of these casts
        written_schema(given, table, merge=True, table_name="t", version=1)
