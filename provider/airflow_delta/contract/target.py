"""The schema that a stage writes, with or without Spark, its partition columns, and columns with values from the table."""

from __future__ import annotations

from airflow_delta.contract.mapping import mapped_schema, with_known_columns
from airflow_delta.contract.operations import WriteArguments
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import fields_by_name, find_field, written_schema
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.contract.table_rules import IdentityRule, TableRules
from airflow_delta.exceptions import IdentityInsertException


def target_schema(data: Json, request: StageRequest) -> Json:
    """Return the schema to write for rows, with ids and physical names where columns are mapped.

    :param data: schema of the rows, in Spark's JSON form.
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


def absent_identities(data: Json, request: StageRequest) -> tuple[IdentityRule, ...]:
    """Return the identity columns that get their values from the table.

    :param data: schema of the DataFrame.
    :raises IdentityInsertException: if the DataFrame has values for a column that is GENERATED ALWAYS.
    """
    absent, given = [], fields_by_name(data)
    for identity in request.rules.identities:
        if identity.column.lower() not in given:
            absent.append(identity)
        elif not identity.explicit:
            raise request.error(
                IdentityInsertException,
                f"Column {identity.column} of table {request.table} is GENERATED ALWAYS AS IDENTITY: only the table assigns its "
                "values. Drop it from the DataFrame.",
            )
    return tuple(absent)


def computed_names(data: Json, rules: TableRules) -> set[str]:
    """Return the generated and identity columns that this write computes, in lower case."""
    names = {name.lower() for name in (*rules.generated, *(identity.column for identity in rules.identities))}
    return names - fields_by_name(data).keys()
