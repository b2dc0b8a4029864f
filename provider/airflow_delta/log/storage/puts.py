"""Objects that several writers may create: put again as often as the answer is unclear, and read again until they are found."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.errors import AmbiguousPutError

Found = TypeVar("Found")

_REPETITIONS = 5
_PAUSE = 0.1


def creates(store: LogStore, path: str, data: bytes) -> bool:
    """Put an object unless it exists, again after an ambiguous answer, so that a throttled request does not end a task.

    Not for log entries: whether one of those is under way must be known.

    :return: whether this put created it. ``False`` if it was there, perhaps from an earlier repetition.
    :raises AmbiguousPutError: if the store does not say, however often it is asked.
    """
    repetition = 0
    while True:
        try:
            store.put_if_absent(path, data, durable=False)
        except FileExistsError:
            return False
        except AmbiguousPutError:
            if repetition == _REPETITIONS:
                raise
            repetition += 1
            time.sleep(_PAUSE * repetition)
        else:
            return True


_LOOKS = (0.1, 0.4, 1.0, 3.0, 6.0)
"""Seconds between looks for an object that is there and is not found: a look-up may be stale."""


def read_until_found(read: Callable[[], Found | None]) -> Found | None:
    """Read an object that another put has created, again as long as it is not found.

    :param read: returns ``None`` if the object is not found, or not whole.
    :return: what ``read`` has returned at last.
    """
    found = read()
    for pause in _LOOKS:
        if found is not None:
            break
        time.sleep(pause)
        found = read()
    return found


logger = logging.getLogger(__name__)
