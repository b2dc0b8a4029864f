"""Which expressions may generate a column. Delta Spark 4.4 was given the same ones, and accepts and refuses the same."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features.generated_columns import check_generated_columns, generated_columns, without_generation
from airflow_delta.log.schema.types import parse_schema
from support import actions
from support.actions import column

STRUCT = {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}]}
COLUMNS = [
    ("a", "integer"),
    ("b", "string"),
    ("t", "timestamp"),
    ("bytes", "binary"),
    ("s", STRUCT),
    ("l", {"type": "array", "elementType": STRUCT, "containsNull": True}),
]


def metadata(kind: str, expression: str, **others: str) -> Metadata:
    generated = [column(name, kind, **{"delta.generationExpression": text}) for name, text in {"g": expression, **others}.items()]
    return actions.metadata(*(column(name, data_type) for name, data_type in COLUMNS), *generated)


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("date", "CAST(t AS DATE)"),
        ("date", "to_date(t)"),
        ("date", "date(t)"),
        ("integer", "year(t)"),
        ("integer", "YEAR(t) * 100 + month(t)"),
        ("integer", "a + 1"),
        ("integer", "`A` + 1"),
        ("integer", "-a"),
        ("integer", "s.x"),
        ("integer", "size(l.x)"),
        ("integer", "1"),
        ("integer", "if(a > 1, a, 2)"),
        ("integer", "coalesce(a, 1)"),
        ("integer", "extract(YEAR FROM t)"),
        ("long", "xxhash64(a)"),
        ("long", "cast(a as bigint) * 2"),
        ("double", "a / 2"),
        ("decimal(10,2)", "cast(a as decimal(10, 2))"),
        ("boolean", "a IN (1, 2) AND NOT (b = 'x')"),
        ("string", "CASE WHEN a > 1 THEN 'x' ELSE 'yy' END"),
        ("string", "concat(b, 'x')"),
        ("string", "b || 'rand()'"),
        ("string", "left(b, 2)"),
        ("string", "substring(b, 1, 2)"),
        ("binary", "substring(bytes, 1, 2)"),
        ("binary", "lpad(bytes, 3, bytes)"),
        ("timestamp", "timestampadd(HOUR, 1, t)"),
        ("string", "date_format(t, 'yyyy-MM')"),
        ("timestamp", "date_trunc('HOUR', t)"),
    ],
)
def test_allowed(kind, expression):
    check_generated_columns(metadata(kind, expression))


@pytest.mark.parametrize(
    ("kind", "expression", "error_class"),
    [
        ("integer", "zz + 1", "DELTA_INVALID_GENERATED_COLUMN_REFERENCES"),
        ("integer", "s.y", "DELTA_INVALID_GENERATED_COLUMN_REFERENCES"),
        ("integer", "g + 1", "DELTA_INVALID_GENERATED_COLUMN_REFERENCES"),
        ("double", "rand()", "DELTA_NON_DETERMINISTIC_EXPRESSION_IN_GENERATED_COLUMN"),
        ("string", "UUID()", "DELTA_NON_DETERMINISTIC_EXPRESSION_IN_GENERATED_COLUMN"),
        ("timestamp", "current_timestamp()", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("date", "current_date", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("timestamp", "now()", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("long", "sum(a)", "DELTA_AGGREGATE_IN_GENERATED_COLUMN"),
        ("integer", "myudf(a)", "DELTA_UDF_IN_GENERATED_COLUMN"),
        ("integer", "other.upper(b)", "DELTA_UDF_IN_GENERATED_COLUMN"),
        ("integer", "row_number() over (order by a)", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("integer", "(select 1)", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("integer", "explode(array(a))", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("integer", "aggregate(array(a), 0, (x, y) -> x + y)", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("integer", "a +", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"),
        ("variant", "parse_json(b)", "DELTA_UNSUPPORTED_DATA_TYPE_IN_GENERATED_COLUMN"),
        ("string", "a + 1", "DELTA_GENERATED_COLUMNS_EXPR_TYPE_MISMATCH"),
        ("long", "a + 1", "DELTA_GENERATED_COLUMNS_EXPR_TYPE_MISMATCH"),
        ("string", "year(t)", "DELTA_GENERATED_COLUMNS_EXPR_TYPE_MISMATCH"),
        ("integer", "substring(b, 1, 2)", "DELTA_GENERATED_COLUMNS_EXPR_TYPE_MISMATCH"),
    ],
)
def test_refused(kind, expression, error_class):
    with pytest.raises(DeltaAnalysisException, match=error_class) as caught:
        check_generated_columns(metadata(kind, expression))
    assert "'g'" in str(caught.value)


def test_one_generated_column_may_not_refer_to_another():
    with pytest.raises(DeltaAnalysisException, match="DELTA_INVALID_GENERATED_COLUMN_REFERENCES"):
        check_generated_columns(metadata("integer", "a + 1", h="g + 1"))


def test_reading_and_removing():
    schema = parse_schema(metadata("integer", "a + 1").schema_string)
    assert generated_columns(schema) == {"g": "a + 1"}
    assert without_generation(schema.fields[-1]).metadata == {}
    assert without_generation(schema.fields[0]) is schema.fields[0]
