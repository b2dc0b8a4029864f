"""What a store or a proxy cuts short is read again, and refused if it stays so."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_delta.log.storage.errors import IncompleteReadError

_READ_AGAIN = (0.1, 0.5)
"""Seconds before a file is read again that did not come whole."""


def complete(where: str, read: Callable[[], tuple[bytes, int]]) -> bytes:
    """Read again what does not come whole: a store or a proxy may cut an answer and call what is left its length.

    :param where: what is read, for the error.
    :param read: returns what came, and how many bytes there should be.
    :raises IncompleteReadError: if they still differ.
    """
    data, size = read()
    for pause in _READ_AGAIN:
        if len(data) == size:
            break
        time.sleep(pause)
        data, size = read()
    require_whole(where, data, size)
    return data


def require_whole(where: str, data: bytes, size: int) -> None:
    """Refuse what did not come whole.

    :raises IncompleteReadError: if there are not ``size`` bytes.
    """
    if len(data) != size:
        raise IncompleteReadError(
            f"Reading {where} gave {len(data)} bytes of {size}: a proxy or the store cuts its answers, or the file is being "
            "replaced. Run the task again; if it stays, read the file past the proxy."
        )
