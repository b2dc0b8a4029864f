"""Predicates: what parses, what it means under three-valued logic, and how it splits into partition and data parts."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_delta.exceptions import DeltaAnalysisException, PredicateException
from airflow_delta.log.expressions.arrow_rows import decides
from airflow_delta.log.expressions.like import LikePattern
from airflow_delta.log.expressions.predicate import Predicate, partition_texts
from airflow_delta.log.replay.row_groups import Range, may_hold
from airflow_delta.log.schema.types import DecimalType, PrimitiveType, StructField, StructType
from airflow_delta.log.statistics.credible import column_has_bounds

SCHEMA = StructType(
    (
        *(
            StructField(name, PrimitiveType(kind))
            for name, kind in {
                "p": "integer",
                "q": "string",
                "day": "date",
                "Id": "long",
                "s": "string",
                "at": "timestamp",
                "local": "timestamp_ntz",
                "x": "double",
                "flag": "boolean",
                "raw": "binary",
                "odd name`": "integer",
            }.items()
        ),
        StructField("dec", DecimalType(10, 2)),
        StructField("st", StructType((StructField("Inner", PrimitiveType("long")),))),
    )
)
PARTITIONS = ["p", "q", "day"]


def parse(text: str) -> Predicate:
    return Predicate.parse(text, SCHEMA, PARTITIONS)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ID=1", "`Id` = 1"),
        ("5 < id", "`Id` > 5"),
        ("id == -3 and s != 'a'", "`Id` = -3 AND `s` <> 'a'"),
        ("id in (1, 2L, null)", "`Id` IN (1, 2, NULL)"),
        ("id between 1 and 2", "`Id` >= 1 AND `Id` <= 2"),
        ("not (s is null)", "`s` IS NOT NULL"),
        ("s <=> null or flag", "`s` <=> NULL OR `flag` = true"),
        ("st.inner > 3000000000", "`st`.`Inner` > 3000000000L"),
        ("`odd name``` = 1", "`odd name``` = 1"),
        ("day >= '2024-01-01'", "`day` >= DATE '2024-01-01'"),
        ("day = '2024-02'", "`day` = DATE '2024-02-01'"),
        ("at < '2024-01-01 02:00:00+02:00'", "`at` < TIMESTAMP '2024-01-01 00:00:00.000000 UTC'"),
        ("at < DATE '2024-01-01'", "`at` < TIMESTAMP '2024-01-01 00:00:00.000000 UTC'"),
        ("local = '2024-01-01'", "`local` = TIMESTAMP_NTZ '2024-01-01 00:00:00.000000'"),
        ("id = '7'", "`Id` = 7"),
        ("dec = 1.50", "`dec` = 1.50BD"),
        ("x > 1", "`x` > 1.0D"),
        ("x = double('NaN')", "`x` = CAST('NaN' AS DOUBLE)"),
        ("x = cast('NaN' as double)", "`x` = CAST('NaN' AS DOUBLE)"),
        ("raw = X'0aFF'", "`raw` = X'0AFF'"),
        (r"s = 'it\'s \\ \n'", r"`s` = 'it\'s \\ \n'"),
        ("s like 'a%'", "`s` LIKE 'a%'"),
        ("flag is true and true", "`flag` <=> true AND true"),
        ("p = 1 or p = 2 and q = 'a'", "`p` = 1 OR (`p` = 2 AND `q` = 'a')"),
    ],
)
def test_canonical_text_parses_to_itself(text, canonical):
    assert parse(text).text == canonical
    assert parse(canonical).text == canonical


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("id =", "not valid Spark SQL"),
        ("id = 1; select 2", "not a single expression"),
        ("nope = 1", "'nope', which the table does not have. The columns are "),
        ("st.nope = 1", "'nope', which st"),
        ("day = current_date()", "CURRENT_DATE.*template"),
        ("id in (select 1)", "SELECT 1"),
        ("day = 'tomorrow'", "'tomorrow' is not a date"),
        ("id = 'abc'", "'abc' is not a number"),
        ("id", "as a condition"),
    ],
)
def test_refused_with_the_expression_named(text, said):
    with pytest.raises(PredicateException, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id =", r"something is missing after '=' \(character 4\)"),
        ("id == = 1", r"something is missing after '=' \(character 7\)"),
        ("id > 1 AND", r"something is missing after 'AND' \(character 10\)"),
        ("(id > 1", r"'\)' is missing after '1' \(character 7\)"),
        ("id > 1)", r"'\)' \(character 7\) is not expected there"),
        ("WHERE id = 1", r"'WHERE' \(character 5\) is not expected there"),
        ("id > 1\n AND", r"something is missing after 'AND' \(line 2, character 4\)"),
        ("s = 'a", "a quote or a comment is not closed"),
        ("cast(id as)", r"a type is expected at '\)' \(character 11\)"),
        ("idd = 1", r"Did you mean 'Id'\? The columns are "),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(text, said):
    with pytest.raises(PredicateException, match=said) as caught:
        Predicate.parse(text, SCHEMA, table="s3://lake/t", version=7)
    assert caught.value.message.endswith("(table s3://lake/t version 7).")
    assert not [part for part in ("sqlglot", "Required keyword", "\x1b") if part in str(caught.value)]


@pytest.mark.parametrize(
    ("text", "value", "truth"),
    [
        ("p = 1", 1, True),
        ("p = 1", None, None),
        ("not (p = 1)", None, None),
        ("p <=> null", None, True),
        ("p <=> 1", None, False),
        ("p in (1, null)", 2, None),
        ("p not in (1, null)", 2, None),
        ("p not in (1, null)", 1, False),
        ("p is not null", None, False),
        ("p = 1 or true", None, True),
        ("p = 1 and false", None, False),
        ("p = 1 and null", 1, None),
        ("p = null", 1, None),
        ("p < 1.5", 1, True),
    ],
)
def test_three_valued_logic(text, value, truth):
    assert parse(text).evaluate({("p",): value}) is truth


@pytest.mark.parametrize(
    ("text", "truth"), [("x > 1e300", True), ("x = cast('NaN' as double)", True), ("x < 1", False), ("x <> 1", True)]
)
def test_nan_is_the_greatest_number_and_equals_itself(text, truth):
    assert parse(text).evaluate({("x",): math.nan}) is truth


@pytest.mark.parametrize(
    ("pattern", "value", "truth"), [("a%", "abc\n", True), ("a_", "ab", True), ("a\\\\_", "ab", False), ("%b", "xa", False)]
)
def test_like(pattern, value, truth):
    assert parse(f"s like '{pattern}'").evaluate({("s",): value}) is truth


@pytest.mark.parametrize(
    ("text", "partition_part", "data_part"),
    [
        ("p = 1", "`p` = 1", None),
        ("p = 1 and id = 2 and q = 'a'", "`p` = 1 AND `q` = 'a'", "`Id` = 2"),
        ("p = 1 or id = 2", None, "`p` = 1 OR `Id` = 2"),
        ("(p = 1 or p = 2) and id = 1", "`p` = 1 OR `p` = 2", "`Id` = 1"),
        ("true", "true", None),
        ("id = 2", None, "`Id` = 2"),
    ],
)
def test_split(text, partition_part, data_part):
    predicate = parse(text)
    assert (predicate.partition_part and predicate.partition_part.text) == partition_part
    assert (predicate.data_part and predicate.data_part.text) == data_part
    assert predicate.partition_only == (data_part is None)


@pytest.mark.parametrize(
    ("text", "values", "kept"),
    [
        ("p = 1", {"p": "01"}, True),
        ("p = 1 and id = 7", {"p": "1"}, True),
        ("p = 1 or id = 7", {"p": "2"}, True),
        ("p = 1", {"p": None}, False),
        ("p = 1", {}, False),
        ("day > '2024-01-01'", {"day": "2024-01-02"}, True),
        ("q is null", {"q": ""}, True),
    ],
)
def test_partition_values_of_one_file(text, values, kept):
    assert parse(text).matches_partition(values) is kept


def test_a_value_of_another_type_is_an_error_not_a_miss():
    with pytest.raises(DeltaAnalysisException, match="'x'"):
        parse("p = 1").matches_partition({"p": "x"})


@pytest.mark.parametrize(
    "text",
    [
        *("p = 1", "p = 1 or q = 'b'", "day is null and p <> 2", "id = 1", "true", "false", "p in (1, 2) and q < 'b'"),
        *("upper(q) = 'A'", "upper(q) = 'A' and p = 1", "not (upper(q) = 'A' or p = 1)"),
    ],
)
def test_many_files_at_once_agree_with_one_by_one(text):
    rows = [
        {"p": p, "q": q, "day": day} for p, q, day in itertools.product(["1", "2", None], ["a", "b", None], ["2024-01-01", None])
    ]
    maps = pa.array(
        [list(reversed(row.items())) if i % 2 else list(row.items()) for i, row in enumerate(rows)],
        pa.map_(pa.string(), pa.string()),
    )
    mask = parse(text).partition_mask(lambda name: partition_texts(maps, name), len(maps))
    assert mask.to_pylist() == [parse(text).matches_partition(row) for row in rows]


def test_values_are_of_the_columns_type():
    assert parse("dec = 1.5").expression.literal.value == Decimal("1.5")
    assert parse("day = DATE '2024-01-01'").expression.literal.value == dt.date(2024, 1, 1)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_the_canonical_text_and_agrees(spark):
    from pyspark.sql import functions as sf

    moment = dt.datetime(2024, 1, 1, 0, 30, tzinfo=dt.UTC)
    rows = [
        (1, "it's \\ \n", dt.date(2024, 1, 1), moment, 0.5, True),
        (2, None, None, None, math.nan, False),
        (None, "ab", dt.date(2024, 3, 1), moment, None, None),
    ]
    frame = spark.createDataFrame(rows, "Id long, s string, day date, at timestamp, x double, flag boolean").coalesce(1)
    names = ["Id", "s", "day", "at", "x", "flag"]
    for text in (
        "id = 1 or s like 'a%'",
        r"s = 'it\'s \\ \n'",
        "day > '2024-01-15'",
        "at = '2024-01-01 00:30:00'",
        "at <= '2024-01-01T01:30:00+01:00'",
        "x > 0.25",
        "x = cast('NaN' as double)",
        "not (flag)",
        "id not in (1, null)",
        "s <=> null",
        "id between 1 and 1.5",
        "id < 3000000000",
        "s = 'it''s'",
        "s = 'a' 'b'",
    ):
        predicate = parse(text)
        expected = [predicate.evaluate({(n,): v for n, v in zip(names, row, strict=True)}) for row in rows]
        assert [r[0] for r in frame.select(sf.expr(predicate.text)).collect()] == expected, text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id + 1", "id \\+ 1"),
        ("1", "contains '1'"),
        ("upper(nope) = 'A'", "'nope', which the table does not have"),
        ("upper(st.nope) = 'A'", "'nope', which st"),
        ("id > (select max(id) from t)", "SELECT"),
        ("max(id) = 1", "MAX"),
        ("sum(id) over () = 1", "OVER"),
        ("id = :x", "template"),
        ("rand() < 0.5", "RAND.*deterministic condition"),
        ("input_file_name() = 'x' and id = 1", "INPUT_FILE_NAME"),
        ("unix_timestamp() > id", "UNIX_TIMESTAMP"),
        ("at > now()", "NOW"),
    ],
)
def test_what_spark_could_not_evaluate_or_not_twice_alike_is_refused(text, said):
    with pytest.raises(PredicateException, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("text", "canonical", "partition_part"),
    [
        ("id > dec", "(id > dec)", None),
        ("((id > dec)) -- why", "(id > dec)", None),
        ("id + 1 > 3 and p = 1 or x < 2", "((id + 1 > 3) AND `p` = 1) OR `x` < 2.0D", None),
        ("not (id > dec and p = 1)", "NOT ((id > dec) AND `p` = 1)", None),
        ("id between dec and 3 and p = 1", "(id between dec and 3) AND `p` = 1", "`p` = 1"),
        ("case when id = 1 and flag then true end and p = 1", "(case when id = 1 and flag then true end) AND `p` = 1", "`p` = 1"),
        ("upper(q) = 'A' and id = 1", "(upper(q) = 'A') AND `Id` = 1", "(upper(q) = 'A')"),
        ("s = 1", "(s = 1)", None),
        ("id > 1e3", "(id > 1e3)", None),
        ("id in (1, dec)", "(id in (1, dec))", None),
        ("year(day) = 2024 or p = 1", "(year(day) = 2024) OR `p` = 1", "(year(day) = 2024) OR `p` = 1"),
        ("s rlike 'it''s'", "(s rlike 'it\\'s')", None),
        ("unix_timestamp(at) > id", "(unix_timestamp(at) > id)", None),
        ("st.inner + 1 = 2", "(st.inner + 1 = 2)", None),
    ],
)
def test_what_only_spark_evaluates_is_kept_word_for_word_and_rules_nothing_out(text, canonical, partition_part):
    predicate = parse(text)
    assert predicate.text == canonical
    assert parse(predicate.text).text == canonical
    assert (predicate.partition_part and predicate.partition_part.text) == partition_part
    assert not predicate.partition_only
    assert predicate.evaluate({}) is None


def test_text_with_an_order_of_its_own_is_compared_by_spark_only():
    collated = StructType((StructField("s", PrimitiveType("string"), metadata={"__COLLATIONS": {"s": "spark.UTF8_LCASE"}}),))
    predicate = Predicate.parse("s = 'A'", collated)
    assert predicate.text == "(s = 'A')"
    assert predicate.evaluate({("s",): "b"}) is None


def test_a_partition_is_kept_where_only_spark_can_tell():
    assert parse("upper(q) = 'A'").matches_partition({"q": "b"})
    assert parse("not (upper(q) = 'A')").matches_partition({"q": "b"})
    assert parse("upper(q) = 'A' and p = 1").matches_partition({"q": "b", "p": "1"})
    assert not parse("upper(q) = 'A' and p = 1").matches_partition({"q": "b", "p": "2"})
    assert not parse("not (upper(q) = 'A' or p = 1)").matches_partition({"q": "b", "p": "1"})


@pytest.mark.parametrize(
    ("text", "value"),
    [("'it''s'", "it's"), ("''''", "'"), ("'a' 'b'", "ab"), ('"x""y"', 'x"y'), ("''", "")],
)
def test_strings_are_read_as_spark_4_reads_them(text, value):
    assert parse(f"s = {text}").expression.literal.value == value


ZONELESS = [
    "at = '2024-01-01 12:00:00'",
    "NOT (at = '2024-01-01 12:00:00')",
    "at <=> '2024-01-01 12:00:00'",
    "NOT (at <=> '2024-01-01 12:00:00')",
    "at <=> NULL",
    "NOT (at <=> NULL)",
    "at <> '2030-01-01'",
    "at < '2023-12-31 10:00:00'",
    "at <= '2024-01-02 06:00:00'",
    "at > '2024-01-02 06:00:00'",
    "NOT (at >= '2023-12-31 18:00:00')",
    "at IN ('2024-01-01', NULL)",
    "at NOT IN ('2024-01-01', '2025-01-01')",
    "at NOT IN ('2024-01-01', NULL)",
    "at IS NULL",
    "at IS NOT NULL",
    "at BETWEEN '2023-12-31' AND '2024-01-03'",
    "p = 1 AND at > '2024-01-01'",
    "NOT (p = 2 OR at > '2024-01-03') AND q IS NULL",
    "at > '2024-01-01' OR p = 1",
    "true",
    "NULL OR at < '2030-01-01'",
]


@pytest.mark.parametrize("text", ZONELESS)
@pytest.mark.parametrize("value", ["2024-01-01 12:00:00", "2024-01-01 00:00:00.000000"])
def test_a_partition_without_a_time_zone(text, value):
    """Kept if any reader may see a row in it, selected as a whole only if every reader sees all of them."""
    predicate = Predicate.parse(text, SCHEMA, [*PARTITIONS, "at"])
    naive = dt.datetime.fromisoformat(value)
    for p in ("1", "2"):
        zoned = [
            {"p": p, "at": (naive + dt.timedelta(minutes=15 * step)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")} for step in range(-72, 73)
        ]
        seen = {predicate.matches_partition(values) for values in zoned}
        values = {"p": p, "at": value}
        assert predicate.matches_partition(values) or seen == {False}
        assert not predicate.selects_partition(values) or seen == {True}
        if len(seen) == 1 and "=" not in text:
            assert predicate.matches_partition(values) == predicate.selects_partition(values) == seen.pop()
        maps = pa.array([list(values.items()), list(zoned[0].items())], pa.map_(pa.string(), pa.string()))
        mask = predicate.partition_mask(lambda name, maps=maps: partition_texts(maps, name), 2)
        assert mask.to_pylist() == [predicate.matches_partition(values), predicate.matches_partition(zoned[0])]


def test_a_disjunction_with_a_partition_without_a_time_zone():
    from airflow_delta.log.statistics.data_skipping import skipping_mask

    predicate = Predicate.parse("at = '2024-01-01 10:00:00' OR id = 5", SCHEMA, ["at"])
    stats = pa.array(['{"numRecords":1,"minValues":{"Id":1},"maxValues":{"Id":1},"nullCount":{"Id":0}}'] * 3)
    texts = pa.array(["2024-01-01 00:00:00", "2024-01-01T00:00:00Z", "2024-01-03 00:00:00"])
    assert skipping_mask(predicate.data_part, stats, lambda _name: texts).to_pylist() == [True, False, False]


@given(pattern=st.text("ab%_\\.", max_size=8), text=st.text("ab\n%_\\.", max_size=8))
def test_like_is_what_its_regular_expression_matches(pattern, text):
    expected, at = "", 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\" and at + 1 < len(pattern):
            at += 1
            expected += re.escape(pattern[at])
        else:
            expected += {"%": ".*", "_": "."}.get(letter, re.escape(letter))
        at += 1
    assert LikePattern(pattern).matches(text) == (re.fullmatch(expected, text, re.DOTALL) is not None)


CHAR = {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}


def test_char_columns_are_compared_as_if_filled_up_with_spaces():
    schema = StructType((StructField("c", PrimitiveType("string"), metadata=CHAR),))
    for text, stored, truth in [
        ("c = 'ab'", "ab ", True),
        ("c = 'ab  '", "ab", True),
        ("c IN ('x', 'ab')", "ab ", True),
        ("c > 'ab'", "ab\t", False),
        ("c < 'ab'", "ab\t", True),
        ("c <=> NULL", "ab", False),
    ]:
        predicate = Predicate.parse(text, schema, ["c"])
        assert predicate.evaluate({("c",): stored}) is truth, text
        assert predicate.selects_partition({"c": stored}) is truth
    equal = Predicate.parse("c = 'ab' AND c IN ('ab')", schema)
    column = equal.columns[0]
    assert not column_has_bounds(column)  # stored texts are in another order
    assert may_hold(equal.expression, lambda _column: Range("ab ", "ac"))
    assert not decides(equal.expression)


def test_char_inside_a_struct_is_left_to_spark():
    inner = StructType((StructField("c", PrimitiveType("string")), StructField("v", PrimitiveType("string"))))
    declared = {"__CHAR_VARCHAR_TYPE_STRING": "struct<c:char(3),v:string>"}
    schema = StructType((StructField("s", inner, metadata=declared),))
    assert Predicate.parse("s.c = 'ab'", schema).text == "(s.c = 'ab')"
