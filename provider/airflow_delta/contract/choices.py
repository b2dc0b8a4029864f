"""Parameters checked while the Dag is parsed, where they are literals: the words that they take, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_delta.contract.near_words import near_words
from airflow_delta.exceptions import DeltaIllegalArgumentException

Choices = Mapping[str, Sequence[str]]

Given = Callable[[str], Any]
"""Returns a parameter of a task by its name; ``None`` if it is not given."""


def is_literal(value: Any) -> bool:
    """Return whether a parameter is text that no template changes."""
    return isinstance(value, str) and "{{" not in value and "{%" not in value


def check_choices(task: Any, choices: Choices) -> None:
    """Refuse an unknown word as the value of a parameter.

    :raises DeltaIllegalArgumentException: if there is one.
    """
    for name, allowed in choices.items():
        if (problem := choice_problem(name, getattr(task, name, None), allowed)) is not None:
            raise DeltaIllegalArgumentException(f"The task {task.task_id!r}: {problem}")


def literal_problems(operator_class: Any, given: Given) -> Iterator[str]:
    """Yield what an operator, and the bases that declare its parameters, find wrong with its literal parameters."""
    for owner in reversed(operator_class.__mro__):
        if "literal_problems" in vars(owner):
            yield from owner.literal_problems(given)


def check_literals(task: Any, problems: Callable[[Given], Iterable[str]]) -> None:
    """Refuse literal parameters of a task.

    :param problems: yields what is wrong with them.
    :raises DeltaIllegalArgumentException: if something is.
    """
    for problem in problems(lambda name: getattr(task, name, None)):
        raise DeltaIllegalArgumentException(f"The task {task.task_id!r}: {problem}")


def choice_problem(name: str, value: Any, allowed: Sequence[str]) -> str | None:
    """Return what is wrong with a parameter, one word or several; ``None`` if nothing is, or a template decides."""
    if isinstance(value, list | tuple):
        return next((problem for each in value if (problem := choice_problem(name, each, allowed)) is not None), None)
    if not is_literal(value) or value in allowed:
        return None
    near = near_words(value.lower(), {word.lower(): word for word in allowed})
    meant = next((f" Did you mean {word!r}?" for word in allowed if near and word.lower() == near[0]), "")
    return f"{name} must be one of {', '.join(allowed)}, got {value!r}.{meant}"


def choices_of(operator_class: Any) -> Choices:
    """Return the words by parameter; there are none of a class of others."""
    return getattr(operator_class, "choices", {})


def replace_where_problem(mode: Any, replace_where: str) -> str | None:
    """Return why a mode and a ``replace_where`` do not go together; ``None`` if they do."""
    if mode == "overwrite" and replace_where.strip():
        return None
    return f"replace_where needs mode='overwrite' and a predicate, got mode={mode!r} and {replace_where!r}"


RERUN_POLICIES = ("skip", "replace", "append", "fail")
KEY_CHECKS = ("warn", "fail", "off")
ISOLATION_LEVELS = ("Serializable", "WriteSerializable")
WRITE_MODES = ("append", "overwrite", "dynamic")
ENFORCE, STRICT = SCHEMA_POLICIES = ("enforce", "strict")
"""What a write makes of a schema that differs: what Delta does (casts that keep every value, nulls for missing columns), or an
error.
"""
CREATE_MODES = ("create", "create_if_not_exists", "replace", "create_or_replace")
CREATE_FROM_ROWS = ("create", "create_or_replace", "replace")
STREAM_MODES = ("append", "complete")
CHECKPOINT = ("inline", "off")
PREVIEWS = ("table", "changes")
FAIL_OR_WARN = ("fail", "warn")
