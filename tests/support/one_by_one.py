"""The tasks of a Dag, run one by one without Airflow's task runner: XComs are what a test says."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG

from airflow_delta.exceptions import HandleMismatchException, StagingException
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator, DeltaStartTransactionOperator
from support.running_tasks import context


class World:
    """A Dag of one transaction, its tasks run one by one; XComs are what a test says."""

    states = {"stage": "success"}

    def __init__(self, table: str, *, run_id: str = "a_run", dag_id: str = "a_dag", **start) -> None:
        self.run_id = run_id
        with DAG(dag_id, schedule=None) as self.dag:
            self.start = DeltaStartTransactionOperator(task_id="start", table=table, **start)
            self.stage = DeltaStageFilesOperator(task_id="stage", transaction=self.start.output, path="rows")
            self.audit = DeltaAuditOperator(task_id="audit", transaction=self.start.output, staged=self.stage.output, min_rows=1)
            self.commit = DeltaCommitOperator(task_id="commit", transaction=self.start.output, staged=self.stage.output)
            self.abort = DeltaAbortOperator(task_id="abort", transaction=self.start.output)

    def run(self, definition, map_index: int = -1, **arguments):
        """Run a task as Airflow does: a copy of it, its arguments rendered, those that are XComs handed in."""
        operator = copy.copy(definition)
        params = {"t": "t", **definition.params}
        given = {"dag": self.dag, "params": params}
        running = context(operator, run_id=self.run_id, states=self.states, map_index=map_index, **given)
        for name in operator.template_fields:
            value = arguments[name] if name in arguments else operator.render_template(getattr(operator, name), running)
            setattr(operator, name, value)
        operator.pre_execute(running)
        return operator.execute(running)

    def begin(self):
        return self.run(self.start)

    def staged(self, handle):
        directory = Path(handle["stagingPath"]) / "rows"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), directory / "part-0.parquet")
        return self.run(self.stage, transaction=handle)

    def publish(self):
        handle = self.begin()
        return handle, self.run(self.commit, transaction=handle, staged=self.staged(handle))

    def refuses(self, handle, staged=None) -> None:
        """Every task that works for the transaction refuses the handle."""
        for definition in (self.stage, self.audit, self.commit, self.abort):
            more = {"staged": staged or []} if definition in (self.audit, self.commit) else {}
            with pytest.raises(StagingException) as refused:
                self.run(definition, transaction=handle, **more)
            assert isinstance(refused.value, HandleMismatchException) or "cannot be part of a staging path" in str(refused.value)
