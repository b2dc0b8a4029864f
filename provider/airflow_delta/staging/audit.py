"""What an audit between stages and commit asks, and what it answers.

Standard library only: the SQL checks and their answers travel to a Spark job and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_delta.staging.contract import CONTRACT, Payload

FAIL, WARN = "fail", "warn"
"""What a check that does not pass means: nothing is published, or a line in the log."""

STAGED, RESULT, BEFORE = "staged", "result", "before"
VIEWS = (STAGED, RESULT, BEFORE)
"""Views that SQL checks may name: the rows that the stages bring, the table after the commit, the table that was read."""

CHECKS, PLANS = "checks", "views"
"""Arguments of an ``AUDIT`` request: the checks, and a scan plan for each view that they name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlCheck(Payload):
    """A query that answers with one row, whose first column is a boolean: true passes.

    :param on_failure: ``fail`` or ``warn``.
    """

    name: str
    sql: str
    on_failure: str = FAIL


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlAnswer(Payload):
    """What a query has answered.

    :param passed: its boolean; ``None`` for a null, and where there is none.
    :param figures: the other columns of the row as text, by name.
    :param problem: why there is no answer; ``None`` when there is one.
    """

    name: str
    passed: bool | None = None
    figures: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditCheck(Payload):
    """The outcome of one check.

    :param severity: ``fail`` or ``warn``: what it means when it did not pass.
    :param value: the figure that was judged, as plain JSON; ``None`` where there is none.
    :param message: one sentence with the figures.
    """

    name: str
    passed: bool
    severity: str = FAIL
    value: Any = None
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport(Payload):
    """The outcome of an audit: the XCom of its task.

    :param passed: no check of severity ``fail`` has failed.
    :param already_committed: the log held the transaction before: there is nothing to publish, and nothing was checked.
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
        """Return the checks that keep the transaction from being published."""
        return tuple(check for check in self.checks if not check.passed and check.severity == FAIL)
