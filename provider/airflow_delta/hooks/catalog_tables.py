"""Opening tables by their names in the catalog of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from airflow_delta import engine
from airflow_delta.contract.catalog_names import Reservation, TableName
from airflow_delta.exceptions import (
    CatalogConflictException,
    CatalogNotFoundException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
)
from airflow_delta.hooks.allowed import API_SERVER, this_process
from airflow_delta.hooks.fields import ConnectionFields

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_delta.catalog.client import UnityCatalogClient
    from airflow_delta.log.storage.base import LogStore

_NO_CATALOG = "airflow_delta_connection_test"


class CatalogTables:
    """The tables of the catalog that a connection leads to.

    :param delta_conn_id: id of the connection.
    :param fields: its fields.
    :param options: returns the options of the object store at a URI.
    :param look_up: returns the connection as it is now.
    :param process: the kind of process that opens tables, if it is not this one.
    """

    def __init__(
        self,
        delta_conn_id: str,
        fields: ConnectionFields,
        *,
        options: Callable[[str], Mapping[str, str]],
        look_up: Callable[[], Connection],
        process: str | None,
    ) -> None:
        self._conn_id = delta_conn_id
        self._fields = fields
        self._options = options
        self._look_up = look_up
        self._process = process or this_process()

    @cached_property
    def client(self) -> UnityCatalogClient:
        """The client of the catalog.

        :raises DeltaIllegalArgumentException: if it is not a connection to one, or one of its fields is not valid.
        """
        self._fields.check()
        url = self._fields.catalog_url

        def renew() -> str | None:
            """Return the token that the connection has now, unless it is for another server by now."""
            now = ConnectionFields(self._conn_id, self._look_up())
            return _token_of(now.connection) if now.is_catalog and now.catalog_url == url else None

        return engine.UnityCatalogClient(
            url, _token_of(self._fields.connection), renew=renew, whose=f"the connection {self._conn_id!r}"
        )

    def open(self, name: TableName, *, create: bool = False) -> LogStore:
        """Return the storage of a table.

        :param create: if there is none, reserve it.
        :raises DeltaTableNotFoundException: if there is none, and none is to be made.
        :raises CatalogConflictException: if another task has reserved the name.
        """
        given = self._given(name)
        try:
            return engine.open_in_catalog(self.client, name, **given)
        except DeltaTableNotFoundException:
            if not create:
                raise
        try:
            return engine.stage_in_catalog(self.client, name, **given)
        except CatalogConflictException as error:
            try:
                return engine.open_in_catalog(self.client, name, **given)  # made by somebody else in between
            except DeltaTableNotFoundException:
                raise CatalogConflictException(
                    f"{error.message}. There is no table {name}: another task has reserved the name and may have failed, "
                    "and this catalog reserves a name only once. Let that task's run create the table, or use another name.",
                    status=error.status,
                    kind=error.kind,
                ) from error

    def open_reserved(self, name: TableName, reservation: Reservation, *, unused: bool = False) -> LogStore:
        """Return the storage of a table that is reserved, and not a table yet.

        :param unused: only if no transaction has written a first version to its location, which may become one.
        :raises CatalogNotFoundException: if there is no such reservation, or it is at another location.
        :raises CatalogConflictException: if a first version is there.
        """
        return engine.open_reserved(self.client, name, reservation, unused=unused, **self._given(name))

    def test(self) -> tuple[bool, str]:
        """Ask the server for a catalog of a name that it will not have: it must know the API, and accept the token."""
        try:
            self.client.config(_NO_CATALOG)
        except CatalogNotFoundException as error:
            if error.kind is None:
                raise
        return True, f"{self._fields.catalog_url} answers to Delta's API. Tables are named catalog.schema.table."

    def _given(self, name: TableName) -> dict[str, Any]:
        if self._process == API_SERVER:
            raise DeltaIllegalArgumentException(f"Airflow's pages do not ask the catalog of {self._conn_id!r} about {name}.")
        return {
            "options": self._options,
            "own_credentials": self._fields.has_identity,
            "connection": self._conn_id,
            "on_secret": mask_secret,
        }


def _token_of(connection: Connection | None) -> str | None:
    """Return the token of a connection to a catalog, and mask it in task logs from here on."""
    token = connection.password if connection is not None else None
    if token:
        mask_secret(token)
    return token
