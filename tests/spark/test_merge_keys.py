"""What a MERGE, or an overwrite with ``replace_on``, says of the rows that it looked for: the key values of its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_insert,
)
from airflow_delta.contract.payloads import KeyRead, StagedWrite
from airflow_delta.contract.staging_directory import KEYS_NAME
from airflow_delta.spark import key_values
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.stage import key_reads
from airflow_delta.table.stage.load import load_key_rows
from support.actions import column
from support.feature_tables import create
from support.table import Table

pytestmark = pytest.mark.spark

DELETE = [when_matched_delete()]
PADDED = {**column("padded", "string"), "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}}
LIMITED = {**column("limited", "string"), "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}}
COLUMNS = [
    column("id", "long"),
    column("small", "short"),
    column("name", "string"),
    column("day", "date"),
    column("amount", "decimal(10,2)"),
    column("x", "double"),
    column("ts", "timestamp"),
    column("raw", "binary"),
    column("part", "string"),
    PADDED,
    LIMITED,
]


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    table = Table(tmp_path / "ta ble", spark)
    create(table, *COLUMNS, partition_by=("part",))
    return table


def merged(table: Table, source: str, on: str, clauses: Any = DELETE) -> tuple[Any, StagedWrite]:
    handle = table.begin()
    return handle, table.operate(handle, plan_merge, source=source, condition=on, clauses=clauses)


def merge_keys(table: Table, source: str, on: str, clauses: Any = DELETE) -> KeyRead | None:
    reads = merged(table, source, on, clauses)[1].reads
    assert all(key.predicate in reads.predicates for key in reads.keys)
    return next(iter(reads.keys), None)


KEYS = {
    "one column": (
        "SELECT * FROM VALUES (3L), (1L), (3L) AS s(id)",
        "target.id = source.id",
        {"columns": ("id",), "low": (1,), "high": (3,), "nulls": (False,), "rows": {(1,), (3,)}, "null_safe": (False,)},
    ),
    "several columns, one of them null-safe": (
        "SELECT * FROM VALUES (1L, 'a'), (2L, NULL), (NULL, 'a') AS s(k, v)",
        "target.id = source.k AND target.name <=> source.v AND target.x > 5",
        {
            "columns": ("id", "name"),
            "low": (1, "a"),
            "high": (2, "a"),
            "nulls": (True, True),
            "rows": {(1, "a"), (2, None), (None, "a")},
            "null_safe": (False, True),
        },
    ),
    "integers of other sizes": (
        "SELECT 7 AS id, 3000000000L AS small",
        "target.id = source.id AND source.small = target.small",
        {"columns": ("id", "small"), "low": (7, 3000000000), "rows": {(7, 3000000000)}},
    ),
    "a partition column": (
        "SELECT 'a' AS part, 1L AS id",
        "(target.part = source.part) AND target.id = source.id",
        {"columns": ("part", "id"), "rows": {("a", 1)}},
    ),
    "dates, decimals and text": (
        "SELECT DATE'0001-01-01' AS day, CAST(-1.5 AS DECIMAL(10,2)) AS amount, 'ünï\n\u2028🦔\\\\\"' AS name, 'abc' AS limited",
        " AND ".join(f"target.{name} = source.{name}" for name in ("day", "amount", "name", "limited")),
        {
            "columns": ("day", "amount", "name", "limited"),
            "rows": {("0001-01-01", "-1.50", 'ünï\n\u2028🦔\\"', "abc")},
            "high": ("0001-01-01", "-1.50", 'ünï\n\u2028🦔\\"', "abc"),
        },
    ),
    "only nulls": (
        "SELECT CAST(NULL AS BIGINT) AS id",
        "target.id = source.id",
        {"low": (None,), "high": (None,), "nulls": (True,), "rows": {(None,)}},
    ),
    "no rows": (
        "SELECT id FROM range(0)",
        "target.id = source.id",
        {"columns": ("id",), "low": (None,), "high": (None,), "nulls": (False,), "rows": set()},
    ),
    "a column compared twice": (
        "SELECT 1L AS a, 2L AS b",
        "target.id = source.a AND target.id <=> source.b",
        {"columns": ("id",), "rows": {(1,)}, "null_safe": (False,)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", KEYS)
def test_key_values_of_the_source(table, case):
    source, on, expected = KEYS[case]
    key = merge_keys(table, source, on)
    assert key is not None
    found = {name: getattr(key, name) for name in expected}
    if "rows" in expected:
        assert len(found["rows"]) == len(expected["rows"])
        found["rows"] = set(found["rows"])
    assert found == expected


LEFT_OUT = {
    "text and a number": ("SELECT '1' AS k", "target.id = source.k"),
    "a decimal of another scale": ("SELECT 1.5BD AS k", "target.amount = source.k"),
    "floating point": ("SELECT 1.5D AS k", "target.x = source.k"),
    "an instant": ("SELECT TIMESTAMP'2024-01-01 00:00:00' AS k", "target.ts = source.k"),
    "bytes": ("SELECT X'00' AS k", "target.raw = source.k"),
    "char": ("SELECT 'a' AS k", "target.padded = source.k"),
    "a collation": ("SELECT 'a' COLLATE UTF8_LCASE AS k", "target.name = source.k"),
    "text that is not UTF-8 between others": (
        "SELECT * FROM VALUES ('a'), (CAST(X'61FF' AS STRING)), ('b') AS s(k)",
        "target.name = source.k",
    ),
    "text that is not UTF-8": ("SELECT CAST(X'FF' AS STRING) AS k", "target.name = source.k"),
    "long text": ("SELECT repeat('a', 513) AS k", "target.name = source.k"),
    "dates that Python lacks": ("SELECT DATE'+10000-01-01' AS k", "target.day = source.k"),
    "a date before the first year": ("SELECT DATE'0000-12-31' AS k", "target.day = source.k"),
    "an expression": ("SELECT 1L AS k", "target.id + 1 = source.k"),
    "no equality": ("SELECT 1L AS k", "target.id = source.k OR target.id = 5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_has_no_key_values(table, case):
    """They say nothing alone; the other columns are still exact."""
    source, on = LEFT_OUT[case]
    if "OR" in on or "+ 1" in on:
        assert merge_keys(table, source, on) is None
        return
    key = merge_keys(table, f"SELECT *, 5L AS id FROM ({source})", f"{on} AND target.id = source.id")
    assert (key.columns, key.rows) == (("id",), ((5,),))


def test_no_column_is_left(table):
    assert merge_keys(table, "SELECT 1.5D AS k", "target.x = source.k") is None


def test_inserts_alone_have_looked_for_keys(table):
    key = merge_keys(table, "SELECT 1L AS id, 'a' AS part", "target.id = source.id", [when_not_matched_insert({"id": "1"})])
    assert (key.columns, key.rows) == (("id",), ((1,),))


def test_all_rows_were_read_where_those_without_a_match_matter(table):
    clauses = [*DELETE, when_not_matched_by_source_delete()]
    staged = merged(table, "SELECT 1L AS id", "target.id = source.id", clauses)[1]
    assert (staged.reads.predicates, staged.reads.keys) == (("true",), ())


def test_the_predicate_that_keys_make_narrower(table):
    key = merge_keys(table, "SELECT 1L AS id", "target.id = source.id AND target.part = 'a'")
    assert key.predicate == "`part` = 'a'"


@pytest.mark.parametrize("limit", [("MAX_ROWS", 2), ("MAX_CHARACTERS", 10)])
def test_of_too_many_rows_only_the_bounds(table, monkeypatch, limit):
    monkeypatch.setattr(key_values, *limit)
    key = merge_keys(table, "SELECT id FROM range(10, 20)", "target.id = source.id")
    assert (key.columns, key.low, key.high, key.rows, key.file) == (("id",), (10,), (19,), None, None)


def test_many_rows_are_in_a_file(table, monkeypatch):
    """It lives until the commit."""
    handle, staged = merged(
        table, "SELECT id, CONCAT('ü\n', id) AS name FROM range(2000)", "target.id = source.id AND target.name = source.name"
    )
    [key] = staged.reads.keys
    assert key.rows is None
    assert key.file.path == f"staged/{handle.transaction_id}/{staged.stage}/{staged.attempt}/{KEYS_NAME}"
    assert len(json.dumps(staged.to_dict())) < 2 * key_reads.INLINE_ROWS
    expected = [[i, f"ü\n{i}"] for i in range(2000)]
    assert sorted(load_key_rows(table.log(), handle, staged, key)) == expected
    kept = table.path / "staged" / KEYS_NAME
    kept.write_text("not of this attempt")
    table.publish(handle, staged)
    assert list(table.path.rglob(KEYS_NAME)) == [kept]


def replaced_keys(table: Table, rows: str, **options: Any) -> KeyRead | None:
    reads = table.stage(table.begin(), rows, mode="overwrite", **options).reads
    assert (reads.whole_table, reads.selected) == (True, bool(reads.keys))
    assert reads.predicates == tuple(key.predicate for key in reads.keys)
    return next(iter(reads.keys), None)


def test_rows_that_an_overwrite_replaces(table):
    """The values are those that are written: cast, and read back."""
    source = "SELECT CAST(id AS INT) AS id, 'a' AS part, CAST(id AS SMALLINT) AS small, DATE'2024-02-29' AS day FROM range(2)"
    key = replaced_keys(table, source, replace_using=["ID", "part", "day"])
    assert (key.predicate, key.columns, key.null_safe) == ("true", ("id", "part", "day"), (False, False, False))
    assert set(key.rows) == {(0, "a", "2024-02-29"), (1, "a", "2024-02-29")}
    assert (key.low, key.high, key.nulls) == ((0, "a", "2024-02-29"), (1, "a", "2024-02-29"), (False,) * 3)
    key = replaced_keys(table, source, replace_on="t.id <=> s.small AND t.day < s.day AND t.x = s.x")
    assert (key.columns, key.null_safe, set(key.rows)) == (("id",), (True,), {(0,), (1,)})
    assert replaced_keys(table, source, replace_on="t.id = s.id OR t.small = 1") is None
    assert replaced_keys(table, source, replace_on="t.x = s.x") is None


def test_replaced_rows_of_a_source_that_read_the_table(table):
    table.write("SELECT 1L AS id, 'a' AS part")
    for read, predicates, keys in ((True, (), 0), ("id > 5", ("`id` > 5", "true"), 1)):
        reads = table.stage(
            table.begin(), "SELECT 1L AS id, 'b' AS part", mode="overwrite", replace_using=["id"], read=read
        ).reads
        assert (reads.whole_table, reads.predicates, len(reads.keys), reads.selected) == (True, predicates, keys, keys == 1)


def test_replaced_rows_in_partitions_whose_names_look_hidden(tmp_path, spark):
    table = Table(tmp_path / "table", spark)
    table.write("SELECT 1 AS id, 'a' AS `.p`, 'old' AS v", begin={"partition_by": [".p"]})
    table.write("SELECT 1 AS id, 'a' AS `.p`, 'new' AS v", mode="overwrite", replace_using=["id", ".p"])
    assert table.read(table.begin()) == [(1, "a", "new")]


def test_keys_of_a_merge_into_a_table_with_rows(table):
    table.write("SELECT id, 'a' AS part FROM range(10)")
    handle, staged = merged(
        table, "SELECT * FROM VALUES (5L), (50L) AS s(id)", "target.id = source.id", [when_matched_update({"x": "1"})]
    )
    [key] = staged.reads.keys
    assert (set(key.rows), len(staged.reads.files), staged.reads.marked) == ({(5,), (50,)}, 1, ())
    assert table.publish(handle, staged).num_removed_files == 1
