"""Literals in predicates: which ones each column type is compared with here, which are left to Spark, and which are invalid."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import DecimalType, PrimitiveType, StructField, StructType

SCHEMA = StructType(
    (
        *(
            StructField(name, PrimitiveType(kind))
            for name, kind in {
                "id": "long",
                "s": "string",
                "day": "date",
                "at": "timestamp",
                "local": "timestamp_ntz",
                "x": "double",
                "flag": "boolean",
                "raw": "binary",
                "odd": "variant",
            }.items()
        ),
        StructField("dec", DecimalType(10, 2)),
        StructField("st", StructType((StructField("inner", PrimitiveType("long")),))),
    )
)


def parse(text: str) -> Predicate:
    return Predicate.parse(text, SCHEMA, ())


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("5 = id", "`id` = 5"),
        ("(id) = (5)", "`id` = 5"),
        ("id = 5S", "`id` = 5"),
        ("id = cast('7' as int)", "`id` = 7"),
        ("id = cast(null as bigint)", "`id` = NULL"),
        ("dec = cast('1.25' as decimal(10,2))", "`dec` = 1.25BD"),
        ("x = '1.5'", "`x` = 1.5D"),
        ("x = 1e3", "`x` = 1000.0D"),
        ("x = cast(1 as double)", "`x` = 1.0D"),
        ("x = 0.1f", "`x` = 0.10000000149011612D"),  # another number than 0.1: files are pruned by it
        ("x = cast(0.1 as float)", "`x` = 0.10000000149011612D"),
        ("flag = 'true'", "`flag` = true"),
        ("flag = 'NO'", "`flag` = false"),
        ("flag = cast('y' as boolean)", "`flag` = true"),
        ("flag is not true", "NOT (`flag` <=> true)"),
        ("not flag", "NOT (`flag` = true)"),
        ("day = DATE '2024-01-01'", "`day` = DATE '2024-01-01'"),
        ("day = cast('2024-01-01' as date)", "`day` = DATE '2024-01-01'"),
        ("at = cast('2024-01-01 00:00:00Z' as timestamp)", "`at` = TIMESTAMP '2024-01-01 00:00:00.000000 UTC'"),
        ("local = DATE '2024-01-01'", "`local` = TIMESTAMP_NTZ '2024-01-01 00:00:00.000000'"),
        ("local = cast('2024-01-01' as timestamp_ntz)", "`local` = TIMESTAMP_NTZ '2024-01-01 00:00:00.000000'"),
        ("raw = 'abc'", "`raw` = X'616263'"),
        ("raw = X'abc'", "`raw` = X'0ABC'"),
        ("s = cast(1 as string)", "`s` = '1'"),
        ("1 = 1", "true"),
        ("1 = 2", "false"),
        ("'a' <> 'b'", "true"),
        ("true <=> true", "true"),
    ],
)
def test_what_is_compared_here(text: str, canonical: str) -> None:
    assert parse(text).text == canonical
    assert parse(canonical).text == canonical


@pytest.mark.parametrize(
    "text",
    [
        # a literal of another type than the column's: Spark casts one of them
        *(
            "id = true",
            "dec = 1e3",
            "x = true",
            "flag = 1",
            "flag = 'maybe'",
            "day = 5",
            "at = 5",
            "local = 5",
            "raw = 5",
            "s = 5",
        ),
        *("at = TIMESTAMP_NTZ '2024-01-01 00:00:00'", "local = TIMESTAMP '2024-01-01 00:00:00Z'", "odd = 1", "st = 1"),
        *("s like 5", "id like '1%'", "id is true"),
        # casts that are not done here
        *("s = cast(1.5 as string)", "cast(id as string) = '1'", "day = cast(5 as date)", "at = cast(day as timestamp)"),
        *("flag = cast(1 as boolean)", "id = cast('7' as binary)"),
        # other forms
        *(
            "id = -'a'",
            "id between symmetric 1 and 2",
            "1 < 2",
            "id = x",
            "id = 1 = true",
            "raw = 0x10",
            "id in ()",
            "s rlike 'a'",
        ),
    ],
)
def test_what_is_left_to_spark_rules_nothing_out(text: str) -> None:
    predicate = parse(text)
    assert predicate.text == f"({text})"
    assert predicate.evaluate({}) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dec = 'abc'", "'abc' is not a number"),
        ("id = 'Infinity'", "'Infinity' is not a number"),
        ("x = 'abc'", "compares column `x`"),
        ("day = 'nonsense'", "'nonsense' is not a date"),
        ("at = 'nonsense'", "'nonsense' is not a time"),
        ("local = 'nonsense'", "'nonsense' is not a time"),
        ("id = cast('x' as int)", "'x' is not a number"),
        ("id = cast('1.5' as int)", "'1.5' is not a whole number"),
        ("raw = X'zz'", "not valid Spark SQL"),
        ("(" * 3000 + "id = 1" + ")" * 3000, "nested too deeply"),
        ("s = '" + "a" * 2_000_000 + "'", "characters; split it"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_value_of_the_column(text: str, said: str) -> None:
    with pytest.raises(PredicateException, match=said):
        parse(text)
