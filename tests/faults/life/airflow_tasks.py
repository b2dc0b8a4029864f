"""Airflow in miniature, in this process: runs, task instances, tries, clears, XComs that outlive their tasks.

It does what Airflow does where a transaction depends on it, and runs the operators themselves: their definitions in the Dag stay
as in the Dag file, a copy with rendered arguments is executed.
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

if "AIRFLOW_HOME" not in os.environ:  # before the first import of Airflow, which reads its configuration once
    _home = tempfile.mkdtemp(prefix="airflow-faults-")
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
    os.environ.update(AIRFLOW_HOME=_home, AIRFLOW__CORE__LOAD_EXAMPLES="False", AIRFLOW__LOGGING__LOGGING_LEVEL="ERROR")

from airflow.sdk import DAG
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_delta.exceptions import DeltaError

RETRIES = 2
DONE = ("success", "failed", "skipped", "upstream_failed", "removed")
FATES = ("ok", "ok", "ok", "ok", "never", "lost", "killed")
"""What happens to a try: it ends well, never begins, is lost after its work, or is killed right before it puts its log entry."""

Key = tuple[str, int]


class Killed(BaseException):
    """The process is gone: nothing in it runs any more."""


class StateStore(dict[str, Any]):
    """Stands for the task state store, which outlives tries and clears."""

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = value


@dataclass
class Instance:
    """A task instance."""

    state: str | None = None
    try_number: int = 0
    max_tries: int = RETRIES
    store: StateStore = field(default_factory=StateStore)


@dataclass
class Outcome:
    """How a try ended.

    :ivar value: what the operator returned, though Airflow may not have heard of it.
    """

    ran: bool
    value: Any = None
    error: BaseException | None = None
    instance: Instance | None = None

    def refused(self) -> bool:
        return self.error is not None


class Run:
    """A Dag run.

    :param values: what its mapped tasks are mapped to.
    :param skips: whether its branch skips the stage ``txn.extra``.
    :param interval_end: end of its data interval.
    """

    def __init__(self, dag: DAG, run_id: str, clock: Any, values: list[int], *, skips: bool, interval_end: float) -> None:
        self.dag, self.run_id, self.values, self.skips = dag, run_id, values, skips
        self._clock = clock
        self.clear_number = 0
        self.created = self.started = clock.now
        self._interval_end = interval_end
        self.skipped = False
        self.instances: dict[Key, Instance] = {}
        self.xcoms: dict[Key, Any] = {}
        for task in dag.tasks:
            if not self.is_mapped(task.task_id):
                self.instances[task.task_id, -1] = Instance()

    def __repr__(self) -> str:
        return f"{self.dag.dag_id}/{self.run_id}"

    # -- the scheduler ----------------------------------------------------------------------------------------------------------

    def is_mapped(self, task_id: str) -> bool:
        task = self.dag.get_task(task_id)
        return task.is_mapped or task.get_closest_mapped_task_group() is not None

    def of_task(self, task_id: str) -> list[tuple[Key, Instance]]:
        return [(key, instance) for key, instance in sorted(self.instances.items()) if key[0] == task_id]

    def ready(self) -> list[Key]:
        """Decide about instances as the scheduler does, and return those that can run now."""
        while self._decide():
            pass
        return [key for key in sorted(self.instances) if self._may_run(key) == "run"]

    def _decide(self) -> bool:
        changed = self._expand()
        for key in sorted(self.instances):
            decision = self._may_run(key)
            if decision not in (None, "run"):
                self.instances[key].state = decision
                changed = True
        return changed

    def _expand(self) -> bool:
        """Give mapped tasks with unfinished instances as many as there are values."""
        values = self.instances.get(("values", -1))
        if values is None or values.state != "success":
            return False
        count, changed = len(self.xcoms["values", -1]), False
        for task in self.dag.tasks:
            found = self.of_task(task.task_id)
            if not self.is_mapped(task.task_id) or (found and all(i.state in DONE for _, i in found)):
                continue
            for index in range(count):
                instance = self.instances.setdefault((task.task_id, index), Instance())
                if instance.state == "removed":
                    instance.state, changed = None, True
            for (_, index), instance in found:
                if index >= count and instance.state != "removed":
                    instance.state, changed = "removed", True
            changed = changed or not found
        return changed

    def _may_run(self, key: Key) -> str | None:
        task_id, index = key
        if self.instances[key].state in DONE:
            return None
        states: list[str | None] = []
        for above in self.dag.get_task(task_id).upstream_task_ids:
            same = index >= 0 and self.is_mapped(above)
            found = [i for (_, at), i in self.of_task(above) if not same or at == index]
            if not found:
                return None
            states += [i.state for i in found if i.state != "removed"]
        if any(state not in DONE for state in states):
            return None
        if task_id.endswith("abort"):  # a teardown
            return "run"
        if "failed" in states or "upstream_failed" in states:
            return "upstream_failed"
        if "skipped" in states and not task_id.endswith("commit"):  # whose rule is none_failed
            return "skipped"
        return "skipped" if task_id == "txn.extra" and self.skipped else "run"

    def clear(self, keys: list[Key], *, downstream: bool) -> None:
        """Clear instances, as the user interface does."""
        ended = not self.ready()
        wanted = set(keys)
        if downstream:
            for task_id, index in keys:
                below = self.dag.get_task(task_id).get_flat_relative_ids(upstream=False)
                wanted |= {k for k in self.instances if k[0] in below and (k[1] == index or -1 in (k[1], index))}
        for key in wanted:
            instance = self.instances[key]
            if instance.state != "removed":
                instance.state = None
                instance.max_tries = instance.try_number + RETRIES
        self.clear_number += 1
        if ended:
            self.started = self._clock.now

    # -- the task runner --------------------------------------------------------------------------------------------------------

    def execute(self, key: Key, arguments: dict[str, Any], fate: str = "ok", job: Callable[..., Any] | None = None) -> Outcome:
        """Run a try of an instance.

        :param arguments: rendered arguments, besides those of the Dag file.
        :param job: runs first, in the same try, with operator and instance.
        """
        instance = self.instances[key]
        instance.try_number += 1
        self.xcoms.pop(key, None)
        if fate == "never":
            return self._retried(Outcome(False, instance=instance))
        task = self.dag.get_task(key[0])
        operator = copy.copy(task.unmap({"path": "_"}) if task.is_mapped else task)
        context = self._context(key, operator)
        for name in operator.template_fields:
            value = arguments[name] if name in arguments else operator.render_template(getattr(operator, name), context)
            setattr(operator, name, value)
        outcome = Outcome(True, instance=instance)
        with patch.object(ExecutorSafeguard, "test_mode", True), _killed_before_put(fate == "killed"):
            try:
                if job is not None:
                    job(operator, context["ti"])
                outcome.value = json.loads(json.dumps(operator.execute(context)))
            except (DeltaError, OSError, Killed) as error:
                outcome.error = error
        if isinstance(outcome.error, Killed):
            return self._retried(outcome)
        if outcome.error is not None:
            policy = operator.retry_policy
            if policy is None:
                return self._retried(outcome)
            decision = policy.evaluate(outcome.error, instance.try_number, instance.max_tries, context)
            return self._retried(outcome, final=decision.action.value == "fail")
        if fate == "lost":
            return self._retried(outcome)
        instance.state = "success"
        if outcome.value is not None:
            self.xcoms[key] = outcome.value
        return outcome

    def succeed(self, key: Key, value: Any = None) -> None:
        """End a task that is none of ours."""
        self.instances[key].try_number += 1
        self.instances[key].state = "success"
        self.xcoms[key] = value

    @staticmethod
    def _retried(outcome: Outcome, *, final: bool = False) -> Outcome:
        instance = outcome.instance
        assert instance is not None
        instance.state = "failed" if final or instance.try_number > instance.max_tries else "up_for_retry"
        return outcome

    def _context(self, key: Key, operator: Any) -> dict[str, Any]:
        instance = self.instances[key]
        ti = SimpleNamespace(
            dag_id=self.dag.dag_id,
            run_id=self.run_id,
            task_id=key[0],
            map_index=key[1],
            try_number=instance.try_number,
            max_tries=instance.max_tries,
            start_date=_time(self._clock.now),
            task=operator,
            stats_tags={},
            get_task_states=self._states,
            xcom_pull=self._pull,
            xcom_push=lambda key, value: None,
            # The same instance of the group, whose tasks are all mapped with it.
            get_relevant_upstream_map_indexes=lambda **_: key[1] if key[1] >= 0 else None,
        )
        dag_run = SimpleNamespace(
            run_id=self.run_id,
            start_date=_time(self.started),
            run_after=_time(self.created),
            clear_number=self.clear_number,
            data_interval_end=_time(self._interval_end),
            logical_date=_time(self._interval_end),
            partition_date=None,
            conf={},
        )
        more = {
            "run_id": self.run_id,
            "dag_run": dag_run,
            "task_state_store": instance.store,
            "params": {},
            "outlet_events": OutletEventAccessors(),
        }
        return {"ti": ti, "dag": self.dag, "task": operator, **more}

    def _states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str | None]]:
        assert (dag_id, run_ids) == (self.dag.dag_id, [self.run_id])
        found = {key: instance.state for key, instance in self.instances.items() if key[0] in task_ids}
        return {self.run_id: {name if index < 0 else f"{name}_{index}": state for (name, index), state in found.items()}}

    def _pull(self, *, task_ids: str, default: Any, map_indexes: Any = None, **_: Any) -> Any:
        return self.xcoms.get((task_ids, map_indexes if isinstance(map_indexes, int) else -1), default)

    def results(self, task_id: str) -> Any:
        """Return what a task's output is rendered to: a list for a mapped task, of all instances that left an XCom."""
        found = [self.xcoms[key] for key in sorted(self.xcoms) if key[0] == task_id]
        return found if self.is_mapped(task_id) else (found or [None])[0]


@contextmanager
def _killed_before_put(active: bool) -> Iterator[None]:
    """Kill the process where it would put a log entry."""
    from airflow_delta.transaction import OptimisticTransaction

    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    with ExitStack() as stack:
        for name in ("commit", "commit_large") if active else ():
            stack.enter_context(patch.object(OptimisticTransaction, name, killed))
        yield


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
