"""New catalog-managed tables: a reservation, the first commit at its location, and the catalog's table of both."""

from __future__ import annotations

from typing import Any

from airflow_delta.catalog.answers import LoadedTable, StagingTable
from airflow_delta.catalog.definition import CommittedDefinition
from airflow_delta.catalog.versions import CatalogVersions
from airflow_delta.exceptions import (
    CatalogConflictException,
    CatalogException,
    CatalogNotFoundException,
    CatalogUnavailableException,
    DeltaError,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
)
from airflow_delta.log.actions.decode import required_timestamp
from airflow_delta.log.storage.base import AmbiguousPutError, LogStore
from airflow_delta.log.storage.file_names import commit_file


def required_properties(staging: StagingTable) -> dict[str, str]:
    """Return the properties that a reserved table must be created with, features included.

    What the catalog only suggests is left to the author.
    """
    protocol = staging.required_protocol
    features = dict.fromkeys((*protocol.reader_features, *protocol.writer_features))
    given = {key: value for key, value in staging.required_properties.items() if value is not None}
    return {**given, **{f"delta.feature.{name}": "supported" for name in features}}


def create_in_catalog(versions: CatalogVersions, store: LogStore, data: bytes) -> None:
    """Write the first commit of a reserved table, and make it a table of the catalog.

    :param data: the commit, with metadata and protocol.
    :raises FileExistsError: if the reservation's location has a commit already, perhaps of an earlier try.
    :raises CatalogConflictException: if the name is another table's by now.
    :raises AmbiguousPutError: if it is not known whether the catalog has made the table.
    """
    request = _request(versions, data)
    try:
        store.put_if_absent(commit_file(0), data)
    except FileExistsError:
        if store.read(commit_file(0)) != data:
            raise
    try:
        answer = versions.client.create_table(versions.name, request)
    except (CatalogConflictException, CatalogNotFoundException) as error:
        # A request that was repeated, on the way or by an earlier try, is refused, too: its reservation has become the table.
        answer = _found(versions, error)
    except CatalogUnavailableException as error:
        if not error.may_have_happened:
            raise
        answer = _found(versions, error)
    versions.accept(answer)


def _found(versions: CatalogVersions, error: CatalogException) -> LoadedTable:
    """Return the table that a request has made to which the answer was lost, or a refusal."""
    try:
        found = versions.client.load_table(versions.name)
    except DeltaError as again:
        if isinstance(error, CatalogNotFoundException) and isinstance(again, DeltaTableNotFoundException):
            raise error from None  # neither reservation nor table
        raise AmbiguousPutError(f"{error}; then {again}") from error
    if found.metadata.table_uuid != versions.table_uuid:
        raise CatalogConflictException(
            f"The name {versions.name} is another table's by now ({found.metadata.table_uuid}).", table=versions.location
        ) from error
    return found


def _request(versions: CatalogVersions, data: bytes) -> dict[str, Any]:
    definition = CommittedDefinition(data)
    if definition.metadata is None or definition.protocol is None:
        raise DeltaIllegalStateException(
            f"The first commit of table {versions.name} lacks metadata or protocol.", table=versions.location, version=0
        )
    request: dict[str, Any] = {
        "location": versions.location,
        "table-type": "MANAGED",
        "data-source-format": "DELTA",
        "columns": definition.columns,
        "partition-columns": definition.partition_columns,
        "protocol": definition.catalog_protocol,
        "properties": definition.properties,
        "last-commit-timestamp-ms": required_timestamp(0, data, table=versions.location),
    }
    if definition.comment:
        request["comment"] = definition.comment
    if definition.domain_settings:
        request["domain-metadata"] = definition.domain_settings
    return request
