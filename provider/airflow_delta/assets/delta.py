"""The asset of a Delta table, by its URI, and the commits that a consumer finds in its events.

The URI is ``delta://<storage>/<location>``: ``delta://s3/bucket/path``, ``delta://abfs/container@account.dfs.core.windows.net/path``,
``delta://file/absolute/path``, or ``delta://connection/<conn id>/<name>`` for a name below the base path of a connection. The
storage is the authority, not the bucket, since Airflow takes text before an ``@`` in the authority for credentials.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset
from airflow.sdk.definitions.asset import BaseAsset
from airflow.sdk.exceptions import AirflowException

from airflow_delta.contract.kinds import table_text
from airflow_delta.contract.location import AZURE, SCHEMES, STORES, Location, check_no_secret, dataset_name, store_of
from airflow_delta.contract.staging_directory import is_preview
from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset as OpenLineageDataset
    from airflow.sdk.lineage import LineageContext


SCHEME = "delta"

_FILE = "file"
_CONNECTION = "connection"
DEFAULT_CONN_ID = "delta_default"
_SAFE = "@:=+,!$&'()*;~"
_NO_URI = "to be set"
_WAYS = "delta://s3/bucket/path, delta://file/absolute/path or delta://connection/<conn id>/<name>"


# -- URIs ---------------------------------------------------------------------------------------------------------------------


def delta_asset_uri(table: str, delta_conn_id: str | None = None) -> str:
    """Return the asset URI of a table; equivalent spellings of a location give the same URI.

    A name below a connection's base path stays a name, since no connection is looked up while a Dag file is parsed. Always refer
    to a table in the same way.

    :param table: URI, absolute path, or a name below the connection's base path.
    :param delta_conn_id: connection that a relative name belongs to.
    :raises DeltaIllegalArgumentException: if the table is empty or its location contains credentials.
    """
    table = table_text(table)
    check_no_secret(table)
    head, separator, tail = table.strip().partition("://")
    scheme = head.lower() if separator else ""
    if scheme == SCHEME:
        return _text(_normalised(urlsplit(table.strip())))
    if scheme == _FILE or table[:6].lower() == "file:/":
        return f"{SCHEME}://{_FILE}{_local(unquote(urlsplit(table.strip()).path))}"
    if scheme in ("http", "https") and store_of(table.strip()) == AZURE:
        scheme, _, tail = Location.parse(table.strip()).uri.partition("://")
    if separator:
        return f"{SCHEME}://{_storage(scheme, tail)}/{_quoted(_object_location(scheme, tail.rstrip('/')))}"
    if os.path.isabs(table):
        return f"{SCHEME}://{_FILE}{_local(table)}"
    if not table.strip("/ "):
        raise DeltaIllegalArgumentException("The table of an asset is empty. Pass a URI, an absolute path or a name.")
    return f"{SCHEME}://{_CONNECTION}/{quote(delta_conn_id or DEFAULT_CONN_ID, safe=_SAFE)}/{_quoted(table.strip('/'))}"


def table_of_asset_uri(uri: str) -> tuple[str, str | None]:
    """Return the table of an asset URI: its location, or its name and connection.

    :raises DeltaIllegalArgumentException: if it is not the URI of a Delta table.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() != SCHEME:
        raise DeltaIllegalArgumentException(f"{uri!r} is not the asset URI of a Delta table, such as {_WAYS}.")
    parts = _normalised(parts)
    storage, location = parts.netloc, unquote(parts.path)
    if storage == _FILE:
        return location, None
    if storage == _CONNECTION:
        conn_id, _, name = parts.path[1:].partition("/")
        return unquote(name), unquote(conn_id)
    return f"{'abfss' if storage == 'abfs' else storage}:/{location}", None


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalise an asset URI with the scheme ``delta``; Airflow calls this for each asset (provider info, ``asset-uris``).

    :raises DeltaIllegalArgumentException: if the URI does not name a table; it is a ``ValueError``.
    """
    return _normalised(uri)


def _normalised(uri: SplitResult) -> SplitResult:
    if uri.query or uri.fragment:
        raise DeltaIllegalArgumentException(
            f"The asset URI {uri.geturl()!r} has a query or a fragment. An asset is the whole table, not a version or a part of "
            "it. Write a question mark or a hash in its location as %3F or %23."
        )
    path = uri.path.rstrip("/")
    storage = _storage(uri.netloc.lower(), path.lstrip("/"))
    if storage == _FILE and path:
        return SplitResult(SCHEME, storage, _local(unquote(path)), "", "")
    first, _, rest = path[1:].partition("/")
    if not storage or not first or (storage == _CONNECTION and not rest.strip("/")):
        raise DeltaIllegalArgumentException(f"The asset URI {uri.geturl()!r} does not name a Delta table, such as {_WAYS}.")
    # A slash written as %2F is part of a connection's name, not a separator.
    segments = "/".join(quote(unquote(segment), safe=_SAFE) for segment in path[1:].split("/"))
    return SplitResult(SCHEME, storage, f"/{_object_location(storage, segments)}", "", "")


def _storage(scheme: str, location: str) -> str:
    store = SCHEMES.get(scheme)
    if store == AZURE:
        return "abfs" if "@" in location.partition("/")[0] else "az" if scheme in ("az", "azure") else "abfs"
    return STORES[store].asset if store is not None else scheme


def _object_location(scheme: str, location: str) -> str:
    """Return a location on an object store unchanged, except that the host of an Azure account has one spelling."""
    authority, slash, path = location.partition("/")
    if SCHEMES.get(scheme) == AZURE:
        container, at, host = authority.rpartition("@")
        authority = f"{container}{at}{host.lower().replace('.blob.', '.dfs.', 1)}" if at else authority
    return f"{authority}{slash}{path}"


def _local(path: str) -> str:
    return quote("/" + os.path.normpath(path).lstrip("/"), safe=f"/{_SAFE}")


def _quoted(location: str) -> str:
    return quote(location, safe=f"/{_SAFE}")


def _text(uri: SplitResult) -> str:
    return f"{uri.scheme}://{uri.netloc}{uri.path}"


# -- assets -------------------------------------------------------------------------------------------------------------------


def delta_asset(table: str | os.PathLike[str], delta_conn_id: str | None = None) -> Asset:
    """Return the asset that a commit to this table emits, for ``schedule=[delta_asset(...)]`` of Dags that read it.

    :param table: the table as passed to the transaction; not templated.
    :param delta_conn_id: the transaction's connection; required for relative names.
    :raises DeltaIllegalArgumentException: if it is the preview of a transaction, or :func:`delta_asset_uri` raises it.
    """
    named: str = table_text(table)
    if is_preview(named):
        raise DeltaIllegalArgumentException(
            f"{named} is the preview of a transaction and goes with it, so it is not an asset. Name the table itself."
        )
    uri = delta_asset_uri(named, delta_conn_id)
    asset = Asset(name=uri, uri=_NO_URI)
    # The URI is normalised already. To do that, Airflow would load the description of every installed provider: some 0.15 s in
    # each process that parses a Dag file.
    object.__setattr__(asset, "uri", uri)
    return asset


def create_asset(*, table: str, delta_conn_id: str | None = None, extra: dict[str, Any] | None = None) -> Asset:
    """Return the asset of a table for Airflow's hook lineage (provider info, ``asset-uris``)."""
    return Asset(uri=delta_asset_uri(table, delta_conn_id), extra=extra)


def convert_asset_to_openlineage(asset: Asset, lineage_context: LineageContext) -> OpenLineageDataset | None:  # noqa: ARG001
    """Return the dataset of a table by OpenLineage's naming rules (provider info, ``asset-uris``).

    :return: ``None`` for a name below a connection that cannot be looked up here.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    table, conn_id = table_of_asset_uri(asset.uri)
    if conn_id is not None:
        from airflow_delta.hooks.delta import DeltaHook

        try:
            table = DeltaHook(conn_id).table_uri(table)
        except (AirflowException, DeltaError):
            return None
    namespace, name = dataset_name(table)
    return Dataset(namespace=namespace, name=name)


# -- events -------------------------------------------------------------------------------------------------------------------


def commits_of_events(events: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the commits in asset events: each once, in the order of their versions.

    Takes events of tasks and of watchers, in any order, and skips those without a commit (created by hand, or by a task that
    found nothing to change). To skip commits that an earlier run of the consumer has seen, compare ``dedupe_key``.

    :param events: for example ``triggering_asset_events[asset]``.
    :raises DeltaIllegalArgumentException: if these are not asset events.
    """
    if isinstance(events, Mapping | str) or not isinstance(events, Iterable):
        raise _not_events(events)
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, BaseAsset) or not hasattr(event, "extra"):
            raise _not_events(event)
        extra = getattr(event, "extra", None) or {}
        told = extra.get("payload") if extra.get("from_trigger") else extra
        several = told.get("commits") if isinstance(told, dict) else None
        for said in several if isinstance(several, list) and several else [told]:
            if isinstance(said, dict) and isinstance(said.get("version"), int) and said.get("dedupe_key"):
                found.setdefault(str(said["dedupe_key"]), dict(said))
    return sorted(found.values(), key=lambda commit: int(commit["version"]))


def _not_events(given: Any) -> DeltaIllegalArgumentException:
    return DeltaIllegalArgumentException(
        f"commits_of_events takes the events of an asset, got {type(given).__name__}. Pass triggering_asset_events[asset] (or "
        "inlet_events[asset]), with the asset of the table."
    )
