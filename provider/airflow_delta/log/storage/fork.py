"""Object stores and ``fork``: an inherited runtime is refused at once instead of hanging for ever.

The object-store client runs on threads that a forked child does not have, and they belong to the process, not to one store:
a store made anew in the child hangs as well. So the first use is remembered per process, and a child forked after it refuses.
"""

from __future__ import annotations

import os

from airflow_delta.exceptions import ForkedProcessException

_used_by: int | None = None
_inherited_from: int | None = None


def _after_fork_in_child() -> None:
    global _inherited_from
    if _used_by is not None and _inherited_from is None:
        _inherited_from = _used_by


os.register_at_fork(after_in_child=_after_fork_in_child)


def check_runtime(table: str) -> None:
    """Note that this process uses the object-store runtime.

    :raises ForkedProcessException: this process was forked from one that had used it.
    """
    global _used_by
    if _inherited_from is not None:
        raise ForkedProcessException(
            f"Table {table} is on an object store, and this process ({os.getpid()}) was forked from one ({_inherited_from}) that "
            "had already used object stores; their client does not survive a fork and would hang. Open tables only in the child, "
            "start the child with multiprocessing's 'spawn' or 'forkserver' method, or run a new interpreter.",
            table=table,
        )
    if _used_by is None:
        _used_by = os.getpid()
