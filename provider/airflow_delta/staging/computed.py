"""Which columns of a write get their values from the table."""

from __future__ import annotations

from airflow_delta.exceptions import IdentityInsertException
from airflow_delta.staging.contract import Json
from airflow_delta.staging.report import StageRequest
from airflow_delta.staging.rules import IdentityRule, TableRules
from airflow_delta.staging.schema import fields_by_name


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
            raise IdentityInsertException(
                f"Column {identity.column} of table {request.table} is GENERATED ALWAYS AS IDENTITY: only the table assigns its "
                "values. Drop it from the DataFrame.",
                table=request.table,
                version=request.read_version,
            )
    return tuple(absent)


def computed_names(data: Json, rules: TableRules) -> set[str]:
    """Return the generated and identity columns that this write computes, in lower case."""
    names = {name.lower() for name in (*rules.generated, *(identity.column for identity in rules.identities))}
    return names - fields_by_name(data).keys()
