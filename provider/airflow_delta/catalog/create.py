"""New catalog-managed tables: a reservation, the first commit at its location, and the catalog's table of both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_delta.catalog.answers import LoadedTable, StagingTable
from airflow_delta.catalog.definition import CommittedDefinition
from airflow_delta.catalog.versions import CatalogVersions
from airflow_delta.contract.delta_names import FEATURE_PREFIX
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
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.errors import AmbiguousPutError
from airflow_delta.log.storage.file_names import LOG_DIRECTORY, commit_file, split_version


def required_properties(staging: StagingTable) -> dict[str, str]:
    """Return the properties that a reserved table must be created with, features included.

    What the catalog only suggests is left to the author.
    """
    protocol = staging.required_protocol
    features = dict.fromkeys((*protocol.reader_features, *protocol.writer_features))
    given = {key: value for key, value in staging.required_properties.items() if value is not None}
    return {**given, **{f"{FEATURE_PREFIX}{name}": "supported" for name in features}}


def create_in_catalog(versions: CatalogVersions, store: LogStore, data: bytes) -> None:
    """Write the first commit of a reserved table, and make it a table of the catalog.

    :param data: the commit, with metadata and protocol.
    :raises FileExistsError: if it is a table already, or by this call, with another commit, perhaps of an earlier try.
    :raises CatalogConflictException: if the name is another table's by now, or the reservation another transaction's.
    :raises DeltaIllegalStateException: if the location is a table's, or an earlier try has written other files.
    :raises AmbiguousPutError: if it is not known whether the catalog has made the table.
    """
    _check_is_new(versions, store)
    request = _request(versions, data)
    try:
        store.put_if_absent(commit_file(0), data)
    except FileExistsError:
        if (there := store.read(commit_file(0))) != data:
            _check_is_ours(versions, there, data)
            _register(versions, _request(versions, there))
            raise  # the caller looks for its transaction in the log, and finds it
    _register(versions, request)


def first_commit_exists(store: LogStore) -> bool:
    """Tell whether something is in the log at a reserved location. It is a version only if the catalog has the table."""
    return any(split_version(status.name) is not None for status in store.list_from(LOG_DIRECTORY, "", stat=False))


def _check_is_new(versions: CatalogVersions, store: LogStore) -> None:
    """Refuse a location with a log of its own: the id may be that of a table of another name."""
    listed = (status.name for status in store.list_from(LOG_DIRECTORY, "", stat=False))
    others = [name for name in listed if split_version(name) is not None and f"{LOG_DIRECTORY}/{name}" != commit_file(0)]
    if others:
        _see_if_made(versions)
        raise DeltaIllegalStateException(
            f"{versions.location} is not only reserved for {versions.name}: there is a log ({', '.join(others[:3])}). Nothing "
            "was written. Clear the start task.",
            table=versions.location,
            version=0,
        )


def _check_is_ours(versions: CatalogVersions, there: bytes, data: bytes) -> None:
    """Check that a first commit which was found is one of the same transaction, with the same files.

    It is a version only once the catalog has the table, which may never happen.
    """
    if _transaction_of(there) != _transaction_of(data):
        _see_if_made(versions)
        raise CatalogConflictException(
            f"Another transaction ({_transaction_of(there)}) has written the first version of {versions.name} to "
            f"{versions.location}, and the catalog does not have the table (yet). Nothing was committed. If that other "
            "transaction does not go on, clear the start task, which begins at another location.",
            table=versions.location,
            version=0,
        )
    if _files_of(there) != _files_of(data):
        raise DeltaIllegalStateException(
            f"An earlier try of this commit has written the first version of {versions.name} to {versions.location} and did not "
            "make it a table. Stages have run again since, so their rows are not in it. Nothing was committed. Clear the start "
            "task, which begins at another location.",
            table=versions.location,
            version=0,
        )


def _see_if_made(versions: CatalogVersions) -> None:
    """Look whether the reservation has become a table meanwhile.

    :raises FileExistsError: if so: its versions are known then.
    """
    try:
        versions.accept(versions.client.load_table(versions.name))
    except DeltaTableNotFoundException:
        return
    raise FileExistsError(f"{versions.name} has version 0, by another commit")


def _transaction_of(data: bytes) -> str | None:
    info = json.loads(data.partition(b"\n")[0]).get("commitInfo") or {}
    return info.get("txnId")


def _files_of(data: bytes) -> list[str]:
    return sorted(json.loads(line)["add"]["path"] for line in data.splitlines() if line.startswith(b'{"add"'))


def _register(versions: CatalogVersions, request: Mapping[str, Any]) -> None:
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
