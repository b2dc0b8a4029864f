"""Generated columns: columns computed from other columns (Delta protocol, "Generated Columns")."""

from __future__ import annotations

from airflow_delta.contract.delta_names import GENERATION_EXPRESSION
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.schema.types import StructField, StructType, parse_schema


def generated_columns(schema: StructType) -> dict[str, str]:
    """Return the generation expressions (Spark SQL) by column name."""
    return {f.name: str(f.metadata[GENERATION_EXPRESSION]) for f in schema.fields if GENERATION_EXPRESSION in f.metadata}


def check_generated_columns(metadata: Metadata) -> None:
    """Check the generation expressions of a table; see :mod:`airflow_delta.log.expressions.generated_expressions`."""
    schema = parse_schema(metadata.schema_string)
    if any(GENERATION_EXPRESSION in f.metadata for f in schema.fields):
        from airflow_delta.log.expressions import generated_expressions

        generated_expressions.check_generation_expressions(schema, generated_columns(schema))


def without_generation(field: StructField) -> StructField:
    """Return the field as an ordinary column."""
    return field.without_metadata(GENERATION_EXPRESSION)
