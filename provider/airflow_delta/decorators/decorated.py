"""What the decorators share: a function with parameters that the task fills in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow.sdk.bases.decorator import DecoratedOperator

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.functions import injected_by, without_injected


def without_multiple_outputs(decorator: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a decorator without ``multiple_outputs``, which is not for its tasks.

    :raises DeltaIllegalArgumentException: if it is set.
    """
    if kwargs.get("multiple_outputs"):
        raise DeltaIllegalArgumentException(
            f"{decorator} takes no multiple_outputs: its task hands on one value, the report of what it wrote. Leave it out."
        )
    return {name: value for name, value in kwargs.items() if name != "multiple_outputs"}


def class_for_engine(engines: Mapping[str, type[DecoratedOperator]], engine: str) -> type[DecoratedOperator]:
    """Return the class of the tasks of a decorator that an engine works for.

    :raises DeltaIllegalArgumentException: if there is no such engine.
    """
    if engine not in engines:
        raise DeltaIllegalArgumentException(f"engine is {engine!r}; it is one of {', '.join(map(repr, engines))}.")
    return engines[engine]


def decorated_init(
    self: Any,
    *,
    python_callable: Callable[..., Any],
    op_args: Collection[Any] | None = None,
    op_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Be the constructor of a decorated operator: Airflow sees the function without the injected parameters.

    Its class lists the ``template_fields`` of its operator, each once: ``DecoratedOperator`` repeats some of them, and the second
    time the result of an XCom or a template would itself be rendered as a template.
    """
    own: dict[str, Any] = {"op_args": op_args, "op_kwargs": op_kwargs}
    own["python_callable"] = without_injected(python_callable, *injected_by(kwargs))
    DecoratedOperator.__init__(self, **own, kwargs_to_upstream=own, **kwargs)
