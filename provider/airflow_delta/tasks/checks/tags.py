"""What a commit leaves in its log entry, and in the lineage, of the checks before it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.audit import FAIL, AuditCheck
from airflow_delta.contract.check_records import (
    APPROVAL,
    FAILED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    TASK,
    WARNED,
    CheckRecord,
    check_records,
    checks_text,
)
from airflow_delta.contract.tags import CHECKS_TAG
from airflow_delta.dag_rules.wiring import class_of
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.tasks.checks.evidence import Evidence

_HUMAN = "airflow.providers.standard.operators.hitl"


def check_tags(
    evidence: Evidence, writes: Sequence[StagedWrite], outdated: Collection[tuple[str, int]], *, approvals: bool = False
) -> dict[str, str]:
    """Return the tag that names the checks of a commit; nothing if there are none.

    :param writes: what the commit publishes.
    :param outdated: checks that have not seen it, which the commit's trigger rule accepts; -1: all instances.
    :param approvals: name who has answered approvals.
    """
    states = {
        key: state
        for key, state in sorted(evidence.checks(writes).items())
        if not getattr(evidence.tasks[key[0]], "inherits_from_empty_operator", False)
    }
    if not states:
        return {}
    seen = _Seen(evidence, writes)
    records = [
        replace(_record(evidence, seen, key, state, approvals=approvals), outdated=bool({key, (key[0], -1)} & set(outdated)))
        for key, state in states.items()
    ]
    return {CHECKS_TAG: checks_text(check_records({write.stage: write.attempt for write in writes}, records))}


def outcomes_of(evidence: Evidence, transaction_id: str) -> Iterator[AuditCheck]:
    """Yield what the audits of a transaction have found.

    :param transaction_id: of one that is committed.
    """
    for (name, index), state in sorted(evidence.reports().items()):
        report = evidence.report(name, index) if state == "success" else None
        if isinstance(report, Mapping) and transaction_id in (report.get("stages") or ()):
            yield from _outcomes(report)


def _kind(task: Any) -> str:
    kind: str | None = getattr(class_of(task), "check_kind", None)
    if kind is not None:
        return kind
    human: Any = sys.modules.get(_HUMAN)  # loaded if the Dag has such a task
    return APPROVAL if human is not None and issubclass(class_of(task), human.HITLOperator) else TASK


def _record(evidence: Evidence, seen: _Seen, key: tuple[str, int], state: str | None, *, approvals: bool) -> CheckRecord:
    task = evidence.tasks[key[0]]
    record = CheckRecord(task_id=key[0], map_index=key[1], kind=_kind(task), result=_result(evidence, key, state))
    if record.result in (SKIPPED, NOT_RUN):
        return replace(record, stages=())
    report = evidence.report(*key) if evidence.has_report(key[0]) else None
    if isinstance(report, Mapping):
        return _of_report(record, report, seen)
    record = replace(record, stages=seen.before(*key))
    return _answered(record, evidence.report(*key)) if approvals and record.kind == APPROVAL else record


def _result(evidence: Evidence, key: tuple[str, int], state: str | None) -> str:
    if state in ("skipped", "failed"):
        return SKIPPED if state == "skipped" else FAILED
    return PASSED if state == "success" and (evidence.note(*key) is not None or key in evidence.ran) else NOT_RUN


def _of_report(record: CheckRecord, report: Mapping[str, Any], seen: _Seen) -> CheckRecord:
    """Return a record with what an audit, a diff or a preview has reported."""
    failed = [check for check in _outcomes(report) if not check.passed]
    result = FAILED if record.result == FAILED or any(check.severity == FAIL for check in failed) else WARNED
    held = [str(each["name"]).removesuffix(f" of {record.task_id}") for each in report.get("held") or ()]
    version, versions = report.get("baseVersion", report.get("version")), report.get("versions")
    definition = report.get("definition")
    return replace(
        record,
        result=result if failed else record.result,
        failed=tuple(check.name for check in failed),
        definition=definition if isinstance(definition, str) else None,
        version=version if isinstance(version, int) else None,
        versions=dict(versions) if isinstance(versions, Mapping) else {},
        held=tuple(dict.fromkeys(held)),
        stages=seen.of_report(report),
    )


def _outcomes(report: Mapping[str, Any]) -> list[AuditCheck]:
    return [AuditCheck.from_dict(each) for each in report.get("checks") or ()]


def _answered(record: CheckRecord, answer: Any) -> CheckRecord:
    """Return a record with who has answered an approval, by what its operator returns."""
    if not isinstance(answer, Mapping):
        return record
    user = answer.get("responded_by_user")
    by = user.get("id") if isinstance(user, Mapping) else None
    return replace(
        record, approved_by=None if by is None else str(by), chosen=tuple(map(str, answer.get("chosen_options") or ()))
    )


@dataclass(slots=True)
class _Seen:
    """Which of the published stages a check has seen; ``None``: all."""

    evidence: Evidence
    writes: Sequence[StagedWrite]
    _before: dict[str, tuple[str, ...] | None] = field(init=False, default_factory=dict)

    def before(self, name: str, index: int) -> tuple[str, ...] | None:
        """Return the stages before a task: whoever is not outdated has seen their attempts."""
        task, tasks = self.evidence.tasks[name], self.evidence.tasks
        group = task.get_closest_mapped_task_group()
        if group is None and name in self._before:
            return self._before[name]
        upstream = task.get_flat_relative_ids(upstream=True)
        inside = {each for each in upstream if group is not None and tasks[each].get_closest_mapped_task_group() is group}
        found = self._named(
            write.stage
            for write in self.writes
            if write.task_id in upstream and (write.task_id not in inside or write.map_index == index)
        )
        self._before[name] = found
        return found

    def of_report(self, report: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return the stages that a report names."""
        stages: Mapping[str, Any] = report.get("stages") or {}
        return self._named(write.stage for write in self.writes if write.stage in stages.get(write.transaction_id, ()))

    def _named(self, stages: Iterator[str]) -> tuple[str, ...] | None:
        found = tuple(sorted(set(stages)))
        return None if len(found) == len(self.writes) else found
