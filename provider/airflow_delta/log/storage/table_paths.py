"""Where the files of the log are: keys below the table root, or elsewhere."""

from __future__ import annotations

import os
import posixpath
import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.contract.location import Location
from airflow_delta.exceptions import DeltaIllegalArgumentException, PathOutsideTableException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.storage.factory import named_by_log, sibling

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore

_LOCAL = lazy_pattern(r"^file:(?://(?:localhost)?)?(?=/)", re.IGNORECASE)
_SCHEME = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]+://")


def relative_key(store: LogStore, path: str) -> str | None:
    """Return the storage key of a file below the table root, ``None`` if it is outside (a shallow clone's).

    :param path: raw path (the log's through :func:`urllib.parse.unquote`): relative, absolute or a URI.
    """
    local = _LOCAL.sub("", path)
    if store.local_root is not None:
        path = local
    if not path.startswith("/") and not _SCHEME.match(path):
        return None if local != path else _below(path)
    if store.local_root is None:
        root = _one_spelling(store.root)
        path = named_by_log(store.root, path)
        return _after(root, _one_spelling(path))
    if _SCHEME.match(path):
        return None
    key = _after(store.local_root, posixpath.normpath(path))
    if key is not None:
        return key
    # The table or the file may have another name through a symbolic link.
    return _real_key(store.local_root, posixpath.normpath(path))


def keys_to_keep(store: LogStore, path: str) -> set[str]:
    """Return every storage key that a path of the log may mean: no file may be deleted because of its spelling.

    :param path: path as the log has it.
    """
    texts = {path}
    if "%" in path:  # writers that do not encode paths, or use names that are not UTF-8, must not lose files
        texts |= {unquote(path), unquote(path, errors="surrogateescape")}
    keys = set(texts)
    for text in texts:
        if (key := relative_key(store, text)) is not None:
            keys.add(key)
            if store.local_root is not None and "/" in key:  # a directory of the table may be a link to another one
                keys.add(_real_key(store.local_root, f"{store.local_root}/{key}") or key)
        elif (
            store.local_root is None and _SCHEME.match(text) and (key := _after(_path_of(store.root), _path_of(text))) is not None
        ):
            keys.add(key)  # az:// and abfss:// name one container in two ways
    return keys


def forget_links() -> None:
    """Resolve symbolic links again: a process may live long."""
    _real.cache_clear()


def exists(store: LogStore, path: str, *, encoded: bool = True) -> bool:
    """Return whether a file exists, wherever it is.

    :param path: path as the log has it.
    :param encoded: it is URL-encoded.
    """
    holder, key = locate(store, unquote(path) if encoded else path)
    return holder.head(key) is not None


def locate(store: LogStore, path: str, opened: dict[str, LogStore] | None = None) -> tuple[LogStore, str]:
    """Return the store that holds a file of the log, and the file's key in it.

    :param path: raw path: relative, absolute or a URI.
    :param opened: stores of directories elsewhere, which are opened once; new ones are added.
    :raises PathOutsideTableException: if a relative path leads out of the table, or the place must not be opened.
    """
    key = relative_key(store, path)
    if key is not None:
        return store, key
    if not path.startswith("/") and not _SCHEME.match(path) and not _LOCAL.match(path):
        raise store.error(
            PathOutsideTableException,
            f"The log of table {store.root} names the file {path}, which leads out of the table. Restore an earlier version, or "
            "DELETE the whole partition.",
        )
    directory, _, name = (_LOCAL.sub("", path) if store.local_root is not None else path).rpartition("/")
    if opened is None:
        return sibling(store, directory or "/"), name
    if directory not in opened:
        opened[directory] = sibling(store, directory or "/")
    return opened[directory], name


def _below(path: str) -> str | None:
    key = posixpath.normpath(path)
    return None if key == ".." or key.startswith("../") else key


def _after(root: str, path: str) -> str | None:
    prefix = f"{root.rstrip('/')}/"
    return _below(path[len(prefix) :]) if path.startswith(prefix) else None


def _real_key(root: str, path: str) -> str | None:
    directory, _, name = path.rpartition("/")
    return _after(_real(root), f"{_real(directory or '/')}/{name}")


@lru_cache(maxsize=4096)
def _real(directory: str) -> str:
    return os.path.realpath(directory)


def _path_of(uri: str) -> str:
    """Return the part of a URI after the bucket, with the slash that begins it."""
    return _split(uri)[1]


def _split(uri: str) -> tuple[str, str]:
    """Return the part of a URI that names the bucket, and the path after it; a URL of an Azure account has it in its path."""
    scheme, separator, rest = uri.partition("://")
    names = 2 if scheme.lower() in ("http", "https") else 1
    path = "".join(f"/{part}" for part in rest.split("/")[names:])
    return f"{scheme}{separator}{rest.removesuffix(path)}", path


def _one_spelling(uri: str) -> str:
    """Return the normal form of a URI in the log; one in no known store is outside of every table.

    Values of partitions may look like credentials (``p=?sig=x``), so only the bucket is read as a location.
    """
    bucket, path = _split(uri)
    try:
        return f"{Location.parse(bucket).key}{path}"
    except DeltaIllegalArgumentException:
        return uri
