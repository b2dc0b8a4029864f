"""Run a Dag of the file ``DAGS`` through a real Airflow, in this process: ``run_dag.py init | run DAG | retry DAG``.

``retry`` does what the scheduler does when the worker of a running task is lost: it queues the next try, and goes on. The last
line of the output is ``RESULT`` and JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from datetime import UTC, datetime
from typing import Any

from support.dag_runs import run_to_end, scheduler_dag

DATE = datetime(2026, 1, 1, tzinfo=UTC)


def dag_of(name: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=os.environ["DAGS"])
    assert not bag.import_errors, bag.import_errors
    return bag.dags[name]


def retry(dag: Any) -> Any:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    from airflow_delta.airflow_internals.dag_runs import next_try

    with create_session() as session:
        dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == dag.dag_id))
        dag_run.dag = scheduler_dag(dag)
        [lost] = [ti for ti in dag_run.get_task_instances(session=session) if ti.state == TaskInstanceState.RUNNING]
        next_try(lost, session).state = None
        run_to_end(dag_run, dag, session)
    return dag_run


def result(dag_run: Any) -> dict[str, Any]:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_delta.airflow_internals.database import of_latest_tries

    with create_session() as session:
        found = session.merge(dag_run).get_task_instances(session=session)
        rows = session.scalars(
            of_latest_tries(select(XComModel)).where(
                XComModel.dag_id == dag_run.dag_id, XComModel.run_id == dag_run.run_id, XComModel.key == "return_value"
            )
        )
        return {
            "state": str(dag_run.state),
            "tasks": {ti.task_id: [str(ti.state), ti.try_number] for ti in found},
            "xcoms": {row.task_id: XComModel.deserialize_value(row) for row in rows},
        }


def main() -> None:
    what, *names = sys.argv[1:]
    if what == "init":
        from airflow.utils.db import initdb

        initdb()
        return
    from airflow.sdk.execution_time import supervisor

    supervisor.in_process_api_server = functools.cache(supervisor.in_process_api_server)
    dag = dag_of(names[0])
    dag_run = retry(dag) if what == "retry" else dag.test(logical_date=DATE, run_after=DATE)
    print("\nRESULT " + json.dumps(result(dag_run), default=str), flush=True)


if __name__ == "__main__":
    main()
