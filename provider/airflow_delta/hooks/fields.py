"""The fields of a connection of type ``delta``: read, checked, and turned into storage options."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk.log import mask_secret

from airflow_delta.contract.location import AZURE, GCS, HDFS, S3, Location
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.allowed import Allowed
from airflow_delta.hooks.azure import azure_options
from airflow_delta.hooks.cloud import CONN_TYPES, cloud_options
from airflow_delta.hooks.credentials_of_another import ACCOUNT, IDENTITY, check_one_identity, check_same_place
from airflow_delta.hooks.extra import extra_of
from airflow_delta.hooks.location import check_base_path
from airflow_delta.hooks.named_connection import named_connection
from airflow_delta.log.storage.identity import check_identity
from airflow_delta.log.storage.options import (
    HDFS_USER,
    OTHER_LOCATIONS,
    canonical_options,
    store_kind,
)
from airflow_delta.masking import masked, secret_of_location, secret_values, user_info_of

if TYPE_CHECKING:
    from airflow.sdk import Connection


CONN_TYPE = "delta"
CATALOG_TYPE = "delta_unity_catalog"
ALLOW_HTTP = "allow_http"
OWN = "own"
"""Value of ``spark_credentials``: Spark has credentials of its own."""

STORE_OF_TYPE = {"aws": S3, "google_cloud_platform": GCS, "wasb": AZURE, "adls": AZURE}

_INSTEAD = {
    GCS: "Set GOOGLE_SERVICE_ACCOUNT or GOOGLE_SERVICE_ACCOUNT_KEY in storage_options, or gcp_conn_id.",
    HDFS: "HDFS knows the user (login) or a Kerberos ticket of the worker.",
}
_CREDENTIALS = {
    S3: ("aws_access_key_id", "aws_secret_access_key"),
    AZURE: (ACCOUNT, "azure_storage_account_key"),
    HDFS: (HDFS_USER,),
}
_FIELDS = ("base_path", "storage_options", OTHER_LOCATIONS, "spark_credentials", "spark_packages", *CONN_TYPES.values())


class ConnectionFields:
    """What the fields of a connection say.

    :param connection: of type ``delta`` or of a cloud; ``None`` if the default connection does not exist.
    :raises DeltaIllegalArgumentException: if it has another type.
    """

    def __init__(self, conn_id: str, connection: Connection | None) -> None:
        self.conn_id = conn_id
        self.connection = connection
        if connection is not None and connection.conn_type not in (CONN_TYPE, CATALOG_TYPE, *CONN_TYPES):
            raise DeltaIllegalArgumentException(
                f"The connection {conn_id!r} has the type {connection.conn_type!r}. Use one of type {CONN_TYPE!r}, "
                f"{CATALOG_TYPE!r}, or one of a cloud: {', '.join(CONN_TYPES)}."
            )

    @cached_property
    def _is_own(self) -> bool:
        return self.connection is not None and self.connection.conn_type == CONN_TYPE

    @cached_property
    def is_catalog(self) -> bool:
        """Whether tables are named as in Unity Catalog (``catalog.schema.table``), which decides on their versions."""
        return self.connection is not None and self.connection.conn_type == CATALOG_TYPE

    @cached_property
    def catalog_url(self) -> str:
        """URL of the catalog's server.

        :raises DeltaIllegalArgumentException: if there is none, or it has credentials or a path.
        """
        connection = self.connection
        host = str(connection.host or "").strip() if connection is not None and self.is_catalog else ""
        if connection is not None and host and "://" not in host:
            host = f"{connection.schema or 'https'}://{host}"
        if connection is not None and host and connection.port:
            host = f"{host.rstrip('/')}:{connection.port}"
        parts = urlsplit(host)
        if secret_of_location(host) is not None or parts.username or parts.password:
            mask_secret(list(user_info_of(host)))
            raise DeltaIllegalArgumentException(
                f"The host of {self._whose} contains credentials. Put the token into its password."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise DeltaIllegalArgumentException(
                f"The host of {self._whose} is {host or None!r}; it must be the URL of Unity Catalog's server without a path, "
                "such as https://dbc-1234.cloud.databricks.com."
            )
        password = connection.password if connection is not None else None
        if parts.scheme == "http" and password and not _is_loopback(parts.hostname) and not self.allow_http:
            raise DeltaIllegalArgumentException(
                f"The host of {self._whose} is {host!r}: everybody on the way could read the token. Use https, or set "
                '"allow_http": true in its extra if the network may be trusted.'
            )
        return f"{parts.scheme}://{parts.netloc}"

    @cached_property
    def allow_http(self) -> bool:
        """Whether a token may be sent to a catalog without encryption.

        :raises DeltaIllegalArgumentException: if it is not a boolean.
        """
        value = self.extra.get(ALLOW_HTTP)
        if value is not None and not isinstance(value, bool):
            raise DeltaIllegalArgumentException(f"{ALLOW_HTTP} of {self._whose} is {value!r}; it must be true or false.")
        return bool(value)

    @cached_property
    def extra(self) -> dict[str, Any]:
        if self.connection is None or not (self._is_own or self.is_catalog):
            return {}
        extra, prefix = extra_of(self.connection, self.conn_id), f"extra__{self.connection.conn_type}__"
        # Airflow's old forms add the prefix, also to fields that were left empty.
        of_form = {key.removeprefix(prefix): value for key, value in extra.items() if key.startswith(prefix)}
        given = {key: value for key, value in extra.items() if not key.startswith(prefix)}
        return {**of_form, **{key: value for key, value in given.items() if value or not of_form.get(key)}}

    @cached_property
    def base_path(self) -> str | None:
        """Directory that relative table names start from, without a trailing slash.

        :raises DeltaIllegalArgumentException: if it contains credentials, is relative, or has an unknown scheme.
        """
        path = self.extra.get("base_path") or (self.connection.host if self.connection and self._is_own else None)
        if path and not isinstance(path, str):
            raise DeltaIllegalArgumentException(f"base_path of {self._whose} must be text, got {path!r}.")
        if path and secret_of_location(str(path)) is not None:
            mask_secret(list(user_info_of(str(path))))
            raise DeltaIllegalArgumentException(
                f"The base path of the connection {self.conn_id!r} contains credentials ({masked(str(path))}), but "
                "locations are stored and shown unmasked. Put the credentials into login and password, or into storage_options."
            )
        return check_base_path(str(path).strip(), self.conn_id) if path else None

    @cached_property
    def spark_credentials(self) -> str | None:
        """``own`` if Spark is not to get this connection's credentials.

        :raises DeltaIllegalArgumentException: if it is anything else.
        """
        value = self.extra.get("spark_credentials") or None
        if value not in (None, OWN):
            raise DeltaIllegalArgumentException(
                f"spark_credentials of the connection {self.conn_id!r} is a string other than {OWN!r}. Leave it empty to give "
                f"Spark this connection's credentials, or set it to {OWN!r}."
            )
        return value

    @cached_property
    def spark_packages(self) -> str | None:
        """Maven coordinates for Spark, or ``auto``.

        :raises DeltaIllegalArgumentException: if it is not text.
        """
        value = self.extra.get("spark_packages") or None
        if value is not None and not isinstance(value, str):
            raise DeltaIllegalArgumentException(
                f"spark_packages of {self._whose} is not a string but {type(value).__name__}. "
                "Set it to 'auto', or to Maven coordinates, separated by commas."
            )
        return value

    @cached_property
    def given_options(self) -> dict[str, str]:
        """The ``storage_options`` in the extra, as they are spelt there."""
        return _parse_options(self.extra.get("storage_options"), self.conn_id)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The password, and the values of the storage options that may be secret."""
        given = self.given_options
        return (*([str(self.connection.password)] if self.connection and self.connection.password else []), *secret_values(given))

    def has_identity(self, uri: str) -> bool:
        """Tell whether the storage options say who asks the store that holds ``uri``."""
        return not canonical_options(self.given_options, uri, whose=self._whose).keys().isdisjoint(IDENTITY)

    def storage_options(self, uri: str, process: str | None = None) -> dict[str, str]:
        """Return the options of the object store that holds ``uri``, each once and under one name (``aws_region``).

        :param process: the kind of process that uses them; default: this one.
        :raises DeltaIllegalArgumentException: if a field of the connection is not valid, or uses what the deployment has not
            allowed (:mod:`airflow_delta.hooks.allowed`).
        """
        self.check()
        options = canonical_options(self.given_options, uri, whose=self._whose)
        if self.is_catalog and not self.has_identity(uri):  # the catalog gives the credentials
            return self._with_locations(options)
        kind, allowed = store_kind(uri), Allowed.here(process)
        if kind is not None and self.connection is not None:
            if cloud := canonical_options(self._cloud_options(kind, allowed), uri, whose=self._whose):
                own = self._is_own and bool(self.connection.login or self.connection.password)
                source = self._cloud_conn_id or ("its type", self.conn_id)
                check_one_identity(options, has_login=own, field=source[0], whose=self._whose)
                check_same_place(cloud, options, field=source[0], conn_id=source[1], whose=self._whose)
                return self._with_locations({**cloud, **options})
            if self._is_own:
                options = self._with_login(options, kind)
        check_identity(options, kind, self._whose)
        allowed.check(options, kind, self._whose)
        return self._with_locations(options)

    def _with_locations(self, options: dict[str, str]) -> dict[str, str]:
        return {**options, **({OTHER_LOCATIONS: self.other_locations} if self.other_locations else {})}

    @cached_property
    def other_locations(self) -> str:
        """URIs, separated by commas, below which the table's files may be outside of its own bucket.

        :raises DeltaIllegalArgumentException: if one is not a location.
        """
        value = self.extra.get(OTHER_LOCATIONS) or ()
        places = value.split(",") if isinstance(value, str) else value
        if not isinstance(places, list | tuple) or not all(isinstance(place, str) for place in places):
            raise DeltaIllegalArgumentException(
                f'{OTHER_LOCATIONS} of {self._whose} must be a list of URIs, such as ["s3://other/tables"].'
            )
        return ",".join(Location.parse(place.strip()).uri for place in places if place.strip())

    @property
    def _whose(self) -> str:
        return f"the connection {self.conn_id!r}"

    @cached_property
    def _cloud_conn_id(self) -> tuple[str, str] | None:
        """The field and the id of the connection to a cloud that this one points at."""
        named = [(field, str(self.extra[field])) for field in CONN_TYPES.values() if self.extra.get(field)]
        if len(named) > 1:
            raise DeltaIllegalArgumentException(
                f"The extra of {self._whose} names several connections ({', '.join(field for field, _ in named)}). Keep one."
            )
        return named[0] if named else None

    def _cloud_connection(self, kind: str) -> tuple[Connection, str] | None:
        """Return the connection to a cloud and its id, if it is to the kind of store."""
        if self.is_catalog:
            return None
        if not self._is_own:
            connection, conn_id = self.connection, self.conn_id
        elif self._cloud_conn_id is not None:
            field, conn_id = self._cloud_conn_id
            connection = named_connection(conn_id, f"{field} in the extra of {self._whose}", "a cloud")
            if CONN_TYPES.get(str(connection.conn_type)) != field:
                wanted = " or ".join(kind for kind, name in CONN_TYPES.items() if name == field)
                raise DeltaIllegalArgumentException(
                    f"{field} of {self._whose} is {conn_id!r}, of type {connection.conn_type!r}; it must be of type {wanted}."
                )
        else:
            return None
        if connection is None or STORE_OF_TYPE[str(connection.conn_type)] != kind:
            return None
        return connection, conn_id

    def _cloud_options(self, kind: str, allowed: Allowed) -> dict[str, str]:
        found = self._cloud_connection(kind)
        return cloud_options(*found, allowed) if found is not None else {}

    def location_options(self, uri: str) -> dict[str, str]:
        """Return what decides where a container of Azure is: its account and endpoint. No credentials are checked, or fetched."""
        options = canonical_options(self.given_options, uri, whose=self._whose)
        if (found := self._cloud_connection(AZURE)) is not None:
            options = {**azure_options(*found), **options}
        elif self._is_own and self.connection is not None and self.connection.login:
            options.setdefault(ACCOUNT, str(self.connection.login))
        return {name: value for name, value in options.items() if name in (ACCOUNT, "azure_storage_endpoint")}

    def _with_login(self, options: dict[str, str], kind: str) -> dict[str, str]:
        """Return the options with login and password as the store's key pair.

        :raises DeltaIllegalArgumentException: if the pair is not complete, or the options hold other credentials.
        """
        names = _CREDENTIALS.get(kind)
        if names is None or self.connection is None:
            return options
        login, password = self.connection.login, self.connection.password
        if kind == S3 and bool(login) != bool(password):
            missing = "password (secret key)" if login else "login (access key)"
            raise DeltaIllegalArgumentException(f"The connection {self.conn_id!r} has no {missing}; a key pair has both.")
        pairs = {name: str(value) for name, value in zip(names, (login, password), strict=False) if value}
        if twice := sorted(name for name, value in pairs.items() if options.get(name, value) != value):
            raise DeltaIllegalArgumentException(
                f"The credentials of {self._whose} are given twice: by login and password and by storage_options "
                f"({', '.join(twice)}), with different values. Remove one of them."
            )
        return {**pairs, **options}

    def _check_catalog(self) -> None:
        if unknown := sorted(self.extra.keys() - set(_CATALOG_FIELDS)):
            raise DeltaIllegalArgumentException(
                f"The extra of {self._whose} has unknown keys: {', '.join(unknown)}. Known are {', '.join(_CATALOG_FIELDS)}."
            )
        if self.connection is not None and self.connection.login:
            raise DeltaIllegalArgumentException(
                f"The login of {self._whose} has no meaning. The token is its password. Remove it."
            )
        _ = (
            self.catalog_url,
            self.allow_http,
            self.spark_credentials,
            self.spark_packages,
            self.given_options,
            self.other_locations,
        )

    def check(self) -> None:
        """Refuse what has no meaning in this connection, by the field's name.

        :raises DeltaIllegalArgumentException: if there is such a field.
        """
        if self.is_catalog:
            self._check_catalog()
        if not self._is_own or self.connection is None:
            return
        if useless := [name for name in ("schema", "port") if getattr(self.connection, name)]:
            raise DeltaIllegalArgumentException(
                f"The {' and the '.join(useless)} of {self._whose} have no meaning. The host is the whole base path "
                "(s3://bucket/path), and the URL of a server of your own goes into storage_options (AWS_ENDPOINT_URL, ...). "
                "Remove them."
            )
        if unknown := sorted(self.extra.keys() - set(_FIELDS)):
            raise DeltaIllegalArgumentException(
                f"The extra of {self._whose} has unknown keys: {', '.join(unknown)}. Known are {', '.join(_FIELDS)}. Options of "
                "the store (AWS_REGION, ...) go into storage_options."
            )
        _ = self.spark_credentials, self.spark_packages, self._cloud_conn_id, self.given_options, self.other_locations
        kind = _kind_of_base(self.base_path)
        for index, field in enumerate(("login", "password")):
            if kind is not None and len(_CREDENTIALS.get(kind, ())) <= index and getattr(self.connection, field):
                instead = _INSTEAD.get(kind, "A local base path needs no credentials.")
                raise DeltaIllegalArgumentException(
                    f"The {field} of {self._whose} has no meaning for {self.base_path}. {instead} Remove it."
                )


_CATALOG_FIELDS = ("storage_options", ALLOW_HTTP, OTHER_LOCATIONS, "spark_credentials", "spark_packages")


def _kind_of_base(path: str | None) -> str | None:
    """Return the kind of store of a base path, ``file`` for a local one; ``None`` without one."""
    return None if path is None else store_kind(path) or "file"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


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
