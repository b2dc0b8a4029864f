"""Remote stores and ``fork``: a forked child refuses an inherited runtime at once, instead of hanging for ever.

The clients of object stores and of HDFS need threads, which a forked child does not inherit. They belong to the process, not to a
store, so a new store in the child hangs as well. The first use is therefore recorded per process, and children that are forked
later refuse.
"""

from __future__ import annotations

import gc
import os

from airflow_delta.exceptions import ForkedProcessException

_used_by: int | None = None

_inherited_from: int | None = None


def _after_fork_in_child() -> None:
    global _inherited_from
    if _used_by is not None and _inherited_from is None:
        _inherited_from = _used_by
        gc.freeze()  # a client that the collector found here would wait for threads of its parent for ever


os.register_at_fork(after_in_child=_after_fork_in_child)


def check_runtime(table: str) -> None:
    """Record that this process uses the runtime of a remote store.

    :raises ForkedProcessException: if this process was forked from one that had used it.
    """
    global _used_by
    if _inherited_from is not None:
        raise ForkedProcessException(
            f"Table {table} is not local, and this process ({os.getpid()}) was forked from one ({_inherited_from}) that had "
            "already used an object store or HDFS. Their clients do not survive a fork and would hang. Open tables only in the "
            "child, start the child with multiprocessing's 'spawn' or 'forkserver' method, or run a new interpreter.",
            table=table,
        )
    if _used_by is None:
        _used_by = os.getpid()
