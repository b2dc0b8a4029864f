"""Opening the log store for a URI."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.base import LogStore, check_no_user_info
from airflow_delta.log.storage.options import STORES

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def store_for(table_uri: str, storage_options: Mapping[str, str] | None = None, *, connection: str | None = None) -> LogStore:
    """Return the store of a table.

    :param table_uri: local path, ``file://``, ``s3://`` (``s3a://``), ``gs://``, ``az://``, ``abfss://`` or ``hdfs://`` URI.
    :param storage_options: credentials and settings in any spelling of ``object_store`` (``AWS_ENDPOINT_URL``, any case).
        For local tables: ``durable`` (``"false"`` skips fsync).
    :param connection: name of the connection that the options come from, for errors.
    :raises DeltaIllegalArgumentException: if the URI is empty, contains credentials, or its scheme is not supported.
    """
    if not table_uri or not table_uri.strip():
        raise DeltaIllegalArgumentException("The table location is empty. Pass a path or a URI, for example s3://bucket/table.")
    check_no_user_info(table_uri)
    options = dict(storage_options or {})
    if table_uri.startswith("~"):
        raise DeltaIllegalArgumentException(
            f"The table location {table_uri} begins with ~, another folder on each machine. Pass an absolute path.",
            table=table_uri,
        )
    scheme = _scheme_of(table_uri)
    if scheme in ("", "file"):
        from airflow_delta.log.storage.local import LocalStore

        return LocalStore(table_uri, options)
    if scheme == "hdfs":
        from airflow_delta.log.storage.hdfs import HdfsStore

        return HdfsStore(table_uri, options, connection)
    if (problem := scheme_problem(table_uri)) is not None:
        raise DeltaIllegalArgumentException(problem, table=table_uri)
    from airflow_delta.log.storage.object import ObjectStore

    return ObjectStore(table_uri, options, connection)


def scheme_problem(table_uri: str) -> str | None:
    """Return why there is no store for the scheme of a URI; ``None`` if there is one."""
    scheme = _scheme_of(table_uri)
    if scheme in ("", "file", "hdfs", *STORES):
        return None
    return (
        f"Storage scheme '{scheme}://' of table {table_uri} is not supported. "
        f"Supported: local paths, file://, {', '.join(f'{known}://' for known in (*STORES, 'hdfs'))}."
    )


def _scheme_of(table_uri: str) -> str:
    match = _SCHEME.match(table_uri)
    return match[1].lower() if match else ("file" if table_uri[:5].lower() == "file:" else "")


def sibling(store: LogStore, uri: str) -> LogStore:
    """Return the store of another location, with the settings of an open store.

    :raises PathOutsideTableException: if the open store must not leave a directory, and the location is not below it.
    """
    from airflow_delta.log.storage.local import LocalStore

    found = store_for(uri, store.options, connection=store.connection)
    if isinstance(store, LocalStore) and isinstance(found, LocalStore) and store.held_within is not None:
        found.hold_within(store.held_within)
    return found
