"""Tables whose columns and properties ask something of the rows."""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_delta.transaction import Operation
from support.actions import column, schema
from support.table import Table


def field(name: str, data_type: Any, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {**column(name, data_type, nullable), "metadata": {key.replace("__", "."): value for key, value in metadata.items()}}


def identity(name: str, start: int, step: int, *, explicit: bool = False) -> dict[str, Any]:
    metadata = {"delta__identity__start": start, "delta__identity__step": step, "delta__identity__allowExplicitInsert": explicit}
    return field(name, "long", **metadata)


def create(table: Table, *fields: dict[str, Any], partition_by: tuple[str, ...] = (), **configuration: str) -> None:
    """Commit an empty table, and its CHECK constraints."""
    constraints = {key: configuration.pop(key) for key in [*configuration] if key.startswith("delta.constraints.")}
    handle = table.begin(schema=schema(*fields), partition_by=partition_by, configuration=configuration)
    table.publish(handle)
    if constraints:
        txn = table.log().start_transaction()
        changed = msgspec.structs.replace(txn.metadata, configuration={**txn.metadata.configuration, **constraints})
        txn.commit([changed], Operation("ADD CONSTRAINT"))
