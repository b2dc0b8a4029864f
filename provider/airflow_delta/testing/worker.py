"""The process of a Dag run: ``python -m airflow_delta.testing.worker <order as JSON>``.

Does what ``dag.test()`` does, and goes on where an earlier process of the same run was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select

from airflow_delta import engine
from airflow_delta.airflow_internals.dag_runs import (
    DagRun,
    answer_task,
    clear,
    count_try,
    create_session,
    load_dags,
    new_run,
    next_try,
    returned,
    run_task,
    scheduler_dag,
)
from airflow_delta.airflow_internals.database import make_database
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.shown_text import message_of
from airflow_delta.testing.kills import AFTER_LOG_ENTRY, BEFORE_EXECUTE, BEFORE_LOG_ENTRY, BEFORE_RESULT, Kill

_LOG_ENTRY = lazy_pattern(r"_delta_log/\d{20}\.json$")


class OrderError(Exception):
    """The order cannot be carried out."""


def main(order: Mapping[str, Any]) -> None:
    """Run a Dag as ordered, and write what became of it."""
    if order.get("new_database"):
        make_database()
        return
    try:
        answer_task = run(order)
    except OrderError as error:
        answer_task = {"error": str(error)}
    Path(order["result"]).write_text(json.dumps(answer_task, default=str))


def run(order: Mapping[str, Any]) -> dict[str, Any]:
    """Run a Dag to its end, and return the states of its tasks and what they returned."""
    dag = _load(order["dag_file"], order["dag_id"])
    if order["kill"] is not None:
        _arm(dag, Kill(**order["kill"]))
    logical_date = datetime.fromisoformat(order["logical_date"])
    with create_session() as session:
        dag_run: Any = session.scalar(select(DagRun).where(DagRun.dag_id == dag.dag_id, DagRun.logical_date == logical_date))
        if dag_run is None or not (order["resume"] or "clear" in order):
            dag_run = _new_run(dag, logical_date, order["conf"], session, again=dag_run)
        else:
            dag_run.dag = scheduler_dag(dag)
        if order["resume"]:
            _fail_what_was_killed(dag_run, session)
        elif "clear" in order:
            _clear(dag, dag_run, order["clear"], session)
        _run_to_end(dag, dag_run, order["answers"], session)
        return _result(dag_run, session)


def _load(file: str, dag_id: str | None) -> Any:
    dags, errors = load_dags(file)
    if errors:
        (error, *_) = errors.values()
        raise OrderError(f"{file} cannot be imported: {message_of(error)}\n{error}")
    if dag_id is None and len(dags) == 1:
        (dag_id,) = dags
    if dag_id not in dags:
        which = ", pass dag_id=." if dag_id is None and dags else f", not {dag_id!r}." if dag_id else "."
        raise OrderError(f"{file} defines {', '.join(map(repr, sorted(dags))) or 'no Dag'}{which}")
    return dags[dag_id]


def _new_run(dag: Any, logical_date: datetime, conf: dict[str, Any], session: Any, *, again: Any) -> Any:
    if again is None:
        return new_run(dag, logical_date, conf, session)
    again.dag = scheduler_dag(dag)
    again.conf = conf
    _clear(dag, again, [task.task_id for task in dag.tasks], session)
    return again


def _clear(dag: Any, dag_run: Any, task_ids: list[str], session: Any) -> None:
    """Clear tasks and everything after them, as the button in the UI does."""
    if unknown := [task_id for task_id in task_ids if task_id not in dag.task_dict]:
        raise OrderError(f"{dag.dag_id} has no task {', '.join(unknown)}. Its tasks: {', '.join(dag.task_dict)}.")
    wanted = set(task_ids)
    for task_id in task_ids:
        wanted |= dag.get_task(task_id).get_flat_relative_ids(upstream=False)
    found = [ti for ti in dag_run.get_task_instances(session=session) if ti.task_id in wanted and ti.state != "removed"]
    clear(found, session)
    dag_run.state = "running"
    session.commit()


def _fail_what_was_killed(dag_run: Any, session: Any) -> None:
    """Do what Airflow does with a task whose process is gone: it counts as failed, and is retried if a retry is left."""
    for ti in dag_run.get_task_instances(session=session):
        if ti.state in ("running", "queued", "scheduled", "restarting"):
            if ti.try_number <= ti.max_tries:
                next_try(ti, session).state = None
            else:
                ti.state = "failed"
    session.commit()


def _run_to_end(dag: Any, dag_run: Any, answers: Mapping[str, str], session: Any) -> None:
    """Run what can run, one task after the other, until the run has ended."""
    while dag_run.state == "running":
        session.expire_all()
        for ti in dag_run.get_task_instances(session=session):
            if ti.state == "up_for_retry":  # due at once: its pause is nothing to test
                ti.state = None
        session.flush()
        for ti in dag_run.update_state(session=session)[0]:
            count_try(ti)
            ti.state = "scheduled"
        session.commit()
        scheduled = [ti for ti in dag_run.get_task_instances(session=session) if ti.state == "scheduled"]
        for ti in scheduled:
            run_task(ti, dag.task_dict[ti.task_id])
        session.expire_all()
        asked = [ti for ti in dag_run.get_task_instances(session=session) if ti.state == "awaiting_input"]
        for ti in asked:
            if ti.task_id not in answers:
                raise OrderError(f"The task {ti.task_id!r} waits for an answer: pass answers={{{ti.task_id!r}: ...}}.")
            if (offered := answer_task(ti, answers[ti.task_id], session)) is not None:
                raise OrderError(f"The task {ti.task_id!r} offers {', '.join(offered)}, not {answers[ti.task_id]!r}.")
        if not scheduled and not asked and dag_run.state == "running":
            time.sleep(0.2)  # a sensor looks again later


def _result(dag_run: Any, session: Any) -> dict[str, Any]:
    session.expire_all()
    xcoms = returned(dag_run, session)
    return {
        "dag_id": dag_run.dag_id,
        "run_id": dag_run.run_id,
        "state": str(dag_run.state.value),
        "tasks": [
            {
                "task_id": ti.task_id,
                "map_index": ti.map_index,
                "state": None if ti.state is None else str(ti.state),
                "try_number": ti.try_number,
                "xcom": xcoms.get((ti.task_id, ti.map_index)),
            }
            for ti in dag_run.get_task_instances(session=session)
        ],
    }


# -- kills --------------------------------------------------------------------------------------------------------------------


def _arm(dag: Any, kill: Kill) -> None:
    """Have the process killed when the task comes to the point."""
    if kill.task_id not in dag.task_dict:
        raise OrderError(f"{dag.dag_id} has no task {kill.task_id!r} to kill. Its tasks: {', '.join(dag.task_dict)}.")
    running: list[bool] = []
    entries = 0

    def begins(context: Any, *_: Any) -> None:
        ti = context["ti"]
        index = -1 if ti.map_index is None else ti.map_index
        running[:] = [True] * ((int(ti.try_number), index) == (kill.try_number, kill.map_index))
        _at(BEFORE_EXECUTE)

    def ends(*_: Any) -> None:
        _at(BEFORE_RESULT)
        running.clear()

    def _at(point: str) -> None:
        nonlocal entries
        entries += bool(running) and point == BEFORE_LOG_ENTRY
        of_log = point in (BEFORE_LOG_ENTRY, AFTER_LOG_ENTRY)
        if running and point == kill.point and (not of_log or entries == kill.entry):
            print(f"Killed at {point!r} in {kill.task_id}", flush=True)  # noqa: T201 - its output is the log
            os.kill(os.getpid(), signal.SIGKILL)

    task = dag.task_dict[kill.task_id]
    _hook(task, "pre_execute", begins)
    _hook(task, "post_execute", ends)
    if kill.point in (BEFORE_LOG_ENTRY, AFTER_LOG_ENTRY):
        _watch_log(_at)


def _hook(task: Any, name: str, step: Callable[..., None]) -> None:
    """Add a step to a task's hooks; the author's own run as well."""
    given = task.partial_kwargs.get(name) if task.is_mapped else getattr(task, f"_{name}_hook")

    def hook(context: Any, *result: Any) -> None:
        if name == "pre_execute":
            step(context)
        if given is not None:
            given(context, *result)
        if name == "post_execute":
            step(context)

    if task.is_mapped:
        task.partial_kwargs[name] = hook
    else:
        setattr(task, f"_{name}_hook", hook)


def _watch_log(at: Callable[[str], None]) -> None:
    """Call ``at`` right before and after an entry is put into a table's log."""
    put = engine.LocalStore.put_if_absent

    def watched(store: engine.LocalStore, path: str, data: bytes, *, durable: bool = True) -> None:
        if not _LOG_ENTRY.search(path):
            return put(store, path, data, durable=durable)
        at(BEFORE_LOG_ENTRY)
        put(store, path, data, durable=durable)
        at(AFTER_LOG_ENTRY)
        return None

    engine.LocalStore.put_if_absent = watched  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
