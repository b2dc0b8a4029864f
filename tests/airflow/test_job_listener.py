"""What the plugin's listener does for a task in the block of a job, and how the commit judges what a job has staged.

One task at a time, without a scheduler; whole runs: ``test_job_causes.py``.
"""

from __future__ import annotations

from datetime import datetime

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time import task_runner

from airflow_delta import delta_job, delta_transaction
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport
from airflow_delta.contract.sealed import sealed
from airflow_delta.contract.staging_directory import marked, new_attempt
from airflow_delta.exceptions import HandleMismatchException
from airflow_delta.notifications.events import delta_events
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.plugins import on_worker
from airflow_delta.table.stage.write.job_runs import read_request
from airflow_delta.tasks.job.inside import PLAN_KEY, job_around
from airflow_delta.tasks.trust.definition_mark import definition_mark
from airflow_delta.tasks.trust.reports import valid_reports
from support.running_tasks import context, kept
from support.table import Table, metadata

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("outside_of_the_task_runner")]

PLAN, RUN, COLLECT = "t.job.plan", "t.job.inner.run", "t.job.collect"


class World:
    """A transaction with one job, whose tasks run one by one."""

    def __init__(self, path, **given) -> None:
        self.table = Table(path / "table")
        self.table.commit(metadata())
        self.dag = DAG("a_dag", schedule=None, start_date=datetime(2026, 1, 1))
        with self.dag:
            before = EmptyOperator(task_id="before")
            with delta_transaction("t", table=self.table.uri, outlets=[]):
                with delta_job("job", **given) as self.job, TaskGroup("inner"):
                    EmptyOperator(task_id="run")
                EmptyOperator(task_id="after")
            before >> self.job.plan
        self.states = dict.fromkeys(self.dag.task_dict, "success")
        self.handle = self.execute("t.start")

    def context(self, task_id, **more):
        operator = self.dag.task_dict[task_id].prepare_for_execution()
        return context(operator, states=self.states, **more)

    def execute(self, task_id, **more):
        running = self.context(task_id, **more)
        running["task"].render_template_fields(running)
        result = running["task"].execute(running)
        task_runner.SUPERVISOR_COMMS.xcoms["a_run", task_id, -1, "return_value"] = result
        return result

    def plan(self):
        return read_request(self.table.log(), self.execute(PLAN)["directory"])

    def leave(self, request, name, **report):
        about = {"transaction_id": request.transaction_id, "stage": request.stage, "attempt": request.attempt}
        text = sealed(StageReport(**about, **report)).encode()
        self.table.log().store.put(f"{request.directory}/reports/{name}/part-0.txt", text)

    def begins(self, **more):
        running = self.context(RUN, **more)
        on_worker.begins(running, running["task"], is_own=False)
        return running["task_state_store"]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_which_tasks_are_in_a_job(world):
    found = {name: job_around(task) for name, task in world.dag.task_dict.items()}
    assert [name for name, job in found.items() if job is not None] == [RUN]
    assert found[RUN].group_id == "t.job"


def test_a_plan_is_that_of_the_task_that_collects(world):
    request = world.plan()
    assert (request.task_id, request.stage) == (COLLECT, COLLECT)


class TestATaskThatFails:
    @pytest.fixture
    def fails(self, world, caplog):
        def call(task_id=RUN):
            caplog.clear()
            error = RuntimeError("the service says so")
            return on_worker.failed(world.context(task_id), error), error, caplog.text

        return call

    def test_the_report_says_why(self, world, fails):
        request = world.plan()
        world.leave(request, "a", error_class="SchemaMismatchException", error_message="no column id\nand a long plan")
        found, _, text = fails()
        assert type(found).__name__ == "SchemaMismatchException"
        assert "The job itself reports: SchemaMismatchException" in text
        assert "no column id" in text
        assert "a long plan" not in text

    def test_it_has_staged(self, world, fails):
        request = world.plan()
        world.leave(request, "a", error_class="OSError", error_message="lost")
        world.leave(request, "b", directories=("b",))
        found, error, text = fails()
        assert found is error
        assert "has staged everything" in text
        assert not (world.table.path / request.directory / "collected.json").exists()

    def test_no_report(self, world, fails):
        world.plan()
        found, error, text = fails()
        assert found is error
        assert "No run of the job has left a report" in text

    @pytest.mark.parametrize("task_id", ["before", "t.after", PLAN])
    def test_another_task(self, world, fails, task_id):
        world.leave(world.plan(), "a", error_class="SchemaMismatchException", error_message="no column id")
        found, error, text = fails(task_id)
        assert (found, "The job" in text) == (error, False)

    def test_after_an_abort(self, world, fails):
        world.plan()
        world.table.abort(TransactionHandle.from_dict(world.handle))
        found, error, text = fails()
        assert found is error
        assert "What the job reports cannot be read" in text

    def test_the_plan_is_of_another_transaction(self, world, fails):
        """The start task has run again, alone: what was planned before is not this transaction's."""
        world.leave(world.plan(), "a", error_class="SchemaMismatchException", error_message="no column id")
        world.execute("t.start")
        found, error, text = fails()
        assert found is error
        assert "What the job reports cannot be read" in text
        assert "is of transaction" in text
        assert "no column id" not in text

    def test_a_notification_says_why_too(self, world):
        world.leave(world.plan(), "a", error_class="SchemaMismatchException", error_message="no column id")
        (event,) = delta_events({**world.context(RUN), "exception": RuntimeError("the service says so")})
        assert (event["kind"], event["exception"]) == ("failed", "SchemaMismatchException")
        assert "no column id" in event["reason"]


class TestATaskThatBegins:
    def test_keeps_its_store_for_the_same_plan(self, world):
        directory = world.plan().directory
        store = world.begins()
        store.set("remote_job_id", "1")
        world.begins(try_number=2)
        assert kept() == {PLAN_KEY: directory, "remote_job_id": "1"}

    def test_forgets_the_job_of_another_plan(self, world):
        world.plan()
        world.begins().set("remote_job_id", "1")
        second = world.plan().directory
        world.begins(try_number=2)
        assert kept() == {PLAN_KEY: second}

    def test_forgets_what_it_does_not_know_the_plan_of(self, world):
        directory = world.plan().directory
        world.context(RUN)["task_state_store"].set("remote_job_id", "1")
        world.begins(try_number=2)
        assert kept() == {PLAN_KEY: directory}

    def test_other_tasks_keep_theirs(self, world):
        world.plan()
        running = world.context("t.after", try_number=2)
        running["task_state_store"].set("remote_job_id", "1")
        on_worker.begins(running, running["task"], is_own=False)
        assert kept() == {"remote_job_id": "1"}


class TestLeftOut:
    """A branch has skipped the task that plans, which has left something before."""

    @pytest.mark.parametrize("before", ["skipped", "said"])
    @pytest.mark.parametrize("left", ["nothing", "a plan", "a staged write"])
    def test_what_was_planned_before_does_not_count(self, tmp_path, left, before):
        world = (
            World(tmp_path, operator_class=DeltaDeleteOperator, predicate="true") if left == "a staged write" else World(tmp_path)
        )
        if left == "a plan":
            world.plan()
        if left == "a staged write":
            with pytest.raises(AirflowSkipException):
                world.execute(PLAN)
            world.states[PLAN] = "skipped"
            assert world.execute(COLLECT)["operation"] == "DELETE"
        world.states[PLAN] = "skipped"
        if before == "skipped":
            world.states["before"] = "skipped"
        else:
            task_runner.SUPERVISOR_COMMS.xcoms["a_run", "before", -1, "skipmixin_key"] = {"followed": ["another"]}
        with pytest.raises(AirflowSkipException):
            world.execute(COLLECT)


@pytest.mark.parametrize(
    ("given", "asks"),
    [
        ({"merge_schema": True}, {"merge_schema": True}),
        ({"mode": "overwrite", "overwrite_schema": True}, {"overwrite_schema": True}),
    ],
)
def test_what_a_job_may_do_is_what_its_plan_is_asked_for(tmp_path, given, asks):
    def report(world):
        handle = TransactionHandle.from_dict(world.handle)
        attempt = marked(new_attempt(), definition_mark(handle))
        written = StagedWrite(
            transaction_id=handle.transaction_id,
            stage=COLLECT,
            task_id=COLLECT,
            attempt=attempt,
            mode="append",
            schema_string="{}",
            **asks,
        )
        return valid_reports(world.context("t.commit"), handle, [written.to_dict()])

    (tmp_path / "asked").mkdir()
    with pytest.raises(HandleMismatchException, match="does not ask for"):
        report(World(tmp_path))
    assert len(report(World(tmp_path / "asked", **given))) == 1
