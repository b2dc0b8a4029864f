"""Operators that run in the test itself: Airflow's own task instances and contexts, as its task runner makes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.api.datamodels._generated import DagRun, DagRunState, DagRunType, TIRunContext
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

BEGAN = datetime.now(UTC)
"""When every Dag run of a test began: before its tables."""


def context(
    operator: BaseOperator,
    *,
    run_id: str = "a_run",
    dag_run: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
    try_number: int = 1,
    map_index: int = -1,
    max_tries: int = 0,
    start_date: datetime = BEGAN,
    **more: Any,
) -> Context:
    """Return the context of a task that begins a try; an operator without a Dag becomes the only task of one.

    The test uses the fixture ``outside_of_the_task_runner``.

    :param dag_run: what its run has other than by default.
    :param states: of the run's task instances: :attr:`support.state_store.Supervisor.states`.
    :param more: what the context has in place of Airflow's.
    """
    if not operator.has_dag():
        DAG("a_dag", schedule=None).add_task(operator)
    if states is not None:
        task_runner.SUPERVISOR_COMMS.states = states
    given: dict[str, Any] = {
        **dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "end_date", "partition_key")),
        "run_after": BEGAN,
        "start_date": BEGAN,
        "consumed_asset_events": [],
        "run_type": DagRunType.MANUAL,
        "state": DagRunState.RUNNING,
        **(dag_run or {}),
    }
    of_run = DagRun(dag_id=operator.dag_id, run_id=run_id, **given)
    ti = RuntimeTaskInstance.model_construct(
        # the same in every try: what its state store is kept by
        id=uuid5(NAMESPACE_OID, f"{operator.dag_id}/{run_id}/{operator.task_id}/{map_index}"),
        dag_id=operator.dag_id,
        run_id=run_id,
        task_id=operator.task_id,
        map_index=map_index,
        try_number=try_number,
        max_tries=max_tries,
        start_date=start_date,
        task=operator,
        _ti_context_from_server=TIRunContext(dag_run=of_run, max_tries=max_tries),
    )
    for key in pushed({"ti": ti}):  # of an earlier try
        del task_runner.SUPERVISOR_COMMS.xcoms[run_id, ti.task_id, map_index, key]
    found = ti.get_template_context()
    found.update(more)  # type: ignore[typeddict-item]
    return found


def pushed(context: Context) -> dict[str, Any]:
    """Return the XComs that a task has pushed, by key."""
    ti = context["ti"]
    mine = (ti.run_id, ti.task_id, ti.map_index)
    return {place[3]: value for place, value in task_runner.SUPERVISOR_COMMS.xcoms.items() if place[:3] == mine}


def kept() -> dict[str, Any]:
    """Return what the supervisor keeps in the state stores of a test's tasks, by key."""
    return {key: value for (_, key), value in task_runner.SUPERVISOR_COMMS.values.items()}
