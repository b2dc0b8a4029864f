"""The schema that a stage writes, with or without Spark, and its partition columns."""

from __future__ import annotations

from airflow_delta.staging.contract import Json
from airflow_delta.staging.mapping import mapped_schema, with_known_columns
from airflow_delta.staging.report import StageRequest
from airflow_delta.staging.schema import find_field, parse_struct, written_schema
from airflow_delta.staging.write import WriteArguments


def target_schema(data: Json, request: StageRequest) -> Json:
    """Return the schema to write for rows, with ids and physical names where columns are mapped.

    :param data: schema of the rows, in Spark's JSON form.
    :raises SchemaMismatchException: if the rows do not fit the table's schema, or only with a cast that could lose a value.
    """
    replaced = WriteArguments.of(request).replaced_schema
    target = written_schema(
        data,
        None if request.schema_string is None else parse_struct(request.schema_string),
        merge=request.merge_schema,
        table_name=request.table,
        version=request.read_version,
        partition_columns=request.partition_columns,
        rules=request.rules,
        exact=True,
    )
    if replaced is not None:
        target = with_known_columns(target, parse_struct(replaced))
    return mapped_schema(target, request.rules, request.transaction_id)


def partition_fields(target: Json, request: StageRequest) -> list[Json]:
    """Return the partition columns of the schema to write."""
    fields = [find_field(target, name) for name in request.partition_columns]
    return [field for field in fields if field is not None]


def partition_names(target: Json, request: StageRequest) -> list[str]:
    """Return the logical names of the partition columns as the schema to write spells them."""
    return [field["name"] for field in partition_fields(target, request)]
