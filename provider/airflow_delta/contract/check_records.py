"""What a commit says of the tasks between its stages and itself: a tag of ``commitInfo``, bounded in size.

Standard library only: the command line and the pages read it, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from airflow_delta.contract.payloads import Payload
from airflow_delta.contract.tags import CHECKS_TAG
from airflow_delta.exceptions import StagingException
from airflow_delta.light_dataclasses import dataclass

AUDIT, PUBLICATION_AUDIT, APPROVAL, PREVIEW, DIFF, TASK = KINDS = (
    "audit",
    "publication audit",
    "approval",
    "preview",
    "diff",
    "task",
)
"""What a check is, in the order in which a tag keeps them: if not all fit, tasks are left out first."""

PASSED, WARNED, FAILED, SKIPPED, NOT_RUN = "passed", "warned", "failed", "skipped", "not run"

LISTED = 20
"""Instances of a mapped task, stages, and names of checks that a tag lists one by one."""

_NAME = 200
"""Characters of a name."""

_LONGEST = 16_000
"""Characters of a tag, about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRecord(Payload):
    """A task between stages and commit, or the instances of a mapped one if they are too many to list.

    :param kind: one of :data:`KINDS`.
    :param result: ``passed``; ``warned``: checks have failed that only warn; ``failed``: the commit publishes nevertheless, by
        its trigger rule, or somebody has marked the task as success; ``skipped``; ``not run``: marked as success, or not reached.
    :param failed: the checks of an audit that have failed, at most 20.
    :param definition: SHA-256 of the checks of an audit, as of :class:`~airflow_delta.contract.audit.AuditReport`.
    :param version: of the table for which it held; of many instances the lowest.
    :param versions: the same by table, of an audit of a publication.
    :param held: checks that hold for the version that the commit is, too, at most 20.
    :param stages: keys of the stages that it has seen, of those that are published; ``None``: all of them.
    :param num_stages: their number, if they are too many to list.
    :param outdated: it has not seen the attempts that are published, and the commit's trigger rule accepts that.
    :param approved_by: id of the user who has answered; ``None`` if that is not recorded, or a timeout has.
    :param chosen: their answer.
    :param instances: number of instances that this record sums up, by result.
    :param digest: SHA-256 of the JSON of their records.
    """

    task_id: str
    map_index: int = -1
    kind: str = TASK
    result: str = PASSED
    failed: tuple[str, ...] = ()
    definition: str | None = None
    version: int | None = None
    versions: dict[str, int] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    stages: tuple[str, ...] | None = None
    num_stages: int | None = None
    outdated: bool = False
    approved_by: str | None = None
    chosen: tuple[str, ...] = ()
    instances: dict[str, int] = field(default_factory=dict)
    digest: str | None = None

    @property
    def name(self) -> str:
        """The task instance in words."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"

    def to_short_dict(self) -> dict[str, Any]:
        """Return plain JSON without what is as usual."""
        usual = CheckRecord(task_id="").to_dict()
        always = ("taskId", "kind", "result")
        return {name: value for name, value in self.to_dict().items() if name in always or value != usual[name]}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRecords(Payload):
    """What was checked before a commit, and what it publishes.

    :param attempts: attempt of each published stage, by its key; the files of the commit are in directories of these names. Empty
        if there are more than 20.
    :param num_stages: number of published stages.
    :param stages_digest: SHA-256 of the JSON of ``attempts``, if it is empty: keys sorted, no spaces.
    :param checks: by kind and name.
    :param left_out: number of records that did not fit.
    """

    attempts: dict[str, str] = field(default_factory=dict)
    num_stages: int = 0
    stages_digest: str | None = None
    checks: tuple[CheckRecord, ...] = ()
    left_out: int = 0


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys and without spaces; what JSON lacks is text."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def check_records(attempts: Mapping[str, str], checks: Sequence[CheckRecord]) -> CheckRecords:
    """Return the records of a commit, of which mapped tasks with many instances have one.

    :param attempts: attempt of each published stage, by its key.
    """
    by_task: dict[str, list[CheckRecord]] = {}
    for check in checks:
        by_task.setdefault(check.task_id, []).append(check)
    kept = [each for of_task in by_task.values() for each in (of_task if len(of_task) <= LISTED else [_summed(of_task)])]
    many = len(attempts) > LISTED
    return CheckRecords(
        attempts={} if many else dict(attempts),
        num_stages=len(attempts),
        stages_digest=json_digest(attempts) if many else None,
        checks=tuple(sorted((_shortened(each) for each in kept), key=_place)),
    )


def checks_text(records: CheckRecords) -> str:
    """Return the value of :data:`CHECKS_TAG`; what does not fit is left out, and counted."""
    room = _LONGEST - len(_text(replace(records, checks=())))
    kept: list[CheckRecord] = []
    for check in records.checks:
        room -= len(json.dumps(check.to_short_dict(), separators=(",", ":"))) + 1
        if room < 0:
            break
        kept.append(check)
    return _text(replace(records, checks=tuple(kept), left_out=records.left_out + len(records.checks) - len(kept)))


def checks_of(tags: Mapping[str, object] | None) -> CheckRecords | None:
    """Return what the tags of a commit say was checked; ``None`` if they say nothing that can be read."""
    text = (tags or {}).get(CHECKS_TAG)
    if not isinstance(text, str):
        return None
    try:
        return CheckRecords.from_dict(json.loads(text))
    except (ValueError, StagingException, RecursionError):
        return None


def stages_in_words(check: CheckRecord, records: CheckRecords) -> str:
    """Return which of the published stages a check has seen, with their attempts."""
    if check.outdated and check.result not in (SKIPPED, NOT_RUN):
        return "not the attempts that are published"
    if check.num_stages is not None:
        return f"{check.num_stages} of {records.num_stages} stages"
    if check.stages is None and not records.attempts:
        return f"all of {records.num_stages} stages"
    keys = records.attempts if check.stages is None else check.stages
    return ", ".join(f"{key} {records.attempts.get(key, '')}".strip() for key in keys)


def result_in_words(check: CheckRecord) -> str:
    """Return what a check has found, with the checks of an audit that have failed."""
    found = ", ".join(f"{number} {result}" for result, number in sorted(check.instances.items())) or check.result
    return f"{found}: {', '.join(check.failed)}" if check.failed else found


def version_in_words(check: CheckRecord) -> str:
    """Return for which versions a check held."""
    read = ", ".join(f"{version} of {table}" for table, version in check.versions.items())
    read = read or ("" if check.version is None else str(check.version) if check.version >= 0 else "no table")
    return f"{read}; {', '.join(check.held)} also for this one" if check.held else read


def answer_in_words(check: CheckRecord) -> str:
    """Return who has answered an approval, and what, if that is recorded."""
    chosen = ", ".join(check.chosen)
    return f"{chosen} by {check.approved_by}" if check.approved_by is not None else f"{chosen} by timeout" if chosen else ""


def _place(check: CheckRecord) -> tuple[int, str, int]:
    return (KINDS.index(check.kind) if check.kind in KINDS else len(KINDS), check.task_id, check.map_index)


def _text(records: CheckRecords) -> str:
    told = records.to_dict()
    told["checks"] = [each.to_short_dict() for each in records.checks]
    return json.dumps({name: value for name, value in told.items() if value not in ({}, None, 0)}, separators=(",", ":"))


def _shortened(check: CheckRecord) -> CheckRecord:
    """Return a record without what makes it long."""
    many = check.stages is not None and len(check.stages) > LISTED
    return replace(
        check,
        failed=_few(check.failed),
        held=_few(check.held),
        stages=None if many else check.stages,
        num_stages=len(check.stages or ()) if many else check.num_stages,
        approved_by=check.approved_by and check.approved_by[:_NAME],
        chosen=_few(check.chosen),
    )


def _few(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name[:_NAME] for name in list(names)[:LISTED])


def _summed(checks: Sequence[CheckRecord]) -> CheckRecord:
    """Return one record for the instances of a mapped task."""
    results: dict[str, int] = {}
    for each in checks:
        results[each.result] = results.get(each.result, 0) + 1
    seen: set[str] | None = set()
    for each in checks:
        seen = None if seen is None or each.stages is None else seen | set(each.stages)
    definitions = {each.definition for each in checks}
    worst = next(each for each in (FAILED, NOT_RUN, WARNED, PASSED, SKIPPED) if each in results)
    versions = [each.version for each in checks if each.version is not None]
    return CheckRecord(
        task_id=checks[0].task_id,
        kind=checks[0].kind,
        result=worst,
        failed=tuple(dict.fromkeys(name for each in checks for name in each.failed)),
        definition=definitions.pop() if len(definitions) == 1 else None,
        version=min(versions, default=None),
        held=tuple(dict.fromkeys(name for each in checks for name in each.held)),
        stages=None if seen is None else tuple(sorted(seen)),
        outdated=any(each.outdated for each in checks),
        instances=results,
        digest=json_digest([each.to_dict() for each in sorted(checks, key=_place)]),
    )
