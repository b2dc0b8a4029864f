"""The staged writes that a task was handed: all of its transaction, one for each stage, and none missing that is expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.exceptions import ForeignTransactionException, MissingStageException, StageConflictException

_LISTED = 20


def parse_staged(handle: TransactionHandle, staged: Sequence[StagedWrite | Mapping[str, Any]]) -> list[StagedWrite]:
    """Return the staged writes, one per stage, all of this transaction.

    :raises ContractVersionException: if a payload was written under another contract number.
    :raises ForeignTransactionException: if a staged write belongs to another execution of start.
    :raises StageConflictException: if a stage reported twice.
    """
    writes = [write if isinstance(write, StagedWrite) else StagedWrite.from_dict(write) for write in staged]
    for write in writes:
        if write.transaction_id != handle.transaction_id:
            raise handle.error(
                ForeignTransactionException,
                f"Stage {write.stage} staged for transaction {write.transaction_id}, this is transaction "
                f"{handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}): start ran again "
                "after the stage. Clear the start task with everything downstream.",
            )
    twice = [key for key, count in Counter((w.task_id, w.map_index) for w in writes).items() if count > 1]
    if twice:
        raise handle.error(
            StageConflictException,
            f"Stage {', '.join(_name(*key) for key in twice)} of transaction {handle.transaction_id} on table {handle.table} "
            "reported more than once. Pass each stage's output to the commit once.",
        )
    return writes


Expected = Mapping[tuple[str, int], str | None]
"""The stages that must report, by task id and map index (-1: not mapped), each with the state of its task instance."""


def check_reported(handle: TransactionHandle, writes: Sequence[StagedWrite], expected: Expected) -> None:
    """Check that every expected stage has reported.

    The position in a mapped result is not the map index: stages are distinguished by the identity in each report.

    :raises MissingStageException: if an expected stage did not report, or none did.
    """
    reported = {(write.task_id, write.map_index) for write in writes}
    missing = [f"{_name(*key)} ({state or 'not run'})" for key, state in sorted(expected.items()) if key not in reported]
    if not missing and writes:
        return
    which = f"{len(missing)} of {len(expected)} stages have not" if missing else "No stage has"
    listed = f": {', '.join(missing[:_LISTED])}{', ...' if len(missing) > _LISTED else ''}" if missing else ""
    skipped = any(expected[key] == "skipped" for key in expected if key not in reported)
    way_out = (
        "To publish without stages that were skipped, set allow_skipped=True on the commit. Otherwise see" if skipped else "See"
    )
    raise handle.error(
        MissingStageException,
        f"{which} reported to transaction {handle.transaction_id} on table {handle.table}{listed}. Nothing is committed. "
        f"{way_out} why they did not, then clear the start task with everything downstream: once the abort task has run, this "
        "transaction cannot be continued.",
    )


def _name(task_id: str, map_index: int) -> str:
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"
