"""What counts as a drift of the schema, and what does not."""

from __future__ import annotations

import pytest

from airflow_delta.contract.drift import SchemaDifference, check_schema, differences
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.contract.table_rules import IdentityRule, TableRules
from airflow_delta.exceptions import SchemaDriftException, SchemaMismatchException
from airflow_delta.table.definition.columns_sql import schema_of_columns

EXPECTED = "id BIGINT NOT NULL, amount DECIMAL(10,2), tags ARRAY<STRUCT<k: STRING, n: INT>>, about STRUCT<at: TIMESTAMP>"


def struct(columns: str):
    return parse_struct(schema_of_columns(columns))


SAME = [
    EXPECTED,
    "about STRUCT<at: TIMESTAMP>, tags ARRAY<STRUCT<n: INT, k: STRING>>, amount DECIMAL(10,2), id BIGINT",
    "id BIGINT, amount DECIMAL(10,2) NOT NULL, tags ARRAY<STRUCT<k: STRING NOT NULL, n: INT>>, about STRUCT<at: TIMESTAMP>",
]
DRIFTED = [
    (EXPECTED.replace("id BIGINT NOT NULL", "id INT"), ["column id: expected bigint, got int"]),
    (EXPECTED.replace("(10,2)", "(12,2)"), ["column amount: expected decimal(10,2), got decimal(12,2)"]),
    (EXPECTED.replace("n: INT", "n: BIGINT"), ["column tags[element].n: expected int, got bigint"]),
    (EXPECTED.replace("at: TIMESTAMP", "at: TIMESTAMP_NTZ"), ["column about.at: expected timestamp, got timestamp_ntz"]),
    (EXPECTED.replace("amount DECIMAL(10,2), ", ""), ["missing column amount (decimal(10,2))"]),
    (EXPECTED.replace("k: STRING, ", ""), ["missing column tags[element].k (string)"]),
    (EXPECTED + ", note STRING", ["new column note (string)"]),
    (EXPECTED.replace("id BIGINT NOT NULL", "Id BIGINT"), ["column id: expected id, got Id"]),
    (
        EXPECTED.replace("STRUCT<at: TIMESTAMP>", "STRING"),
        ["column about: expected struct<at:timestamp>, got string"],
    ),
    (
        "amount STRING, tags ARRAY<STRUCT<k: STRING, n: INT, more: DATE>>, about STRUCT<at: TIMESTAMP>, new MAP<STRING, INT>",
        [
            "missing column id (bigint)",
            "column amount: expected decimal(10,2), got string",
            "new column tags[element].more (date)",
            "new column new (map<string,int>)",
        ],
    ),
]


@pytest.mark.parametrize("data", SAME)
def test_the_same_schema(data):
    check_schema(struct(data), struct(EXPECTED), table="/t", version=3)


@pytest.mark.parametrize(("data", "found"), DRIFTED)
def test_every_difference_is_named(data, found):
    with pytest.raises(SchemaDriftException) as raised:
        check_schema(struct(data), struct(EXPECTED), table="/t", version=3)
    assert [str(SchemaDifference.from_dict(each)) for each in raised.value.differences] == found
    assert "; ".join(found) in raised.value.message
    assert (raised.value.table, raised.value.version) == ("/t", 3)
    assert isinstance(raised.value, SchemaMismatchException), "as final as any other"


@pytest.mark.parametrize(
    ("data", "version", "adds_columns", "advised"),
    [
        ("id BIGINT, note STRING", 3, False, True),
        ("id BIGINT, note STRING", 3, True, False),  # merge_schema is set
        ("id BIGINT, note STRING", -1, False, False),  # the rows make the table
        ("id INT", 3, False, False),
    ],
)
def test_a_new_column_needs_merge_schema_too(data, version, adds_columns, advised):
    with pytest.raises(SchemaDriftException) as raised:
        check_schema(struct(data), struct("id BIGINT"), table="/t", version=version, adds_columns=adds_columns)
    assert "change expected_schema" in raised.value.message
    assert ("with merge_schema=True for a column that the table does not have" in raised.value.message) is advised


def test_keys_and_values_of_maps():
    found = differences(struct("m MAP<INT, ARRAY<INT>>"), struct("m MAP<STRING, ARRAY<BIGINT>>"))
    assert [each.column for each in found] == ["m[key]", "m[value][element]"]


def test_what_the_table_computes_may_be_missing():
    rules = TableRules(
        generated={"Day": "CAST(at AS DATE)"}, defaults={"note": "'x'"}, identities=(IdentityRule(column="id", first=1, step=1),)
    )
    expected = struct("id BIGINT, at TIMESTAMP, day DATE, note STRING")
    check_schema(struct("at TIMESTAMP"), expected, table="/t", version=0, rules=rules)
    with pytest.raises(SchemaDriftException, match="column note: expected string, got int"):
        check_schema(struct("at TIMESTAMP, note INT"), expected, table="/t", version=0, rules=rules)
    with pytest.raises(SchemaDriftException, match="missing column at"):
        check_schema(struct("day DATE"), expected, table="/t", version=0, rules=rules)
