"""Prove that a store refuses to overwrite: without that, two writers can commit the same version and one of them is lost."""

from __future__ import annotations

import logging
import threading
import time
import uuid

from airflow_delta.exceptions import ConditionalPutException
from airflow_delta.log.storage.base import AmbiguousPutError, LogStore
from airflow_delta.log.storage.file_names import LOG_DIRECTORY

logger = logging.getLogger(__name__)

_REPEATED_PUTS = 5
_PAUSE = 0.1

_lock = threading.Lock()
_proven: set[str] = set()


def check_conditional_put(store: LogStore, *, again: bool = False) -> None:
    """Put a scratch object twice: the second put must fail. Done once for each process and table.

    :param again: do it even if it was done.
    :raises ConditionalPutException: if the store ignores the condition.
    :raises StoreRefusedError: if the store refuses to write at all.
    """
    if store.local_root is not None:
        return
    with _lock:
        if store.root in _proven and not again:
            return
    path = f"{LOG_DIRECTORY}/_probe-{uuid.uuid4().hex}"
    try:
        _creates(store, path, b"1")
        if _creates(store, path, b"2"):
            raise ConditionalPutException(
                f"The store of {store.root} ignores the condition of a put (If-None-Match: *): a second writer overwrote an "
                "object. Concurrent commits would be lost without a word, so no table can be kept there. Use a store, or a "
                "version of it, with conditional puts.",
                table=store.root,
            )
    finally:
        _remove(store, path)
    with _lock:
        _proven.add(store.root)


def _creates(store: LogStore, path: str, data: bytes) -> bool:
    """Put an object; return whether the store created it. An ambiguous answer is settled by putting it again."""
    for attempt in range(_REPEATED_PUTS):
        try:
            store.put_if_absent(path, data)
        except FileExistsError:
            return False
        except AmbiguousPutError:
            if attempt == _REPEATED_PUTS - 1:
                raise
            time.sleep(_PAUSE * (attempt + 1))
        else:
            return True
    return False


def _remove(store: LogStore, path: str) -> None:
    try:
        store.delete([path])
    except OSError as error:
        logger.warning("Could not delete %s/%s: %s", store.root, path, error)
