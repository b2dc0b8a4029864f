"""Parameters that take one of a few words: checked while the Dag is parsed, where they are literals."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_delta.exceptions import DeltaIllegalArgumentException

Choices = Mapping[str, Sequence[str]]


def is_literal(value: Any) -> bool:
    """Return whether a parameter is text that no template changes."""
    return isinstance(value, str) and "{{" not in value and "{%" not in value


def check_choices(task: Any, choices: Choices) -> None:
    """Refuse a literal that is none of the words of its parameter.

    :raises DeltaIllegalArgumentException: if there is one.
    """
    for name, allowed in choices.items():
        if (problem := choice_problem(name, getattr(task, name, None), allowed)) is not None:
            raise DeltaIllegalArgumentException(f"The task {task.task_id!r}: {problem}")


def choice_problem(name: str, value: Any, allowed: Sequence[str]) -> str | None:
    """Return what is wrong with a parameter, one word or several; ``None`` if nothing is, or a template decides."""
    if isinstance(value, list | tuple):
        return next((problem for each in value if (problem := choice_problem(name, each, allowed)) is not None), None)
    if not is_literal(value) or value in allowed:
        return None
    near = difflib.get_close_matches(value.lower(), {word.lower(): word for word in allowed}, n=1)
    meant = next((f" Did you mean {word!r}?" for word in allowed if near and word.lower() == near[0]), "")
    return f"{name} must be one of {', '.join(allowed)}, got {value!r}.{meant}"


def choices_of(operator_class: Any) -> dict[str, Sequence[str]]:
    """Return the words by parameter, those of the parts included."""
    found: dict[str, Sequence[str]] = {}
    for part in getattr(operator_class, "parts", ()):
        found.update(part.choices)
    found.update(getattr(operator_class, "choices", {}))
    return found
