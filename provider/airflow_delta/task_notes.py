"""What tasks leave for the pages of a table: the error of a failed one, and warnings about keys, short and masked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_delta import masking

_MAX_MESSAGE = 500

FAILURE_KEY = "delta_commit_failure"
"""XCom of a failed commit task: a short form of the error."""

NOTE_KEY = "delta_failure_"
"""Key, before the number of the try, of the same in the state store of a task, which outlives a clear as no XCom does."""

WARNING_KEY = "delta_key_warning"
"""XCom of a task whose key another run has committed: the warning, so that the UI shows it."""


def leave_note(context: Mapping[str, Any], task: Any, error: BaseException) -> None:
    """Leave a short form of an error for the table's page in the state store of the running task.

    :param task: the task with its rendered fields; ``transaction`` may be its handle.
    """
    store = context.get("task_state_store")
    if store is not None:
        handle = getattr(task, "transaction", None)
        transaction_id = handle.get("transactionId") if isinstance(handle, Mapping) else None
        store.set(f"{NOTE_KEY}{context['ti'].try_number}", {**failure_note(error), "transaction_id": transaction_id})


def failure_note(error: BaseException) -> dict[str, Any]:
    """Return a short form of an error: its class, its first line, and the version that it conflicts with."""
    # XComs are stored and shown unmasked, unlike task logs.
    return {
        "exception": type(error).__name__,
        "message": masked_by_airflow(str(error).partition("\n")[0])[:_MAX_MESSAGE],
        "version": getattr(error, "winning_version", None),
    }


def masked_by_airflow(text: str) -> str:
    """Return a text with the secrets that Airflow knows, and credentials in URLs, masked."""
    from airflow_delta.airflow_internals.tasks import redacted

    return masking.masked(redacted(text))
