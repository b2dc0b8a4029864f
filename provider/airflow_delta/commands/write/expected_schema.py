"""Which schema the rows of a strict write must have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.staging.contract import TransactionHandle
from airflow_delta.staging.drift import SCHEMA_POLICIES, STRICT


def expected_schema_of(
    handle: TransactionHandle, policy: str, given: str | Mapping[str, Any] | None, *, changes: bool
) -> str | None:
    """Return the schema that the rows must have, in Spark's JSON form; ``None`` if the write is not strict.

    No rows have a type with a length: ``char(n)`` and ``varchar(n)`` are strings.

    :param handle: of the table that is written.
    :param given: columns as in SQL, or Spark's JSON form of a schema; default: that of the table.
    :param changes: the write may change the table's schema, which then says nothing about the rows.
    :raises DeltaIllegalArgumentException: if there is no schema to expect, or the write is not strict and one is given.
    :raises DeltaAnalysisException: if the schema does not parse.
    """
    if policy not in SCHEMA_POLICIES:
        raise DeltaIllegalArgumentException(
            f"schema_policy is {policy!r}; it is one of {', '.join(map(repr, SCHEMA_POLICIES))} (table {handle.table})",
            table=handle.table,
        )
    if policy != STRICT:
        if given is not None:
            raise DeltaIllegalArgumentException(
                f"expected_schema goes with schema_policy='strict' (table {handle.table})", table=handle.table
            )
        return None
    if given is not None:
        from airflow_delta.commands.definition.columns_sql import schema_of_columns
        from airflow_delta.log.features.constraints import replace_char_varchar
        from airflow_delta.log.schema.types import parse_schema, to_json

        schema = schema_of_columns(json.dumps(given) if isinstance(given, Mapping) else given)
        return to_json(replace_char_varchar(parse_schema(schema)))
    if changes:
        raise DeltaIllegalArgumentException(
            "schema_policy='strict' without expected_schema holds the rows to the schema of table "
            f"{handle.table}, which merge_schema, overwrite_schema and create would change. Give expected_schema, or leave them "
            "out.",
            table=handle.table,
        )
    if handle.schema_string is None:
        raise DeltaIllegalArgumentException(
            f"schema_policy='strict' has nothing to compare the rows with: table {handle.table} does not exist yet, and the "
            "start task was given no schema. Give it one (schema=), or give the stage expected_schema.",
            table=handle.table,
        )
    return handle.schema_string
