"""Optimistic transactions on a Delta log.

The names below are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "AutoCompactionRequest": "policy.policy",
    "CheckpointHook": "commit.hooks",
    "ChecksumHook": "commit.hooks",
    "CommitOutcome": "policy.policy",
    "CommitPolicy": "policy.policy",
    "CommitStats": "commit.stats",
    "IsolationLevel": "prepare.isolation",
    "Operation": "operations.operation",
    "OptimisticTransaction": "commit.optimistic_transaction",
    "PostCommitHook": "commit.hooks",
    "TransactionObserver": "commit.observer",
    "last_commit_version_in_session": "commit.active",
    "start_transaction": "commit.start_transaction",
    "with_new_transaction": "commit.start_transaction",
}

__all__ = [
    "AutoCompactionRequest",
    "CheckpointHook",
    "ChecksumHook",
    "CommitOutcome",
    "CommitPolicy",
    "CommitStats",
    "IsolationLevel",
    "Operation",
    "OptimisticTransaction",
    "PostCommitHook",
    "TransactionObserver",
    "last_commit_version_in_session",
    "start_transaction",
    "with_new_transaction",
]

if TYPE_CHECKING:
    from airflow_delta.transaction.commit.active import last_commit_version_in_session
    from airflow_delta.transaction.commit.hooks import CheckpointHook, ChecksumHook, PostCommitHook
    from airflow_delta.transaction.commit.observer import TransactionObserver
    from airflow_delta.transaction.commit.optimistic_transaction import OptimisticTransaction
    from airflow_delta.transaction.commit.start_transaction import start_transaction, with_new_transaction
    from airflow_delta.transaction.commit.stats import CommitStats
    from airflow_delta.transaction.operations.operation import Operation
    from airflow_delta.transaction.policy.policy import AutoCompactionRequest, CommitOutcome, CommitPolicy
    from airflow_delta.transaction.prepare.isolation import IsolationLevel


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
