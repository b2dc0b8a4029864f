"""Which reports count, and which stages a commit expects: by task id and map index of the run's task instances.

XComs outlive what they report. An instance that was removed (a mapped stage that got fewer values), skipped, or cleared and not
run again keeps its old XCom, of this transaction or an earlier one. Airflow's states tell which reports still count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.exceptions import HandleMismatchException, StagingException
from airflow_delta.tasks.dag_file import argument_of
from airflow_delta.tasks.task_states import instances, name_of, states_in_run
from airflow_delta.tasks.trust.definition_mark import check_mark
from airflow_delta.tasks.trust.received import parse_report

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_delta.contract.payloads import TransactionHandle


logger = logging.getLogger(__name__)


_SHOWN = 3
"""Task instances that an error names."""


def valid_reports(context: Context, handle: TransactionHandle, reports: Iterable[Mapping[str, Any] | None]) -> list[StagedWrite]:
    """Return the reports of the task instances that succeeded in this run; other XComs are ignored.

    :param handle: of the transaction.
    :param reports: staged writes from XCom; ``None`` for an instance without one.
    :raises StagingException: if something other than a report is among them, or one of a task that this Dag run does not have.
    """
    writes = [parse_report(report, task_id=context["ti"].task_id) for report in reports if report is not None]
    states = states_in_run(context, {write.task_id for write in writes})
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
