"""Data skipping: a file with a matching row is never skipped, and files are skipped where statistics prove it."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import DecimalType, PrimitiveType, StructField, StructType
from airflow_delta.log.statistics.data_skipping import needed_stats, skipping_mask
from airflow_delta.log.statistics.footers_to_stats import truncate_max, truncate_min
from airflow_delta.table.read.read_table import read_table
from support.table import Table
from support.work import calls

SCHEMA = StructType(
    (
        StructField("i", PrimitiveType("integer")),
        StructField("x", PrimitiveType("double")),
        StructField("s", PrimitiveType("string")),
        StructField("d", PrimitiveType("date")),
        StructField("t", PrimitiveType("timestamp")),
        StructField("b", PrimitiveType("boolean")),
        StructField("n", DecimalType(20, 2)),
        StructField("st", StructType((StructField("y", PrimitiveType("long")),))),
    )
)


def kept(text, *stats) -> list[bool]:
    predicate = Predicate.parse(text, SCHEMA, [])
    texts = [None if s is None else s if isinstance(s, str) else json.dumps(s) for s in stats]
    return skipping_mask(predicate.data_part, pa.array(texts, pa.string())).to_pylist()


def stats(name="i", low=None, high=None, nulls=0, rows=10, **more):
    bounds = {} if low is None else {"minValues": {name: low}, "maxValues": {name: high}}
    return {"numRecords": rows, "nullCount": {name: nulls}, **bounds, **more}


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(
    ("text", "file", "keep"),
    [
        ("i = 5", stats(low=1, high=4), False),
        # Delta 3 and before ends a truncated text with U+FFFD, which is less than the emoji that it cut off.
        ("s = 'aa\U0001f600'", stats("s", low="aa", high="aa\ufffd"), True),
        ("s like 'aa\U0001f600%'", stats("s", low="aa", high="aa\ufffd"), True),
        ("s <> 'aa\ufffd'", stats("s", low="aa\ufffd", high="aa\ufffd"), True),
        ("s = 'a'", stats("s", low="aa", high="aa\ufffd"), False),
        ("i = 5", stats(low=1, high=5), True),
        ("i < 1", stats(low=1, high=4), False),
        ("i <= 1", stats(low=1, high=4), True),
        ("i > 4", stats(low=1, high=4), False),
        ("i > 3.5", stats(low=1, high=4), True),
        ("i > 4.5", stats(low=1, high=4), False),
        ("i <> 3", stats(low=3, high=3), False),
        ("not (i = 3)", stats(low=3, high=4), True),
        ("not (i < 3 or i > 5)", stats(low=6, high=9), False),
        ("i in (1, 9)", stats(low=3, high=4), False),
        ("i in (1, 3)", stats(low=3, high=4), True),
        ("i is null", stats(nulls=0), False),
        ("i is null", stats(nulls=1), True),
        ("i is not null", stats(nulls=10), False),
        ("i = 5", stats(nulls=10), False),
        ("i = 5", stats(), True),
        ("i <=> null", stats(nulls=0), False),
        ("i = null", stats(low=1, high=2), False),
        ("x > 9", stats("x", 1.0, 2.0), True),  # NaN may be there
        ("x < 1", stats("x", 1.0, 2.0), True),  # the shortest text of a float that lies a little below
        ("x = 1.100000023841858D", stats("x", 1.1, 1.1), True),
        ("x < 1", stats("x", 1.1, 2.0), False),
        ("i + 1 = 5", stats(low=6, high=7), True),
        ("i + 1 = 5 and i = 5", stats(low=6, high=7), False),
        ("not (i + 1 = 5 or i = 5)", stats(low=5, high=5), False),
        ("i > st.y", stats(nulls=10), True),
        ("x = 3", stats("x", 1.0, 2.0), False),
        ("x = 3", stats("x", "-Infinity", "NaN"), True),
        ("s = 'b'", stats("s", "c", "d"), False),
        ("s like 'ab%'", stats("s", "ac", "b"), False),
        ("s like 'ab%'", stats("s", "aba", "abz"), True),
        ("d = '2024-01-02'", stats("d", "2024-01-03", "2024-01-09"), False),
        ("t > '2024-01-01 00:00:00.123500'", stats("t", "2023-01-01T00:00:00.000Z", "2024-01-01T00:00:00.123Z"), True),
        ("t > '2024-01-01 00:00:00.125'", stats("t", "2023-01-01T00:00:00.000Z", "2024-01-01T00:00:00.123Z"), False),
        ("t = '2024-01-01 00:00:00'", stats("t", "2024-01-01T01:00:00.000+01:00", "2024-01-01T01:00:00.000+01:00"), True),
        ("n = 5", stats("n", 6.5, 7.5), False),
        ("b", stats("b", nulls=10), False),
        ("b", stats("b"), True),
        (
            "st.y = 5",
            {"numRecords": 1, "minValues": {"st": {"y": 6}}, "maxValues": {"st": {"y": 7}}, "nullCount": {"st": {"y": 0}}},
            False,
        ),
        ("st.y is null or i = 1", stats(low=2, high=3), True),
        ("i = 5 and s = 'a'", stats(low=6, high=7), False),
        ("i = 5", None, True),
        ("i = 5", "{broken", True),
        ("i = 5", stats(low="odd", high=3), True),
        ("i = 5", stats(low=1, high=4, tightBounds=False), False),
    ],
)
def test_one_file(text, file, keep):
    assert kept(text, file) == [keep]


def test_odd_texts_do_not_spoil_their_neighbours():
    assert kept("i = 5", None, stats(low=6, high=7), "[]", stats(low=1, high=9), stats(low=2**70, high=2**71)) == [
        True,
        False,
        True,
        True,
        True,
    ]
    assert kept("d = '2024-01-01'", stats("d", "odd", "odd"), stats("d", "2025-01-01", "2025-01-01")) == [True, False]


def test_a_predicate_that_was_asked_before_makes_no_types_again():
    predicate = Predicate.parse("i = 5 and s > 'b' and d is null", SCHEMA, [])
    texts = pa.array([json.dumps(stats(low=1, high=4))], pa.string())
    first = skipping_mask(predicate.data_part, texts)
    assert calls(lambda: skipping_mask(predicate.data_part, texts)) < 900
    assert skipping_mask(predicate.data_part, texts) == first
    assert kept("i is null", stats(low=1, high=4, nulls=0)) == [False]  # of the same column, and nothing but its nulls


def test_needed_stats_are_leaf_columns():
    predicate = Predicate.parse("st.y = 1 and b", SCHEMA, [])
    members = [(member, "st", "y") for member in ("nullCount", "minValues", "maxValues")]
    assert needed_stats(predicate) == [("numRecords",), *members, ("nullCount", "b")]


def test_struct_statistics_give_the_same_answer():
    bounds = pa.struct([("i", pa.int32()), ("t", pa.timestamp("us", "UTC"))])
    parsed = pa.array(
        [
            {"numRecords": 2, "minValues": {"i": 1, "t": None}, "maxValues": {"i": 4, "t": None}, "nullCount": {"i": 0, "t": 2}},
            {"numRecords": 2, "minValues": {"i": 5, "t": None}, "maxValues": {"i": 5, "t": None}, "nullCount": {"i": 0, "t": 0}},
            None,
        ],
        pa.struct(
            [
                ("numRecords", pa.int64()),
                ("minValues", bounds),
                ("maxValues", bounds),
                ("nullCount", pa.struct([("i", pa.int64()), ("t", pa.int64())])),
            ]
        ),
    )

    def mask(text):
        return skipping_mask(
            Predicate.parse(text, SCHEMA, []), pa.chunked_array([parsed.slice(0, 1), parsed.slice(1)])
        ).to_pylist()

    assert mask("i = 5") == [False, True, True]
    assert mask("t > '2024-01-01'") == [False, True, True]
    assert mask("s = 'not in the checkpoint'") == [True, True, True]


# -- against brute force ------------------------------------------------------------------------------------------------------

VALUES = {
    "i": st.integers(-3, 3),
    "x": st.sampled_from([-1.5, -0.0, 0.0, 1.5, math.nan, math.inf]),
    "s": st.text("ab\x7f\U0010ffff", max_size=5),
    "d": st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 4)),
    "t": st.integers(0, 4000).map(lambda us: dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)),
    "n": st.integers(-300, 300).map(lambda cents: Decimal(cents).scaleb(-2)),
}
TEXT = {
    "i": str,
    "x": lambda v: f"cast('{v}' as double)",
    "s": lambda v: f"'{v}'",
    "d": lambda v: f"DATE '{v}'",
    "t": lambda v: f"'{v.isoformat()}'",
    "n": lambda v: f"{v}",
}


def leaf_predicates(name):
    literal = VALUES[name].map(TEXT[name])
    forms = [
        st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"]), literal).map(lambda p: f"{name} {p[0]} {p[1]}"),
        st.lists(literal | st.just("null"), min_size=1, max_size=20).map(lambda v: f"{name} in ({', '.join(v)})"),
        st.sampled_from([f"{name} is null", f"{name} is not null", f"{name} <=> null"]),
    ]
    return st.one_of(*forms, *([VALUES["s"].map(lambda v: f"s like '{v}%'")] if name == "s" else []))


PREDICATES = st.recursive(
    st.sampled_from(sorted(VALUES)).flatmap(leaf_predicates),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
        inner.map(lambda p: f"not ({p})"),
    ),
    max_leaves=4,
)
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), min_size=1, max_size=4)


def statistics_of(rows) -> str:
    low, high, nulls = {}, {}, {}
    for name in VALUES:
        values = [r[name] for r in rows if r[name] is not None]
        nulls[name] = len(rows) - len(values)
        values = [v for v in values if v == v]  # like most writers, without a trace of NaN
        if not values:
            continue
        least, greatest = min(values), max(values)
        if name == "s":
            least, greatest = truncate_min(least, 2), truncate_max(greatest, 2)
        elif name == "d":
            least, greatest = str(least), str(greatest)
        elif name == "t":
            least, greatest = (f"{v.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z" for v in (least, greatest))
        elif name == "n":
            least, greatest = float(least), float(greatest)
        elif greatest == math.inf:
            greatest = None
        low[name], high[name] = least, greatest
    return json.dumps({"numRecords": len(rows), "minValues": low, "maxValues": high, "nullCount": nulls})


@settings(max_examples=400, deadline=None)
@given(PREDICATES, ROWS)
def test_a_file_with_a_matching_row_is_never_skipped(text, rows):
    predicate = Predicate.parse(text, SCHEMA, [])
    matching = any(predicate.evaluate({(name,): value for name, value in row.items()}) for row in rows)
    mask = skipping_mask(predicate, pa.array([statistics_of(rows)])).to_pylist()
    assert mask[0] or not matching


def test_partition_values_in_a_disjunction_with_data_columns():
    schema = StructType((*SCHEMA.fields, StructField("p", PrimitiveType("integer")), StructField("q", PrimitiveType("string"))))
    predicate = Predicate.parse("(p = 1 and i > 5) or (p = 2 and i < 5) or (q is null and i = 5)", schema, ["p", "q"])
    assert predicate.partition_part is None
    files = pa.array([json.dumps(stats(low=1, high=4)), json.dumps(stats(low=6, high=9)), None, json.dumps(stats(low=5, high=5))])
    for p, q, expected in (
        ("1", "a", [False, True, True, False]),
        ("2", "a", [True, False, True, False]),
        ("3", "a", [False, False, False, False]),
        (None, "a", [False, False, False, False]),
        ("3", None, [False, False, True, True]),
    ):
        texts = {"p": pa.array([p] * 4, pa.string()), "q": pa.array([q] * 4, pa.string())}
        assert skipping_mask(predicate.data_part, files, texts.__getitem__).to_pylist() == expected
        assert skipping_mask(predicate.data_part, files).to_pylist()[2]


def test_statistics_from_before_a_type_was_widened():
    assert kept("t = '2024-01-02'", stats("t", "2024-01-01", "2024-01-02")) == [True]
    assert kept("t > '2024-01-03'", stats("t", "2024-01-01", "2024-01-02")) == [False]
    assert kept("n = 5", stats("n", 4, 6), stats("n", 6, 7)) == [True, False]
    bounds = pa.struct([("i", pa.int16()), ("n", pa.int32()), ("t", pa.date32())])
    parsed = pa.array(
        [
            {"numRecords": 2, "minValues": row, "maxValues": row, "nullCount": {"i": 0, "n": 0, "t": 0}}
            for row in ({"i": 1, "n": 1, "t": dt.date(2024, 1, 1)}, {"i": 5, "n": 5, "t": dt.date(2024, 1, 5)})
        ],
        pa.struct(
            [
                ("numRecords", pa.int64()),
                ("minValues", bounds),
                ("maxValues", bounds),
                ("nullCount", pa.struct([(name, pa.int64()) for name in ("i", "n", "t")])),
            ]
        ),
    )
    for text in ("i = 5", "n = 5", "n > 4.5", "t = '2024-01-05'", "t > '2024-01-01 12:00:00'"):
        assert skipping_mask(Predicate.parse(text, SCHEMA, []).data_part, parsed).to_pylist() == [False, True], text


def test_a_name_that_begins_with_a_dot_is_no_path():
    schema = StructType((StructField(".b", PrimitiveType("long")), StructField("b", PrimitiveType("long"))))
    bounds = {".b": 1, "b": 9}
    stats = pa.array([{"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {".b": 0, "b": 0}}])
    for text, kept in (("`.b` = 1", True), ("`.b` = 9", False), ("b = 9", True), ("b = 1", False)):
        assert skipping_mask(Predicate.parse(text, schema), stats).to_pylist() == [kept], text


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\x01b"], ids=ascii)
@pytest.mark.parametrize("checkpoint", ["none", "JSON", "typed"])
def test_names_that_json_escapes(tmp_path: Path, name: str, checkpoint: str) -> None:
    table = Table(tmp_path / "t")
    configuration = {"delta.checkpoint.writeStatsAsStruct": "true"} if checkpoint == "typed" else {}
    for start in (0, 10):
        values = [start, start + 1, None]
        rows = {name: values, "id": values, "st": [{name: value, "x": None} for value in values]}
        types = {name: pa.int64(), "id": pa.int64(), "st": pa.struct([(name, pa.int64()), ("x", pa.int64())])}
        written = pa.table({key: pa.array(values, types[key]) for key, values in rows.items()})
        table.write(written, begin={} if start else {"configuration": configuration})
    if checkpoint != "none":
        table.log().checkpoint()
    for column in (f"`{name}`", f"st.`{name}`"):
        for where, files, found in (
            (f"{column} = 1", 1, [1]),
            (f"{column} > 100", 0, []),
            (f"{column} >= 1 AND id < 11", 2, [1, 10]),
            (f"{column} IS NULL", 2, [None, None]),
        ):
            assert len(table.log().snapshot.files(where)) == files, where
            assert read_table(table.log(), where=where, columns=["id"]).to_table()["id"].to_pylist() == found, where


@pytest.mark.parametrize("spelled", ["1e-45", "1.4E-45"], ids=["DuckDB", "Spark"])
def test_the_least_floats_are_spelled_with_few_digits(spelled: str) -> None:
    """Their shortest texts are far from them, as doubles are compared."""
    schema = StructType((StructField("f", PrimitiveType("float")),))
    least = 2.0**-149
    for sign in ("", "-"):
        number = sign + spelled
        file = f'{{"numRecords":1,"nullCount":{{"f":0}},"minValues":{{"f":{number}}},"maxValues":{{"f":{number}}}}}'
        for where, keep in ((f"f = {sign}{least!r}D", True), (f"f <= {sign}{least!r}D", True), ("f = 1e-40D", False)):
            predicate = Predicate.parse(where, schema, [])
            assert skipping_mask(predicate.data_part, pa.array([file])).to_pylist() == [keep], (where, number)
        below = skipping_mask(Predicate.parse("f < 0D", schema, []).data_part, pa.array([file])).to_pylist()
        assert below == [sign == "-"]
