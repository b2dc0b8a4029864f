"""Types: their JSON and Arrow forms, and which types may be written into columns of another type."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.log.features.schema_merge import merge_schema, widens
from airflow_delta.log.features.type_widening import stored_otherwise
from airflow_delta.log.schema.types import (
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    arrow_type,
    nullable_schema,
    parse_type,
)

FLOAT, SHORT, BYTE, VOID = (PrimitiveType(name) for name in ("float", "short", "byte", "void"))


def struct(**types: DataType) -> StructType:
    return StructType(tuple(StructField(name, kind) for name, kind in types.items()))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("decimal", DecimalType(10, 0)),
        ("decimal(7,3)", DecimalType(7, 3)),
        ({"type": "array", "elementType": "long", "containsNull": False}, ArrayType(LONG, False)),
        ({"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True}, MapType(STRING, DATE, True)),
    ],
)
def test_json_of_a_type(value: Any, kind: DataType) -> None:
    assert parse_type(value) == kind


@pytest.mark.parametrize("value", [None, 5, [], {}, {"type": "udt"}, {"type": "array"}, {"type": "struct", "fields": [1]}])
def test_what_is_no_type(value: Any) -> None:
    with pytest.raises(DeltaAnalysisException, match="Not the JSON form of a type"):
        parse_type(value)


def test_a_type_without_an_arrow_form() -> None:
    with pytest.raises(DeltaAnalysisException, match="interval day to second has no Arrow equivalent"):
        arrow_type(PrimitiveType("interval day to second"))


def test_everything_inside_becomes_nullable() -> None:
    given = StructType(
        (
            StructField("l", ArrayType(StructType((StructField("x", LONG, nullable=False),)), False), nullable=False),
            StructField("m", MapType(STRING, LONG, False), nullable=False),
        )
    )
    nullable = StructType(
        (
            StructField("l", ArrayType(StructType((StructField("x", LONG),)), True)),
            StructField("m", MapType(STRING, LONG, True)),
        )
    )
    assert nullable_schema(given) == nullable


# Delta writes what Spark casts without loss.
@pytest.mark.parametrize(
    ("data", "table", "fits"),
    [
        (VOID, STRING, True),
        (BYTE, LONG, True),
        (LONG, INTEGER, False),
        (FLOAT, DOUBLE, True),
        (DOUBLE, FLOAT, False),
        (INTEGER, DecimalType(10, 0), True),
        (INTEGER, DecimalType(10, 1), False),
        (DecimalType(5, 2), DecimalType(7, 3), True),
        (DecimalType(5, 2), DecimalType(5, 3), False),
        (DecimalType(5, 2), DOUBLE, False),
        (DATE, TIMESTAMP, True),
        (TIMESTAMP, STRING, False),
        (LONG, DOUBLE, False),
    ],
)
def test_which_values_fit(data: DataType, table: DataType, fits: bool) -> None:
    assert widens(data, table) is fits


@pytest.mark.parametrize(
    ("table", "data", "problem"),
    [
        (struct(l=ArrayType(INTEGER)), struct(l=ArrayType(LONG)), "column l.element: expected int, got bigint"),
        (struct(m=MapType(STRING, INTEGER)), struct(m=MapType(STRING, LONG)), "column m.value: expected int, got bigint"),
        (struct(m=MapType(INTEGER, STRING)), struct(m=MapType(LONG, STRING)), "column m.key: expected int, got bigint"),
        (struct(l=ArrayType(INTEGER)), struct(l=INTEGER), "column l: expected array<int>, got int"),
        (struct(a=INTEGER), struct(a=INTEGER, b=VOID), "column b: new, but of type void"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(table: StructType, data: StructType, problem: str) -> None:
    with pytest.raises(SchemaMismatchException) as caught:
        merge_schema(table, data, merge=True)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("table", "files", "widening", "found"),
    [
        (STRING, INTEGER, True, ["c"]),
        (LONG, INTEGER, False, []),
        (DOUBLE, FLOAT, False, []),
        (DOUBLE, INTEGER, False, ["c"]),
        (DOUBLE, INTEGER, True, []),
        (INTEGER, LONG, False, ["c"]),
        (DecimalType(7, 3), DecimalType(5, 2), False, ["c"]),
        (DecimalType(7, 3), DecimalType(5, 2), True, []),
        (TIMESTAMP, DATE, True, ["c"]),
        (ArrayType(LONG), ArrayType(STRING), False, ["c.element"]),
        (MapType(STRING, struct(x=STRING)), MapType(STRING, struct(X=LONG)), False, ["c.value.X"]),
        (struct(x=STRING), STRING, False, []),
    ],
)
def test_types_in_files_that_readers_do_not_take_for_the_tables(table, files, widening, found) -> None:
    """Those of another kind are refused by the merge of the schemas."""
    assert [path for path, _, _ in stored_otherwise(struct(c=table), struct(c=files), widening=widening)] == found


def test_lists_and_maps_merge_inside() -> None:
    table = struct(l=ArrayType(struct(a=INTEGER)), m=MapType(STRING, struct(a=INTEGER)))
    data = struct(l=ArrayType(struct(a=INTEGER, b=LONG)), m=MapType(STRING, struct(b=LONG)))
    wide = struct(a=INTEGER, b=LONG)
    assert merge_schema(table, data, merge=True) == struct(l=ArrayType(wide), m=MapType(STRING, wide))


def test_a_column_takes_a_wider_type_where_widening_is_on() -> None:
    table = struct(a=INTEGER, b=INTEGER, l=ArrayType(SHORT))
    data = struct(a=LONG, b=SHORT, l=ArrayType(INTEGER))
    assert merge_schema(table, data, merge=True, widen=True) == struct(a=LONG, b=INTEGER, l=ArrayType(INTEGER))


def test_columns_of_a_schema() -> None:
    schema = struct(a=INTEGER, b=LONG)
    assert (len(schema), [field.name for field in schema], str(schema)) == (2, ["a", "b"], "struct<a:int,b:bigint>")
