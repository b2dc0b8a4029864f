"""A table that a transaction will create: its schema, properties and features, checked before anything is staged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.choices import ISOLATION_LEVELS
from airflow_delta.contract.delta_names import ISOLATION_LEVEL, SET_TRANSACTION_RETENTION_DURATION
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import protocol
from airflow_delta.log.features.properties import validate
from airflow_delta.log.features.universal_format import check_universal_format
from airflow_delta.log.schema.types import to_json
from airflow_delta.log.table_definition import TableDefinition

if TYPE_CHECKING:
    from airflow_delta.log.storage.committer import LogCommitter

DEFAULT_CONFIGURATION = {SET_TRANSACTION_RETENTION_DURATION: "interval 90 days"}
"""Default properties of tables that we create: application ids of Dag runs add up in the log."""


def default_isolation_level(configuration: Mapping[str, str]) -> str:
    """Return the isolation level of transactions that are not given one, by the table's properties."""
    return configuration.get(ISOLATION_LEVEL, ISOLATION_LEVELS[0])


def of_new_table(
    handle: TransactionHandle,
    partition_by: Sequence[str] = (),
    schema: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    name: str | None = None,
    description: str | None = None,
    isolation_level: str | None = None,
    *,
    provided: Set[str] = frozenset(),
) -> TransactionHandle:
    """Return the handle of a transaction on a table that does not exist: with what the commit will create.

    The parameters are those of :func:`begin`.
    """
    wanted = {**DEFAULT_CONFIGURATION, **(configuration or {})}
    given = validate({key: value for key, value in wanted.items() if value is not None}, table=handle.table)
    if schema is not None:
        schema = check_new_schema(schema, partition_by, given, table=handle.table)
        # Every stage writes files under the names that the commit gives the table.
        schema, given = with_column_mapping(schema, given)
    return replace(
        handle,
        schema_string=schema,
        partition_columns=tuple(partition_by),
        configuration=given,
        features=_features_of_new_table(handle.table, schema, given, provided),
        name=name,
        description=description,
        isolation_level=isolation_level or default_isolation_level(given),
    )


def with_required(configuration: Mapping[str, str | None], committer: LogCommitter, table: str) -> dict[str, str | None]:
    """Return the properties of a new table with those that its committer requires.

    :raises DeltaIllegalArgumentException: if one is given another value.
    """
    required = committer.required_properties
    for key, value in required.items():
        if configuration.get(key) not in (None, value, DEFAULT_CONFIGURATION.get(key)):
            raise DeltaIllegalArgumentException(
                f"A new table {committer.managed_as} must have {key}={value!r}, as its catalog says, not {configuration[key]!r}.",
                table=table,
            )
    return {**configuration, **required}


def _features_of_new_table(
    table: str, schema: str | None, configuration: Mapping[str, str], provided: Set[str]
) -> tuple[str, ...]:
    """Return the features that the properties and the schema of a new table bring.

    What the commit would refuse of them is refused here, before anything is staged.
    """
    nothing = '{"type":"struct","fields":[]}'
    metadata = Metadata(id="", schema_string=schema or nothing, configuration=dict(configuration))
    check_universal_format(metadata)
    metadata, needed = protocol.apply_feature_properties(metadata, None)
    protocol.check_can_write(needed, metadata, table, -1, provided=provided)
    return tuple(sorted(protocol.features(needed)))


def check_new_schema(schema: str, partition_by: Sequence[str], configuration: Mapping[str, str], *, table: str) -> str:
    """Check the schema of a new table and return it as compact JSON."""
    from airflow_delta.log.features.schema_checks import check_table_metadata

    schema = to_json(TableDefinition.of_rows(schema).schema)
    mapped, properties = with_column_mapping(schema, configuration)
    check_table_metadata(Metadata(id=table, schema_string=mapped, partition_columns=list(partition_by), configuration=properties))
    return schema


def with_column_mapping(schema: str, configuration: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return schema and properties of a new table with the ids and physical names that its column mapping mode asks for."""
    from airflow_delta.log.features import column_mapping

    given = Metadata(id="", schema_string=schema, configuration=dict(configuration))
    if column_mapping.mode(configuration) == "none":
        return schema, given.configuration
    assigned = column_mapping.assign(given, None)
    return assigned.schema_string, assigned.configuration
