"""What the decorators share: a function with parameters that the task fills in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow.sdk.bases.decorator import DecoratedOperator

from airflow_delta.operators.pyspark import without_injected


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
    own["python_callable"] = without_injected(python_callable)
    DecoratedOperator.__init__(self, **own, kwargs_to_upstream=own, **kwargs)
