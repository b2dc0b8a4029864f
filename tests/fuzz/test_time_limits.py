"""Texts from authors and from logs are read in 50 ms each, whatever they hold: a triggerer that parses stands still meanwhile.

What these tests are to find (backtracking, unbounded numbers) takes seconds and more, so the limit is ten times that.

``AIRFLOW_DELTA_FUZZ_EXAMPLES`` sets the examples of each test.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_delta.contract.char_lengths import DECLARED, length_problems
from airflow_delta.contract.sql_types import parse_column_path, parse_sql_type
from airflow_delta.exceptions import DeltaError
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.expressions.refused import refused_function
from airflow_delta.log.features.properties import TableProperties, parse_interval
from airflow_delta.log.features.stats_columns import parse_column_list
from airflow_delta.log.schema.partition_directories import parse_partition_directory
from airflow_delta.log.schema.partition_values import normalise
from airflow_delta.log.schema.types import DecimalType, PrimitiveType, StructField, StructType, parse_schema

LIMIT = 0.5
EXAMPLES = int(os.environ.get("AIRFLOW_DELTA_FUZZ_EXAMPLES", "25"))
TYPES = {"x": "integer", "s": "string", "t": "timestamp", "d": "double", "day": "date"}
SCHEMA = StructType(
    (*(StructField(name, PrimitiveType(kind)) for name, kind in TYPES.items()), StructField("dec", DecimalType(10, 2)))
)


def within_limit(read: Callable[[], object]) -> None:
    """Measure the processor's time of the best of a few runs: another process on the machine does not count."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        with suppress(DeltaError, ValueError):
            read()
        best = min(best, time.process_time() - start)
        if best < LIMIT:
            return
    pytest.fail(f"took {best * 1000:.0f} ms")


def predicate(text: str) -> None:
    parsed = Predicate.parse(text, SCHEMA, ["x", "s", "t", "dec"])
    for value in ("a" * 2_000, "1", "2020-01-01 00:00:00"):
        with suppress(DeltaError):
            parsed.matches_partition({"x": "1", "s": value, "t": "2020-01-01 00:00:00", "dec": "1.00"})


READERS: dict[str, Callable[[str], object]] = {
    "predicate": predicate,
    "functions": refused_function,
    "columns": parse_column_list,
    "path": parse_column_path,
    "type": parse_sql_type,
    "interval": parse_interval,
    "properties": lambda text: [
        getattr(TableProperties({f"delta.{key}": text}), name)
        for key, name in (
            ("dataSkippingNumIndexedCols", "data_skipping_num_indexed_cols"),
            ("dataSkippingStatsColumns", "data_skipping_stats_columns"),
            ("checkpointInterval", "checkpoint_interval"),
        )
    ],
    "schema": parse_schema,
    "lengths": lambda text: list(length_problems({"name": "c", "type": "string", "metadata": {DECLARED: text}})),
    "partition values": lambda text: [normalise(text, f.data_type) for f in SCHEMA.fields],
    "directories": parse_partition_directory,
}

WORDS = r"""
    ( ) [ ] < > , . : ` `` ' '' " \ % _ - + -- /* */ = <=> || NOT AND OR IN LIKE BETWEEN CASE WHEN THEN END x s t d day dec
    1 1e9999999 0.1 99999999999999999999 'a' '%a' '_' cast( as int) date decimal( array< map< struct< varchar( interval days
    second a.b 2020-01-01 00:00:00 Z { } "type": a= /
"""
PIECES = st.sampled_from(WORDS.split())
TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(PIECES, max_size=40).map(" ".join),
    st.builds(lambda head, piece, count, tail: head + piece * count + tail, PIECES, PIECES, st.integers(1, 300), PIECES),
    st.builds(lambda a, b, count: (a + b) * count, PIECES, PIECES, st.integers(1, 150)),
)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS)
def test_any_text(name, text):
    within_limit(lambda: READERS[name](text))


@settings(max_examples=EXAMPLES, deadline=None)
@given(pattern=st.text("ab%_\\", max_size=300), text=st.text("ab", max_size=3_000))
def test_like(pattern, text):
    from airflow_delta.log.expressions.like import LikePattern

    within_limit(lambda: LikePattern(pattern).matches(text))


WIDE = json.dumps({"type": "struct", "fields": [{"name": f"c{i}", "type": "integer"} for i in range(500)]})
DEEP = '{"type":"array","containsNull":true,"elementType":' * 3_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("predicate", "x = cast('1e1000000' as int)"),
        ("predicate", "x = '1e1000000'"),
        ("predicate", "dec = cast('1e-1000000' as decimal(10, 2))"),
        ("predicate", f"x = cast('{'9' * 5_000}' as int)"),
        ("predicate", "s LIKE '%a%a%a%a%a%a%b'"),
        ("predicate", "s LIKE '%a_a%a_a%a__a%_b'"),
        ("predicate", f"s LIKE '{'%a' * 500}b'"),
        ("predicate", f"s LIKE '%{'a' * 1_000}_b'"),
        ("predicate", "s = '" + "''" * 10_000 + "'"),
        ("predicate", "(" * 5_000),
        ("predicate", "x" + "::int" * 100 + " = 1"),
        ("predicate", "x = 1" + " AND abs(x) = 1" * 100),
        ("predicate", "abs(" * 32 + "x" + ")" * 32 + " = 1"),
        ("columns", " " * 1_000),
        ("columns", "a" + " " * 20_000 + "`"),
        ("columns", "`" * 20_000),
        ("path", "a" + " " * 20_000 + "`"),
        ("type", "a," * 5_000),
        ("type", "array<" * 3_000),
        ("type", " " * 20_000),
        ("type", "'" + "\\" * 20_000),
        ("interval", "1" * 20_000),
        ("interval", "interval " + "1 day " * 2_000),
        ("properties", "9" * 20_000),
        ("schema", WIDE),
        ("schema", DEEP),
        ("lengths", "array<" * 3_000 + "varchar(1)" + ">" * 3_000),
        ("partition values", "1e1000000"),
        ("partition values", "2020-01-01" + " " * 20_000 + "x"),
        ("partition values", "9" * 20_000),
        ("directories", "a=" + "%2" * 10_000),
    ],
)
def test_known_ways_to_stall(name, text):
    within_limit(lambda: READERS[name](text))
