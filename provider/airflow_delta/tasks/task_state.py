"""The task state store of Airflow: what it keeps of a task outlives a clear, as no XCom does."""

from __future__ import annotations

from typing import Any

from airflow.sdk import get_current_context


def keep(store: Any, key: str, value: dict[str, Any]) -> None:
    """Keep something in a task's state store for as long as Airflow has the task."""
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it

    store.set(key, value, retention=NEVER_EXPIRE)


def state_store() -> Any:
    """Return the running task's state store; ``None`` outside a task, or if Airflow has none."""
    try:
        return get_current_context().get("task_state_store")
    except RuntimeError:
        return None
