"""Checks as an author gives them, by name and with a severity, and their outcome together: the report of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_delta.contract.audit import FAIL, WARN, AuditCheck, AuditReport, HeldCheck, stages_of
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaIllegalArgumentException


def by_name(name: str, given: Any) -> Mapping[str, Any]:
    """Return checks by name or column; a template that should give a mapping may have rendered text.

    :raises DeltaIllegalArgumentException: if the value is not a mapping.
    """
    if given is None or given == "":
        return {}
    if not isinstance(given, Mapping):
        raise DeltaIllegalArgumentException(f"{name} must be a mapping, got {given!r}")
    return given


def check_severity(name: str, value: Any) -> str:
    """Return ``fail`` or ``warn``.

    :raises DeltaIllegalArgumentException: if the value is neither.
    """
    if value not in (FAIL, WARN):
        raise DeltaIllegalArgumentException(f"{name} must be {FAIL!r} or {WARN!r}, got {value!r}")
    return str(value)


def audit_report(
    handle: TransactionHandle,
    checks: Sequence[AuditCheck],
    writes: Sequence[StagedWrite] = (),
    held: Sequence[HeldCheck] = (),
    *,
    version: int | None = None,
    definition: str | None = None,
    already_committed: bool = False,
) -> AuditReport:
    """Return the outcome of all checks together.

    :param writes: what was judged.
    :param held: what the commit asks again.
    :param version: that was seen; default: the version that was read.
    :param definition: digest of the checks.
    """
    return AuditReport(
        transaction_id=handle.transaction_id,
        table=handle.table,
        read_version=handle.read_version,
        version=handle.read_version if version is None else version,
        stages=stages_of(writes),
        held=tuple(held),
        definition=definition,
        passed=all(check.passed or check.severity != FAIL for check in checks),
        already_committed=already_committed,
        checks=tuple(checks),
    )
