"""spark-submit in cluster mode, as Airflow's ``ResumableJobMixin`` drives it: submitted, reconnected to, found finished.

The mixin, the operator, the table and the Spark that stages are real; only the cluster's answers are made here.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_delta.exceptions import DeltaError, SchemaMismatchException, StagingException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.spark import delta_stage
from airflow_delta.table.start.begin import begin
from support.running_tasks import context, kept

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


class Cluster:
    """A master in cluster mode: its drivers stage with real Spark, when they are told to run."""

    def __init__(self, spark):
        self.spark = spark
        self.submitted = []
        self.states = {}
        self.column = "id"

    def run(self, driver):
        conf = self.submitted[int(driver)]
        stage = delta_stage(self.spark, conf["spark.airflow_delta.request"])
        stage.write(self.spark.range(10).withColumnRenamed("id", self.column))
        self.states[driver] = "FINISHED"


class Backend:
    """What Airflow's operator asks of a deployment, answered by the cluster above."""

    def __init__(self, operator):
        self.operator, self.cluster = operator, operator.cluster

    def submit_job(self, context):
        self.cluster.submitted.append(self.operator.conf)
        return str(len(self.cluster.submitted) - 1)

    def get_job_status(self, driver, context):
        return self.cluster.states.get(driver, "RUNNING")

    def is_job_active(self, status):
        return status == "RUNNING"

    def is_job_succeeded(self, status):
        return status == "FINISHED"

    def poll_until_complete(self, driver, context):
        if self.operator.worker_dies:
            raise SystemExit("the worker was killed")
        try:
            self.cluster.run(driver)
        except DeltaError:
            raise RuntimeError("the driver failed") from None  # all that a cluster says


class OnCluster(DeltaStageSparkSubmitOperator):
    """The real operator, deployed to the cluster above."""

    worker_dies = False
    cluster: Cluster

    def _get_hook(self):
        return SimpleNamespace(_should_track_driver_status=True)

    @property
    def _backend(self):
        return Backend(self)


@pytest.fixture
def world(spark, tmp_path, outside_of_the_task_runner):
    """A table, an open transaction on it, and a cluster."""
    log = DeltaLog.for_table(str(tmp_path / "table"))
    return SimpleNamespace(log=log, handle=begin(log, transaction_key="a"), cluster=Cluster(spark), tries=0)


def attempt(world, *, worker_dies=False, **kwargs):
    """Run the task once more, as a new process would."""
    world.tries += 1
    operator = OnCluster(task_id="stage", transaction=world.handle.to_dict(), **kwargs)
    operator.cluster, operator.worker_dies = world.cluster, worker_dies
    return operator.execute(context(operator, try_number=world.tries))


def killed_attempt(world, **kwargs):
    with pytest.raises(SystemExit):
        attempt(world, worker_dies=True, **kwargs)


def number_of_the_try(staged) -> int:
    assert staged["numRecords"] == 10
    return int(staged["attempt"].split("-")[0])


def test_submitted(world):
    assert number_of_the_try(attempt(world)) == 1
    (conf,) = world.cluster.submitted
    assert conf["spark.airflow_delta.request"].endswith(".json")


def test_reconnects_to_a_running_driver_and_collects_what_that_was_asked_for(world):
    killed_attempt(world)
    assert number_of_the_try(attempt(world)) == 1
    assert len(world.cluster.submitted) == 1


def test_collects_from_a_driver_that_finished_meanwhile(world):
    killed_attempt(world)
    world.cluster.run("0")
    assert number_of_the_try(attempt(world)) == 1
    assert len(world.cluster.submitted) == 1


def test_submits_again_after_a_driver_that_failed(world):
    killed_attempt(world)
    world.cluster.states["0"] = "FAILED"
    assert number_of_the_try(attempt(world)) == 2
    assert len(world.cluster.submitted) == 2


def test_clearing_the_stage_runs_it_again(world):
    # Airflow's state store outlives a clear: by itself it would take the old driver's success for the new one's.
    attempt(world)
    assert number_of_the_try(attempt(world)) == 2
    assert len(world.cluster.submitted) == 2


def test_a_driver_of_an_earlier_transaction_is_forgotten(world):
    killed_attempt(world)
    world.cluster.run("0")
    world.handle = begin(world.log, transaction_key="a")
    staged = attempt(world)
    assert staged["transactionId"] == world.handle.transaction_id
    assert number_of_the_try(staged) == 2


def test_not_durable(world):
    killed_attempt(world, durable=False)
    assert number_of_the_try(attempt(world, durable=False)) == 2
    assert not kept()


def test_an_application_that_stages_nothing(world):
    world.cluster.run = lambda driver: None
    with pytest.raises(StagingException, match="stage"):
        attempt(world)


def test_the_error_of_the_stage_keeps_its_type(world):
    with pytest.raises(SchemaMismatchException, match="all columns are partition columns"):
        attempt(world, partition_by="id")


def test_the_error_of_a_stage_that_an_earlier_try_submitted(world):
    killed_attempt(world, partition_by="id")
    with pytest.raises(SchemaMismatchException, match="all columns are partition columns"):
        attempt(world, partition_by="id")
    assert len(world.cluster.submitted) == 1


def test_an_error_that_is_not_the_stages(world):
    def fail(driver):
        raise ConnectionError("the master is gone")

    world.cluster.run = fail
    with pytest.raises(ConnectionError):
        attempt(world)
