"""A thread's active transaction and the last version committed from it (Delta keeps both in the session)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_delta.exceptions import DeltaIllegalStateException

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


class ActiveTransaction(Protocol):
    """What is known here of a transaction: an :class:`~airflow_delta.transaction.OptimisticTransaction`."""

    log: DeltaLog

    @property
    def read_version(self) -> int:
        """Version that it reads."""
        ...


T = TypeVar("T", bound=ActiveTransaction)


class _Thread(threading.local):
    transaction: ActiveTransaction | None = None
    last_version: int | None = None


_thread = _Thread()


def get_active() -> ActiveTransaction | None:
    """Return the transaction that is active in this thread."""
    return _thread.transaction


def set_active(txn: ActiveTransaction) -> None:
    """Make ``txn`` the active transaction of this thread; setting it again has no effect.

    :raises DeltaIllegalStateException: if another transaction is active (Delta: DELTA_ACTIVE_TRANSACTION_ALREADY_SET).
    """
    current = _thread.transaction
    if current is not None and current is not txn:
        raise txn.log.error(
            DeltaIllegalStateException,
            f"Cannot make the transaction on {txn.log.uri} active: this thread already has an active one on {current.log.uri} "
            f"(version {current.read_version}). Transactions do not nest (DELTA_ACTIVE_TRANSACTION_ALREADY_SET); commit or clear "
            "the active one first.",
        )
    _thread.transaction = txn


def clear_active() -> None:
    """Leave this thread without an active transaction."""
    _thread.transaction = None


@contextmanager
def with_active(txn: T, *, override_existing: bool = False) -> Iterator[T]:
    """Make ``txn`` the active transaction inside a ``with`` block, then restore the one that was active before.

    :param override_existing: also if another transaction is active.
    """
    before = _thread.transaction
    if override_existing:
        _thread.transaction = txn
    else:
        set_active(txn)
    try:
        yield txn
    finally:
        _thread.transaction = before


@contextmanager
def suspended() -> Iterator[None]:
    """Run a ``with`` block without an active transaction (what a post-commit hook does is not part of the commit)."""
    transaction, _thread.transaction = _thread.transaction, None
    try:
        yield
    finally:
        _thread.transaction = transaction


def last_commit_version_in_session() -> int | None:
    """Return the last version committed from this thread (Delta's ``lastCommitVersionInSession``)."""
    return _thread.last_version


def record_commit(version: int) -> None:
    """Remember the version that was just committed."""
    _thread.last_version = version
