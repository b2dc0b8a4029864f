"""Create an object whose content shows whether it is one's own, however often the put has to be repeated."""

from __future__ import annotations

import time

from airflow_delta.log.storage.base import AmbiguousPutError, LogStore

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
