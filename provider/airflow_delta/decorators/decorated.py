"""What the decorators share: a function with parameters that the task fills in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_delta.operators.pyspark import without_injected


def decorated_arguments(
    python_callable: Callable[..., Any], op_args: Collection[Any] | None, op_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the arguments for Airflow's ``DecoratedOperator``, which sees the function without the injected parameters.

    A decorated class lists the ``template_fields`` of its operator, each once: ``DecoratedOperator`` repeats some of them, and
    the second time the result of an XCom or a template would itself be rendered as a template.
    """
    arguments = {"python_callable": without_injected(python_callable), "op_args": op_args, "op_kwargs": op_kwargs}
    return {**arguments, "kwargs_to_upstream": arguments}
