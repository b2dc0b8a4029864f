"""What ``delta_job`` makes of a Dag file, and refuses in one; whole runs: ``test_job_runs.py``."""

from __future__ import annotations

from datetime import datetime

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_delta import delta_job, delta_transaction
from airflow_delta.contract import options
from airflow_delta.dag_checks import check_dag
from airflow_delta.exceptions import DeltaIllegalArgumentException, SparkVersionException, StagingException
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaTruncateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.spark import application
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.table.stage.write.job_runs import put_request
from airflow_delta.table.stage.write.plan import plan_stage
from support import actions
from support.running_tasks import context
from support.table import Table


@pytest.fixture
def dag():
    with DAG("jobs", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        yield dag


def test_the_tasks_and_what_they_wait_for(dag):
    with (
        delta_transaction("txn", table="/lake/t", default_args={"outlets": [], "retries": 2}),
        delta_job("delete", DeltaDeleteOperator, predicate="id = 0") as job,
    ):
        EmptyOperator(task_id="before") >> EmptyOperator(task_id="run")
    check_dag(dag)
    after = {task.task_id.removeprefix("txn.delete."): task.upstream_task_ids for task in job.iter_tasks()}
    assert after == {
        "plan": {"txn.start"},
        "before": {"txn.delete.plan"},
        "run": {"txn.delete.before"},
        "collect": {"txn.start", "txn.delete.plan", "txn.delete.run"},
    }
    assert dag.get_task("txn.commit").upstream_task_ids == {"txn.start", "txn.delete.collect"}
    assert job.plan.stage_task_id == job.collect.task_id
    assert (job.plan.outlets, job.collect.outlets) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((DeltaTruncateOperator, {}), "whose work is not done by an application"),
        ((DeltaStageFilesOperator, {"path": "x"}), "whose work is not done by an application"),
        ((EmptyOperator, {}), "no operator that stages something"),
        ((DeltaDeleteOperator, {"predicate": "a", "engine": "arrow"}), "whose work is not done by an application"),
        ((DeltaDeleteOperator, {"predicate": "a", "engine": "auto"}), "whose work is not done by an application"),
        ((DeltaDeleteOperator, {"predicate": "a", "spark_submit": {}}), "given spark_submit, but the Spark work"),
        ((DeltaMergeOperator, {"condition": "a", "source": lambda spark: spark}), "a function as source"),
        ((DeltaScd2MergeOperator, {"source": print, "keys": "id", "effective_at": "at"}), "a function as source"),
        ((None, {"write_options": {"password": "x"}}), "may be secret"),
        ((DeltaDeleteOperator, {"predicate": "a", "spark_version": "emr-7.1.0"}), "is not a version of Spark"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_in_the_dag_file(dag, arguments, said):
    kind, given = arguments
    with (
        pytest.raises(DeltaIllegalArgumentException, match=said),
        delta_transaction("txn", table="/lake/t"),
        delta_job("job", kind, **given) as job,
    ):
        EmptyOperator(task_id="run", doc=str(job.arguments))
    EmptyOperator(task_id="outside")  # of the groups that were left by the error
    assert "outside" in dag.task_dict


def test_a_spark_that_no_job_works_on(dag):
    with pytest.raises(SparkVersionException, match=r"needs Spark 3.5 or newer, and this one is to run on Spark 3.3.1"):
        delta_job("job", DeltaDeleteOperator, predicate="a", spark_version="3.3.1")


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize("version", [None, "4.0.2", "3.5"])
def test_what_the_spark_of_a_job_lacks_is_refused_before_it_starts(tmp_path, dag, version):
    table = Table(tmp_path / "table")
    handle = table.begin()
    table.publish(handle, plan_create(table.view(handle), schema="id BIGINT, v VARIANT"))
    table.commit(actions.add("a.parquet", records=1))
    handle = table.begin()
    with (
        delta_transaction("txn", table=table.uri),
        delta_job("job", DeltaDeleteOperator, predicate="id = 1", spark_version=version) as job,
    ):
        EmptyOperator(task_id="run")
    assert "spark_version" in job.plan.template_fields
    job.plan.transaction = handle.to_dict()
    if version == "3.5":
        with pytest.raises(
            SparkVersionException, match=r"Spark 3\.5 has no variants, and table .*/table has them in the column v"
        ):
            job.plan.execute(context(job.plan, dag=dag))
    else:
        job.plan.execute(context(job.plan, dag=dag))
    assert len(list(table.path.rglob("request.json"))) == (0 if version == "3.5" else 1)


def test_a_job_is_in_a_transaction_and_has_a_task(dag):
    with pytest.raises(DeltaIllegalArgumentException, match="is in no transaction"):
        delta_job("job", DeltaDeleteOperator, predicate="a")
    with (
        pytest.raises(DeltaIllegalArgumentException, match="has no task that runs it"),
        delta_transaction("txn", table="/t"),
        delta_job("job", DeltaDeleteOperator, predicate="a"),
    ):
        pass


def test_the_program_takes_the_arguments_that_it_is_given():
    assert application.PACKAGE_ARGUMENT == options.PACKAGE_ARGUMENT


@pytest.fixture
def collecting(tmp_path, dag):
    """A transaction on a table, and a function that runs the task that collects, with what it gets as its plan."""
    table = Table(tmp_path / "table")
    table.create()
    handle = table.begin()
    with delta_transaction("txn", table=table.uri), delta_job("job", DeltaDeleteOperator, predicate="a") as job:
        EmptyOperator(task_id="run")

    def collect(planned):
        job.collect.planned, job.collect.transaction = planned, handle.to_dict()
        with pytest.raises(StagingException) as caught:
            job.collect.execute(context(job.collect, dag=dag))
        return str(caught.value)

    return table, handle, collect


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize("planned", [None, {}, {"directory": "staged/other/txn.job.collect/1-a"}, {"directory": "../x"}, "text"])
def test_a_plan_that_is_not_its_own_is_refused(collecting, planned):
    assert "as the plan of its stage" in collecting[2](planned)


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize("other", ["transaction", "task", "map index", "attempt"])
def test_a_request_of_another_stage_is_refused(collecting, other):
    """It lies where that of the plan should be."""
    table, handle, collect = collecting
    view = table.view(
        table.begin() if other == "transaction" else handle,
        task_id="another" if other == "task" else "txn.job.collect",
        map_index=1 if other == "map index" else -1,
    )
    request = plan_stage(view)
    put_request(table.log(), request)
    own = table.path / f"staged/{handle.transaction_id}/txn.job.collect/1-a"
    own.mkdir(parents=True)
    (own / "request.json").write_bytes((table.path / request.directory / "request.json").read_bytes())
    assert "found another stage's request" in collect({"directory": own.relative_to(table.path).as_posix()})
