"""Partition values: parsing and serialising every type, directories, and which strings are equal."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_delta.contract.delta_names import HIVE_NULL
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.schema.partition_directories import (
    escape_path_name,
    parse_partition_directory,
    partition_directory,
    unescape_path_name,
)
from airflow_delta.log.schema.partition_values import normalise, parse_partition_value, partition_array, serialize_partition_value
from airflow_delta.log.schema.types import DATE, TIMESTAMP, DecimalType, PrimitiveType, parse_type

MOMENT = dt.datetime(2024, 2, 29, 13, 1, 2, 345678, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", "a=b/c é", "a=b/c é"),
        ("byte", "-128", -128),
        ("short", "32767", 32767),
        ("integer", "0", 0),
        ("long", "-9223372036854775808", -(2**63)),
        ("float", "0.1", 0.10000000149011612),
        ("double", "1.0E10", 1e10),
        ("double", "0.1", 0.1),
        ("double", "-Infinity", float("-inf")),
        ("boolean", "true", True),
        ("date", "2024-02-29", dt.date(2024, 2, 29)),
        ("timestamp", "2024-02-29T13:01:02.345678Z", MOMENT),
        ("timestamp_ntz", "2024-02-29 13:01:02.345678", MOMENT.replace(tzinfo=None)),
        ("timestamp_ntz", "2024-02-29 00:00:00", dt.datetime(2024, 2, 29)),
        ("binary", "\x01é", b"\x01\xc3\xa9"),
    ],
)
def test_text_and_value_both_ways(type_, text, value):
    assert parse_partition_value(text, PrimitiveType(type_)) == value
    assert serialize_partition_value(value, PrimitiveType(type_)) == text


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("integer", 1.5),
        ("integer", "x"),
        ("string", 5),
        ("byte", 128),
        ("date", "2024-01-01"),
        ("timestamp", 5),
        ("binary", b"\xff"),
        ("variant", 1),
    ],
)
def test_a_value_of_another_type_is_named(type_, value):
    with pytest.raises(DeltaAnalysisException, match=f"is not a partition value of type {PrimitiveType(type_)}"):
        serialize_partition_value(value, PrimitiveType(type_))


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("double", float("nan"), "NaN"),
        ("double", float("inf"), "Infinity"),
        ("double", 0.0, "0.0"),
        ("double", 100.0, "100.0"),
        ("double", 1e-5, "1.0E-5"),
        ("double", -1.25e8, "-1.25E8"),
        ("float", 1e39, "Infinity"),
        ("float", 0.1, "0.1"),
        ("boolean", False, "false"),
    ],
)
def test_numbers_have_the_text_that_java_gives_them(type_, value, text):
    assert serialize_partition_value(value, PrimitiveType(type_)) == text


def test_decimals_have_the_scale_of_their_type():
    kind = DecimalType(10, 2)
    assert serialize_partition_value(Decimal("1.5"), kind) == "1.50"
    assert parse_partition_value("1.50", kind) == Decimal("1.5")


@pytest.mark.parametrize("text", [None, ""])
def test_null_and_empty_text_are_null(text):
    assert parse_partition_value(text, PrimitiveType("string")) is None
    assert serialize_partition_value(text, PrimitiveType("string")) is None


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-29T13:01:02.345678Z",
        "2024-02-29 13:01:02.345678",
        "2024-02-29T14:01:02.345678+01:00",
        "2024-02-29 08:01:02.345678-0500",
    ],
)
def test_all_forms_of_a_timestamp_are_equal(text):
    assert parse_partition_value(text, TIMESTAMP) == MOMENT
    assert normalise(text, TIMESTAMP) == "2024-02-29T13:01:02.345678Z"


def test_normal_form():
    assert normalise("007", PrimitiveType("integer")) == "7"
    assert normalise("1", DecimalType(4, 1)) == "1.0"
    assert normalise("", DATE) is None
    assert normalise("nonsense", DATE) == "nonsense"


@pytest.mark.parametrize(
    ("type_", "text"), [("integer", "x"), ("byte", "128"), ("date", "2024-02-30"), ("boolean", "1"), ("timestamp", "now")]
)
def test_a_text_of_another_type_is_named(type_, text):
    with pytest.raises(DeltaAnalysisException, match=text):
        parse_partition_value(text, PrimitiveType(type_))


READ = [
    ("integer", "+1", 1),
    ("integer", "007", 7),
    ("double", ".5", 0.5),
    ("double", "1e400", float("inf")),
    ("double", "-inf", float("-inf")),
    ("double", "INFINITY", float("inf")),
    ("boolean", "tRuE", True),
    ("date", "2024-1-2", dt.date(2024, 1, 2)),
    ("decimal(5,2)", "1", Decimal("1.00")),
    ("decimal(5,2)", "1.2500", Decimal("1.25")),
    ("decimal(38,10)", "0E-10", Decimal("0E-10")),
    ("decimal(5,2)", "1e1", Decimal("10.00")),
]
REFUSED = {
    "integer": ["1_000", " 1", "1 ", "1.0", "1e1", "2147483648", "\u0661", "1L", "0x10", "--1", "+", "abc"],
    "double": ["1_0", " 1.5", "1.5d", "0x1p3", "1,5", "1e", "infinit", "nan()", "\u0661"],
    "decimal(5,2)": ["1_0", " 1.25", "1.255", "1000", "999.999", "0.001", "NaN", "1e400", "1e-400", "-Infinity", "1" * 39],
    "decimal(38,38)": ["1"],
    "boolean": ["t", "1", "yes", " true"],
    "date": ["20240101", "2024-W01-1", "2024-001", "2024-01", "24-01-01", "2024-01-01 00:00:00", "12024-01-01", "0000-01-01"],
    "timestamp_ntz": ["2024-01-31 10:20-30", "2024-01-31 10:20:30.5+00:75"],
    "timestamp": ["2024-01-01T10:00:00+19:00", "2024-01-01T10:00:00+100", "2024-01-01T10:00:00+01:75", "2024-01-01 24:00:00"],
}


@pytest.mark.parametrize(("kind", "text", "value"), READ)
def test_what_other_readers_read_alike_is_read(kind, text, value):
    assert parse_partition_value(text, parse_type(kind)) == value


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in REFUSED.items() for text in texts])
def test_what_other_readers_refuse_or_read_as_null_is_refused(kind, text):
    with pytest.raises(DeltaAnalysisException, match=f"of column 'p' is not a value of type {re.escape(str(parse_type(kind)))}"):
        parse_partition_value(text, parse_type(kind), "p")
    with pytest.raises(DeltaAnalysisException, match="is not a value of type"):
        partition_array(pa.array([text]), parse_type(kind))


@pytest.mark.parametrize(
    ("name", "escaped"), [("a b+ü", "a b+ü"), ("10:30/x", "10%3A30%2Fx"), ("50%", "50%25"), ("a=b\n", "a%3Db%0A")]
)
def test_directories_are_escaped_as_spark_does(name, escaped):
    assert escape_path_name(name) == escaped
    assert unescape_path_name(escaped) == name


@given(st.dictionaries(st.text(min_size=1), st.none() | st.text(min_size=1).filter(lambda t: t != HIVE_NULL), min_size=1))
def test_directories_round_trip(values):
    assert parse_partition_directory(partition_directory(values, list(values))) == values


def test_columns_of_texts_are_typed():
    column = partition_array(pa.array(["2024-01-01", None, "2024-01-01"]), DATE)
    assert column.to_pylist() == [dt.date(2024, 1, 1), None, dt.date(2024, 1, 1)]
