"""Task instances that wait for a table, or write it, in the latest runs of some Dags.

Which table a sensor waits for is in its rendered fields, so a templated name is found as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, or_, select, tuple_

from airflow_delta.airflow_internals import database
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.ui.known import KnownTable, location_key
from airflow_delta.ui.tries import TaskKey, milliseconds

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


SENSORS = frozenset({"DeltaTableVersionSensor", "DeltaPartitionSensor"})
"""Operators that wait for a table."""

_RUNS = 10

_RUNS_AT_ONCE = 400

_MAX_INSTANCES = 5_000

_CONDITIONS = ("partitions", "operation", "version")


@dataclass(frozen=True, slots=True)
class TableTask:
    """A task instance that waits for a table, or writes it.

    :param number: id of its run.
    """

    key: TaskKey
    number: int
    state: str | None
    end: int | None
    operator: str | None

    @property
    def arrived(self) -> bool:
        return self.state == "success" and self.end is not None


def table_tasks(session: Session, dag_ids: Collection[str], writers: Collection[tuple[str, str]]) -> list[TableTask]:
    """Return the instances of sensors, and of tasks that write the table, in the latest runs of some Dags."""
    run_table, instance_table = database.DagRun, database.latest_tries().table
    started = func.coalesce(run_table.start_date, run_table.queued_at, run_table.run_after)
    rank = func.row_number().over(partition_by=run_table.dag_id, order_by=(started.desc(), run_table.id.desc()))
    columns = (run_table.id, run_table.dag_id, run_table.run_id, rank.label("rank"))
    ranked = select(*columns).where(run_table.dag_id.in_(sorted(dag_ids))).subquery()
    waits = instance_table.operator.in_(sorted(SENSORS))
    writes = tuple_(instance_table.dag_id, instance_table.task_id).in_(sorted(writers))
    place = (instance_table.dag_id, instance_table.run_id, instance_table.task_id, instance_table.map_index)
    wanted = (
        select(ranked.c.id, *place, instance_table.state, instance_table.end_date, instance_table.operator)
        .join(ranked, and_(ranked.c.dag_id == instance_table.dag_id, ranked.c.run_id == instance_table.run_id))
        .where(ranked.c.rank <= _RUNS, or_(waits, writes) if writers else waits)
        .order_by(ranked.c.id.desc())
        .limit(_MAX_INSTANCES)
    )
    return [
        TableTask(
            (dag_id, run_id, task_id, map_index), number, None if state is None else str(state), milliseconds(end), operator
        )
        for number, dag_id, run_id, task_id, map_index, state, end, operator in session.execute(wanted)
    ]


def waited_for(session: Session, table: KnownTable, sensors: Sequence[TableTask]) -> dict[TaskKey, dict[str, Any]]:
    """Return what sensors wait for, of those that wait for the table: known once a task has begun."""
    fields_table, run_table = database.RenderedTaskInstanceFields, database.DagRun
    instance_table = database.latest_tries().table
    found: dict[TaskKey, dict[str, Any]] = {}
    keys: dict[tuple[str, str | None], str | None] = {}
    numbers = sorted({one.number for one in sensors})
    of_run = and_(run_table.dag_id == instance_table.dag_id, run_table.run_id == instance_table.run_id)
    place = (instance_table.dag_id, instance_table.run_id, instance_table.task_id, instance_table.map_index)
    wanted = (
        select(*place, fields_table.rendered_fields)
        .select_from(fields_table)
        .join(instance_table, database.rendered_by(fields_table, instance_table))
        .join(run_table, of_run)
        .where(instance_table.operator.in_(sorted(SENSORS)), instance_table.task_id.in_(sorted({one.key[2] for one in sensors})))
    )
    for start in range(0, len(numbers), _RUNS_AT_ONCE):
        for *key, fields in session.execute(wanted.where(run_table.id.in_(numbers[start : start + _RUNS_AT_ONCE]))):
            location, conn_id = fields.get("table"), fields.get("delta_conn_id")
            if not isinstance(location, str):  # a template that gives a list: its task fails
                continue
            named = (location, conn_id if isinstance(conn_id, str) else None)
            if named not in keys:
                keys[named] = location_key(*named)
            if keys[named] == table.key:
                told = {name: fields[name] for name in _CONDITIONS if fields.get(name) not in (None, "", "None", [])}
                if "partitions" in told and isinstance(values := fields.get("parameters"), Mapping):
                    told["parameters"] = [f":{name} = {value}" for name, value in values.items()]
                found[key[0], key[1], key[2], key[3]] = told
    return found
