"""Opening the log store for a URI."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_delta.contract.location import FILE, HDFS, Location, check_no_secret
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log import heavy
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.other_locations import check_other_location


def store_for(table_uri: str, storage_options: Mapping[str, str] | None = None, *, connection: str | None = None) -> LogStore:
    """Return the store of a table.

    :param table_uri: local path, ``file://``, ``s3://`` (``s3a://``), ``gs://``, ``az://``, ``abfss://`` or ``hdfs://`` URI.
    :param storage_options: credentials and settings in any spelling of ``object_store`` (``AWS_ENDPOINT_URL``, any case).
        For local tables: ``durable`` (``"false"`` skips fsync). ``other_locations``: URIs, separated by commas, below which files
        may be that the log names outside of the table's own bucket.
    :param connection: name of the connection that the options come from, for errors.
    :raises DeltaIllegalArgumentException: if the URI is empty, contains credentials, its scheme is not supported, or its bucket,
        container, account or host is not a name that the cloud allows.
    """
    if not table_uri or not table_uri.strip():
        raise DeltaIllegalArgumentException("The table location is empty. Pass a path or a URI, for example s3://bucket/table.")
    check_no_secret(table_uri)
    options = dict(storage_options or {})
    if table_uri.startswith("~"):
        raise DeltaIllegalArgumentException(
            f"The table location {table_uri} begins with ~, another folder on each machine. Pass an absolute path.",
            table=table_uri,
        )
    if "://" not in table_uri or table_uri[:5].lower() == "file:":
        return heavy.LocalStore(table_uri, options)
    location = Location.parse(table_uri)
    location.check_openable(table_uri)
    if location.store == HDFS:
        return heavy.HdfsStore(table_uri, options, connection)
    return heavy.ObjectStore(table_uri, options, connection)


def scheme_problem(table_uri: str) -> str | None:
    """Return why there is no store for a URI; ``None`` if there is one."""
    try:
        Location.parse(table_uri)
    except DeltaIllegalArgumentException as error:
        return error.message
    return None


def sibling(store: LogStore, uri: str) -> LogStore:
    """Return the store of another location that the table's log names, with the settings of the open store.

    :param uri: URI or absolute path of a directory; on an object store and HDFS, a path is one in the table's own bucket.
    :raises PathOutsideTableException: if it is in another kind of store, or in another account or bucket than the table and not
        below one of the ``other_locations`` of the options: the credentials are for the table's own, and anybody who writes the
        log names paths; or if the open store must not leave a directory, and the location is not below it.
    """
    uri = named_by_log(store.root, uri)
    check_other_location(store.root, uri, store.options, store.connection)
    found = store_for(uri, store.options, connection=store.connection)
    if isinstance(store, heavy.LocalStore) and isinstance(found, heavy.LocalStore) and store.held_within is not None:
        found.hold_within(store.held_within)
    return found


def named_by_log(root: str, path: str) -> str:
    """Return the URI of an absolute path in the log of a table."""
    if not path.startswith("/"):
        return path
    own = Location.parse(root)
    return path if own.store == FILE else f"{own.root}{path}"
