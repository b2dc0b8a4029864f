"""What the decorators share: a function some of whose parameters the task fills in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow.sdk.bases.decorator import DecoratedOperator

from airflow_delta.operators.pyspark import without_injected


class InjectedDecoratedOperator(DecoratedOperator):
    """Base of the decorated tasks: Airflow sees the function without the parameters that the task fills in.

    A class of this base names the ``template_fields`` of its operator, each once: ``DecoratedOperator`` has fields of the
    operator, too, and what an XCom or a template has given would be rendered as a template itself the second time.
    """

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        visible = without_injected(python_callable)
        super().__init__(
            kwargs_to_upstream={"python_callable": visible, "op_args": op_args, "op_kwargs": op_kwargs},
            python_callable=visible,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )
