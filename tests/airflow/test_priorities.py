"""Which tasks the scheduler takes first, when there are fewer slots than tasks: those that end a transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from support.dag_runs import scheduler_dag

pytestmark = pytest.mark.airflow

FILE = """
from datetime import datetime

from airflow.sdk import dag

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.operators.stage import DeltaStageFilesOperator


@dag("{dag_id}", schedule=None, start_date=datetime(2026, 1, 1), default_args={defaults})
def the_dag():
    {body}
        DeltaStageFilesOperator(task_id="stage", path="rows") >> [
            DeltaStageFilesOperator(task_id=f"more_{{n}}", path="rows") for n in range(5)
        ]


the_dag()
"""
ONE = 'with delta_transaction("txn", table="/t"):'
SEVERAL = 'with delta_publication("all"), delta_transaction("txn", table="/t"):'


def in_turn(tmp_path, body, *, defaults=None):
    """Return the tasks of two runs, all of them scheduled, as the scheduler's own query finds them."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    dag_id = f"priorities_{uuid4().hex}"
    (tmp_path / "dags.py").write_text(FILE.format(dag_id=dag_id, body=body, defaults=defaults or {}))
    bag = DagBag(dag_folder=str(tmp_path))
    assert bag.import_errors == {}
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(bag, "tests", None)
    with create_session() as session:
        for day in range(2):
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
            run = scheduler_dag(bag.dags[dag_id]).create_dagrun(
                run_id=f"r{day}", run_after=at, logical_date=at, run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST, state="running", session=session,
            )  # fmt: skip
            for ti in run.get_task_instances(session=session):
                ti.state = "scheduled"
        session.get_one(DagModel, dag_id).is_paused = False
        session.commit()
        found = SchedulerJobRunner(job=Job())._executable_task_instances_to_queued(max_tis=100, session=session)
        order = [(ti.task_id, ti.run_id) for ti in found if ti.dag_id == dag_id]
        weights = {ti.task_id: ti.priority_weight for ti in run.get_task_instances(session=session)}
        session.rollback()
    return order, weights


@pytest.mark.parametrize(("body", "commit"), [(ONE, "txn.commit"), (SEVERAL, "all.commit")])
def test_what_ends_a_transaction_goes_before_what_begins_the_next(tmp_path, airflow_database, body, commit):
    order, weights = in_turn(tmp_path, body)
    ends = {name for name in weights if name.endswith((".commit", ".abort"))}
    assert commit in ends
    assert min(weights[name] for name in ends) > max(weight for name, weight in weights.items() if name not in ends)
    assert {task for task, _ in order[: 2 * len(ends)]} == ends
    assert {run for _, run in order[: 2 * len(ends)]} == {"r0", "r1"}


@pytest.mark.parametrize(
    ("defaults", "weight"), [({"priority_weight": 3}, 9), ({"weight_rule": "absolute"}, 1), ({"weight_rule": "upstream"}, 8)]
)
def test_priorities_of_an_author_stay(tmp_path, airflow_database, defaults, weight):
    _, weights = in_turn(tmp_path, ONE, defaults=defaults)
    assert weights["txn.commit"] == weight
