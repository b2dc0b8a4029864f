"""Why rows of an aborted transaction are not published: what the abort task reports, and whether it lets the run fail.

Airflow skips the commit of a run that is marked as failed, and accepts a commit that is marked as success. Then no failed task
decides the run's state, which would be success.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.airflow_internals.tasks import skip_key
from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.exceptions import TransactionAbortedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.task_states import instances
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import valid_reports

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import TransactionHandle


@dataclass(frozen=True, slots=True)
class Unpublished:
    """Why rows of a transaction are not published, although its commit has not failed.

    :param why: what happened to the commit.
    :param is_hidden: a task has failed, or the commit counts as success, and the run's state does not show it.
    :param rows: the staged rows, as far as the stages have reported them.
    :param is_meant: a task of the Dag has skipped the commit, such as a rejected approval: no attention is needed.
    """

    why: str
    is_hidden: bool
    rows: str
    is_meant: bool = False

    def error(self, handle: TransactionHandle) -> TransactionAbortedException:
        """Return the error of an abort that lets the run fail."""
        return handle.error(
            TransactionAbortedException,
            f"Transaction {handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}) was "
            f"aborted, and nothing of it is published: {self.why}; {self.rows}. This task fails so that the run does not end as "
            "success. Clear the start task with everything downstream to publish the run.",
        )


def unpublished(abort: Any, context: Context, handle: TransactionHandle) -> Unpublished | None:
    """Return why a transaction that was aborted is not published, ``None`` if its commit has failed or was not needed.

    :param abort: the running abort task; the commit is upstream of it in the Dag file.
    """
    commit = _commit_before(abort, context)
    if commit is None:
        return None
    ((_, state), *_) = (*instances(context, {commit.task_id}).items(), (None, None))
    if state in ("failed", "upstream_failed", "removed"):
        return None
    if state == "success":
        result = commit.render_template(commit.output, context)
        if result and "tables" in result:  # of a publication
            result = result["tables"].get(handle.table)
        if result and (result.get("transactionId") == handle.transaction_id or result.get("committedBefore")):
            return None  # nothing was to be changed, or another execution of start has committed the key
        return Unpublished("its commit was marked as success by hand", True, _rows(commit, context, handle))
    before = instances(context, _before(commit))
    failed = sorted({task_id for (task_id, _), its in before.items() if its == "failed"})
    if failed:
        why = f"its commit was {state or 'not run'} although {', '.join(failed)} failed, as when a run is marked as failed"
        return Unpublished(why, True, _rows(commit, context, handle))
    skippers = _skipped_by(context, before) if state == "skipped" else []
    if skippers:
        tasks = context["dag"].task_dict
        stages = {name for (name, _), its in before.items() if its == "skipped" and role_of(tasks[name]) == "stage"}
        way = "set allow_skipped=True and trigger_rule='none_failed' on the commit"
        without = f"; to publish without {', '.join(sorted(stages))}, {way}" if stages else ""
        why = f"its commit was skipped, as {', '.join(skippers)} says{without}"
        return Unpublished(why, False, _rows(commit, context, handle), is_meant=True)
    why = f"its commit was {state or 'not run'} though no task has skipped it, as when a run is marked by hand"
    return Unpublished(why, False, _rows(commit, context, handle))


def _skipped_by(context: Context, before: Mapping[tuple[str, int], str | None]) -> list[str]:
    """Return the tasks before the commit that have skipped themselves or what follows, as a branch or an approval does.

    Who marks a run skips tasks that have not run. Of those, the Dag's are only tasks that were to be mapped over nothing.
    """
    ti: Any = context["ti"]
    names = sorted({task_id for task_id, _ in before})
    branches = {name for name in names if any(ti.xcom_pull(task_ids=[name], key=skip_key()) or ())}
    tasks_of = context["dag"].task_dict
    skipped = {task_id for (task_id, _), state in before.items() if state == "skipped"}
    tasks = [tasks_of[task_id] for task_id in skipped]
    mapped = [task for task in tasks if task.is_mapped or task.get_closest_mapped_task_group() is not None]
    over_nothing = {task.task_id for task in mapped if not skipped & task.upstream_task_ids}
    ran = {found["task_id"] for found in ti.get_task_breadcrumbs(ti.dag_id, ti.run_id) if found["duration"]}
    idle = {name for name in skipped if role_of(tasks_of[name]) == "job"}  # nothing was left to do for a job
    return sorted((branches | over_nothing | (skipped & ran)) - idle)


def _commit_before(abort: Any, context: Context) -> Any:
    """Return the commit that an abort comes after, as in the Dag file."""
    definition = context["dag"].task_dict.get(abort.task_id)
    commits = [
        task
        for task in (definition.upstream_list if definition is not None else ())
        if getattr(getattr(task, "operator_class", None) or type(task), "transaction_role", None) == "commit"
    ]
    return commits[0] if len(commits) == 1 else None


def _before(commit: Any) -> set[str]:
    return {task.task_id for task in commit.get_flat_relatives(upstream=True)}


def _rows(commit: Any, context: Context, handle: TransactionHandle) -> str:
    """Return the staged rows as text; what the stages report decides nothing here."""
    try:
        staged = commit.partial_kwargs.get("staged") if commit.is_mapped else commit.staged
        writes = valid_reports(context, handle, flatten_reports(commit.render_template(staged, context)))
    except Exception as error:  # noqa: BLE001 - the abort itself is done
        return f"it is not known how many rows were staged ({error})"
    own = [write for write in writes if write.transaction_id == handle.transaction_id and not write.already_committed]
    rows, files = sum(write.num_records or 0 for write in own), sum(write.num_files for write in own)
    stages = ", ".join(sorted({write.task_id for write in own}))
    return f"{rows} rows in {files} files of {stages} are lost" if own else "no stage had ended"
