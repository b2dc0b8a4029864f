"""What the tasks of a run have left for its commit: what each has seen as it began, and what checks report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_delta.airflow_internals.tasks import all_of
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.tasks.task_states import instances

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import StagedWrite

SEEN_KEY = "delta_seen"
"""Key of the XCom that a task leaves as it begins."""

ENDS = ("start", "commit", "abort")
"""Roles of the tasks around the stages and checks of a transaction."""

_REPORTS = ("audit", "audit_publication")

Runs = Mapping[int, str]
"""Runs of the instances of a task, by map index."""


class Evidence:
    """What the tasks of a run have left, each task's read once.

    :param inside: the tasks to look at, those between start and commit; default: all.
    """

    def __init__(self, context: Context, inside: Collection[str] | None = None) -> None:
        self._context = context
        self._inside = inside
        self._notes: dict[str, dict[int, Any]] = {}
        self._reports: dict[tuple[str, int], Any] = {}
        self._states: dict[str, dict[tuple[str, int], str | None]] = {}

    @property
    def tasks(self) -> Mapping[str, Any]:
        """Return the tasks of the Dag file."""
        tasks: Mapping[str, Any] = self._context["dag"].task_dict
        return tasks

    def checks(self, writes: Sequence[StagedWrite]) -> dict[tuple[str, int], str | None]:
        """Return the states of the checks: tasks after a stage that are not stages themselves.

        :param writes: what the commit publishes.
        """
        staged = {write.task_id for write in writes} | {name for name in self._between if role_of(self.tasks[name]) == "stage"}
        checks = {name for name in self._between - staged if role_of(self.tasks[name]) not in ENDS}
        return self._states_of({name for name in checks if staged & self.tasks[name].get_flat_relative_ids(upstream=True)})

    def reports(self) -> dict[tuple[str, int], str | None]:
        """Return the states of the checks that report what they have seen."""
        return self._states_of({name for name in self._between if self.has_report(name)})

    def has_report(self, name: str) -> bool:
        """Return whether a task reports what it has seen, unless its XComs are off."""
        return role_of(self.tasks[name]) in _REPORTS

    def report(self, name: str, index: int) -> Any:
        """Return what a task instance has returned."""
        if (name, index) not in self._reports:
            self._reports[name, index] = self._ti.xcom_pull(task_ids=name, map_indexes=index)
        return self._reports[name, index]

    @cached_property
    def ran(self) -> set[tuple[str, int]]:
        """Return the task instances that a worker has run; Airflow ends an ``EmptyOperator`` without one."""
        ended = self._ti.get_task_breadcrumbs(self._ti.dag_id, self._ti.run_id)
        return {(each["task_id"], int(each["map_index"])) for each in ended if each["duration"]}

    @property
    def _ti(self) -> Any:
        return self._context["ti"]

    @property
    def _between(self) -> set[str]:
        return set(self.tasks if self._inside is None else self._inside)

    def _states_of(self, names: set[str]) -> dict[tuple[str, int], str | None]:
        if missing := names - self._states.keys():
            self._states |= {name: {} for name in missing}
            for key, state in instances(self._context, missing).items():
                self._states[key[0]][key] = state
        return {key: state for name in names for key, state in self._states[name].items()}

    def before(self, task: Any, index: int, *, until: float | None = None) -> dict[str, Runs]:
        """Return the runs of every stage before an instance of a task, and of the nearest checks.

        :param until: leave out what has begun later, in seconds since 1970.
        """
        found: dict[str, Runs] = {}
        todo, known = list(task.upstream_list), set()
        while todo:
            other = todo.pop()
            if other.task_id in known or role_of(other) in ENDS:
                continue
            if self._inside is not None and other.task_id not in self._inside:
                continue
            known.add(other.task_id)
            notes = self._of(other, task, index)
            if notes:
                found[other.task_id] = {at: note["run"] for at, note in notes.items() if until is None or note["at"] <= until}
            if not notes or role_of(other) == "stage":
                todo.extend(other.upstream_list)
        return found

    def note(self, name: str, index: int) -> Any:
        """Return the note of a task instance; ``None`` if it has left none."""
        return self.notes(self.tasks[name]).get(index)

    def notes(self, task: Any) -> dict[int, Any]:
        """Return the notes of all instances of a task, by map index."""
        if task.task_id not in self._notes:
            values = all_of(self._ti.xcom_pull(task_ids=[task.task_id], key=SEEN_KEY) or ())
            self._notes[task.task_id] = {int(each["mapIndex"]): each for each in values if isinstance(each, Mapping)}
        return self._notes[task.task_id]

    def _of(self, other: Any, task: Any, index: int) -> dict[int, Any]:
        """Return the notes of the instances of a task that an instance of another one waits for."""
        notes, group = self.notes(other), task.get_closest_mapped_task_group()
        if group is None or other.get_closest_mapped_task_group() is not group:
            return notes
        return {at: note for at, note in notes.items() if at == index}
