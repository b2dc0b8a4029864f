"""Which reports count, and which stages a commit expects: by task id and map index of the run's task instances.

XComs outlive what they report. An instance that was removed (a mapped stage that got fewer values), skipped, or cleared and not
run again keeps its old XCom, of this transaction or an earlier one. Airflow's states tell which reports still count.

What abort reports about staged rows that will never be published, and whether the run fails.

Airflow skips the commit of a run that is marked as failed, and accepts a commit that is marked as success. Then no failed task
decides the run's state, which would be success.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta.airflow_internals.tasks import skip_key
from airflow_delta.contract.payloads import StagedWrite, read_version_name
from airflow_delta.dag_wiring import role_of
from airflow_delta.exceptions import HandleMismatchException, StagingException, TransactionAbortedException
from airflow_delta.tasks.handle_check import argument_of, check_mark
from airflow_delta.tasks.identity import flatten_reports, parse_report

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_delta.contract.payloads import TransactionHandle


logger = logging.getLogger(__name__)

ABSENT = "not in this run: the Dag file has it since"
"""State of a task that was added to the Dag file after the run began. Airflow may make its instance only after the commit."""

_SHOWN = 3
"""Task instances that an error names."""

_LONGEST = 4_000
"""Characters of task ids in one question: they travel in a URL, of which proxies take 8 KiB."""


def valid_reports(context: Context, handle: TransactionHandle, reports: Iterable[Mapping[str, Any] | None]) -> list[StagedWrite]:
    """Return the reports of the task instances that succeeded in this run; other XComs are ignored.

    :param handle: of the transaction.
    :param reports: staged writes from XCom; ``None`` for an instance without one.
    :raises StagingException: if something other than a report is among them, or one of a task that this Dag run does not have.
    """
    writes = [parse_report(report, task_id=context["ti"].task_id) for report in reports if report is not None]
    states = _states(context, {write.task_id for write in writes})
    known = {task_id for task_id, _ in states}
    if unknown := sorted({write.task_id for write in writes} - known):
        ti = context["ti"]
        raise StagingException(
            f"Staged writes name the tasks {', '.join(unknown)}, which the run {ti.run_id!r} of Dag {ti.dag_id!r} does not have. "
            "Nothing is committed. Pass the outputs of stage tasks of this Dag run."
        )
    valid = []
    for write in writes:
        state = states.get((write.task_id, write.map_index))
        if state == "success":
            check_mark(handle, write)
            _check_asked(context["dag"].task_dict.get(write.task_id), write)
            valid.append(write)
        else:
            logger.info(
                "Transaction %s: ignored the report of %s, which did not succeed in this run (%s).",
                write.transaction_id,
                name_of(write.task_id, write.map_index),
                state or "it does not exist or has not run",
            )
    return valid


def _check_asked(stage: Any, write: StagedWrite) -> None:
    """Check that a report changes the table, and not its rows, only as its task in the Dag file may ask.

    :param stage: the task in the Dag file; ``None`` if that no longer has it.
    :raises HandleMismatchException: if not.
    """
    cls = getattr(stage, "operator_class", None) or type(stage)

    def may_ask(name: str) -> bool:
        return stage is not None and argument_of(stage, name, False) not in (False, None)  # a template may ask

    asked = {
        "alter the table": bool(write.changes) or write.mode == "alter",
        "define the table": bool(write.definition),
        "add columns (merge_schema)": write.merge_schema,
        "replace the columns (overwrite_schema)": write.overwrite_schema and not write.definition,
    }
    allowed = {
        "alter the table": getattr(cls, "staged_mode", None) == "alter",
        "define the table": getattr(cls, "creates_table", False) or may_ask("create"),
        "add columns (merge_schema)": may_ask("merge_schema"),
        "replace the columns (overwrite_schema)": may_ask("overwrite_schema"),
    }
    if wrong := [name for name, is_asked in asked.items() if is_asked and not allowed[name]]:
        raise HandleMismatchException(
            f"The report of stage {write.stage} says to {' and to '.join(wrong)}, which its task in the Dag file does not ask "
            "for. Nothing was committed. If the Dag changed after the stage ran, clear the start task. Otherwise its XCom was "
            "altered."
        )


def expected_stages(
    commit: BaseOperator, context: Context, staged: Sequence[StagedWrite], *, allow_skipped: bool, outputs: Any = None
) -> dict[tuple[str, int], str | None] | None:
    """Return the stages that a commit waits for, by task id and map index, each with the state of its task instance.

    A stage that was added to the Dag file after the run began is among them: without its rows, the version would be half.

    :param staged: from :func:`valid_reports`.
    :param allow_skipped: the commit's argument.
    :param outputs: the outputs of the stages in the Dag file; default: ``staged`` of the commit.
    :return: ``None`` if all of them were skipped, or removed since they are mapped over nothing by now, and the commit allows it.
    """
    if outputs is None:  # its own arguments are rendered, the Dag's are not
        outputs = getattr(context["dag"].task_dict.get(commit.task_id), "staged", None)
    task_ids = {write.task_id for write in staged} | set(stage_tasks(outputs))
    states = instances(context, task_ids)
    expected = {key: state for key, state in states.items() if not (allow_skipped and state == "skipped")}
    return None if allow_skipped and task_ids and not expected else expected


def check_not_lost(context: Context, handle: TransactionHandle, writes: Sequence[StagedWrite], outputs: Any) -> None:
    """Refuse to build on stages that have succeeded and whose XComs are gone: they did not leave nothing, as skipped ones do.

    :param writes: from :func:`valid_reports`.
    :param outputs: the outputs of the stages in the Dag file.
    :raises StagingException: if there are such stages.
    """
    known = {(write.task_id, write.map_index) for write in writes}
    states = instances(context, set(stage_tasks(outputs)))
    lost = sorted(key for key, state in states.items() if state == "success" and key not in known)
    if lost:
        names = ", ".join(name_of(*key) for key in lost[:_SHOWN])
        raise handle.error(
            StagingException,
            f"The task {context['ti'].task_id!r} builds on {names}, which succeeded in "
            f"transaction {handle.transaction_id} on table {handle.table}, but what it staged is no longer in XCom. Nothing was "
            "staged. Clear it with everything downstream.",
        )


def stage_tasks(outputs: Any) -> Iterable[str]:
    """Yield the ids of the stage tasks that outputs in the Dag file refer to."""
    for task, _ in XComArg.iter_xcom_references(outputs):
        if role_of(task) == "stage":
            yield task.task_id


def instances(context: Context, task_ids: Collection[str]) -> dict[tuple[str, int], str | None]:
    """Return the state of every task instance that a task waits for; inside a mapped group, those of its map index.

    A task of the Dag file that the run does not have is there as :data:`ABSENT`.
    """
    ti = context["ti"]
    group = context["task"].get_closest_mapped_task_group()
    inside = {task.task_id for task in group.iter_tasks()} if group is not None else set()
    states = _states(context, task_ids)
    found = {
        (task_id, map_index): state
        for (task_id, map_index), state in states.items()
        if state != "removed" and (task_id not in inside or map_index == ti.map_index)
    }
    known = {task_id for task_id, _ in states if task_id not in inside} | {task_id for task_id, _ in found}
    for task_id in sorted(set(task_ids) - known):
        found[task_id, -1] = states.get((task_id, -1), ABSENT)  # of a group: the task that was not expanded
    return found


def _states(context: Context, task_ids: Collection[str]) -> dict[tuple[str, int], str | None]:
    """Return the state of every task instance of the tasks in this run."""
    ti = context["ti"]
    found: dict[tuple[str, int], str | None] = {}
    for asked in _unambiguous(task_ids):
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=asked, run_ids=[ti.run_id]).get(ti.run_id, {})
        for name, state in states.items():
            task_id, _, index = (name, "", "-1") if name in asked else name.rpartition("_")
            found[task_id, int(index)] = state
    return found


def _unambiguous(task_ids: Collection[str]) -> list[list[str]]:
    """Return the tasks in few questions to Airflow, and one for each whose answer could be another's: ``a_1`` may be a task, or
    instance 1 of the task ``a``.
    """
    alone = {task_id for task_id in task_ids if (parts := task_id.rpartition("_"))[0] in task_ids and parts[2].isdecimal()}
    asked: list[list[str]] = []
    length = _LONGEST
    for task_id in sorted(set(task_ids) - alone):
        length += len("&task_ids=") + len(task_id)
        if length > _LONGEST:
            asked.append([])
            length = len(task_id)
        asked[-1].append(task_id)
    return [*asked, *([task_id] for task_id in sorted(alone))]


def name_of(task_id: str, map_index: int) -> str:
    """Return a task instance as messages name it."""
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


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
    skipped = {task_id for (task_id, _), state in before.items() if state == "skipped"}
    tasks = [context["dag"].task_dict[task_id] for task_id in skipped]
    mapped = [task for task in tasks if task.is_mapped or task.get_closest_mapped_task_group() is not None]
    over_nothing = {task.task_id for task in mapped if not skipped & task.upstream_task_ids}
    ran = {found["task_id"] for found in ti.get_task_breadcrumbs(ti.dag_id, ti.run_id) if found["duration"]}
    return sorted(branches | over_nothing | (skipped & ran))


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
