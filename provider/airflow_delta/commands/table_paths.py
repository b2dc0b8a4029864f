"""Where the files that the log names are: keys below the table root, or somewhere else."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from airflow_delta.log.store import LogStore

_LOCAL = re.compile(r"^file:(?://(?:localhost)?)?(?=/)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def relative_key(store: LogStore, path: str) -> str | None:
    """Return the storage key of a file below the table root, or ``None`` when it is outside (a shallow clone's).

    :param path: raw path, as :func:`urllib.parse.unquote` gives it of the log's: relative, an absolute path or a URI.
    """
    path = _LOCAL.sub("", path)
    if not path.startswith("/") and not _SCHEME.match(path):
        key = posixpath.normpath(path)
        return None if key.startswith("..") else key
    for root in {store.local_root, _LOCAL.sub("", store.root)}:
        if root is None:
            continue
        if _SCHEME.match(root) and _SCHEME.match(path):  # s3 and s3a are one store
            root, path = _one_spelling(root), _one_spelling(path)
        if path.startswith(f"{root.rstrip('/')}/"):
            return posixpath.normpath(path[len(root.rstrip("/")) + 1 :])
    return None


def exists(store: LogStore, path: str, *, encoded: bool = True) -> bool:
    """Say whether a file is there, wherever it is.

    :param path: path as the log has it.
    :param encoded: it is URL-encoded.
    """
    raw = unquote(path) if encoded else path
    key = relative_key(store, raw)
    if key is not None:
        return store.head(key) is not None
    directory, _, name = _LOCAL.sub("", raw).rpartition("/")
    return store.sibling(directory or "/").head(name) is not None


def _one_spelling(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    scheme = scheme.lower()
    return f"{'s3' if scheme == 's3a' else scheme}://{rest}"
