"""What the decorators share: a function some of whose parameters the task fills in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_delta.operators.pyspark import without_injected


def decorated_arguments(
    python_callable: Callable[..., Any], op_args: Collection[Any] | None, op_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the arguments of Airflow's ``DecoratedOperator``, which sees the function without what the task fills in.

    A decorated class names the ``template_fields`` of its operator, each once: ``DecoratedOperator`` has fields of the operator,
    too, and what an XCom or a template gave would be rendered as a template itself the second time.
    """
    arguments = {"python_callable": without_injected(python_callable), "op_args": op_args, "op_kwargs": op_kwargs}
    return {**arguments, "kwargs_to_upstream": arguments}
