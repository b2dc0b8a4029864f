"""Absolute paths of a table's files, for a log that lies elsewhere: that of a shallow clone, or of a preview."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.deletion_vectors import ABSOLUTE, UUID_RELATIVE, vector_path
from airflow_delta.table.files.partitions import url_encode

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore

ELSEWHERE = r"^(/|[A-Za-z][A-Za-z0-9+.-]*:)"
"""What a path of the log that is not relative to its table begins with."""

_ELSEWHERE = re.compile(ELSEWHERE)


def qualified(store: LogStore) -> str:
    """Return the URI of a table's root as Hadoop shows it: ``file:/tmp/a b``, not URL-encoded."""
    return store.root if store.local_root is None else f"file:{store.local_root}"


def url_encoded(uri: str) -> str:
    """Return a URI as the log has it; the bucket stays as it is."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return f"file:{url_encode(uri.removeprefix('file:'))}"
    authority, _, path = rest.partition("/")
    return f"{scheme}://{authority}/{url_encode(path)}".rstrip("/")


def absolute_file_path(path: str, root: str) -> str:
    """Return a path of a table's log as one of another log.

    :param path: URL-encoded; one that begins with a slash is on the table's own file system or bucket.
    :param root: of the table, URL-encoded: a URI, or an absolute path, which the result is then as well.
    """
    if path.startswith("/"):
        if root.startswith("/"):
            return path
        scheme, separator, rest = root.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}{path}" if separator else f"file:{path}"
    return path if _ELSEWHERE.match(path) else f"{root}/{path}"


def absolute_vector(vector: DeletionVectorDescriptor | None, root: str, store: LogStore) -> DeletionVectorDescriptor | None:
    """Return a deletion vector with an absolute path, unless it is in the log itself or already has one.

    :param root: as for :func:`absolute_file_path`.
    :param store: storage of the table.
    """
    if vector is None or vector.storage_type != UUID_RELATIVE:
        return vector
    path = f"{root}/{url_encode(vector_path(store, vector))}"
    return msgspec.structs.replace(vector, storage_type=ABSOLUTE, path_or_inline_dv=path)
