"""One open transaction for its page: what its tasks have reported to Airflow, as far as the user may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta.airflow_internals import database
from airflow_delta.contract.check_records import json_digest
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.shown_text import visible
from airflow_delta.task_notes import masked_by_airflow
from airflow_delta.ui.commit_rows import shortened
from airflow_delta.ui.problems import PageProblem, kept_elsewhere, not_open, reports_refused
from airflow_delta.ui.task_runs import task_run
from airflow_delta.ui.transaction_rows import transaction_row, transactions_of
from airflow_delta.ui.tries import MAX_TRIES, TaskKey, results, tries_of
from airflow_delta.ui.views import NO_HISTORY, TRIES, FromAirflow, table_head

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer
    from airflow_delta.ui.known import KnownTable
    from airflow_delta.ui.transaction_values import Transaction

MAX_REPORTS = 2_000
"""Stages of one transaction that are put together."""

_UNKNOWN_COMMITS = {**NO_HISTORY, "older": 0}
"""No commit of the table is at hand: what Airflow says of a commit task counts."""

_STAGES = 100
"""Stages that are listed."""

_CHECKS = 200
_NAME, _MESSAGE = 200, 2_000
"""Characters of what an audit says that are shown."""


@dataclass(frozen=True, slots=True)
class StagedReports:
    """What the storage is asked for, and what the page says besides.

    :param handle: of the transaction.
    :param staged: what its stages reported; empty if none has.
    :param rows: whether the user may read rows of the table.
    """

    page: dict[str, Any]
    handle: Mapping[str, Any]
    staged: Sequence[Mapping[str, Any]]
    rows: bool


@dataclass(slots=True)
class _Reports:
    staged: list[Mapping[str, Any]] = field(default_factory=list)
    audits: list[dict[str, Any]] = field(default_factory=list)
    previews: list[dict[str, Any]] = field(default_factory=list)


def transaction_reports(viewer: Viewer, table: KnownTable, transaction_id: str, root: str, prefix: str) -> StagedReports:
    """Return what an open transaction has reported.

    Its runs, task instances and XComs must be the user's to read. What XComs claim is checked with the storage as a commit checks
    it, and no file outside the table's directory is read for it.

    :raises PageProblem: if the user may not see that, or the transaction is not open.
    """
    with database.create_session(scoped=False) as session:
        airflow = FromAirflow(session)
        known = airflow.read(TRIES, [], transactions_of, viewer, table, _UNKNOWN_COMMITS)
        one = next((each for each in known if each.transaction_id == transaction_id and each.handle), None)
        if one is None and any(each.is_kept_elsewhere for each in known):
            raise PageProblem(501, "This transaction cannot be shown", kept_elsewhere())
        if one is None:
            raise not_open()
        if not viewer.may_read_xcom(one.run.dag_id):
            raise reports_refused(one.run.dag_id)
        reports = airflow.read(TRIES, _Reports(), _reports, one, root)
        if len(reports.staged) > MAX_REPORTS:
            raise PageProblem(413, "Too large to show", f"The pages look at up to {MAX_REPORTS:,} stages of a transaction.")
    rows = viewer.may_read_rows(table.conn_id)
    page = {
        **table_head(table, prefix),
        "transaction": transaction_row(viewer, table, one, root, prefix),
        "num_stages": len(reports.staged),
        "stages": [_stage(value, one, root) for value in reports.staged[:_STAGES]],
        "stages_digest": json_digest({str(value.get("stage")): value["attempt"] for value in reports.staged}),
        "audits": reports.audits,
        "previews": reports.previews,
        "rows": rows,
        "notices": airflow.notices,
    }
    return StagedReports(page, one.handle, reports.staged, rows)


def _reports(session: Session, one: Transaction, root: str) -> _Reports:
    """Return the reports of stages that succeeded, and of audits, which report before they fail."""
    told = results(session, [one.run], None, "return_value")
    if len(told) >= MAX_TRIES:  # some of the stages may be among those that were not read
        raise PageProblem(413, "Too large to show", f"The pages look at the reports of fewer than {MAX_TRIES:,} tasks of a run.")
    ours = {key: value for key, value in told.items() if isinstance(value, Mapping) and _is_of(value, one)}
    tries = tries_of(session, [one.run], {key[2] for key in ours})
    found = _Reports()
    for key, value in sorted(ours.items(), key=lambda item: item[0]):
        state = tries[key][-1].state if tries.get(key) else None
        if isinstance(value.get("checks"), list) and state in ("success", "failed"):
            found.audits.append({"task": task_run(root, *key), "checks": _checks(value["checks"]), "saw": _saw(value, one)})
        elif state != "success":
            continue
        elif _is_stage(value, key) and not value.get("alreadyCommitted"):
            found.staged.append(value)
        elif value.get("only") in ("table", "changes") and isinstance(value.get("path"), str):
            path = _text(value["path"], _MESSAGE)
            found.previews.append({"task": task_run(root, *key), "only": value["only"], "path": path, "saw": _saw(value, one)})
    attempts = {value.get("stage"): value["attempt"] for value in found.staged}
    for check in (*found.audits, *found.previews):
        check["outdated"] = any(attempts.get(stage) != attempt for stage, attempt in check.pop("saw").items())
    return found


def _saw(value: Mapping[str, Any], one: Transaction) -> Mapping[str, Any]:
    """Return the attempts that a check has reported to have seen."""
    stages = value.get("stages")
    of_one = stages.get(one.transaction_id) if isinstance(stages, Mapping) else None
    return of_one if isinstance(of_one, Mapping) else {}


def _stage(value: Mapping[str, Any], one: Transaction, root: str) -> dict[str, Any]:
    attempt = _text(value["attempt"], _NAME)
    return {
        "task": task_run(root, one.run.dag_id, one.run.run_id, str(value.get("taskId")), value.get("mapIndex", -1)),
        "stage": _text(value.get("stage"), _NAME),
        "try": attempt.partition("-")[0],
        "attempt": attempt,
        "num_records": rows if isinstance(rows := value.get("numRecords"), int) else None,
    }


def _is_of(value: Mapping[str, Any], one: Transaction) -> bool:
    return value.get("transactionId") == one.transaction_id


def _is_stage(value: Mapping[str, Any], key: TaskKey) -> bool:
    """Return whether a value is a staged write, reported by the task that staged it."""
    return "attempt" in value and (value.get("taskId"), value.get("mapIndex", -1)) == key[2:]


def _text(value: Any, width: int) -> str:
    """Return the start of a text that a task has reported, without secrets."""
    return visible(shortened(masked_by_airflow(str(value or "")), width))


def _checks(checks: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": _text(check.get("name"), _NAME),
            "passed": check.get("passed") is True,
            "warns": check.get("severity") == "warn",
            "message": _text(check.get("message"), _MESSAGE),
        }
        for check in checks[:_CHECKS]
        if isinstance(check, Mapping)
    ]
