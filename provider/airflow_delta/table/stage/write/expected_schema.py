"""Which schema the rows of a strict write must have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_delta.contract.choices import SCHEMA_POLICIES, STRICT
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.features.constraints import replace_char_varchar
from airflow_delta.log.schema.types import to_json
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.definition.columns_sql import schema_of_columns


def expected_schema_of(
    table: TableDefinition, policy: str, given: str | Mapping[str, Any] | None, *, changes: bool
) -> str | None:
    """Return the schema that the rows must have, in Spark's JSON form; ``None`` if the write is not strict.

    No rows have a type with a length: ``char(n)`` and ``varchar(n)`` are strings.

    :param table: that is written.
    :param given: columns as in SQL, or Spark's JSON form of a schema; default: that of the table.
    :param changes: the write may change the table's schema, which then says nothing about the rows.
    :raises DeltaIllegalArgumentException: if there is no schema to expect, or the write is not strict and one is given.
    :raises DeltaAnalysisException: if the schema does not parse.
    """
    if policy not in SCHEMA_POLICIES:
        raise table.error(
            DeltaIllegalArgumentException,
            f"schema_policy is {policy!r}; it is one of {', '.join(map(repr, SCHEMA_POLICIES))} (table {table.table})",
        )
    if policy != STRICT:
        if given is not None:
            raise table.error(
                DeltaIllegalArgumentException, f"expected_schema goes with schema_policy='strict' (table {table.table})"
            )
        return None
    if given is not None:
        schema = schema_of_columns(json.dumps(given) if isinstance(given, Mapping) else given)
        return to_json(replace_char_varchar(TableDefinition.of_rows(schema).schema))
    if changes:
        raise table.error(
            DeltaIllegalArgumentException,
            "schema_policy='strict' without expected_schema holds the rows to the schema of table "
            f"{table.table}, which merge_schema, overwrite_schema and create would change. Give expected_schema, or leave them "
            "out.",
        )
    if table.schema_string is None:
        raise table.error(
            DeltaIllegalArgumentException,
            f"schema_policy='strict' has nothing to compare the rows with: table {table.table} does not exist yet, and the "
            "start task was given no schema. Give it one (schema=), or give the stage expected_schema.",
        )
    return table.schema_string
