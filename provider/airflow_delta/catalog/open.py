"""Opening a table by its name in a catalog, with credentials from the catalog."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from airflow_delta.catalog.answers import Credential
from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.catalog.create import first_commit_exists, required_properties
from airflow_delta.catalog.store import CatalogLogStore
from airflow_delta.catalog.versions import CatalogVersions
from airflow_delta.contract.catalog_names import Reservation, TableName
from airflow_delta.contract.location import FILE, check_no_secret, store_of
from airflow_delta.exceptions import (
    CatalogAccessException,
    CatalogConflictException,
    CatalogNotFoundException,
    CredentialsUnavailableException,
)
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.factory import store_for

logger = logging.getLogger(__name__)

_EARLY = 300.0
"""Seconds before credentials expire at which new ones are asked for."""
_OPTIONS = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "azure.sas-token": "azure_storage_sas_key",
    "gcs.oauth-token": "google_bearer_token",
}


Options = Callable[[str], Mapping[str, str]]


def _nothing(_uri: str) -> Mapping[str, str]:
    return {}


def _never(_uri: str) -> bool:
    return False


def open_in_catalog(
    client: UnityCatalogClient,
    name: TableName,
    *,
    options: Options = _nothing,
    own_credentials: Callable[[str], bool] = _never,
    connection: str | None = None,
    on_secret: Callable[[str], None] | None = None,
) -> LogStore:
    """Return the storage of a table; of a catalog-managed one, its log shows what the catalog has accepted.

    :param options: returns the settings for the storage at a URI, such as region and endpoint.
    :param own_credentials: tells whether these have credentials, which are then used instead of the catalog's.
    :param connection: its name, for errors.
    :param on_secret: called with every credential.
    :raises DeltaTableNotFoundException: if the catalog has no such table.
    """
    client.config(name.catalog)
    loaded = client.load_table(name)
    below = CatalogStorage(
        lambda: _credentials(client, name), loaded.metadata.location, options, connection, own_credentials, on_secret
    )
    if not loaded.is_managed:
        return below()
    return CatalogLogStore(CatalogVersions.of(client, name, loaded), below)


def stage_in_catalog(
    client: UnityCatalogClient,
    name: TableName,
    *,
    options: Options = _nothing,
    own_credentials: Callable[[str], bool] = _never,
    connection: str | None = None,
    on_secret: Callable[[str], None] | None = None,
) -> CatalogLogStore:
    """Reserve a new table, and return its storage. Its first commit makes it a table of the catalog.

    The parameters are those of :func:`open_in_catalog`.
    """
    client.config(name.catalog)
    staging = client.stage_table(name)
    credentials = _of_reservation(client, name, staging.table_id, staging.storage_credentials)
    below = CatalogStorage(credentials, staging.location, options, connection, own_credentials, on_secret)
    versions = CatalogVersions(client, name, staging.table_id, staging.location)
    return CatalogLogStore(versions, below, required_properties(staging))


def open_reserved(
    client: UnityCatalogClient,
    name: TableName,
    reservation: Reservation,
    *,
    unused: bool = False,
    options: Options = _nothing,
    own_credentials: Callable[[str], bool] = _never,
    connection: str | None = None,
    on_secret: Callable[[str], None] | None = None,
) -> CatalogLogStore:
    """Return the storage of a table that was reserved earlier and is not one of the catalog yet.

    The other parameters are those of :func:`open_in_catalog`.

    :param unused: only if no transaction has written a first version to its location, which may become one.
    :raises CatalogNotFoundException: if the catalog has no such reservation, or has it at another location.
    :raises CatalogConflictException: if a first version is there.
    """
    try:
        first = client.reservation_credentials(name, reservation.table_id)
    except CatalogNotFoundException as error:
        raise CatalogNotFoundException(
            f"{error.message}. There is neither a table {name} nor the reservation that the transaction was begun with "
            f"({reservation.location}). Clear the start task.",
            status=error.status,
            kind=error.kind,
        ) from error
    if reservation.location not in (known := {credential.prefix.rstrip("/") for credential in first}):
        raise CatalogNotFoundException(
            f"The catalog says that the reservation {reservation.table_id} of table {name} is at "
            f"{' or '.join(sorted(known))}, not at {reservation.location}: an XCom was altered. Clear the start task."
        )
    credentials = _of_reservation(client, name, reservation.table_id, first)
    below = CatalogStorage(credentials, reservation.location, options, connection, own_credentials, on_secret)
    if unused and first_commit_exists(below()):
        raise CatalogConflictException(
            f"An earlier transaction has written a first version of {name} to {reservation.location}, which may still become the "
            "table."
        )
    versions = CatalogVersions(client, name, reservation.table_id, reservation.location)
    return CatalogLogStore(versions, below, reservation.required)


def _of_reservation(
    client: UnityCatalogClient, name: TableName, table_id: str, first: Sequence[Credential]
) -> Callable[[], Sequence[Credential]]:
    """Return what asks for credentials: the first ones are at hand, and later on it may be a table."""
    given = [first]

    def credentials() -> Sequence[Credential]:
        if given:
            return given.pop()
        try:
            return client.reservation_credentials(name, table_id)
        except CatalogNotFoundException:
            return _credentials(client, name)

    return credentials


def _credentials(client: UnityCatalogClient, name: TableName) -> Sequence[Credential]:
    try:
        return client.credentials(name, "READ_WRITE")
    except CatalogAccessException as error:
        if error.status != 403:
            raise
        logger.info("No credentials to write to %s: %s", name, error)
        return client.credentials(name, "READ")


class CatalogStorage:
    """Opens the storage at a table's location, again once its credentials are about to expire. Threads may share it."""

    def __init__(
        self,
        credentials: Callable[[], Sequence[Credential]],
        location: str,
        options: Options,
        connection: str | None,
        own_credentials: Callable[[str], bool],
        on_secret: Callable[[str], None] | None,
    ) -> None:
        check_no_secret(location)
        self.location = location
        self._credentials = credentials
        self._options = dict(options(location))
        self._connection = connection
        self._vends = store_of(location) != FILE and not own_credentials(location)
        self._on_secret = on_secret
        self._lock = threading.Lock()
        self._store: LogStore | None = None
        self._renewal: float | None = None

    def __call__(self, *, fresh: bool = False) -> LogStore:
        """Return the storage.

        :param fresh: with credentials that the catalog is asked for now, rather than with those that are still valid.
        :raises CredentialsUnavailableException: if the catalog has no credentials for the location.
        """
        with self._lock:
            if self._store is None or (fresh and self._vends) or (self._renewal is not None and time.time() >= self._renewal):
                options = {**self._options, **(self._vended() if self._vends else {})}
                self._store = store_for(self.location, options or None, connection=self._connection)
            return self._store

    def _vended(self) -> dict[str, str]:
        credential = _for_location(self._credentials(), self.location)
        if credential is None:
            raise CredentialsUnavailableException(
                f"The catalog has no credentials for {self.location}. Let it hand them out (EXTERNAL USE SCHEMA on Databricks), "
                "or put credentials into the connection.",
                table=self.location,
            )
        self._renewal = None if credential.expiration_time_ms is None else _renewal(credential.expiration_time_ms / 1000)
        found = {_OPTIONS[key]: value for key, value in credential.config.items() if key in _OPTIONS}
        if self._on_secret is not None:
            for value in found.values():
                self._on_secret(value)
        return found


def _renewal(expires: float) -> float:
    now = time.time()
    return max(expires - _EARLY, now + (expires - now) / 2)


def _for_location(credentials: Sequence[Credential], location: str) -> Credential | None:
    """Return the credentials for the longest prefix of a location, preferably to write with."""
    place = location.rstrip("/") + "/"
    usable = [found for found in credentials if place.startswith(found.prefix.rstrip("/") + "/")]
    return max(usable, key=lambda found: (found.operation == "READ_WRITE", len(found.prefix)), default=None)
