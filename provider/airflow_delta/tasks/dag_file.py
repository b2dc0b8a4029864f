"""What the Dag file says of a running task: its start tasks, its arguments before they are rendered, and what renders them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta.airflow_internals.tasks import params_of_run
from airflow_delta.contract.payloads import Payload
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_definition(operator: Any, context: Context) -> Any:
    """Return a task as in the Dag file, not rendered."""
    dag: Any = context.get("dag")
    return None if dag is None else dag.task_dict.get(operator.task_id)


def start_tasks(operator: Any, context: Context) -> list[Any] | None:
    """Return the start tasks whose handle a task may have; ``None`` for a literal handle, or without a Dag."""
    definition = task_definition(operator, context)
    return None if definition is None else starts_of(definition)


def has_previews(operator: Any, context: Context) -> bool:
    """Return whether a task before this one writes previews of its transaction, as the Dag file says."""
    definition = task_definition(operator, context)
    before = () if definition is None else definition.get_flat_relatives(upstream=True)
    return any(getattr(getattr(task, "operator_class", None) or type(task), "writes_preview", False) for task in before)


def starts_of(definition: Any) -> list[Any] | None:
    given = argument_of(definition, "transactions" if hasattr(definition, "transactions") else "transaction", None)

    def starts(tasks: Any) -> list[Any]:
        classes = ((task, getattr(task, "operator_class", None) or type(task)) for task in tasks)
        return [task for task, cls in classes if getattr(cls, "transaction_role", None) == "start"]

    references = referenced_tasks(given)
    if not references and is_written_out(given):
        return None
    # Passed on by another task: it comes from a start task upstream of that one.
    return starts(references) or starts(definition.get_flat_relatives(upstream=True))


def is_written_out(given: Any) -> bool:
    """Return whether a handle, or a result, is a literal in the Dag file, without templates."""
    if isinstance(given, Each):
        return False
    value = given.to_dict() if isinstance(given, Payload) else given
    return isinstance(value, Mapping) and not any(mark in text for text in _texts(value) for mark in ("{{", "{%"))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def argument_of(definition: Any, name: str, default: Any) -> Any:
    """Return an argument of a task as in the Dag file; one that it is mapped over as :class:`Each`."""
    if not definition.is_mapped:
        return getattr(definition, name, default)
    value = getattr(getattr(definition, "_get_specified_expand_input", lambda: None)(), "value", None)
    if isinstance(value, Mapping):
        if name in value:
            return Each(value[name], None)
    elif value is not None:
        return Each(value, name) if name not in definition.partial_kwargs else definition.partial_kwargs[name]
    return definition.partial_kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class Each:
    """An argument that a task is mapped over: it may have any of the values.

    :param key: its name in each of the values, which may lack it (``expand_kwargs``).
    """

    values: Any
    key: str | None


def referenced_tasks(given: Any) -> list[Any]:
    """Return the tasks whose outputs an argument refers to."""
    return [task for task, _ in XComArg.iter_xcom_references(given.values if isinstance(given, Each) else given)]


class _AsStart:
    """The running task instance under the start task's id, as templates of the start task see it."""

    def __init__(self, ti: Any, start: Any) -> None:
        self._ti = ti
        self.task = start
        self.task_id = start.task_id
        mapped = start.is_mapped or start.get_closest_mapped_task_group() is not None
        self.map_index = ti.map_index if mapped else -1  # a stage may be mapped where the start task is not

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ti, name)


def scope_of(start: Any, context: Context) -> dict[str, Any]:
    """Return the template context of a start or commit task, made from that of another task of the run."""
    ti = _AsStart(context["ti"], start)
    scope: dict[str, Any] = {**context, "task": start, "ti": ti, "task_instance": ti}
    mine, running = "task_instance_key_str", context["task"]
    if mine in scope:
        scope[mine] = scope[mine].replace(f"__{running.task_id}__", f"__{start.task_id}__", 1)
    if start.params or running.params:  # a task may have its own besides those of the Dag
        conf = getattr(context.get("dag_run"), "conf", None)
        scope["params"] = params_of_run(context["dag"], start, conf)
    return scope
