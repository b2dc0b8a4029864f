"""Predicates against Spark, in ANSI mode and not: what it is given, and what is decided here, is what it makes of the text."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_delta.contract.queries import with_escaped_quotes
from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions import ast, sql_text
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.partition_values import to_float32
from airflow_delta.log.schema.types import DataType, DecimalType, PrimitiveType, StructField, StructType, arrow_type, to_json
from airflow_delta.spark.errors import spark_condition
from airflow_delta.spark.older_spark import IS_OLDER

D = decimal.Decimal
SEED = int(os.environ.get("PREDICATES_SEED", "26"))
NUMBER = int(os.environ.get("PREDICATES_NUMBER", "150"))
COLUMNS: dict[str, tuple[DataType, list[Any]]] = {
    "b": (PrimitiveType("byte"), [-128, -1, 0, 1, 5, 127]),
    "h": (PrimitiveType("short"), [-32768, -1, 0, 1, 300, 32767]),
    "i": (PrimitiveType("integer"), [-(2**31), -1, 0, 1, 5, 16777217, 2**31 - 1]),
    "l": (PrimitiveType("long"), [-(2**63), -1, 0, 1, 5, 9007199254740993, 2**63 - 1]),
    "f": (PrimitiveType("float"), [0.0, -0.0, 1.5, to_float32(0.1), 16777216.0, 1e10, math.nan, math.inf, -math.inf]),
    "x": (PrimitiveType("double"), [0.0, -0.0, 1.5, 0.1, 1e300, 9007199254740992.0, math.nan, math.inf, -math.inf]),
    "m": (DecimalType(10, 2), [D("0.00"), D("1.25"), D("1.26"), D("-1.25"), D("5.00"), D("99999999.99")]),
    "w": (DecimalType(38, 10), [D("0E-10"), D("1.2500000000"), D("1E+27"), D("5.0000000001"), D("9007199254740993")]),
    "u": (DecimalType(38, 30), [D("0"), D("1.25"), D("5"), D("5") + D("1E-30"), D("99999999")]),
    "s": (PrimitiveType("string"), ["", "a", "ab", "ab ", "1", "01", "1.0", "true", "2024-01-01", "a'b", "a\\b", "é", "a\nb"]),
    "t": (PrimitiveType("boolean"), [True, False]),
    "d": (PrimitiveType("date"), [dt.date(2024, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "z": (
        PrimitiveType("timestamp"),
        [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 10, 30, 0, 5, tzinfo=dt.UTC)],
    ),
    "n": (PrimitiveType("timestamp_ntz"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 10, 30, 0, 5)]),
    "r": (PrimitiveType("binary"), [b"", b"a", b"abc", b"\xff", b"1"]),
}
SCHEMA = StructType(tuple(StructField(name, kind) for name, (kind, _) in COLUMNS.items()))
NUMBERS = [
    *(
        "0",
        "-0",
        "1",
        "5",
        "-1",
        "127",
        "128",
        "-128",
        "300",
        "32767",
        "32768",
        "2147483647",
        "2147483648",
        "16777217",
        "-16777217",
    ),
    *("9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "-(5)"),
    *("99999999999999999999999999999999999999", "999999999999999999999999999999999999999", "5L", "5S", "5Y", "300Y", "-128Y"),
    *(
        "1.5",
        "1.25",
        "1.250",
        "1.255",
        "-1.25",
        "0.1",
        ".5",
        "5.",
        "0.00",
        "-0.0",
        "1.26BD",
        "5BD",
        "1.5D",
        "1.5F",
        "0.1F",
        "1e1BD",
    ),
    *("1e0", "1E-1", "1.5e0", "1e300", "1e400", "-1e0", "5D", "5F", "0.1D", "16777217D", "16777217F", "1e-2BD", "5.0000000001"),
    *("5.000000000000000000000000000001", "0.1234567890123456789012345678901234567", "99999999.99", "100000000.00"),
]
TEXTS = [
    *(
        "",
        "a",
        "ab",
        "1",
        "01",
        "+1",
        " 1 ",
        "1.0",
        "1.5",
        "-1",
        "5",
        "1_0",
        "127",
        "128",
        "1e1",
        "1.25",
        "1.250",
        "true",
        "TRUE",
        "t",
    ),
    *(
        "yes",
        "0",
        "NaN",
        "nan",
        "Infinity",
        "-inf",
        "inf",
        "1.5d",
        "0.1",
        "1.2500000000000000000000001",
        "99999999999",
        "16777217",
    ),
    *("9007199254740993", "9223372036854775808", "0x10", "\u0661", "2024-01-01", "2024-1-1", "2024", "2024-01", "20240101", "é"),
    *(
        "2024-01-01 00:00:00",
        "2024-01-01T10:30:00.000005Z",
        "2024-01-01 10:30:00.000005",
        "2024-02-30",
        "2024-01-01 ",
        " 2024-01-01",
    ),
    *("2024-01-01 10:30:00.0000059", "2024-01-01 11:30:00.000005+01:00", "2024-01-01x", "2024-01-01 x", "12024-01-01", "abc"),
    *("2024-01-01 25:00:00", "2024-01-01T10:30", "a'b", "a\\b", "a\nb", "\u00a01", "\x011", "1\u2003"),
]
OTHERS = [
    *("NULL", "true", "false", "DATE '2024-01-01'", "DATE '2024-1-1'", "DATE '2024'", "TIMESTAMP '2024-01-01 00:00:00Z'"),
    *("TIMESTAMP '2024-01-01 11:30:00.000005+01:00'", "TIMESTAMP_NTZ '2024-01-01 10:30:00.000005'", "TIMESTAMP_LTZ '2024-01-01'"),
    *("TIMESTAMP '2024-01-01'", "TIMESTAMP_NTZ '2024-01-01'", "X'616263'", "X''", "X'F'", "x'ff'", "INTERVAL 1 DAY"),
    *("r'a\\b'", 'R"a\'b"', '"ab"', "'a' 'b'", "'it''s'", "'\\u0061'", "'\\141'", "'\\q'", "'\\%'", "'a\\_b'", "'\\0'", "'\\Z'"),
    *("'\\U0001F600'", "'\\x61'", "'\\\\'", "'\\''", "'\\t'", "r'\\'", "'a\\\nb'"),
]
TYPES = [
    *("TINYINT", "BYTE", "SMALLINT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC"),
    *("DECIMAL(3)", "DECIMAL(10,2)", "DECIMAL(2,1)", "DECIMAL(38,30)", "DECIMAL(38,38)", "DECIMAL(39,1)", "DECIMAL(2,3)"),
    *(
        "STRING",
        "VARCHAR(1)",
        "CHAR(3)",
        "VARCHAR(10)",
        "BOOLEAN",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "TIMESTAMP_LTZ",
        "BINARY",
    ),
]
OPERATORS = ["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"]


# What is often compared with a column of a type, so that not every pair is left to Spark.
SENSIBLE = {
    **{column: [*NUMBERS, "'1'", "'5'", "NULL"] for column in "bhil"},
    **{column: [*NUMBERS, "'1.5'", "'1'", "'NaN'", "'-inf'", "NULL"] for column in "fxmwu"},
    "s": [*map(sql_text.quote_text, TEXTS), *(text for text in OTHERS if "'" in text.lstrip("rR")[:1] or '"' in text), "NULL"],
    "t": ["true", "false", "'true'", "'y'", "NULL"],
    "d": ["DATE '2024-01-01'", "'2024-01-01'", "'2024-02-29'", "'2024-1-1'", "'2024'", "DATE '0001-01-01'", "NULL"],
    "z": [
        "TIMESTAMP '2024-01-01 00:00:00Z'",
        "TIMESTAMP '2024-01-01 11:30:00.000005+01:00'",
        "'2024-01-01'",
        "DATE '2024-01-01'",
    ],
    "n": ["TIMESTAMP_NTZ '2024-01-01 10:30:00.000005'", "'2024-01-01'", "DATE '2024-01-01'", "'2024-01-01T10:30:00.0000059'"],
    "r": ["X'616263'", "X'f'", "X''", "x'FF'", "'abc'", "NULL"],
}
CASTS = {
    **{column: ["TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL(10,2)", "DECIMAL(38,0)", "STRING"] for column in "bhil"},
    **{
        column: ["INT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(3,1)", "DECIMAL(38,30)", "DECIMAL", "STRING"]
        for column in "fxmwu"
    },
    **{
        column: ["STRING", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY", "VARCHAR(2)", "CHAR(3)"]
        for column in "tdznrs"
    },
}


def constant(some: random.Random, column: str) -> str:
    sensible = some.random() < 0.7
    pool = SENSIBLE[column] if sensible else some.choice([NUMBERS, [sql_text.quote_text(text) for text in TEXTS], OTHERS])
    inner = some.choice(pool)
    if some.random() < 0.5:
        return inner
    target = some.choice(CASTS[column] if sensible else TYPES)
    form = some.randrange(4)
    if form == 0:
        return f"{inner} :: {target}"
    return f"{'TRY_CAST' if form == 1 else 'cast'}({inner} AS {target})"


def predicate(some: random.Random) -> str:
    column = some.choice(list(COLUMNS))
    form = some.randrange(8)
    if form < 4:
        return f"{column} {some.choice(OPERATORS)} {constant(some, column)}"
    if form == 4:
        return f"{constant(some, column)} {some.choice(OPERATORS)} {column}"
    if form == 5:
        return f"{column} BETWEEN {constant(some, column)} AND {constant(some, column)}"
    if form == 6:
        listed = ", ".join(constant(some, column) for _ in range(some.randint(1, 3)))
        return f"{column} {some.choice(['', 'NOT '])}IN ({listed})"
    return f"NOT ({column} {some.choice(OPERATORS)} {constant(some, column)})"


def rows() -> Iterator[dict[str, Any]]:
    for at in range(max(len(values) for _, values in COLUMNS.values()) + 1):
        yield {name: values[at] if at < len(values) else None for name, (_, values) in COLUMNS.items()}


@pytest.fixture(scope="module")
def table(spark) -> Iterator[list[dict[str, Any]]]:
    import pyarrow as pa
    from pyspark.sql.types import StructType as SparkStruct

    before = {key: spark.conf.get(key) for key in ("spark.sql.ansi.enabled", "spark.sql.session.timeZone")}
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # as predicates read timestamps without a zone
    data = list(rows())
    columns = [pa.array([row[name] for row in data], arrow_type(kind)) for name, (kind, _) in COLUMNS.items()]
    local = pa.table(columns, names=list(COLUMNS))  # Spark evaluates it in the driver, without a job
    given = [tuple(row.values()) for row in local.to_pylist()] if IS_OLDER else local
    spark.createDataFrame(given, SparkStruct.fromJson(json.loads(to_json(SCHEMA)))).createOrReplaceTempView("predicate_rows")
    yield data
    for key, value in before.items():
        spark.conf.set(key, value)


def evaluated(spark, text: str) -> list[bool | None] | str:
    """Return what Spark makes of a condition for each row, or the class of its error."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return [row[0] for row in spark.sql(f"SELECT ({text}) FROM predicate_rows").collect()]
    except PySparkException as error:
        return f"error {spark_condition(error)}"
    except Py4JJavaError as error:  # of a task, on Spark 3.5
        return f"error {re.search(r'Exception: .([A-Z_.]+)', str(error))[1]}"


def differences(spark, table: list[dict[str, Any]], texts: list[str]) -> list[str]:
    found = []
    for text in texts:
        try:
            parsed = Predicate.parse(text, SCHEMA)
        except PredicateException as error:
            parsed, refused = None, str(error)
        for ansi in ("true", "false"):
            spark.conf.set("spark.sql.ansi.enabled", ansi)
            wanted = evaluated(spark, with_escaped_quotes(text))
            if parsed is None:
                # What is refused here, Spark refuses, at least as it is configured by default.
                if ansi == "true" and isinstance(wanted, list) and True in wanted and "not supported" not in refused:
                    found.append(f"{text}: refused ({refused}), but Spark says {wanted}")
                continue
            given = evaluated(spark, parsed.text)
            own = [parsed.evaluate({(name,): value for name, value in row.items()}) for row in table]
            if IS_OLDER and "::" in text:  # whose grammar does not have it
                wanted = given
            if given != wanted:
                found.append(f"{text} [ansi {ansi}] => {parsed.text}: {wanted} became {given}")
            elif not any(ast.opaque(parsed.expression)) and own != wanted:
                found.append(f"{text} [ansi {ansi}] => {parsed.text}: {wanted} is {own} here")
    return found


@pytest.mark.slow
def test_random_predicates_mean_in_the_log_and_on_spark_what_spark_makes_of_them(spark, table):
    some = random.Random(SEED)
    texts = [predicate(some) for _ in range(NUMBER)]
    assert differences(spark, table, texts) == []


@pytest.mark.parametrize(
    "text",
    [
        *("m = CAST('1.255' AS DECIMAL(10,2))", "m = CAST('1.255' AS DECIMAL(10,1))", "m > 1.255 :: DECIMAL(10,2)"),
        *("l = 9223372036854775808", "l <> 9223372036854775808", "l IN (9223372036854775808, 1)", "l > -9223372036854775809"),
        *("l BETWEEN -9223372036854775809 AND 9223372036854775808", "i <= 99999999999999999999999999999999999999"),
        *(
            "s = CAST('abc' AS VARCHAR(1))",
            "s = CAST('ab' AS CHAR(3))",
            "u IN (5, 1.25)",
            "u = 5",
            "l IN ('01')",
            "d IN ('2024-1-1')",
        ),
        *(
            "f = 16777217",
            "f = 0.1",
            "f = 0.1F",
            "x = -0.0D",
            "x IN (-0.0D)",
            "x = double('NaN')",
            "x > 'Infinity'",
            "x <=> 'nan'",
        ),
        *(
            r"s LIKE 'a\\\\_%'",
            r"s LIKE 'a\q'",
            r"s LIKE '%\\'",
            r"s LIKE '\_'",
            r"s = '\u00e9'",
            r"s = 'a\\b'",
            r"s = r'a\b'",
            "s = 'a''b'",
        ),
        *("NOT NOT t", "t", "NOT t = false", "t IS NOT TRUE", "t IS DISTINCT FROM NULL", "(l) = ((5))", "5 = l"),
        *(
            "CAST(NULL AS BOOLEAN)",
            "l = 1 OR NULL",
            "l IN (CAST(NULL AS DOUBLE), 9007199254740992)",
            "d = NULL",
            "`l` /* one */ = 5",
        ),
        "i IN (" + ", ".join(str(number) for number in range(3000)) + ", 2147483647, NULL)",
        " OR ".join(f"(i = {number} AND NOT (s = 'a' OR l <= -1))" for number in range(300)),
    ],
    ids=lambda text: text[:50],
)
def test_a_predicate_means_here_what_spark_makes_of_it(spark, table, text):
    assert differences(spark, table, [text]) == []


def test_words_that_are_columns_here_are_columns_to_spark(spark):
    """Keywords of Spark and of the parser for the other conditions may be names of columns."""
    from sqlglot.dialects.spark import Spark

    words = {word.lower() for word in Spark.Tokenizer.KEYWORDS if word.replace("_", "").isalnum() and not word[0].isdecimal()}
    words = sorted(words - {"i"})
    columns = ", ".join(f"1 AS `{word}`" for word in words)
    schema = StructType(tuple(StructField(word, PrimitiveType("integer")) for word in [*words, "i"]))
    found = []
    for form in ("{0} = 1 AND i = 1", "{0} IN (1)", "i = 1 AND {0} BETWEEN 1 AND 2", "NOT {0} IS NULL", "1 = {0} OR i = 2"):
        texts = [text for word in words if not any(ast.opaque(parsed(text := form.format(word), schema)))]
        row = spark.sql(f"SELECT {', '.join(texts)} FROM (SELECT 1 AS i, {columns})").collect()[0]
        found += [text for text, value in zip(texts, row, strict=True) if value is not True]
        assert len(texts) > 100
    assert found == []


def parsed(text: str, schema: StructType) -> ast.Expression:
    try:
        return Predicate.parse(text, schema).expression
    except PredicateException:
        return ast.Opaque(text, ())
