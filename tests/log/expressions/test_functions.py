"""Which functions an expression may call: only Spark's built-in deterministic ones, in any spelling."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions.functions import DETERMINISTIC, NOT_DETERMINISTIC, OF_THE_SESSION, OTHERS, UNSAFE
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.expressions.refused import oversized, refused_function
from airflow_delta.log.schema.types import PrimitiveType, StructField, StructType

SCHEMA = StructType((StructField("s", PrimitiveType("string")), StructField("x", PrimitiveType("integer"))))

CALLS = [
    "reflect('java.lang.System', 'getenv', 'HOME') = s",
    "REFLECT ('java.lang.System', 'getenv', 'HOME') = s",
    "`reflect`('java.lang.System', 'getenv', 'HOME') = s",
    "system.builtin.reflect('java.lang.System', 'getenv', 'HOME') = s",
    "`builtin`.`try_reflect`('java.lang.System', 'getenv', 'HOME') = s",
    "java_method--\n('java.lang.System', 'getenv', 'HOME') = s",
    "upper(lower(java_method('java.lang.System', 'getenv', 'HOME'))) = s",
    "x = 1 OR NOT (try_reflect('java.lang.System', 'getenv', 'HOME') = s)",
    "exists(split(s, ','), a -> a = reflect('java.lang.System', 'getenv', a))",
    "CASE WHEN reflect('java.lang.System', 'setProperty', 'a', s) = 'b' THEN true END",
    "r'\\' <> reflect('java.lang.System', 'getenv', 'HOME') || r''",
    "reflect\u00a0('java.lang.System', 'getenv', 'HOME') = s",
    "identifier('reflect')('java.lang.System', 'getenv', 'HOME') = s",
    "from_protobuf(s, 'm', '/etc/passwd') IS NULL",
    "x IN (SELECT reflect('java.lang.System', 'getenv', s))",
    "x = (FROM VALUES (1) AS t(a) MAP a USING 'sh' AS (b))",
    "x IN (map(x) USING 'sh' FROM t)",
    'lower(s) = -- \\\n\'\nconcat(s, \' || \') OR (reflect("a", "b") = "c")) -- \'',  # Spark's comment has two lines
    "length(s) = length('${env:HOME}')",
    'length(s) = length(r"${system:user.home}")',
    "x = 1 OR length(s) = (TABLE text.`/etc/hostname`)",
]


@pytest.mark.parametrize("text", CALLS)
def test_what_reaches_the_driver_is_refused(text):
    assert refused_function(text) is not None
    assert refused_function(text, assigned=True) is not None
    with pytest.raises(PredicateException):
        Predicate.parse(text, SCHEMA)


@pytest.mark.parametrize("text", CALLS[:4])
def test_it_is_refused_by_name(text):
    with pytest.raises(PredicateException, match=r"calls reflect\(\)"):
        Predicate.parse(text, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "upper(s) = 'A'",
        "`upper`(s) LIKE 'reflect(%'",
        "s = 'reflect(''a'')' AND length(s) > 1",
        "x IN (1, 2) AND (abs(x) BETWEEN (1) AND (2) OR NOT (x = 1))",
        "cast(s AS decimal(10, 2)) > 1.5 AND extract(YEAR FROM date(s)) = 2024",
        "CASE WHEN (x = 1) THEN (length(s) = 1) ELSE (false) END -- reflect(",
        "exists(split(s, ','), (a) -> a = 'b')",
        "cast(cast(x AS string) AS int) = 1",
        "timestampdiff(DAY, to_date(s), DATE'2024-01-01') < 3",
        "trim(BOTH ('x') FROM s) = overlay(s PLACING 'a' FROM (1))",
    ],
)
def test_built_in_functions_stay(text):
    assert refused_function(text, session=False) is None
    Predicate.parse(text, SCHEMA)


def test_conditions_are_stricter_than_values():
    for text, condition, value in (
        (r"length('$\{a}') = 4", None, None),
        ("(table IS NULL) OR (table = 1)", None, None),
        ("x = 1 -- a \\ b", None, None),
        ("rand() > 0.5", "is not deterministic", None),
        ("my_udf(s)", "built-in deterministic", None),
        ("catalog.db.my_udf(s)", "qualified", None),
        ("current_date()", None, None),
        ("sum(x)", "built-in deterministic", "built-in deterministic"),
        ("system.builtin.version()", "qualified", "qualified"),
        ("s = 'a", "unclosed", "unclosed"),
        ("s = `a", "unclosed", "unclosed"),
        ("x /* '*/ = reflect('a') /* '*/", "comment", "comment"),
        ("$$reflect('a')$$", "dollar", "dollar"),
        ("\"reflect\"('a')", 'calls "reflect"', 'calls "reflect"'),
    ):
        for found, expected in ((refused_function(text), condition), (refused_function(text, assigned=True), value)):
            assert (found is None) == (expected is None), text
            assert expected is None or expected in found


def test_no_text_of_a_predicate_is_replaced_by_a_variable_of_spark():
    for text in ("s = '${env:HOME}'", "s = concat('$', '{env:HOME}')", "s IN ('a', '$' '{env:HOME}')", "s LIKE '%${env:HOME}'"):
        parsed = Predicate.parse(text, SCHEMA, ["s"])
        assert "${" not in parsed.text
        assert Predicate.parse(parsed.text, SCHEMA, ["s"]).text == parsed.text
        assert parsed.matches_partition({"s": "${env:HOME}"})


def test_the_lists_do_not_overlap():
    lists = [DETERMINISTIC, UNSAFE, OTHERS, NOT_DETERMINISTIC, OF_THE_SESSION]
    assert sum(map(len, lists)) == len(frozenset().union(*lists))


def test_what_is_too_large_to_parse():
    assert oversized("x IN (" + ",".join(map(str, range(100_000))) + ")") is None
    for text, said in (
        ("(" * 33 + "x = 1" + ")" * 33, "levels"),
        ("x = cast(s AS " + "array<" * 40 + "int" + ">" * 40 + ")", "nested types"),
        (" AND ".join(["x = 1"] * 10_000), "names and operators"),
        (" AND ".join(["abs(x) = 1"] * 101), "only Spark evaluates"),
    ):
        with pytest.raises(PredicateException, match=said):
            Predicate.parse(text, SCHEMA)
