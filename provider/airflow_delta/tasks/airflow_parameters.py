"""The parameters of Airflow's own operators, for type checkers.

``BaseOperator`` is a dataclass whose fields have the types of its attributes. Its constructor takes more: a word for the trigger
rule, one callback or several, seconds. Type checkers derive our constructors from fields, so these say what it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import timedelta
    from typing import Any, TypeVar, dataclass_transform

    from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, Context, TaskGroup

    from airflow_delta.tasks.declared import parameter

    T = TypeVar("T")
    Callback = Callable[[Context], Any]

    @dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
    def fields(cls: type[T]) -> type[T]: ...

    @fields
    class AirflowTask(BaseOperator):
        dag: DAG | None = None  # type: ignore[assignment]
        task_group: TaskGroup | None = None
        retry_delay: timedelta | float = ...  # type: ignore[assignment]
        trigger_rule: str = ...  # type: ignore[assignment]
        inlets: Any = None
        outlets: Any = None
        on_execute_callback: Callback | Collection[Callback] | None = None  # type: ignore[assignment]
        on_failure_callback: Callback | Collection[Callback] | None = None  # type: ignore[assignment]
        on_success_callback: Callback | Collection[Callback] | None = None  # type: ignore[assignment]
        on_retry_callback: Callback | Collection[Callback] | None = None  # type: ignore[assignment]
        on_skipped_callback: Callback | Collection[Callback] | None = None  # type: ignore[assignment]
        _pre_execute_hook: Any = parameter(default=None, alias="pre_execute")
        _post_execute_hook: Any = parameter(default=None, alias="post_execute")
        _task_display_name: str | None = parameter(default=None, alias="task_display_name")

    @fields
    class AirflowSensor(AirflowTask, BaseSensorOperator):
        poke_interval: timedelta | float = 60  # type: ignore[assignment]
        timeout: timedelta | float | None = None  # type: ignore[assignment]
        soft_fail: bool = False
        mode: str = "poke"
        exponential_backoff: bool = False
        max_wait: timedelta | float | None = None  # type: ignore[assignment]
        silent_fail: bool = False
        never_fail: bool = False

else:
    from airflow.sdk import BaseOperator as AirflowTask
    from airflow.sdk import BaseSensorOperator as AirflowSensor

__all__ = ["AirflowSensor", "AirflowTask"]
