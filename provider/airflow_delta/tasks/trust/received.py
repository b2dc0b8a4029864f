"""Handles and staged writes as a task gets them as XCom: parsed, or refused with what to pass instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_delta.airflow_internals.tasks import all_of
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import StagingException


def parse_handle(value: Any, *, task_id: str) -> TransactionHandle:
    """Return the handle that a task got as XCom.

    :raises StagingException: if there is none, or the value is not a handle.
    """
    if isinstance(value, TransactionHandle):
        return value
    if value is None:
        raise StagingException(
            f"The task {task_id!r} got no transaction. Pass transaction=<output of the start task>, or put the task into a "
            "delta_transaction group. If it has one, the start task has not run, or was cleared, in this run."
        )
    if not isinstance(value, Mapping) or not value.keys() >= _HANDLE:
        raise StagingException(
            f"The task {task_id!r} got something other than a transaction: {_shown(value)}. Pass transaction=<output of the "
            "start task> itself: a template makes text of it, and of a mapped start task it is a list (put start, stages and "
            "commit into an expanded @task_group)."
        )
    return TransactionHandle.from_dict(value)


_HANDLE = {"contract", "transactionId", "table"}

_REPORT = {"contract", "transactionId", "stage"}


def parse_report(value: Mapping[str, Any], *, task_id: str) -> StagedWrite:
    """Return the staged write that a task got as XCom.

    :raises StagingException: if the value is not a report.
    """
    if not value.keys() >= _REPORT:
        raise not_a_report(value, f"The task {task_id!r}")
    return StagedWrite.from_dict(value)


def not_a_report(value: Any, whose: str = "The task") -> StagingException:
    """Return the error of a task that got something other than what a stage returns."""
    return StagingException(
        f"{whose} got something other than a staged write: {_shown(value)}. Pass the outputs of stage tasks themselves, such as "
        "staged=[first.output, second.output]."
    )


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"


def flatten_reports(value: Any) -> Iterator[Mapping[str, Any] | None]:
    """Yield the staged writes in a value: one, a list, mapped results, or lists of these; ``None`` is kept."""
    if value is None or isinstance(value, Mapping):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in all_of(value):
            yield from flatten_reports(item)
    else:
        raise not_a_report(value)
