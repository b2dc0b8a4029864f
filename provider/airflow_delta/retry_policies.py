"""Retry policy for tasks that work with Delta tables, those of this provider and your own.

::

    @task(retries=4, retry_policy=DeltaRetryPolicy(on_conflict="retry"))
    def compact(): ...
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryAction, RetryDecision, RetryPolicy, RetryRule

from airflow_delta import exceptions
from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["AUDIT_ERRORS", "FINAL_ERRORS", "REFUSALS", "DeltaRetryPolicy"]

_FAIL, _RETRY = "fail", "retry"
_MAY_HELP = ("lost race", "unknown")

_QUERY_CONDITIONS = (
    "AMBIGUOUS_",
    "COLUMN_ALREADY_EXISTS",
    "DATATYPE_MISMATCH",
    "MISSING_AGGREGATION",
    "MISSING_GROUP_BY",
    "PARSE_",
    "UNRESOLVED_COLUMN",
    "UNRESOLVED_FIELD",
    "UNRESOLVED_ROUTINE",
    "WRONG_NUM_ARGS",
)
"""Beginnings of Spark's error conditions of a query that is wrong by itself. A table or path that is missing may yet come."""

_REASONS = {
    "conflict fails": "The same transaction would conflict again. Clear the start task to begin a new one.",
    "conflict": "A conflict: the retry begins a new transaction on the newest version.",
    "lost race": "The race for a version was lost too often, without a conflict. The retry continues where this try stopped.",
    "unknown": "It is unknown whether the commit was written. The retry checks the log, and commits only if it was not.",
    "audit": "The same staged rows would fail again. Clear the start task to begin a new transaction.",
    "refused": "The operation is not possible on this table; a retry would change nothing.",
    "query": "Spark does not accept the query as it is written; a retry would change nothing.",
    "storage": "The storage or the connection to it failed.",
}


class DeltaRetryPolicy(RetryPolicy):
    """Decide by the kind of an error whether a retry can help.

    - a conflict (``DeltaConcurrentModificationException``): see ``on_conflict``;
    - a lost race (``MaxCommitRetriesExceededException``): retry;
    - ``CommitStateUnknownException``: retry, the commit recognises itself in the log;
    - a failed audit, schema, predicate, constraint, protocol, a version that has left the log, a bad argument, an invalid staged
      write, an aborted transaction, a Spark that lacks the connector or the credentials for the table's store: fail;
    - a query that Spark cannot parse, or that names columns or functions that do not exist: fail;
    - storage and network (``OSError``, including ``ConnectionError`` and ``TimeoutError``): retry;
    - any other: Airflow's default.

    *Retry* means: while the task has retries left. An error raised from one of these is treated like it.

    :param on_conflict: ``fail`` for tasks of a transaction that another task began (a retry would conflict again), ``retry`` for
        tasks that begin their own transaction; an operation of this provider that has a ``transaction`` fails either way.
    :param delay: pause before a retry, doubled with every try since the task was last cleared. Default: the task's
        ``retry_delay``.
    :param max_delay: maximum pause.
    :param jitter: share of the pause by which it varies at random (0.5: from half to one and a half), so that conflicting tasks
        do not meet again.
    :param rules: rules for your own errors, applied first.
    :raises DeltaIllegalArgumentException: if an argument is not valid.
    """

    def __init__(
        self,
        *,
        on_conflict: str = _FAIL,
        delay: timedelta | None = None,
        max_delay: timedelta = timedelta(minutes=15),
        jitter: float = 0.5,
        rules: Sequence[RetryRule] = (),
    ) -> None:
        if on_conflict not in (_FAIL, _RETRY):
            raise DeltaIllegalArgumentException(f"on_conflict of a retry policy must be 'fail' or 'retry', got {on_conflict!r}.")
        if not 0 <= jitter <= 1:
            raise DeltaIllegalArgumentException(f"jitter of a retry policy must be between 0 and 1, got {jitter!r}.")
        self.on_conflict = on_conflict
        self.delay = delay
        self.max_delay = max_delay
        self.jitter = jitter
        self.rules = list(rules)

    def __repr__(self) -> str:
        """Return the arguments; the reference shows it as the default of ``retry_policy``."""
        return f"{type(self).__name__}(on_conflict={self.on_conflict!r}, delay={self.delay!r})"

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Return the decision for an error; Airflow calls this in the worker."""
        own = RetryDecision.default()
        for error in _chain(exception):
            for rule in self.rules:
                if rule.matches(error):
                    return RetryDecision(action=rule.action, retry_delay=rule.retry_delay, reason=rule.reason)
            kind = self._kind(error, in_transaction=getattr((context or {}).get("task"), "transaction", None) is not None)
            if kind is None:
                continue
            action, reason = kind
            # Airflow logs the reason and keeps it with the task instance.
            return RetryDecision(
                action=action,
                retry_delay=self._pause(_since_clear(try_number, max_tries, context)) if action is RetryAction.RETRY else None,
                reason=_REASONS[reason],
            )
        return own

    def _kind(self, error: BaseException, *, in_transaction: bool) -> tuple[RetryAction, str] | None:
        known = error.retry if isinstance(error, exceptions.DeltaError) else None
        if known == "conflict":
            if self.on_conflict == _RETRY and not in_transaction:
                return RetryAction.RETRY, known
            return RetryAction.FAIL, "conflict fails"
        if known is not None:
            return (RetryAction.RETRY if known in _MAY_HELP else RetryAction.FAIL), known
        if _is_wrong_query(error):
            return RetryAction.FAIL, "query"
        if isinstance(error, OSError):  # includes ConnectionError and TimeoutError
            return RetryAction.RETRY, "storage"
        return None

    def _pause(self, try_number: int) -> timedelta | None:
        if self.delay is None:
            return None
        pause = min(self.delay * 2.0 ** min(max(try_number - 1, 0), 20), self.max_delay)
        return pause * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - not a secret

    def serialize(self) -> dict[str, Any]:
        """Return the policy as JSON."""
        return {
            "__type": type(self).__name__,
            "on_conflict": self.on_conflict,
            "delay": None if self.delay is None else self.delay.total_seconds(),
            "max_delay": self.max_delay.total_seconds(),
            "jitter": self.jitter,
            "rules": [rule.serialize() for rule in self.rules],
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> DeltaRetryPolicy:
        """Return the policy from its serialized form."""
        return cls(
            on_conflict=data["on_conflict"],
            delay=None if data["delay"] is None else timedelta(seconds=data["delay"]),
            max_delay=timedelta(seconds=data["max_delay"]),
            jitter=data["jitter"],
            rules=[RetryRule.deserialize(rule) for rule in data["rules"]],
        )


def _is_wrong_query(error: BaseException) -> bool:
    if isinstance(error, exceptions.SparkJobException):
        return str(error.condition or "").startswith(_QUERY_CONDITIONS)
    spark: Any = sys.modules.get("pyspark.errors")  # whoever raises one has loaded it
    if spark is None or not isinstance(error, spark.AnalysisException):
        return False
    if isinstance(error, spark.ParseException):
        return True
    try:
        return str(error.getCondition() or "").startswith(_QUERY_CONDITIONS)
    except Exception:  # noqa: BLE001 - it asks the JVM, which may be gone
        return False


def _since_clear(try_number: int, max_tries: int, context: Context | None) -> int:
    """Return the number of a try since the last clear, which keeps the number and adds to the maximum."""
    retries = getattr((context or {}).get("task"), "retries", None)
    return try_number - max(max_tries - retries, 0) if isinstance(retries, int) else try_number


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it was raised from, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


FINAL_ERRORS = DeltaRetryPolicy(on_conflict=_FAIL)
"""Retry policy of start, stages and commit: errors that a retry cannot change fail at once, others are retried."""

REFUSALS = DeltaRetryPolicy(on_conflict=_RETRY, delay=timedelta(seconds=30))
"""Retry policy of operations that may be transactions of their own: after a conflict, a retry begins a new one."""

AUDIT_ERRORS = FINAL_ERRORS
"""Retry policy of audits: a verdict is final, like other errors that a retry cannot change; lost connections are retried."""
