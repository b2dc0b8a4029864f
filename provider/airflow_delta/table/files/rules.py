"""What the features of a table ask of the rows that are written: found by the worker, handed to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import MAX_COLUMN_ID
from airflow_delta.contract.table_rules import IdentityRule, TableRules
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.expressions.refused import refused_function
from airflow_delta.log.features import constraints
from airflow_delta.log.features.generated_columns import generated_columns
from airflow_delta.log.features.identity_columns import identity_columns
from airflow_delta.log.schema.types import StructType

if TYPE_CHECKING:
    from airflow_delta.log.table_definition import TableDefinition


def table_rules(table: TableDefinition, *, overwrite_schema: bool = False) -> TableRules:
    """Return the rules for rows that are written into a table.

    As in Delta, column metadata of a feature that the protocol lacks do not count.

    :param overwrite_schema: the data decide the columns; rules of the old ones are dropped.
    """
    schema = StructType() if overwrite_schema else table.schema
    identities = identity_columns(schema) if _has(table, "identityColumns") else []
    checks = {
        **constraints.check_constraints(table.metadata),
        **{f"EXPRESSION({column})": text for column, text in constraints.invariants(schema).items()},
    }
    generated = generated_columns(schema) if _has(table, "generatedColumns") else {}
    defaults = constraints.column_defaults(schema) if _has(table, "allowColumnDefaults") else {}
    _refuse_unsafe(table, {**checks, **generated, **defaults})
    return TableRules(
        column_mapping=table.column_mapping,
        max_column_id=int(table.configuration.get(MAX_COLUMN_ID, "0")),
        checks=checks,
        generated=generated,
        defaults=defaults,
        identities=tuple(
            IdentityRule(column=c.name, first=c.next_value, step=c.step, explicit=c.allow_explicit_insert) for c in identities
        ),
        type_widening=table.widens_types,
        change_data=table.version >= 0 and table.properties.enable_change_data_feed,
    )


def _refuse_unsafe(table: TableDefinition, expressions: dict[str, str]) -> None:
    """Refuse rules with functions that Spark's driver must not run: anybody who can write the log may have put them there."""
    if not expressions:
        return
    for name, text in expressions.items():
        if (problem := refused_function(text, assigned=True)) is not None:
            raise table.error(
                DeltaIllegalArgumentException,
                f"The rule {name} ({text}) of table {table.table} version {table.version} {problem}. Drop or change it.",
            )


def _has(table: TableDefinition, feature: str) -> bool:
    return table.version < 0 or feature in table.features
