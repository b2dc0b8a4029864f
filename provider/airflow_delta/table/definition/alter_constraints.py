"""ALTER TABLE ... ADD CONSTRAINT and DROP CONSTRAINT."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from airflow_delta.contract.changes import AddConstraint, DropConstraint
from airflow_delta.contract.delta_names import CONSTRAINT_PREFIX
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log import heavy
from airflow_delta.log.expressions.refused import oversized, refused_function
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.features.constraints import check_constraints
from airflow_delta.table.definition.altered_table import AlteredTable
from airflow_delta.transaction import Operation
from airflow_delta.transaction.prepare.prepare import TableState, verify_metadata


def add_constraint(table: AlteredTable, change: AddConstraint) -> AlteredTable:
    """Add a CHECK constraint; existing rows are checked separately."""
    name, expression = change.name.strip().lower(), change.expression.strip()
    if not name or not expression:
        raise table.refuse("A constraint needs a name and an expression")
    if any(known.lower() == name for known in check_constraints(table.metadata)):
        raise table.refuse(f"Constraint {change.name} already exists (DELTA_CONSTRAINT_ALREADY_EXISTS). Drop it first")
    _check_expression(table, change)
    key = f"{CONSTRAINT_PREFIX}{name}"
    metadata = msgspec.structs.replace(table.metadata, configuration={**table.metadata.configuration, key: expression})
    state = TableState(
        table=table.table, read_version=table.version, metadata=table.metadata, protocol=table.protocol, snapshot=table.snapshot
    )
    protocol = verify_metadata(state, metadata)
    return table.done(
        Operation.add_constraint(change.name, expression),
        metadata=metadata,
        protocol=protocol or table.protocol,
        sets_metadata=True,
        constraints={**table.constraints, name: expression},
        reads_table=True,
    )


def drop_constraint(table: AlteredTable, change: DropConstraint) -> AlteredTable:
    """Drop a CHECK constraint."""
    name = change.name.strip().lower()
    key = next((k for k in table.metadata.configuration if k.lower() == f"{CONSTRAINT_PREFIX}{name}"), None)
    if key is None and not change.if_exists:
        raise table.refuse(f"There is no constraint {change.name} (DELTA_CONSTRAINT_DOES_NOT_EXIST). Use if_exists")
    expression = None if key is None else table.metadata.configuration[key]
    metadata = msgspec.structs.replace(
        table.metadata, configuration={k: v for k, v in table.metadata.configuration.items() if k != key}
    )
    altered = table.with_metadata(metadata, Operation.drop_constraint(change.name, expression))
    return replace(altered, constraints={k: v for k, v in table.constraints.items() if k != name})


def _check_expression(table: AlteredTable, change: AddConstraint) -> None:
    """Check an expression as far as possible without Spark, which checks it against the rows later."""
    if (problem := oversized(change.expression)) is not None:
        raise table.refuse(f"The constraint {change.name} {problem}")
    try:
        tree = tree_of(change.expression)
    except SqlSyntaxError as error:
        raise DeltaAnalysisException(
            f"The constraint {change.name} is not valid Spark SQL: {change.expression} ({error})"
        ) from error
    if heavy.needs_other_rows(tree):
        raise table.refuse(
            f"The constraint {change.name} ({change.expression}) refers to more than one row, which no writer can check"
        )
    if (problem := refused_function(change.expression)) is not None:
        raise table.refuse(f"The constraint {change.name} ({change.expression}) {problem}")
