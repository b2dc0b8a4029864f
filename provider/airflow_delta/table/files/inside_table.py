"""Whether a directory lies inside a Delta table: then the table's log alone says which of the files in it count."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.location import HDFS, Location
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.place import spelled_place, store_place

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore

logger = logging.getLogger(__name__)


def table_above(store: LogStore, directory: str = "", *, itself: bool = True) -> str | None:
    """Return the location of the Delta table that a directory is in, however far above it begins; ``None`` if there is none.

    A directory of a table is not always named as one (``p=1``, or a link to it), so all directories above are looked at, by the
    names given and by those that links lead to. A place that the credentials may not list is passed over.

    :param directory: in the store.
    :param itself: whether a log in the directory itself counts.
    """
    if store.local_root is None:
        return _on_a_store(store, spelled_place(store, directory), itself=itself)
    spelled, real = os.path.abspath(f"{store.local_root}/{directory}"), store_place(store, directory).path or "/"
    above = dict.fromkeys((*_above(real, itself=itself), *_above(spelled, itself=itself)))
    return next((path for path in above if os.path.isdir(os.path.join(path, LOG_DIRECTORY))), None)


def _on_a_store(store: LogStore, location: Location, *, itself: bool) -> str | None:
    # HDFS has no table at its root, and opens none there.
    base = f"/{location.path.split('/')[1]}" if location.store == HDFS else ""
    top = store_for(replace(location, path=base).uri, store.options, connection=store.connection)
    for path in _above(location.path or "/", itself=itself):
        if base and path == "/":
            break
        log = f"{path[len(base) :].strip('/')}/{LOG_DIRECTORY}".lstrip("/")
        try:
            if next(iter(top.list_recursive(log)), None) is not None:
                return replace(location, path=path.rstrip("/")).uri
        except PermissionError as error:  # credentials for a prefix
            logger.info("Not looked at for a Delta table above %s: %s", store.root, error)
    return None


def _above(path: str, *, itself: bool) -> Iterator[str]:
    """Yield the absolute paths of a directory and of those above it."""
    if itself:
        yield path
    while path != "/":
        path = os.path.dirname(path)
        yield path
