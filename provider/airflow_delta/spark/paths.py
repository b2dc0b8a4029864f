"""A normal form for paths that the log, Hadoop and Spark spell differently.

The log holds URL-encoded paths; Spark takes raw ones, with ``[ ] { } * ?`` as globs; ``_metadata.file_path`` is encoded by
Hadoop's rules. The normal form is ``authority/path`` with nothing encoded.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from airflow_delta.staging.location import GCS, S3, store_of

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_RENAMED = (S3, GCS)
"""Stores of which all schemes have the same authority."""
_GLOB = re.compile(r"([{}\[\]*?\\])")


def data_file_uri(table: str, log_path: str) -> str:
    """Return the raw URI of a data file.

    :param table: raw URI of the table for Spark.
    :param log_path: path in the log: URL-encoded, relative to the table or absolute.
    """
    path = unquote(log_path)
    if not path.startswith("/") and not _SCHEME.match(path):
        return f"{table.rstrip('/')}/{path}"
    store = store_of(path)
    if store in _RENAMED and store_of(table) == store:  # a file in another bucket: Spark opens it by the table's scheme
        return f"{table.partition('://')[0]}://{path.partition('://')[2]}"
    return path


def escape_glob(uri: str) -> str:
    """Return a URI that Spark's readers take literally.

    Hadoop cannot expand a pattern in a path with a colon; Spark and Delta never write a colon into a path.
    """
    return _GLOB.sub(r"\\\1", uri)


def normal_form(raw_uri: str) -> str:
    """Return ``authority/path`` of a raw URI: without scheme, and the same for ``file:/x`` and ``file:///x``."""
    scheme = _SCHEME.match(raw_uri)
    rest = raw_uri[scheme.end() :] if scheme else raw_uri
    return rest[2:] if rest.startswith("//") else rest


def normal_form_of_metadata(file_path: str) -> str:
    """Return the normal form of Spark's ``_metadata.file_path``."""
    return normal_form(unquote(file_path))
