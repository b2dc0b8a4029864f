"""Optimistic transactions on a Delta log.

The names below are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from airflow_delta.lazy import face

_HOMES = {
    "AutoCompactionRequest": "policy",
    "CheckpointHook": "commit.hooks",
    "ChecksumHook": "commit.hooks",
    "CommitOutcome": "policy",
    "CommitPolicy": "policy",
    "CommitStats": "commit.stats",
    "CommittedTransaction": "commit.hooks",
    "IsolationLevel": "prepare.isolation",
    "Operation": "operations",
    "OptimisticTransaction": "commit.optimistic_transaction",
    "PostCommitHook": "commit.hooks",
    "TransactionObserver": "commit.stats",
    "last_commit_version_in_session": "commit.hooks",
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
    "CommittedTransaction",
    "IsolationLevel",
    "Operation",
    "OptimisticTransaction",
    "PostCommitHook",
    "TransactionObserver",
    "last_commit_version_in_session",
    "start_transaction",
    "with_new_transaction",
]

__getattr__, __dir__ = face(__name__, _HOMES)
