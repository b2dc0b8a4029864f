"""What a user does with a table, as functions over a :class:`~airflow_delta.log.delta_log.DeltaLog`, without Airflow.

Everything is imported on first use, so that a task pays only for what it needs.
"""

from __future__ import annotations

from airflow_delta.lazy import face

_HOMES = {
    "AuditedTable": "audit.audit",
    "CommitSummary": "observe.observe",
    "abort_transaction": "abort",
    "begin": "start.begin",
    "commits_after": "observe.observe",
    "describe": "observe.observe",
    "list_transactions": "state.open_transactions",
    "maintain": "operations.maintenance",
    "plan_changes": "changes.read",
    "publish": "commit.publish",
    "recent_commits": "observe.observe",
}

__all__ = [
    "AuditedTable",
    "CommitSummary",
    "abort_transaction",
    "begin",
    "commits_after",
    "describe",
    "list_transactions",
    "maintain",
    "plan_changes",
    "publish",
    "recent_commits",
]

__getattr__, __dir__ = face(__name__, _HOMES)
