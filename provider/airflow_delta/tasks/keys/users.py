"""Who uses a transaction key, for the look at what the table's log says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.task_notes import WARNING_KEY, masked_by_airflow
from airflow_delta.tasks.dag_file import argument_of, scope_of, start_tasks
from airflow_delta.tasks.identity import commit_tags
from airflow_delta.tasks.keys.age import possible_since
from airflow_delta.tasks.keys.default_key import default_key_prefix

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.table.state.key_users import KeyUser


def key_user(task: Any, context: Context, check: str) -> KeyUser:
    """Return the running task, a start task or one with a transaction of its own, as the user of its key.

    :param check: ``key_check`` of the task.
    """
    ti = context["ti"]
    tasks: Any = getattr(context.get("dag"), "task_dict", {})
    definition = tasks.get(ti.task_id)

    def tell(text: str) -> None:
        task.log.warning(text)
        try:
            ti.xcom_push(key=WARNING_KEY, value=masked_by_airflow(text))
        except Exception:  # the log says it, too
            task.log.warning("Could not push the warning about the key", exc_info=True)

    return engine.KeyUser(
        tags=commit_tags(context),
        committers=frozenset({ti.task_id, *(_commits_of(definition, context) if definition is not None else ())}),
        tasks=None if definition is None else frozenset(tasks),
        default_prefix=default_key_prefix(ti.dag_id, ti.task_id, ti.run_id),
        check=check,
        since=lambda: possible_since(context, None)(),
        tell=tell,
    )


def committing_user(task: Any, context: Context, start: Any = None) -> KeyUser | None:
    """Return a running commit task as the user of its start task's key; ``None`` if the Dag file does not show one start task.

    :param start: the start task in the Dag file, if the task commits several transactions.
    """
    starts = (start_tasks(task, context) or ()) if start is None else (start,)
    if len(starts) != 1:
        return None
    (start,) = starts
    check = start.render_template(argument_of(start, "key_check", "warn"), scope_of(start, context))
    ti = context["ti"]
    user = key_user(task, context, check if isinstance(check, str) else "warn")
    return replace(user, default_prefix=default_key_prefix(ti.dag_id, start.task_id, ti.run_id))


def _commits_of(start: Any, context: Context) -> list[str]:
    """Return the commit tasks of a start task."""
    found = start.get_flat_relatives(upstream=False)
    commits = [other for other in found if getattr(_class_of(other), "transaction_role", None) == "commit"]
    return [other.task_id for other in commits if start in (start_tasks(other, context) or ())]


def _class_of(task: Any) -> Any:
    return getattr(task, "operator_class", None) or type(task)
