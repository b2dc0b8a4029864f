"""Key values that a report claims: they must be exact values of columns of the table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.contract.char_lengths import char_length
from airflow_delta.contract.key_values import KeyValues, is_key_type, problem_with, same_exact_type
from airflow_delta.contract.payloads import DeclaredReads, KeyRead
from airflow_delta.contract.request import StageReport
from airflow_delta.exceptions import StagingException
from support.actions import column

COLLATED = {**column("collated", "string"), "metadata": {"__COLLATIONS": {"collated": "spark.UTF8_LCASE"}}}
PADDED = {**column("padded", "string"), "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}}
TABLE = {
    "type": "struct",
    "fields": [
        column("id", "long"),
        column("small", "byte"),
        column("s", "string"),
        column("d", "date"),
        column("n", "decimal(4,2)"),
        column("x", "double"),
        column("items", {"type": "array", "elementType": "long", "containsNull": True}),
        COLLATED,
        PADDED,
    ],
}


def keys(name: str, *values: Any, **fields: Any) -> KeyValues:
    """Return the key values of one column, from their JSON."""
    rows = [[value] for value in values]
    given = {"columns": [name], "nullSafe": [False], "low": [None], "high": [None], "nulls": [False], "rows": rows, **fields}
    return KeyValues.from_dict(json.loads(json.dumps(given)))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("id", [0, -(1 << 63), (1 << 63) - 1, None]),
        ("small", [3_000_000_000]),  # of a source with longer integers
        ("s", ["", "a\n", "\ufffd", None]),
        ("d", ["0001-01-01", "9999-12-31", None]),
        ("n", ["0.01", "-99.99", "0", None]),
        ("id", []),
    ],
)
def test_values_that_fit(name: str, values: list[Any]) -> None:
    assert problem_with(keys(name, *values), TABLE) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (keys("id", True), "True is not a value of id"),
        (keys("id", 1.0), "1.0 is not"),
        (keys("id", "1"), "'1' is not"),
        (keys("id", 1 << 63), "is not a value of id"),
        (keys("id", low=["a"]), "'a' is not a value of id"),
        (keys("id", high=[False]), "False is not a value of id"),
        (keys("s", 1), "1 is not a value of s"),
        (keys("s", "\ud800"), "is not a value of s"),
        (keys("d", "2024-1-1"), "is not a value of d"),
        (keys("d", "2023-02-29"), "is not a value of d"),
        (keys("d", "0000-01-01"), "is not a value of d"),
        (keys("d", 5), "is not a value of d"),
        (keys("n", "1.234"), "is not a value of n"),
        (keys("n", "100"), "is not a value of n"),
        (keys("n", "1E1"), "is not a value of n"),
        (keys("n", "NaN"), "is not a value of n"),
        (keys("n", 1), "is not a value of n"),
        (keys("x", 1.0), "x is double, which is not exact"),
        (keys("items"), "items is array<bigint>, which is not exact"),
        (keys("collated"), "not exact"),
        (keys("padded"), "not exact"),
        (keys("nope"), "nope is not a column"),
        (keys("id", columns=[], nullSafe=[], low=[], high=[], nulls=[], rows=[]), "the columns none"),
        (keys("id", columns=["id", "ID"], nullSafe=[True] * 2, low=[1] * 2, high=[1] * 2, nulls=[True] * 2), "id, ID"),
        (keys("id", low=[]), "not say the same"),
        (keys("id", nulls=[True, True]), "not say the same"),
        (keys("id", rows=[[1, 2]]), "not a value for each"),
        (keys("id", rows=["a"]), "not a value for each"),
    ],
)
def test_values_that_do_not(given: KeyValues, message: str) -> None:
    assert message in (problem_with(given, TABLE) or "")


def test_types_that_compare_alike() -> None:
    by_name = {field["name"]: field for field in TABLE["fields"]}
    assert same_exact_type(by_name["id"], by_name["small"])
    assert same_exact_type(by_name["n"], column("other", "decimal(4,2)"))
    for one, other in (
        ("id", column("k", "string")),
        ("n", column("k", "decimal(5,2)")),
        ("s", COLLATED),
        ("x", column("k", "double")),
    ):
        assert not same_exact_type(by_name[one], other)
    assert not is_key_type("decimal")
    for declared, plain in (("char(3)", False), (" CHAR(3)", False), ("varchar(3)", True)):
        field = {**column("s", "string"), "metadata": {"__CHAR_VARCHAR_TYPE_STRING": declared}}
        assert (same_exact_type(field, field), char_length(field) is None) == (plain, plain)


def test_json_forms() -> None:
    report = StageReport(transaction_id="t", stage="s", attempt="1", keys=keys("id", 1, None))
    assert StageReport.from_dict(json.loads(json.dumps(report.to_dict()))).keys == KeyValues(
        columns=("id",), null_safe=(False,), low=(None,), high=(None,), nulls=(False,), rows=([1], [None])
    )
    assert StageReport.from_dict({"contract": 1, "transactionId": "t", "stage": "s", "attempt": "1"}).keys is None
    with pytest.raises(StagingException, match="nulls"):
        StageReport.from_dict({**report.to_dict(), "keys": {**keys("id").to_dict(), "nulls": [1]}})
    read = KeyRead(predicate="true", columns=("id",), null_safe=(False,), low=(1,), high=(2,), nulls=(False,), rows=((1,), (2,)))
    reads = DeclaredReads(predicates=("true",), keys=(read,))
    assert DeclaredReads.from_dict(json.loads(json.dumps(reads.to_dict()))) == reads
