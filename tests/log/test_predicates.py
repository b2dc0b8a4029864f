"""Predicates: what parses, what it means under three-valued logic, and how it splits into partition and data parts."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_delta.exceptions import DeltaAnalysisException, PredicateException
from airflow_delta.log.predicates import Predicate
from airflow_delta.log.schema import DecimalType, PrimitiveType, StructField, StructType

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
        ("id =", "does not parse"),
        ("id = 1; select 2", "not one expression"),
        ("nope = 1", "'nope', which the table does not have"),
        ("st.nope = 1", "'nope', which st"),
        ("upper(s) = 'A'", "UPPER"),
        ("id + 1 = 2", "id \\+ 1"),
        ("id = dec", "id = dec"),
        ("day = current_date()", "CURRENT_DATE.*template"),
        ("id in (select 1)", "SELECT 1"),
        ("s = 1", "quoted literal"),
        ("day = 'tomorrow'", "'tomorrow' is not a date"),
        ("id = 'abc'", "'abc' is not a number"),
        ("id", "as a condition"),
        ("s = 'it''s'", "side by side"),
        ("s rlike 'a'", "RLIKE"),
    ],
)
def test_refused_with_the_expression_named(text, said):
    with pytest.raises(PredicateException, match=said):
        parse(text)


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
    "text", ["p = 1", "p = 1 or q = 'b'", "day is null and p <> 2", "id = 1", "true", "false", "p in (1, 2) and q < 'b'"]
)
def test_many_files_at_once_agree_with_one_by_one(text):
    rows = [
        {"p": p, "q": q, "day": day} for p, q, day in itertools.product(["1", "2", None], ["a", "b", None], ["2024-01-01", None])
    ]
    maps = pa.array(
        [list(reversed(row.items())) if i % 2 else list(row.items()) for i, row in enumerate(rows)],
        pa.map_(pa.string(), pa.string()),
    )
    files = pa.table({"partition_values": pa.chunked_array([maps.slice(0, 5), maps.slice(5)])})
    assert parse(text).filter_partitions(files).to_pylist() == [parse(text).matches_partition(row) for row in rows]


def test_values_are_of_the_columns_type():
    assert parse("dec = 1.5").expression.literal.value == Decimal("1.5")
    assert parse("day = DATE '2024-01-01'").expression.literal.value == dt.date(2024, 1, 1)


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
    ):
        predicate = parse(text)
        expected = [predicate.evaluate({(n,): v for n, v in zip(names, row, strict=True)}) for row in rows]
        assert [r[0] for r in frame.select(sf.expr(predicate.text)).collect()] == expected, text
