"""A publication that others have left open on a table, met by a start task and a commit of that table alone."""

from __future__ import annotations

import time
from functools import partial

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_delta import delta_transaction
from airflow_delta.contract import clocks
from airflow_delta.log import DeltaLog
from airflow_delta.operators.delete_update import DeltaTruncateOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.publication import publication_states
from airflow_delta.tasks import settlement
from airflow_delta.tasks.settlement import MetPublications
from airflow_delta.transaction import intents
from support.publications import AFTER, ANCHOR, BEFORE, NAMES, World, kill_at_an_entry, leave_at, world_of_three_tables  # noqa: F401
from support.running_tasks import context

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")

AMONG_INTENTS, DECIDED, BETWEEN_TABLES = 2, 4, 5
LAST = "totals"


@pytest.fixture
def start(world, monkeypatch):
    """Run the start task of a transaction on the last table; its Dag names some tables, each in a transaction."""
    monkeypatch.setattr(intents, "_LONGEST_PAUSE", 0.05)

    def run(*names: str) -> dict:
        with DAG("another_dag", schedule=None) as dag:
            groups = {name: delta_transaction(name, table=world.table(name)) for name in names}
            for group in groups.values():
                with group:
                    DeltaStageFilesOperator(task_id="stage", path="rows")
        task = dag.get_task(f"{LAST}.start")
        running = context(task, run_id="another", dag=dag)
        task.render_template_fields(running)
        return task.execute(running)

    return run


def versions(world: World) -> dict[str, int]:
    return {name: DeltaLog.for_table(world.table(name)).update().version for name in NAMES}


class TestStart:
    @pytest.mark.parametrize("number", [DECIDED, BETWEEN_TABLES])
    def test_one_that_is_decided_is_on_all_tables_before_it_reads(self, world, killed_at, start, number):
        leave_at(world, killed_at, number)
        handle = start(*NAMES)
        assert world.rows() == AFTER
        assert handle["readVersion"] == versions(world)[LAST]

    def test_one_that_is_not_decided_stays_as_it_is(self, world, killed_at, start):
        handles, reports = leave_at(world, killed_at, AMONG_INTENTS + 1)
        before, began = versions(world), time.monotonic()
        handle = start(*NAMES)
        assert time.monotonic() - began < 10
        assert versions(world) == before
        assert handle["readVersion"] == before[LAST]
        assert world.commit(handles, reports)["outcome"] == "published"

    def test_one_that_nobody_took_up_is_refused(self, world, killed_at, start, monkeypatch):
        leave_at(world, killed_at, AMONG_INTENTS + 1)
        later = time.time() + clocks.CLOCKS_DIFFER_BY + 61
        monkeypatch.setattr(time, "time", lambda: later)
        start(*NAMES)
        assert world.rows() == BEFORE
        assert {state for name in NAMES for state in publication_states(DeltaLog.for_table(world.table(name))).values()} == {2}

    def test_tables_that_its_dag_does_not_name_are_not_opened(self, world, killed_at, start, monkeypatch):
        """It waits, as a commit does: whoever may settle the publication may come."""
        leave_at(world, killed_at, BETWEEN_TABLES)
        before = versions(world)
        monkeypatch.setattr(settlement, "IntentRule", partial(intents.IntentRule, patience=1.5))
        began = time.monotonic()
        handle = start(LAST)
        assert 0.5 < time.monotonic() - began < 20
        assert versions(world) == before
        assert handle["readVersion"] == before[LAST]

    def test_nothing_is_looked_at_twice_without_one(self, world, start, monkeypatch):
        world.publish()
        looks = []
        update = DeltaLog.update
        monkeypatch.setattr(DeltaLog, "update", lambda log: looks.append(log.uri) or update(log))
        start(*NAMES)
        assert len(looks) == 1


class TestCommit:
    def test_one_that_was_decided_meanwhile_is_ended_first(self, world, killed_at, start):
        """The publication and the transaction append; both are there, and nobody has waited."""
        other = World(world.lake, run_id="another_run")
        handles = other.begin()
        reports = other.stage(handles, (3, 4))
        leave_at(world, killed_at, BETWEEN_TABLES)
        began = time.monotonic()
        assert other.commit(handles, reports)["outcome"] == "published"
        assert time.monotonic() - began < 20
        assert world.rows() == {name: [0, 1, 2, 3, 4] for name in NAMES}

    def test_an_operation_of_one_table_ends_it_first(self, world, killed_at):
        leave_at(world, killed_at, BETWEEN_TABLES)
        with DAG("another_dag", schedule=None) as dag:
            truncate = [DeltaTruncateOperator(task_id=name, table=world.table(name)) for name in NAMES][-1]
        began = time.monotonic()
        running = context(truncate, run_id="another", dag=dag)
        truncate.render_template_fields(running)
        truncate.execute(running)
        assert time.monotonic() - began < 20
        assert world.rows() == {**AFTER, LAST: []}

    def test_vacuum_does_not_wait(self, world, killed_at):
        handles, reports = leave_at(world, killed_at, AMONG_INTENTS + 1)
        began = time.monotonic()
        for name in NAMES:
            with DAG("cleaning", schedule=None) as dag:
                task = DeltaVacuumOperator(task_id="vacuum", table=world.table(name), retention_hours=0, retention_check=False)
            running = context(task, run_id="cleaning", dag=dag)
            task.render_template_fields(running)
            task.execute(running)
        assert time.monotonic() - began < 20
        assert world.commit(handles, reports)["outcome"] == "published"
        assert world.rows() == AFTER

    def test_tables_of_other_systems_are_not_ones_that_the_dag_names(self, world, killed_at):
        """A check of a database may have the parameter ``table``, too: what it names is nothing below a connection of Delta's."""

        class ColumnCheck(BaseOperator):
            template_fields = ("table",)

            def __init__(self, *, table: str, **kwargs) -> None:
                super().__init__(**kwargs)
                self.table = table

        leave_at(world, killed_at, BETWEEN_TABLES)
        (publication,) = publication_states(DeltaLog.for_table(world.table(ANCHOR)))
        with DAG("another_dag", schedule=None) as dag:
            first, *others = NAMES
            task = DeltaTruncateOperator(task_id=first, table=world.table(first))
            for name in others:
                ColumnCheck(task_id=name, table=world.table(name))
        assert MetPublications(context(task, run_id="another", dag=dag)).settle(publication) is None
        with dag:
            for name in others:
                DeltaTruncateOperator(task_id=f"truncate_{name}", table=world.table(name))
        assert MetPublications(context(task, run_id="another", dag=dag)).settle(publication)
