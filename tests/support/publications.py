"""A Dag with a publication of three tables, its tasks run one by one, and kills at its log entries."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner
from deltalake import DeltaTable, write_deltalake

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from support.running_tasks import context

NAMES = ("orders", "lines", "totals")
ANCHOR = "lines"  # of appends, the lowest URI
PUTS = ["intent", "intent", "published", "published", "published"]


class Killed(BaseException):
    """The process of a task is gone."""


class World:
    """A Dag with one publication of three tables, its tasks run one by one."""

    def __init__(self, lake: Path, *, run_id: str = "a_run", modes=None, **options) -> None:
        self.lake, self.run_id, self.tries = lake, run_id, 0
        self.context = None
        with DAG("a_dag", schedule=None) as self.dag, delta_publication("p", **options) as self.publication:
            for name in NAMES:
                with delta_transaction(name, table=str(lake / name)):
                    stage = DeltaStageFilesOperator(task_id="stage", path="rows", mode=(modes or {}).get(name, "append"))
                    DeltaAuditOperator(task_id="audit", staged=stage.output, min_rows=1)

    def run(self, name: str, *, states=None, try_number: int = 1, **arguments):
        """Run a task as Airflow does: a copy of it, its arguments rendered, those that are XComs handed in."""
        operator = copy.copy(self.dag.get_task(f"p.{name}"))
        task_runner.SUPERVISOR_COMMS.states = None
        given = {"dag": self.dag, "states": states, "try_number": try_number, "max_tries": 9}
        running = self.context = context(operator, run_id=self.run_id, **given)
        for field in operator.template_fields:
            value = arguments[field] if field in arguments else operator.render_template(getattr(operator, field), running)
            setattr(operator, field, value)
        operator.pre_execute(running)
        return operator.execute(running)

    def begin(self) -> list[dict]:
        return [self.run(f"{name}.start") for name in NAMES]

    def stage(self, handles, values=(1, 2), only=NAMES) -> list[list[dict]]:
        reports = []
        for name, handle in zip(NAMES, handles, strict=True):
            if name not in only:
                continue
            if handle["committed"] is None:
                directory = Path(handle["stagingPath"]) / "rows"
                directory.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), directory / "part-0.parquet")
            reports.append([self.run(f"{name}.stage", transaction=handle)])
        return reports

    def commit(self, handles, reports, **more):
        self.tries += 1
        return self.run("commit", transactions=handles, staged=reports, try_number=self.tries, **more)

    def abort(self, handles, **more):
        return self.run("abort", transactions=handles, **more)

    def publish(self, values=(1, 2)):
        handles = self.begin()
        return self.commit(handles, self.stage(handles, values))

    def table(self, name: str) -> str:
        return str(self.lake / name)

    def rows(self) -> dict[str, list[int]]:
        """What delta-rs reads of each table."""
        found = {}
        for name in NAMES:
            there = DeltaTable.is_deltatable(self.table(name))
            found[name] = sorted(DeltaTable(self.table(name)).to_pyarrow_table()["id"].to_pylist()) if there else []
        return found


@pytest.fixture(name="world")
def world_of_three_tables(tmp_path):
    for name in NAMES:
        write_deltalake(str(tmp_path / name), pa.table({"id": pa.array([0], pa.int64())}))
    return World(tmp_path)


BEFORE = {name: [0] for name in NAMES}
SUCCEEDED = {f"p.{name}.{role}": "success" for name in NAMES for role in ("start", "stage", "audit")}
AFTER = {name: [0, 1, 2] for name in NAMES}


@pytest.fixture(name="killed_at")
def kill_at_an_entry(monkeypatch):
    """Kill the task at its n-th put of a log entry, before or after it."""
    put = LocalStore.put_if_absent

    def arm(number: int | None, after: bool = False):
        count = 0

        def watched(store, path, data, *, durable=True):
            nonlocal count
            if "_delta_log/0" not in path or not path.endswith(".json"):
                return put(store, path, data, durable=durable)
            count += 1
            if count == number and not after:
                raise Killed
            put(store, path, data, durable=durable)
            if count == number:
                raise Killed
            return None

        monkeypatch.setattr(LocalStore, "put_if_absent", put if number is None else watched)

    return arm


def leave_at(world: World, killed_at, number: int, after: bool = False) -> tuple[list[dict], list[list[dict]]]:
    """Kill the commit at a put, and return the handles and reports for its next try."""
    handles = world.begin()
    reports = world.stage(handles)
    killed_at(number, after)
    with pytest.raises(Killed):
        world.commit(handles, reports)
    killed_at(None)
    return handles, reports
