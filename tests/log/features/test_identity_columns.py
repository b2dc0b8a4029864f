"""Identity columns: their state in the schema, and what they may not be."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.features.identity_columns import (
    IdentityColumn,
    check_identity_columns,
    identity_columns,
    with_high_water_marks,
    without_identity,
)
from airflow_delta.log.schema.types import parse_schema
from support.actions import column, metadata


def identity(name: str = "i", kind: Any = "long", **keys: Any) -> dict[str, Any]:
    given = {"start": 1, "step": 1, "allowExplicitInsert": False, **keys}
    keys = {f"delta.identity.{key}": value for key, value in given.items() if value is not None}
    return column(name, kind, **keys)


PLAIN = column("a")


def test_state_is_read_from_the_schema():
    schema = parse_schema(
        metadata(PLAIN, identity(), identity("j", start=10, step=-2, highWaterMark=4, allowExplicitInsert=True)).schema_string
    )
    assert identity_columns(schema) == [IdentityColumn("i", 1, 1, None, False), IdentityColumn("j", 10, -2, 4, True)]
    assert [c.next_value for c in identity_columns(schema)] == [1, 2]


@pytest.mark.parametrize(
    ("step", "mark", "beyond", "within"),
    [(1, None, [10, 11], [9]), (-2, None, [10, 8], [11]), (3, 13, [14, 16], [13, 10]), (-2, 4, [3, 2], [4, 6])],
)
def test_beyond_the_high_water_mark_follows_the_step(step, mark, beyond, within):
    column = IdentityColumn("i", 10, step, mark, False)
    assert all(column.is_beyond(value) for value in beyond)
    assert not any(column.is_beyond(value) for value in within)


def test_high_water_marks_are_set_by_name_of_any_case():
    table = metadata(PLAIN, identity(), identity("j", highWaterMark=7))
    new = with_high_water_marks(table, {"I": 5, "j": 7})
    assert [c.high_water_mark for c in identity_columns(parse_schema(new.schema_string))] == [5, 7]
    assert parse_schema(new.schema_string).fields[0] == parse_schema(table.schema_string).fields[0]
    assert with_high_water_marks(new, {"i": 5}) is new


@pytest.mark.parametrize(("marks", "said"), [({"a": 1}, "'a' is not an identity column"), ({"i": 2**63}, "run out of 64-bit")])
def test_marks_that_are_refused(marks, said):
    with pytest.raises(DeltaAnalysisException, match=said):
        with_high_water_marks(metadata(PLAIN, identity()), marks)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (metadata(identity(kind="integer")), "DELTA_IDENTITY_COLUMNS_UNSUPPORTED_DATA_TYPE"),
        (metadata(identity(step=0)), "DELTA_IDENTITY_COLUMNS_ILLEGAL_STEP"),
        (metadata(identity(), PLAIN, partition_by=["i"]), "DELTA_IDENTITY_COLUMNS_PARTITION_NOT_SUPPORTED"),
        (metadata(identity(start=None)), "DELTA_IDENTITY_COLUMN_INCONSISTENT_METADATA"),
        (metadata(identity(allowExplicitInsert="yes")), "DELTA_IDENTITY_COLUMN_INCONSISTENT_METADATA"),
        (metadata(identity(step="1")), "not a 64-bit integer"),
        (metadata(identity(highWaterMark=2**64)), "not a 64-bit integer"),
        (metadata({**PLAIN, "type": {"type": "struct", "fields": [identity("x")]}}), "column a.x is nested"),
    ],
)
def test_what_an_identity_column_may_not_be(bad, said):
    with pytest.raises(DeltaAnalysisException, match=said):
        check_identity_columns(bad)


def test_an_expression_and_an_identity_do_not_go_together():
    both = identity()
    both["metadata"]["delta.generationExpression"] = "a + 1"
    with pytest.raises(DeltaAnalysisException, match="DELTA_IDENTITY_COLUMNS_WITH_GENERATED_EXPRESSION"):
        check_identity_columns(metadata(PLAIN, both))


def test_good_ones_pass_and_can_be_made_ordinary():
    given = identity()
    given["metadata"]["comment"] = "kept"
    table = metadata(PLAIN, given)
    check_identity_columns(table)
    plain, field = parse_schema(table.schema_string).fields
    assert without_identity(field).metadata == {"comment": "kept"}
    assert without_identity(plain) is plain
