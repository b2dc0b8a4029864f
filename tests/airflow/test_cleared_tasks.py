"""Tasks that run after their transaction has ended: cleared without the start task. None begins its work.

What Airflow does when it is asked to clear is the business of ``tests/live``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner

from airflow_delta import delta_transaction, exceptions
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.diff import DeltaDiffOperator
from airflow_delta.operators.merge import DeltaMergeOperator, DeltaMergePySparkOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.preview import DeltaPreviewOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator, DeltaStageSparkSubmitOperator
from airflow_delta.tasks.restart import tasks_again
from airflow_delta.tasks.spark.runner import SparkRunner
from airflow_delta.tasks.spark.session import TaskSession
from support.running_tasks import context

UPSERT = {
    "condition": "target.id = source.id",
    "clauses": [{"kind": "matched", "action": "delete"}],
}


def never(*_args, **_kwargs):
    raise AssertionError("Spark was asked")


KINDS = {
    "pyspark": lambda: DeltaStagePySparkOperator(task_id="stage", python_callable=never),
    "sql": lambda: DeltaStageSqlOperator(task_id="stage", sql="SELECT 1L AS id"),
    "files": lambda: DeltaStageFilesOperator(task_id="stage", path="rows"),
    "submit": lambda: DeltaStageSparkSubmitOperator(task_id="stage", application="app.py"),
    "merge": lambda: DeltaMergeOperator(task_id="stage", source="SELECT 1L AS id", **UPSERT),
    "merge_pyspark": lambda: DeltaMergePySparkOperator(task_id="stage", python_callable=never, **UPSERT),
    "delete": lambda: DeltaDeleteOperator(task_id="stage", predicate="id = 1"),
    "delete_submitted": lambda: DeltaDeleteOperator(task_id="stage", predicate="id = 1", spark_submit={}),
    "update": lambda: DeltaUpdateOperator(task_id="stage", predicate="id = 1", set={"id": "2"}),
    "optimize": lambda: DeltaOptimizeOperator(task_id="stage"),
    "alter": lambda: DeltaAlterTableOperator(task_id="stage", changes=[{"change": "SetProperties", "properties": {"a": "b"}}]),
    "audit": lambda: DeltaAuditOperator(task_id="audit", checks={"some": "SELECT true"}),
    "diff": lambda: DeltaDiffOperator(task_id="audit"),
    "preview": lambda: DeltaPreviewOperator(task_id="audit"),
}


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch, outside_of_the_task_runner):
    monkeypatch.setattr(tasks_again, "WAIT_FOR_END", 0.0)
    for part in (TaskSession, SparkRunner):
        monkeypatch.setattr(part, "session", never)
    monkeypatch.setattr(SparkRunner, "_submit", never)


@pytest.fixture
def cleared(outside_of_the_task_runner):
    """The runs that tasks asked their supervisor to clear."""
    from airflow.sdk.execution_time.comms import OKResponse, TriggerDagRun

    asked = []

    def send(message):
        if isinstance(message, TriggerDagRun):
            asked.append(message)
        return OKResponse(ok=True)

    outside_of_the_task_runner.others = send
    return asked


class World:
    """A Dag of one transaction, its tasks run one by one."""

    def __init__(self, path: Path, kind: str = "files", **transaction) -> None:
        self.path = path
        self.params = {"again": "restart"}
        self.dag = DAG("a_dag", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
        with self.dag, delta_transaction("t", table=str(path), outlets=[], **transaction):
            if kind in ("audit", "diff", "preview"):
                DeltaStageFilesOperator(task_id="stage", path="rows")
            self.task = KINDS[kind]()
        self.states = {**dict.fromkeys(self.dag.task_dict, "success"), "t.commit": "upstream_failed"}
        first = self.begin("first")
        self.publish(first, self.stage(first))

    def begin(self, run_id: str = "a_run"):
        return self.run("t.start", run_id=run_id)

    def stage(self, handle):
        directory = Path(handle["stagingPath"]) / "rows"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), directory / "part-0.parquet")
        run_id = handle["appId"].split("/")[2]
        operator = DeltaStageFilesOperator(task_id="t.stage", transaction=handle, path="rows")
        return operator.execute(context(operator, run_id=run_id))

    def publish(self, handle, staged):
        return self.run("t.commit", run_id=handle["appId"].split("/")[2], transaction=handle, staged=[staged])

    def abort(self, handle):
        return self.run("t.abort", transaction=handle)

    def run(self, task_id, *, run_id="a_run", try_number=1, **arguments):
        """Run a task as Airflow does: a copy of it, its arguments rendered, those that are XComs handed in."""
        definition = self.dag.task_dict[task_id]
        operator = definition.prepare_for_execution()
        given = {"states": self.states, "params": self.params}
        running = context(operator, run_id=run_id, try_number=try_number, **given)
        for name in operator.template_fields:
            value = arguments[name] if name in arguments else operator.render_template(getattr(operator, name), running)
            setattr(operator, name, value)
        result = operator.execute(running)
        task_runner.SUPERVISOR_COMMS.xcoms[run_id, task_id, -1, "return_value"] = result
        return result

    def clear(self, handle, task_id=None, **arguments):
        """Run a task once more for a transaction."""
        task_id = task_id or self.task.task_id
        if task_id in ("t.commit", "t.audit"):
            arguments = {"staged": [], **arguments}
        return self.run(task_id, try_number=2, transaction=handle, **arguments)

    def aborted(self):
        """A transaction that was aborted after its stage had failed."""
        handle = self.begin()
        self.abort(handle)
        return handle


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_of_an_aborted_transaction(self, tmp_path, kind, cleared):
        world = World(tmp_path / "table", kind)
        handle = world.aborted()
        with pytest.raises(exceptions.TransactionAbortedException, match="Clear the start task with everything downstream"):
            world.clear(handle)
        assert not cleared

    def test_restarts(self, tmp_path, kind, cleared):
        world = World(tmp_path / "table", kind, on_clear="{{ params.again }}")
        handle = world.aborted()
        with pytest.raises(exceptions.TransactionAbortedException):
            world.clear(handle)
        (message,) = cleared
        assert (message.dag_id, message.run_id, message.reset_dag_run) == ("a_dag", "a_run", True)

    def test_of_a_committed_transaction(self, tmp_path, kind, capsys):
        world = World(tmp_path / "table", kind)
        handle = world.begin()
        world.publish(handle, world.stage(handle))
        assert world.clear(handle)["alreadyCommitted"]
        if kind not in ("audit", "diff", "preview"):  # it stages nothing
            assert "rows of this stage would not be published" in capsys.readouterr().out


class TestRestart:
    def test_of_the_commit(self, tmp_path, cleared):
        """Whatever the commit stumbles over in an aborted transaction: here, that no stage has reported."""
        world = World(tmp_path / "table", on_clear="restart")
        handle = world.aborted()
        with pytest.raises(exceptions.MissingStageException):
            world.clear(handle, "t.commit")
        assert len(cleared) == 1

    def test_not_by_default(self, tmp_path, cleared):
        world = World(tmp_path / "table", on_conflict="restart")
        handle = world.aborted()
        for task_id, error in (("t.stage", exceptions.TransactionAbortedException), ("t.commit", exceptions.StagingException)):
            with pytest.raises(error):
                world.clear(handle, task_id)
        assert not cleared

    def test_the_number_is_bounded(self, tmp_path, cleared):
        world = World(tmp_path / "table", on_clear="restart", max_restarts=2)
        for _ in range(3):
            with pytest.raises(exceptions.TransactionAbortedException):
                world.clear(world.aborted())
        assert len(cleared) == 2
        # Who clears by hand afterwards has all of them again.
        with pytest.raises(exceptions.TransactionAbortedException):
            world.clear(world.aborted())
        assert len(cleared) == 3

    def test_a_stage_that_gets_going_gives_them_back(self, tmp_path, cleared):
        world = World(tmp_path / "table", on_clear="restart", max_restarts=1)
        for _ in range(3):
            with pytest.raises(exceptions.TransactionAbortedException):
                world.clear(world.aborted())
            handle = world.begin()
            Path(handle["stagingPath"], "rows").mkdir(parents=True)
            with pytest.raises(exceptions.StagedFileException):  # no file: the bug is still there
                world.clear(handle)
            world.abort(handle)
        assert len(cleared) == 3

    @pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "failed"])
    def test_a_start_task_that_is_cleared_already_is_left_alone(self, tmp_path, cleared, state):
        """Of several stages that were cleared together, the first one has it cleared."""
        world = World(tmp_path / "table", on_clear="restart")
        handle = world.aborted()
        world.states["t.start"] = state
        with pytest.raises(exceptions.TransactionAbortedException):
            world.clear(handle)
        assert not cleared

    def test_a_start_task_that_has_run_again_is_left_alone(self, tmp_path, cleared):
        world = World(tmp_path / "table", on_clear="restart")
        handle = world.aborted()
        world.begin()
        with pytest.raises(exceptions.TransactionAbortedException):
            world.clear(handle)
        assert not cleared

    def test_a_commit_that_was_faster_is_not_restarted(self, tmp_path, cleared):
        world = World(tmp_path / "table", on_clear="restart")
        handle = world.begin()
        world.publish(handle, world.stage(handle))
        Path(handle["stagingPath"], "_aborted").write_text('{"abortedAt": 1}')
        assert world.clear(handle)["alreadyCommitted"]
        assert not cleared

    def test_a_live_stage_does_not_fail_over_it(self, tmp_path):
        world = World(tmp_path / "table", on_clear="{{ params.again }}")
        handle = world.begin()
        world.params = {"again": "sometimes"}
        with pytest.raises(exceptions.StagedFileException):  # it began to work
            world.clear(handle)

    def test_what_cannot_be_restarted_is_said(self, tmp_path):
        world = World(tmp_path / "table", on_clear="{{ params.again }}")
        world.params = {"again": "sometimes"}
        with pytest.raises(
            exceptions.DeltaIllegalArgumentException, match=r"on_clear of 't.commit' must be one of fail, restart"
        ):
            world.clear(world.aborted())
