"""What the Dag file gives a task, mapped or not: the values of its parameters, as far as it names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_delta.contract.choices import Given

UNKNOWN = object()
"""What a parameter is that each mapped task gets when it runs."""


def parent_defaults(task: Any) -> dict[str, Any]:
    """Return the ``default_args`` of the Dag and of the group of a task."""
    dag, group = task.get_dag(), task.task_group
    return {**(dag.default_args if dag is not None else {}), **((group.default_args or {}) if group is not None else {})}


def argument(task: Any, name: str) -> Any:
    """Return a parameter; something that is not ``None`` if a mapped task may get it."""
    if not task.is_mapped:
        return getattr(task, name, None)
    if (value := task.partial_kwargs.get(name)) is not None:
        return value
    mapped = getattr(task.expand_input, "value", None)
    if isinstance(mapped, Mapping):
        return UNKNOWN if name in mapped else None
    return UNKNOWN  # expand_kwargs


def argument_values(task: Any, name: str) -> Iterator[Any]:
    """Yield the values of a parameter that the Dag file names."""
    if not task.is_mapped:
        declared = getattr(task, "declared", {}).get(name)
        yield getattr(task, name if declared is None else declared.attribute, None)
        return
    yield task.partial_kwargs.get(name)
    mapped = getattr(task.expand_input, "value", None)
    if isinstance(mapped, Mapping):
        each = mapped.get(name)
        yield from each if isinstance(each, list | tuple) else ()
    elif isinstance(mapped, list | tuple):
        yield from (kwargs.get(name) for kwargs in mapped if isinstance(kwargs, Mapping))


def arguments_of(task: Any) -> Iterator[Given]:
    """Yield what a task is given; of a mapped one what each value that the Dag file names gives it, beside what is unknown."""
    if not task.is_mapped:
        yield lambda name: getattr(task, name, None)
        return
    common, mapped = task.partial_kwargs, getattr(task.expand_input, "value", None)
    if isinstance(mapped, Mapping):
        unknown = {**common, **dict.fromkeys(mapped, UNKNOWN)}
        yield unknown.get
        for name, values in mapped.items():
            yield from ({**unknown, name: value}.get for value in (values if isinstance(values, list | tuple) else ()))
    elif isinstance(mapped, list | tuple):
        yield from ({**common, **kwargs}.get for kwargs in mapped if isinstance(kwargs, Mapping))
