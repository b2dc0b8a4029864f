"""``@task.delta_stage``: a function whose rows become part of the transaction: a DataFrame on Spark, or a frame in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_delta.decorators.decorated import class_for_engine, decorated_init, without_multiple_outputs
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import Task


class _DeltaStageDecoratedOperator(DecoratedOperator, DeltaStagePySparkOperator):  # type: ignore[misc] # Airflow's execute calls ours
    custom_operator_name = "@task.delta_stage"
    template_fields = DeltaStagePySparkOperator.template_fields
    __init__ = decorated_init


class _DeltaArrowStageDecoratedOperator(DecoratedOperator, DeltaStageArrowOperator):  # type: ignore[misc] # Airflow's execute calls ours
    custom_operator_name = "@task.delta_stage"
    template_fields = DeltaStageArrowOperator.template_fields
    __init__ = decorated_init


_ENGINES: dict[str, type[DecoratedOperator]] = {
    "spark": _DeltaStageDecoratedOperator,
    "arrow": _DeltaArrowStageDecoratedOperator,
}


# Task[..., Any], whatever the function's own parameters: some of them are filled in by the task, not by who calls it.
@overload
def delta_stage_task(python_callable: Callable[..., Any], **kwargs: Any) -> Task[..., Any]: ...
@overload
def delta_stage_task(python_callable: None = None, **kwargs: Any) -> Callable[[Callable[..., Any]], Task[..., Any]]: ...
def delta_stage_task(python_callable: Callable[..., Any] | None = None, *, engine: str = "spark", **kwargs: Any) -> Any:
    """Turn a function that returns rows into a stage; ``@task.delta_stage`` is this function.

    :param python_callable: the function; it may name ``spark``, ``table`` and ``transaction`` among its parameters.
    :param engine: ``spark``: it returns a Spark DataFrame; ``arrow``: a pyarrow Table or RecordBatchReader, a pandas or a Polars
        frame, which the worker writes without Spark and without Java.
    :param kwargs: parameters of :class:`~airflow_delta.operators.pyspark.DeltaStagePySparkOperator` or
        :class:`~airflow_delta.operators.arrow.DeltaStageArrowOperator`, and of any Airflow task.
    :raises DeltaIllegalArgumentException: if there is no such engine.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=class_for_engine(_ENGINES, engine),
        **without_multiple_outputs("@task.delta_stage", kwargs),
    )
