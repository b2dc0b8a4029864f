"""The tries of tasks in recent Dag runs, and what they left: from Airflow's database, in queries with a limit.

A cleared task loses its XComs when it runs again. Its earlier tries stay, in the history of task instances, with the answers of
people; so does what its state store holds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, or_, select

from airflow_delta.airflow_internals import database
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.task_notes import NOTE_KEY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.airflow_internals.database import Tries


START, COMMIT, ABORT = "DeltaStartTransactionOperator", "DeltaCommitOperator", "DeltaAbortOperator"

MAX_TRIES, MIN_TRIES = 10_000, 1_000
"""Number of latest tries that one page reads: of all Dags together, but at least so many of each."""

ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
_NOT_BEGUN = frozenset({None, "scheduled", "queued", "restarting"})
_CHUNK = 400

TaskKey = tuple[str, str, str, int]
"""Dag, run, task, and map index."""


@dataclass(frozen=True, slots=True)
class Run:
    """A Dag run.

    :param interval: its data interval, in milliseconds since the epoch.
    """

    id: int
    dag_id: str
    run_id: str
    state: str
    interval: tuple[int, int] | None


class Try(NamedTuple):  # a page has thousands
    """One try of a task instance.

    :param state: ``None`` for one that has not begun.
    :param final: it has ended, and no retry followed by itself.
    """

    id: Any
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    number: int
    state: str | None
    start: int | None
    end: int | None
    max_tries: int
    operator: str | None
    reason: str | None
    final: bool = False

    @property
    def key(self) -> TaskKey:
        """Return its task instance."""
        return (self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def is_pending(self) -> bool:
        """Return whether it is neither running nor over."""
        return self.state in _NOT_BEGUN or self.state in ("up_for_retry", "up_for_reschedule")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a human-in-the-loop task; ``by`` is ``None`` if there was none in time."""

    asked: Try
    chosen: tuple[str, ...]
    by: str | None


def milliseconds(moment: datetime | None) -> int | None:
    """Return a time in milliseconds since the epoch."""
    return None if moment is None else int(moment.timestamp() * 1000)


def interval(start: datetime | None, end: datetime | None) -> tuple[int, int] | None:
    """Return a data interval in milliseconds; ``None`` for a run without one."""
    return None if start is None or end is None else (int(start.timestamp() * 1000), int(end.timestamp() * 1000))


def recent_runs(session: Session, dag_ids: Collection[str], limit: int) -> dict[tuple[str, str], Run]:
    """Return the runs of each Dag that were started last; a clear starts an ended run again.

    :param limit: runs of each Dag.
    """
    run_table = database.DagRun
    if not dag_ids:
        return {}
    started = func.coalesce(run_table.start_date, run_table.queued_at, run_table.run_after)
    rank = func.row_number().over(partition_by=run_table.dag_id, order_by=(started.desc(), run_table.id.desc()))
    ranked = select(run_table.id, rank.label("rank")).where(run_table.dag_id.in_(sorted(dag_ids))).subquery()
    columns = (
        run_table.id,
        run_table.dag_id,
        run_table.run_id,
        run_table.state,
        run_table.data_interval_start,
        run_table.data_interval_end,
    )
    rows = session.execute(select(*columns).join(ranked, ranked.c.id == run_table.id).where(ranked.c.rank <= limit))
    return {
        (dag_id, run_id): Run(number, dag_id, run_id, str(state), interval(start, end))
        for number, dag_id, run_id, state, start, end in rows
    }


def tries_of(session: Session, runs: Collection[Run], tasks: Collection[str]) -> dict[TaskKey, list[Try]]:
    """Return the tries of the task instances of some runs, in their order, but for successful ones of other tasks.

    :param tasks: ids of tasks whose successful tries are wanted, besides starts and commits.
    """
    instance_table = database.TaskInstance
    current = or_(
        instance_table.state.is_(None),
        instance_table.state != "success",
        instance_table.operator.in_((START, COMMIT)),
        instance_table.task_id.in_(sorted(tasks)),
        instance_table.try_number > 1,  # without it, the last try of its history would look final
    )
    earlier: dict[TaskKey, list[Try]] = {}
    for found in _rows(session, database.earlier_tries(), runs, None):
        earlier.setdefault(found.key, []).append(found)
    latest = {found.key: found for found in _rows(session, database.latest_tries(), runs, current)}
    return {key: _in_order(earlier.get(key, []), latest.get(key)) for key in earlier.keys() | latest.keys()}


def _in_order(earlier: list[Try], latest: Try | None) -> list[Try]:
    """Return the tries of a task instance in their order, and mark the final ones.

    A clear raises the maximum of tries, a retry does not.
    """
    tries = sorted(earlier, key=lambda found: found.number)
    if latest is not None:
        if tries and tries[-1].number == latest.number:  # it did not run again: its times are those of the earlier try
            latest = latest._replace(start=None, end=None)
        tries.append(latest)
    marked = []
    for index, found in enumerate(tries):
        after = tries[index + 1] if index + 1 < len(tries) else None
        ended = found.state in ENDED
        final = ended and (after.max_tries > found.max_tries or found.state != "failed" if after is not None else True)
        marked.append(found._replace(final=True) if final else found)
    return marked


def _rows(session: Session, kept: Tries, runs: Collection[Run], condition: Any) -> Iterator[Try]:
    several = list(_in_runs(kept.table, runs))
    for in_runs in several:
        wanted = kept.select(*_columns(kept)).where(in_runs)
        if condition is not None:
            wanted = wanted.where(condition)
        limit = max(MAX_TRIES // len(several), MIN_TRIES)
        rows = session.execute(wanted.order_by(kept.table.start_date.desc()).limit(limit))
        yield from (_try(row) for row in rows)


def _in_runs(model: Any, runs: Collection[Run]) -> Iterator[Any]:
    """Yield conditions that select the rows of some runs: a Dag at a time, which every database has an index for."""
    by_dag: dict[str, list[str]] = {}
    for run in runs:
        by_dag.setdefault(run.dag_id, []).append(run.run_id)
    for dag_id, run_ids in by_dag.items():
        yield (model.dag_id == dag_id) & model.run_id.in_(run_ids)


def _columns(kept: Tries) -> tuple[Any, ...]:
    model = kept.table
    place = (model.dag_id, model.run_id, model.task_id, model.map_index, model.try_number)
    return (kept.id, *place, model.state, model.start_date, model.end_date, model.max_tries, model.operator, model.retry_reason)


def _try(row: Sequence[Any]) -> Try:
    number, dag_id, run_id, task_id, map_index, try_number, state, start, end, max_tries, operator, reason = row
    return Try(
        number,
        dag_id,
        run_id,
        task_id,
        map_index,
        try_number or 0,
        None if state is None else str(state),
        milliseconds(start),
        milliseconds(end),
        -1 if max_tries is None else max_tries,
        operator,
        reason,
    )


def answers(session: Session, runs: Collection[Run]) -> list[Answer]:
    """Return what people answered in some runs."""
    found: list[Answer] = []
    for kept in (database.latest_tries(), database.earlier_tries()):
        detail = kept.answers
        for in_runs in _in_runs(kept.table, runs):
            wanted = (
                kept.select(*_columns(kept), detail.chosen_options, detail.responded_by)
                .join(detail, kept.answered == kept.id)
                .where(in_runs, detail.responded_at.is_not(None))
                .limit(MAX_TRIES)
            )
            for *row, chosen, by in session.execute(wanted):
                name = by.get("name") or by.get("id") if isinstance(by, Mapping) else None
                options = tuple(map(str, chosen)) if isinstance(chosen, list | tuple) else ()
                found.append(Answer(_try(row), options, None if name is None else str(name)))
    return found


def notes(session: Session, runs: Collection[Run]) -> dict[tuple[TaskKey, int], dict[str, Any]]:
    """Return the errors that failed tries left, by task instance and number of the try."""
    state_table = database.TaskStateStoreModel
    found: dict[tuple[TaskKey, int], dict[str, Any]] = {}
    for some in _chunks(sorted(run.id for run in runs)):
        columns = (
            state_table.dag_id,
            state_table.run_id,
            state_table.task_id,
            database.stored_map_index(),
            state_table.key,
            state_table.value,
        )
        wanted = select(*columns).where(state_table.dag_run_id.in_(some), state_table.key.startswith(NOTE_KEY)).limit(MAX_TRIES)
        for *place, key, raw in session.execute(wanted):
            number, value = str(key).removeprefix(NOTE_KEY), as_json(raw)
            if number.isdecimal() and isinstance(value, dict):
                found[_key(place), int(number)] = value
    return found


def results(session: Session, runs: Collection[Run], tasks: Collection[str] | None, key: str) -> dict[TaskKey, Any]:
    """Return the XComs of some tasks, or of all (``None``); they are those of the last try."""
    xcom_table = database.XComModel
    found: dict[TaskKey, Any] = {}
    for some in _chunks(sorted(run.id for run in runs)) if tasks is None or tasks else ():
        columns = (
            xcom_table.dag_id,
            xcom_table.run_id,
            xcom_table.task_id,
            xcom_table.map_index,
            xcom_table.value,
        )
        where = (
            xcom_table.dag_run_id.in_(some),
            xcom_table.key == key,
            *(() if tasks is None else (xcom_table.task_id.in_(sorted(tasks)),)),
        )
        for *place, raw in session.execute(database.of_latest_tries(select(*columns)).where(*where).limit(MAX_TRIES)):
            found[_key(place)] = as_json(raw)
    return found


def _key(place: Sequence[Any]) -> TaskKey:
    return (str(place[0]), str(place[1]), str(place[2]), int(place[3]))


def as_json(raw: Any) -> Any:
    """Return a value of Airflow's database that is kept as JSON; ``None`` if it is not JSON."""
    try:
        return json.loads(raw) if isinstance(raw, str | bytes) else raw
    except ValueError:
        return None


def _chunks(numbers: list[int]) -> Iterable[list[int]]:
    return (numbers[start : start + _CHUNK] for start in range(0, len(numbers), _CHUNK))
