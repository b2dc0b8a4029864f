"""The mark in the name of each attempt of a stage: a digest of the table for which it checked its rows.

The directory of its files has that name, so a commit sees whether the stage and itself mean the same version, or the same new
table.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.exceptions import HandleMismatchException

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle


def definition_mark(handle: TransactionHandle) -> str:
    """Return a digest of the table that a transaction works on: the version that it reads, or the definition of a new table."""
    known = handle.to_dict()
    return hashlib.sha256(json.dumps([known[name] for name in _MARKED], sort_keys=True).encode()).hexdigest()[:8]


_MARKED = ("readVersion", "tableId", "schemaString", "partitionColumns", "configuration", "features")


def check_mark(handle: TransactionHandle, write: StagedWrite) -> None:
    """Check that a stage worked on the table that this task works on: its files lie below the name of its attempt.

    :raises HandleMismatchException: if not.
    """
    if write.transaction_id != handle.transaction_id or write.attempt.endswith(f"-{definition_mark(handle)}"):
        return
    raise handle.error(
        HandleMismatchException,
        f"The attempt {write.attempt} of stage {write.stage} did not check its rows for table {handle.table} "
        f"({read_version_name(handle.read_version)}) as this task knows it: another version, columns or properties were in its "
        "handle. Nothing was written. If the stage ran in an earlier release, clear the start task. Otherwise an XCom was "
        "altered.",
    )
