"""What a running task needs of the Task SDK beyond ``airflow.sdk``.

Each function says which public name it waits for. The Task SDK keeps no promise for these modules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any


def reset_run(dag_id: str, run_id: str) -> None:
    """Clear the run that this task is in; Airflow lets any task reset a run.

    Waits for: a way to clear a run by ``airflow.sdk``; ``TriggerDagRunOperator`` does it, but ends its task with it.

    :raises AirflowRuntimeError: if the supervisor refuses.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    # The run exists, so it is not triggered but cleared.
    answer = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, reset_dag_run=True))
    if isinstance(answer, ErrorResponse):
        raise AirflowRuntimeError(answer)


def returned_by(ti_key: Any, key: str) -> Any:
    """Return an XCom of any task instance, as links need it in the API server.

    Waits for: a link that is given the task's XComs.
    """
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_value(ti_key=ti_key, key=key)


def redacted(text: str) -> str:
    """Return a text with the secrets that Airflow knows masked.

    Waits for: the reverse of ``airflow.sdk.log.mask_secret``.
    """
    from airflow.sdk._shared.secrets_masker import redact

    return str(redact(text))


def is_running_task(instance: Any) -> bool:
    """Return whether a listener was given the task instance of this very process, not one that Airflow has marked.

    Waits for: ``RuntimeTaskInstance`` in ``airflow.sdk``. Does not load the task runner.
    """
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return runner is not None and isinstance(instance, runner.RuntimeTaskInstance)


def resumes(ti: Any) -> bool:
    """Return whether a running task goes on after it was deferred.

    Waits for: a task instance that tells. Airflow asks the same before it deletes the XComs of an earlier try.
    """
    return getattr(getattr(ti, "_ti_context_from_server", None), "next_method", None) is not None


def arguments_given_to(task: Any) -> frozenset[str]:
    """Return the names of the arguments that a task, or an instance of a mapped one, was made with; empty if it does not say.

    Waits for: an instance of a mapped task that tells which of its arguments ``expand_kwargs`` gave it.
    """
    return frozenset(getattr(task, "_BaseOperator__init_kwargs", ()))


def params_of_run(dag: Any, task: Any, conf: Any) -> Any:
    """Return the params of a task in a run, as its context has them.

    Waits for: templates that are rendered for another task of the same run.
    """
    from airflow.sdk.definitions.param import process_params

    return process_params(dag, task, conf, suppress_exception=False)


def skip_key() -> str:
    """Return the key of the XCom in which a task that branches says what it skips.

    Waits for: tasks that can ask why a task was skipped.
    """
    return str(_skips().XCOM_SKIPMIXIN_KEY)


def is_skipped_by(said: Any, task_id: str) -> bool:
    """Return whether a task that branches has skipped one right after it.

    Waits for: tasks that can ask why a task was skipped.

    :param said: its XCom of :func:`skip_key`.
    """
    if not isinstance(said, Mapping):
        return False
    followed = said.get(_skips().XCOM_SKIPMIXIN_FOLLOWED)
    return (followed is not None and task_id not in followed) or task_id in said.get(_skips().XCOM_SKIPMIXIN_SKIPPED, ())


def _skips() -> Any:
    """Return the names under which a task that branches says what it skips.

    Waits for: tasks that can ask why a task was skipped.
    """
    from airflow.sdk.bases import skipmixin

    return skipmixin


def add_keyed_events(accessor: Any, keys: Iterable[str], *, whole: bool) -> None:
    """Have a task emit an event of an asset for each key, and, with ``whole``, the one that it emits without keys as well.

    Waits for: keys beside the event of the asset in ``outlet_events[asset].add_partitions``, which replace it.
    """
    accessor.add_partitions(list(keys))
    if whole:
        accessor.partition_keys.add(None)  # Airflow takes the key of the run for it, if that has one


def all_of(value: Iterable[Any]) -> list[Any]:
    """Return the items of a value from XCom; those of a mapped task by one request, since iterating makes one for each.

    What ``map``, ``zip`` and ``concat`` make of outputs has no slices.

    Waits for: ``LazyXComSequence`` in ``airflow.sdk``.
    """
    whole: Any = value
    return list(whole[:] if type(value).__name__ == "LazyXComSequence" else value)


def send_metric(how: str, name: str, value: float, tags: dict[str, str]) -> None:
    """Send a metric by Airflow's own client, ``incr`` or ``timing``.

    Waits for: metrics in ``airflow.sdk``. Callers go on without metrics if it fails.
    """
    from airflow.sdk.observability import stats

    getattr(stats, how)(name, value, tags=tags)
