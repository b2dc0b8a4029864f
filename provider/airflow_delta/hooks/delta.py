"""The connection of type ``delta``: where tables are and how their storage is reached."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.masking import has_user_info, masked, secret_values, user_info_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_delta.log import DeltaLog

# Names of the two credentials, as object_store spells them, by the scheme of the table.
_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "s3a": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    "abfs": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    "abfss": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}


def scheme_of(uri: str) -> str:
    """Return the scheme of a table's URI in lower case, ``file`` for a local path."""
    head, separator, _ = uri.partition("://")
    return head.lower() if separator else "file"


class DeltaHook(BaseHook):
    """Reach Delta tables through an Airflow connection.

    The connection's host (or ``base_path`` in its extra) is the directory that relative table names start from. The
    ``storage_options`` in its extra are passed to the object store unchanged; login and password become the store's key pair
    unless the options contain one. Only the default connection may be missing: local paths, and credentials in the worker's
    environment, need none.

    :param delta_conn_id: id of a connection of type ``delta``.
    """

    conn_name_attr = "delta_conn_id"
    default_conn_name = "delta_default"
    conn_type = "delta"
    hook_name = "Delta Lake"

    def __init__(self, delta_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta_conn_id = delta_conn_id

    @cached_property
    def connection(self) -> Connection | None:
        """The connection; ``None`` if it is the default one and does not exist.

        :raises AirflowNotFoundException: if a connection other than the default one does not exist.
        """
        try:
            return self.get_connection(self.delta_conn_id)
        except AirflowNotFoundException:
            if self.delta_conn_id != self.default_conn_name:
                raise
            return None

    @cached_property
    def _extra(self) -> dict[str, Any]:
        extra = dict(self.connection.extra_dejson) if self.connection else {}
        prefix = f"extra__{self.conn_type}__"
        return {key.removeprefix(prefix): value for key, value in extra.items()}

    @cached_property
    def base_path(self) -> str | None:
        """Directory that relative table names start from, without a trailing slash.

        :raises DeltaIllegalArgumentException: if it contains credentials.
        """
        path = self._extra.get("base_path") or (self.connection.host if self.connection else None)
        if path and has_user_info(str(path)):
            mask_secret(list(user_info_of(str(path))))
            raise DeltaIllegalArgumentException(
                f"The base path of the connection {self.delta_conn_id!r} contains credentials ({masked(str(path))}), but "
                "locations are stored and shown unmasked. Put the credentials into login and password, or into storage_options."
            )
        return str(path).rstrip("/") or "/" if path else None

    def table_uri(self, table: str) -> str:
        """Return the URI of a table: ``table`` itself if it is absolute, otherwise below the base path.

        :raises DeltaIllegalArgumentException: if the name is empty, contains credentials, or is relative without a base path.
        """
        if not table or not table.strip():
            raise DeltaIllegalArgumentException("The table is empty. Pass a URI, an absolute path, or a name below a base path.")
        if has_user_info(table):
            raise DeltaIllegalArgumentException(
                f"The location of the table {masked(table)} contains credentials, but locations are stored and shown unmasked. "
                "Put the credentials into login and password of the connection, or into its storage_options."
            )
        if "://" in table or os.path.isabs(table):
            return table.rstrip("/") or "/"
        if self.base_path is None:
            raise DeltaIllegalArgumentException(
                f"The table {table!r} is relative, but the connection {self.delta_conn_id!r} has no base path. "
                "Pass the table's full URI, or set the host of the connection.",
                table=table,
            )
        return f"{self.base_path.rstrip('/')}/{table.strip('/')}"

    def storage_options(self, uri: str) -> dict[str, str]:
        """Return the options of the object store that holds ``uri``, and mask them in task logs from here on.

        Masks every value that is not known to be harmless, and credentials in URLs.

        :raises DeltaIllegalArgumentException: if the connection's ``storage_options`` are not an object of plain values.
        """
        options = _parse_options(self._extra.get("storage_options"), self.delta_conn_id)
        names = _CREDENTIALS.get(scheme_of(uri))
        if names and self.connection and self.connection.login:
            given = {name.upper().removeprefix("AWS_").removeprefix("AZURE_STORAGE_") for name in options}
            for name, value in zip(names, (self.connection.login, self.connection.password), strict=True):
                if value and name.removeprefix("AWS_").removeprefix("AZURE_STORAGE_") not in given:
                    options[name] = str(value)
        for value in secret_values(options):
            mask_secret(value)
        return options

    def get_log(self, table: str) -> DeltaLog:
        """Return the log of a table; nothing is read yet.

        :param table: URI, absolute path, or name below the connection's base path.
        """
        from airflow_delta.log import DeltaLog

        uri = self.table_uri(table)
        return DeltaLog.for_table(uri, storage_options=self.storage_options(uri) or None)

    def get_conn(self) -> Any:
        """Return the store of the base path (:class:`airflow_delta.log.storage.base.LogStore`).

        :raises DeltaIllegalArgumentException: if the connection has no base path.
        """
        from airflow_delta.log.storage.factory import store_for

        if self.base_path is None:
            raise DeltaIllegalArgumentException(
                f"The connection {self.delta_conn_id!r} has no base path to connect to. Set its host, or use get_log(table) with "
                "a full URI."
            )
        return store_for(self.base_path, self.storage_options(self.base_path) or None)

    def test_connection(self) -> tuple[bool, str]:
        """List the base path; without one, check that the options can be parsed."""
        try:
            if self.base_path is None:
                names = sorted(_parse_options(self._extra.get("storage_options"), self.delta_conn_id))
                return True, f"No base path to list; tables need a full URI. Storage options: {', '.join(names) or 'none'}."
            if scheme_of(self.base_path) == "file":
                directory = self.base_path.removeprefix("file://")
                return True, f"{self.base_path} has {len(os.listdir(directory))} entries."
            found = self.get_conn().list_from("", "")
            return True, f"{self.base_path} can be listed; {len(found)} objects are directly below it."
        except Exception as error:  # noqa: BLE001 - any error of the store is the result of the test
            return False, masked(f"{type(error).__name__}: {error}", self._secrets())

    def _secrets(self) -> tuple[str, ...]:
        """Return the secret values of this connection."""
        try:
            password = self.connection.password if self.connection else None
            return (*([str(password)] if password else []), *secret_values(self.storage_options(self.base_path or "")))
        except Exception:  # noqa: BLE001 - values that cannot be read are not shown either
            return ()


def _parse_options(value: Any, conn_id: str) -> dict[str, str]:
    if not value:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise DeltaIllegalArgumentException(
                f"storage_options of the connection {conn_id!r} are not JSON: {error.msg}"
            ) from None
    if not isinstance(value, Mapping) or any(isinstance(item, dict | list) for item in value.values()):
        raise DeltaIllegalArgumentException(
            f"storage_options of the connection {conn_id!r} must be an object of plain values, such as "
            '{"AWS_REGION": "eu-west-1"}'
        )
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items() if v is not None}
