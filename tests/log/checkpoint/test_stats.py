"""Statistics as typed columns: the fast parser for uniform texts gives what the general one gives, or leaves them to it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint import stats as checkpoint_stats
from airflow_delta.log.checkpoint.stats import parse_stats
from airflow_delta.log.checkpoint.uniform_stats import NotUniform, parse_uniform
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from support import readers
from support.actions import add
from support.table import Table
from support.tables import create_table, log_path

BOUNDS = pa.struct(
    [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("in", pa.struct([("x", pa.float64())]))]
)
TYPE = pa.struct(
    [
        ("numRecords", pa.int64()),
        ("minValues", BOUNDS),
        ("maxValues", BOUNDS),
        ("nullCount", pa.struct([("id", pa.int64()), ("name", pa.int64()), ("in", pa.struct([("x", pa.int64())]))])),
        ("tightBounds", pa.bool_()),
    ]
)


def text(n: int = 1, **changes: object) -> str:
    values = {"id": n, "name": f"name {n}", "at": f"2024-01-0{n % 9 + 1}T01:02:03.004Z", "in": {"x": n / 4}, **changes}
    document = {"numRecords": n, "minValues": values, "maxValues": values, "nullCount": {"id": 0, "name": n, "in": {"x": 2}}}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def general(texts: list[str | None], wanted: pa.StructType = TYPE) -> list:
    return checkpoint_stats._parse_rows(pa.array(texts, pa.string()), wanted).to_pylist()


def uniform(texts: list[str], wanted: pa.StructType = TYPE) -> list:
    lexical = checkpoint_stats._lexical(wanted)
    parsed = parse_uniform("\n".join(texts).encode(), json.loads(texts[0]), lexical, len(texts))
    return checkpoint_stats._typed(parsed, wanted).to_pylist()


UNIFORM = {
    "plain": [text(n) for n in range(1, 6)],
    "one row": [text()],
    "strings with what CSV minds": [text(name="a b"), text(name=""), text(name="null"), text(name=";'#|")],
    "nulls": [text(name=None), text(id=None, name="x"), text(at=None)],
    "other letters": [text(name="é漢\U0001f600"), text(name="z")],
    "members that are not wanted": [text(n, more=1, other={"deep": "x"}) for n in (1, 2)],
    "numbers alone": ['{"numRecords":5,"minValues":{"id":1},"maxValues":{"id":-9223372036854775808}}'] * 3,
    "a member in front of an object": ['{"tightBounds":true,"minValues":{"in":{"x":1e300},"id":7},"numRecords":2}'] * 2,
    "nothing that is wanted": ['{"a":{"b":{"c":1}}}', '{"a":{"b":{"c":2}}}'],
}


@pytest.mark.parametrize("texts", UNIFORM.values(), ids=UNIFORM.keys())
def test_texts_of_one_shape(texts: list[str]) -> None:
    assert uniform(texts) == general(texts)
    assert parse_stats(pa.array(texts), TYPE).to_pylist() == general(texts)


MIXED = {
    "another order": [text(1), json.dumps(dict(reversed(json.loads(text(2)).items())))],
    "keys swapped": ['{"minValues":{"id":1,"b":2}}', '{"minValues":{"b":1,"id":2}}'],
    "another nesting": ['{"minValues":{"in":{"x":1},"id":2}}', '{"minValues":{"in":{"x":1,"id":2}}}'],
    "a member less": [text(1), '{"numRecords":2}'],
    "a member more": ['{"numRecords":2}', text(1)],
    "spaces": [text(1), json.dumps(json.loads(text(2)))],
    "spaces everywhere": [json.dumps(json.loads(text(n)), indent=None) for n in (1, 2)],
    "commas in a string": [text(name="a,b"), text(name="c")],
    "braces in a string": [text(name="a{b"), text(name="}")],
    "a string that starts with a colon": [text(name=":a"), text(name="b")],
    "colons only later": ['{"minValues":{"name":"a"}}', '{"minValues":{"name":"a:b"}}', '{"minValues":{"name":":"}}'],
    "escapes": [text(name='a"b'), text(name="a\\b"), text(name="a\nb")],
    "empty objects": ['{"numRecords":1,"minValues":{}}', '{"numRecords":2,"minValues":{}}'],
    "an empty document": ["{}", text(1)],
    "lists": ['{"numRecords":1,"minValues":{"id":1,"l":[1,2]}}'] * 2,
    "a value for an object": ['{"minValues":{"in":5}}', '{"minValues":{"in":6}}'],
    "an object for a value": ['{"minValues":{"id":{"a":1}}}'] * 2,
    "wrong types": ['{"minValues":{"id":"x"}}', '{"minValues":{"id":1}}'],
    "fractions for whole numbers": ['{"minValues":{"id":1.5}}', '{"minValues":{"id":1}}'],
    "no texts between": [None, text(1), None, text(2), None],
    "no documents": ["5", "[]", "", "{"],
    "cut off": [text(1), text(2)[:-3]],
}


@pytest.mark.parametrize("texts", MIXED.values(), ids=MIXED.keys())
def test_other_texts_are_read_all_the_same(texts: list[str | None]) -> None:
    assert parse_stats(pa.array(texts, pa.string()), TYPE).to_pylist() == general(texts)
    if None not in texts:
        with contextlib.suppress(NotUniform, pa.ArrowInvalid, json.JSONDecodeError):
            assert uniform(texts) == general(texts)  # type: ignore[arg-type]


NAMES = st.text(alphabet=st.sampled_from("ab ,:{}\"\\\n\t'é1-"), max_size=5)
BOUND = st.fixed_dictionaries({"name": st.none() | NAMES, "id": st.none() | st.integers(-5, 5)})
DOCUMENT = st.fixed_dictionaries({"numRecords": st.integers(0, 9), "minValues": BOUND}) | st.fixed_dictionaries(
    {"numRecords": st.integers(0, 9)}
)


@settings(max_examples=300, deadline=None)
@given(st.lists(DOCUMENT, min_size=1, max_size=4), st.booleans())
def test_any_texts(documents: list[dict], compact: bool) -> None:
    texts = [json.dumps(d, separators=(",", ":") if compact else None, ensure_ascii=False) for d in documents]
    assert parse_stats(pa.array(texts), TYPE).to_pylist() == general(texts)


def test_decimals_and_dates() -> None:
    wanted = pa.struct([("minValues", pa.struct([("d", pa.date32()), ("p", pa.decimal128(10, 2)), ("n", pa.timestamp("us"))]))])
    texts = [
        '{"minValues":{"d":"2024-02-29","p":1.50,"n":"2024-01-01T00:00:00.123"}}',
        '{"minValues":{"d":null,"p":-3,"n":null}}',
    ]
    first, second = parse_stats(pa.array(texts), wanted).to_pylist()
    assert first["minValues"] == {"d": dt.date(2024, 2, 29), "p": Decimal("1.50"), "n": dt.datetime(2024, 1, 1, 0, 0, 0, 123000)}
    assert second["minValues"] == {"d": None, "p": Decimal("-3.00"), "n": None}


@pytest.mark.parametrize("odd", ["date", "float", "none"])
def test_decimals_keep_their_digits_beside_any_other_value(odd: str) -> None:
    bounds = pa.struct([("d", pa.date32()), ("f", pa.float64()), ("p", pa.decimal128(38, 20)), ("n", pa.decimal128(5, 2))])
    wanted = pa.struct([("minValues", bounds), ("maxValues", bounds)])
    others = {"date": {"d": "+10213-08-15"}, "float": {"f": "Infinity"}, "none": {}}[odd]
    digits = ("0.12345678901234567801", "-123456789012345678.12345678901234567899", "123456789012345678")
    texts = [
        json.dumps({"minValues": {**others, "p": "@"}, "maxValues": {**others, "p": "@"}}).replace('"@"', number)
        for number in digits
    ]
    found = parse_stats(pa.array(texts), wanted).to_pylist()
    assert [row["minValues"]["p"] for row in found] == [Decimal(number) for number in digits]
    assert [row["maxValues"]["p"] for row in found] == [Decimal(number) for number in digits]


def test_decimals_with_too_many_digits_become_wider_bounds() -> None:
    bounds = pa.struct([("n", pa.decimal128(5, 2)), ("maxValues", pa.struct([("n", pa.decimal128(5, 2))]))])
    wanted = pa.struct([("minValues", bounds), ("maxValues", bounds)])
    given = '{"n":%s,"maxValues":{"n":%s}}'
    for number, low, high in (("1.005", "1.00", "1.01"), ("-1.005", "-1.01", "-1.00"), ("1e-9", "0.00", "0.01")):
        inner = given % (number, number)
        [row] = parse_stats(pa.array([f'{{"minValues":{inner},"maxValues":{inner}}}']), wanted).to_pylist()
        for member, bound in (("minValues", low), ("maxValues", high)):
            assert row[member] == {"n": Decimal(bound), "maxValues": {"n": Decimal(bound)}}, number


@pytest.mark.skipif(not readers.HAS_DUCKDB, reason="DuckDB has no extension for Delta tables")
@pytest.mark.parametrize("odd", ["a date beyond year 9999", "an infinite number"])
def test_other_readers_find_decimals_by_the_checkpoint(tmp_path: Path, odd: str) -> None:
    from deltalake import write_deltalake

    texts = ["0.12345678901234567801", "5.00000000000000000049", "-7.12345678901234567899"]
    begin = {"configuration": {"delta.checkpoint.writeStatsAsStruct": "true"}}
    table = Table(tmp_path / "t")
    for text in texts:
        rows = {"x": pa.array([Decimal(text)], pa.decimal128(38, 20)), "d": [dt.date(2024, 1, 1)], "f": [1.0]}
        table.write(pa.table(rows), begin=begin)
        begin = {}
    if odd == "an infinite number":  # as Delta Spark spells it
        file = table.log_file(2)
        file.write_text(file.read_text().replace('\\"f\\":1.0', '\\"f\\":\\"Infinity\\"'))
    else:
        beyond = pa.array([3_000_000], pa.int32()).cast(pa.date32())
        more = {"x": pa.array([Decimal(1)], pa.decimal128(38, 20)), "d": beyond, "f": [1.0]}
        write_deltalake(table.uri, pa.table(more), mode="append")
    for checksum in (table.path / "_delta_log").glob("*.crc"):
        checksum.unlink()
    table.log().checkpoint()
    for text in texts:
        query = f"SELECT count(*) FROM delta_scan(?) WHERE x = {text}::DECIMAL(38, 20)"
        assert readers._duckdb().execute(query, [table.uri]).fetchall() == [(1,)]


def test_typed_statistics_in_which_spark_wrote_timestamps_as_int96(table: Path) -> None:
    stats = '{"numRecords":3,"minValues":{"id":"2024-01-02T03:04:05.006Z"},"maxValues":{"id":"9999-12-31T23:59:59.999Z"}}'
    schema = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "timestamp", "nullable": True, "metadata": {}}]})
    create_table(table, add("a", stats=stats), add("b"), schema_string=schema)
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    file = log_path(table, f"{0:020d}.checkpoint.parquet")
    content = pq.read_table(file)
    adds = content.column("add").combine_chunks()
    fields = [field for field in adds.type if field.name != "stats"]
    without = pa.StructArray.from_arrays([adds.field(f.name) for f in fields], fields=fields, mask=adds.is_null())
    pq.write_table(
        content.set_column(content.schema.get_field_index("add"), "add", without), file, use_deprecated_int96_timestamps=True
    )
    assert pq.ParquetFile(file).schema.column(0) is not None
    for path in (table / "_delta_log").glob("*.crc"):
        path.unlink()
    for _ in range(2):  # as it is read, and in the checkpoint that is made from it
        found = {
            f["path"]: f["stats"] for f in DeltaLog.for_table(str(table)).snapshot.files(columns=["path", "stats"]).to_pylist()
        }
        assert found["b"] is None
        assert json.loads(found["a"])["minValues"]["id"] == "2024-01-02T03:04:05.006000Z"
        assert json.loads(found["a"])["maxValues"]["id"] == "9999-12-31T23:59:59.999000Z"  # nanoseconds have no such year
        for wanted, paths in {"id > '5000-01-01'": ["a", "b"], "id < '2024-01-02'": ["b"]}.items():
            assert DeltaLog.for_table(str(table)).snapshot.files(wanted)["path"].to_pylist() == paths
        write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
        assert pq.ParquetFile(file).schema_arrow.field("add").type.field("stats_parsed").type.field("minValues").type.field(
            "id"
        ).type == pa.timestamp("us", "UTC")
