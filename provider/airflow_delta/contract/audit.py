"""Checks of an audit between stages and commit, and their results.

Standard library only: SQL checks travel to a Spark job, and their answers back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from airflow_delta.contract.arguments import Arguments
from airflow_delta.contract.check_records import json_digest
from airflow_delta.contract.payloads import CONTRACT, Payload, StagedWrite
from airflow_delta.light_dataclasses import dataclass

FAIL, WARN = "fail", "warn"
"""What a failed check means: nothing is published, or a warning in the log."""

HOLDS_AT = COMMIT, READ = "commit", "read"
"""The version for which a check of the table must hold: that which is published, or that which was read."""

RUN_AGAIN = "Clear what is outdated with everything downstream, or the start task, if the transaction was aborted since"
"""The way out of outdated checks, for errors; ``on_outdated="check_again"`` of the commit does the first."""

STAGED, RESULT, BEFORE = "staged", "result", "before"
VIEWS = (STAGED, RESULT, BEFORE)
"""Views for SQL checks: the rows staged, the table after the commit, the table as read."""


RATIOS = ("min_ratio", "max_ratio")
BOUNDS = ("min", "max")
"""Keys of the limits of ``rows_change``, and of a column in ``value_range``."""

PER_COLUMN = ("max_null_fraction", "value_range")
"""Checks that are named with a column: ``value_range.amount``."""

KEYS_READ = 5_000_000
"""Rows that ``unique`` reads of the stages, and of the table, unless it says otherwise."""


def stages_of(writes: Iterable[StagedWrite]) -> dict[str, dict[str, str]]:
    """Return which attempts staged writes are of: by transaction id and stage key."""
    found: dict[str, dict[str, str]] = {}
    for write in writes:
        found.setdefault(write.transaction_id, {})[write.stage] = write.attempt
    return found


def audit_definition(checks: Iterable[SqlCheck], parameters: Mapping[str, Any] | None = None, **limits: Any) -> str:
    """Return the digest of what an audit checks, as rendered.

    :param parameters: values of named parameters in the queries.
    :param limits: parameters of the checks without Spark; those that are not given do not count.
    """
    given = {name: value for name, value in limits.items() if value not in (None, "", {})}
    return json_digest({"checks": [check.to_dict() for check in checks], "parameters": dict(parameters or {}), **given})


def limits_problem(name: str, given: Any, keys: tuple[str, str]) -> str | None:
    """Return what is wrong with the shape of limits, a mapping with one of two keys or both; ``None`` if nothing is."""
    if isinstance(given, Mapping) and not set(given) - set(keys) and any(given.get(key) is not None for key in keys):
        return None
    return f"{name} must be a mapping with {keys[0]}, {keys[1]} or both, got {given!r}"


def key_of(given: Any) -> tuple[tuple[str, ...], int]:
    """Return the columns of ``unique`` and its limit.

    :param given: a column, several that are one key, or a mapping with ``columns`` and ``limit``.
    :raises ValueError: if it is something else.
    """
    columns, limit = given, KEYS_READ
    if isinstance(given, Mapping) and not set(given) - {"columns", "limit"}:
        columns, limit = given.get("columns"), given.get("limit", KEYS_READ)
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name.strip() for name in names) or len(set(names)) < len(names):
        raise ValueError(f"unique must be a column, several that are one key, or a mapping with columns and limit, got {given!r}")
    if isinstance(limit, bool) or not str(limit).isdecimal():
        raise ValueError(f"unique.limit must be a whole number, 0 or more, got {limit!r}")
    return names, int(limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlCheck(Payload):
    """A query that returns one row whose first column is a boolean: true passes.

    :param on_failure: ``fail`` or ``warn``.
    """

    name: str
    sql: str
    on_failure: str = FAIL


AUDIT_OPERATION = "AUDIT"
"""The operation of a request for the checks of an audit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditArguments(Arguments):
    """Arguments of an ``AUDIT``.

    :param views: JSON form of the scan plan of each view that the checks name.
    :param report: JSON form of the report of what was found without Spark, if another task collects the answers.
    """

    checks: tuple[SqlCheck, ...]
    views: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]
    report: dict | None = None  # type: ignore[type-arg]


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlAnswer(Payload):
    """The answer of a query.

    :param passed: its boolean; ``None`` if that is null or missing.
    :param figures: other columns of the row as strings, by name.
    :param problem: why there is no answer; ``None`` if there is one.
    """

    name: str
    passed: bool | None = None
    figures: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditCheck(Payload):
    """The outcome of one check.

    :param severity: ``fail`` or ``warn``: what a failure means.
    :param value: the figure checked, as plain JSON; ``None`` if there is none.
    :param message: one sentence with the figures.
    """

    name: str
    passed: bool
    severity: str = FAIL
    value: Any = None
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldCheck(Payload):
    """A check that must hold when the commit is put.

    :param name: of the task and the check, for errors.
    :param task_id: of the audit; empty in its report: the commit says from which task it has it.
    :param map_index: of the audit; -1 if it is not mapped.
    :param transaction_id: on whose table it must hold; a check over several tables is one of these for each.
    :param version: for which it holds.
    :param predicates: rows of the table that it has read: those that satisfy one of them.
    :param whole_table: it has read all rows.
    :param ratios: of ``rows_change``, as text: fewest and most rows after the commit, divided by those before it.
    :param rows_before: rows of the table at ``version``, for ``ratios``.
    :param rows_after: rows after the commit, if it were the next version.
    :param unique: columns of a key that no row of others may share with the staged ones.
    :param limit: rows to read for ``unique``.
    """

    name: str
    task_id: str = ""
    map_index: int = -1
    transaction_id: str = ""
    version: int
    predicates: tuple[str, ...] = ()
    whole_table: bool = False
    ratios: tuple[str | None, str | None] | None = None
    rows_before: int = 0
    rows_after: int = 0
    unique: tuple[str, ...] = ()
    limit: int = KEYS_READ


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport(Payload):
    """Outcome of an audit: the XCom of its task.

    :param version: for which it holds: the newest one when it ran, unless the commit conflicts; -1 without a table.
    :param stages: the attempts that were judged, from :func:`stages_of`. A commit publishes no others.
    :param held: what must hold in the version that is published, too.
    :param definition: SHA-256 of what was checked, as rendered: limits, queries, their parameters and severities.
    :param passed: no check of severity ``fail`` has failed.
    :param already_committed: the log already held the transaction: there is nothing to publish, and nothing was checked.
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    read_version: int
    version: int = -1
    stages: dict[str, dict[str, str]] = field(default_factory=dict)
    held: tuple[HeldCheck, ...] = ()
    definition: str | None = None
    passed: bool
    already_committed: bool = False
    checks: tuple[AuditCheck, ...] = ()

    @property
    def failed(self) -> tuple[AuditCheck, ...]:
        """Return the failed checks of severity ``fail``."""
        return tuple(check for check in self.checks if not check.passed and check.severity == FAIL)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicationAuditReport(Payload):
    """Outcome of an audit over the tables of a publication: the XCom of its task.

    :param tables: by URI, the version that each table's transaction reads.
    :param versions: by URI, the version for which it holds, as of :class:`AuditReport`.
    :param stages: as of :class:`AuditReport`, of all transactions; so is ``held``.
    :param definition: as of :class:`AuditReport`.
    :param passed: no check of severity ``fail`` has failed.
    :param already_committed: a table's log already held its transaction, and nothing was checked.
    """

    contract: int = CONTRACT
    tables: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    stages: dict[str, dict[str, str]] = field(default_factory=dict)
    held: tuple[HeldCheck, ...] = ()
    definition: str | None = None
    passed: bool
    already_committed: bool = False
    checks: tuple[AuditCheck, ...] = ()
