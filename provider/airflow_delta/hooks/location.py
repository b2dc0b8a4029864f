"""Locations in a connection or a Dag: one spelling for each table, and no location that means another place elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from airflow_delta.contract.location import FILE, Location, store_of
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern

_ONE_SLASH = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


def check_base_path(path: str, conn_id: str) -> str:
    """Return a connection's base path, ``file:/x`` as ``/x``, without a trailing slash.

    :raises DeltaIllegalArgumentException: if it is relative, begins with ``~``, or has an unknown scheme.
    """
    field = f"The host (base path) {path!r} of the connection {conn_id!r}"
    if path.startswith("~"):
        raise DeltaIllegalArgumentException(f"{field} begins with ~, another folder on each machine. Use an absolute path.")
    if path.lower().startswith("file:/") and (match := re.fullmatch(r"file:/(?://)?(?!/)(.*)", path, re.IGNORECASE)):
        return f"/{match[1]}".rstrip("/") or "/"
    if match := _ONE_SLASH.match(path):
        raise DeltaIllegalArgumentException(f"{field} has one slash after {match[1]}:. Write {match[1]}://bucket/path.")
    scheme, separator, rest = path.partition("://")
    if not separator:
        if not os.path.isabs(path):
            raise DeltaIllegalArgumentException(f"{field} is relative. Use a URI (s3://{path}) or an absolute path (/{path}).")
        return path.rstrip("/") or "/"
    if store_of(path) is None:
        raise DeltaIllegalArgumentException(
            f"{field} has the scheme {scheme}://, which is not supported. Use s3://, gs://, az://, abfss://, hdfs:// or a local "
            "path."
        )
    if not rest.strip("/") and scheme.lower() != "file":
        raise DeltaIllegalArgumentException(f"{field} names no bucket. Write {scheme}://bucket/path.")
    Location.parse(path).check_openable(path)
    return path.rstrip("/")


def one_spelling(uri: str, options: Mapping[str, str] | None = None) -> str:
    """Return the spelling of a table's URI that its handle, lock, asset and page share.

    ``s3a://`` becomes ``s3://``. An Azure container without its account gets it from the options, unless these name an endpoint
    of their own.
    """
    if store_of(uri) == FILE:
        return uri
    location = Location.parse(uri, options)
    location.check_openable(uri)
    return location.uri
