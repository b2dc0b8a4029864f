"""Checks of an audit between stages and commit, and their results.

Standard library only: SQL checks travel to a Spark job, and their answers back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_delta.contract.payloads import CONTRACT, Payload
from airflow_delta.contract.request import Arguments

FAIL, WARN = "fail", "warn"
"""What a failed check means: nothing is published, or a warning in the log."""

STAGED, RESULT, BEFORE = "staged", "result", "before"
VIEWS = (STAGED, RESULT, BEFORE)
"""Views for SQL checks: the rows staged, the table after the commit, the table as read."""


RATIOS = ("min_ratio", "max_ratio")
BOUNDS = ("min", "max")
"""Keys of the limits of ``rows_change``, and of a column in ``value_range``."""


def limits_problem(name: str, given: Any, keys: tuple[str, str]) -> str | None:
    """Return what is wrong with the shape of limits, a mapping with one of two keys or both; ``None`` if nothing is."""
    if isinstance(given, Mapping) and not set(given) - set(keys) and any(given.get(key) is not None for key in keys):
        return None
    return f"{name} must be a mapping with {keys[0]}, {keys[1]} or both, got {given!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlCheck(Payload):
    """A query that returns one row whose first column is a boolean: true passes.

    :param on_failure: ``fail`` or ``warn``.
    """

    name: str
    sql: str
    on_failure: str = FAIL


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditArguments(Arguments):
    """Arguments of an ``AUDIT``.

    :param views: JSON form of the scan plan of each view that the checks name.
    """

    checks: tuple[SqlCheck, ...]
    views: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]


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
class AuditReport(Payload):
    """Outcome of an audit: the XCom of its task.

    :param passed: no check of severity ``fail`` has failed.
    :param already_committed: the log already held the transaction: there is nothing to publish, and nothing was checked.
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    read_version: int
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
    :param passed: no check of severity ``fail`` has failed.
    :param already_committed: a table's log already held its transaction, and nothing was checked.
    """

    contract: int = CONTRACT
    tables: dict[str, int] = field(default_factory=dict)
    passed: bool
    already_committed: bool = False
    checks: tuple[AuditCheck, ...] = ()
