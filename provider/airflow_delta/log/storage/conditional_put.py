"""Prove that a store refuses to overwrite: without that, two writers can commit the same version and one of them is lost."""

from __future__ import annotations

import logging
import threading
import uuid

from airflow_delta.exceptions import ConditionalPutException
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.puts import creates

logger = logging.getLogger(__name__)

_lock = threading.Lock()

_proven: set[tuple[str, ...]] = set()


def check_conditional_put(store: LogStore, *, again: bool = False) -> None:
    """Put a scratch object twice: the second put must fail. Done once for each process and table.

    :param again: do it even if it was done.
    :raises ConditionalPutException: if the store ignores the condition.
    :raises StoreRefusedError: if the store refuses to write at all.
    """
    if store.local_root is not None:
        return
    with _lock:
        if _place(store) in _proven and not again:
            return
    path = f"{LOG_DIRECTORY}/_probe-{uuid.uuid4().hex}"
    try:
        creates(store, path, b"1")
        if creates(store, path, b"2"):
            raise store.error(
                ConditionalPutException,
                f"The store of {store.root} ignores the condition of a put (If-None-Match: *): a second writer overwrote an "
                "object. Concurrent commits would be lost without a word, so no table can be kept there. Use a store, or a "
                "version of it, with conditional puts.",
            )
    finally:
        _remove(store, path)
    with _lock:
        _proven.add(_place(store))


def _place(store: LogStore) -> tuple[str, ...]:
    """Return what makes a store another one: two connections may have buckets of one name at two endpoints."""
    return (store.root, *sorted(value for name, value in store.options.items() if "endpoint" in name.lower()))


def _remove(store: LogStore, path: str) -> None:
    try:
        store.delete([path])
    except OSError as error:
        logger.warning("Could not delete %s/%s: %s", store.root, path, error)
