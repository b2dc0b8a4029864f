"""``@task.delta_merge``: a PySpark function whose DataFrame is merged into a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_delta.decorators.decorated import decorated_init, without_multiple_outputs
from airflow_delta.operators.merge import DeltaMergePySparkOperator

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import Task


class _DeltaMergeDecoratedOperator(DecoratedOperator, DeltaMergePySparkOperator):  # type: ignore[misc] # Airflow's execute calls ours
    custom_operator_name = "@task.delta_merge"
    template_fields = DeltaMergePySparkOperator.template_fields
    __init__ = decorated_init


# Task[..., Any], whatever the function's own parameters: some of them are filled in by the task, not by who calls it.
@overload
def delta_merge_task(python_callable: Callable[..., Any], **kwargs: Any) -> Task[..., Any]: ...
@overload
def delta_merge_task(python_callable: None = None, **kwargs: Any) -> Callable[[Callable[..., Any]], Task[..., Any]]: ...
def delta_merge_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Turn a function that returns a DataFrame into a MERGE; ``@task.delta_merge`` is this function.

    :param python_callable: the function; it may name ``spark``, ``table`` and ``transaction`` among its parameters.
    :param kwargs: parameters of :class:`~airflow_delta.operators.merge.DeltaMergeOperator` and of any Airflow task.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=_DeltaMergeDecoratedOperator,
        **without_multiple_outputs("@task.delta_merge", kwargs),
    )
