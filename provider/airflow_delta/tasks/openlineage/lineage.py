"""The tables that a task has read and written, as plain values until Airflow asks for its lineage.

Airflow asks in a child process after the task, where neither connections nor storage can be used. So everything is recorded
while the task runs, and only if OpenLineage's provider is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from airflow_delta.contract.audit import AuditCheck
    from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle

CREATES = ("CREATE TABLE", "CREATE TABLE AS SELECT")
OVERWRITES = (
    "REPLACE TABLE",
    "REPLACE TABLE AS SELECT",
    "CREATE OR REPLACE TABLE",
    "CREATE OR REPLACE TABLE AS SELECT",
    "CLONE",
    "RESTORE",
)
ALTERS = (
    "ADD COLUMNS",
    "CHANGE COLUMN",
    "CHANGE COLUMNS",
    "REPLACE COLUMNS",
    "RENAME COLUMN",
    "DROP COLUMNS",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
    "ADD CONSTRAINT",
    "DROP CONSTRAINT",
    "CLUSTER BY",
    "UPDATE SCHEMA",
    "UPGRADE PROTOCOL",
    "DROP FEATURE",
)
"""Delta's operations with a lifecycle state in OpenLineage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """A table that a task has read or written.

    :param uri: URI of the table, or an absolute path.
    :param version: the version that was read or written; ``None`` if not known yet.
    :param schema_string: its schema in Spark's JSON form.
    :param symlink: connection and name, if the task names the table below a connection's base path.
    :param lifecycle: ``CREATE``, ``OVERWRITE``, ``TRUNCATE``, ``ALTER``, or ``None`` if only rows changed.
    :param checks: what audits have found before it was written.
    """

    uri: str
    version: int | None = None
    schema_string: str | None = None
    symlink: tuple[str, str] | None = None
    num_records: int | None = None
    num_files: int | None = None
    num_bytes: int | None = None
    lifecycle: str | None = None
    checks: tuple[AuditCheck, ...] = ()


@dataclass(slots=True)
class Lineage:
    """The tables of one task; a version that is recorded twice counts once."""

    inputs: dict[tuple[str, int | None], TableUse] = field(default_factory=dict)
    outputs: dict[tuple[str, int | None], TableUse] = field(default_factory=dict)

    def read(self, use: TableUse) -> None:
        """Record a table that was read."""
        self.inputs[use.uri, use.version] = use

    def wrote(self, use: TableUse) -> None:
        """Record a version that was written."""
        self.outputs[use.uri, use.version] = use

    def read_by(self, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
        """Record the version that a transaction has read, if one of its stages has read the table."""
        if handle.read_version >= 0 and any(looked_at_table(write) for write in writes):
            self.read(TableUse(uri=handle.table, version=handle.read_version, schema_string=handle.schema_string))


def looked_at_table(write: StagedWrite) -> bool:
    """Return whether a stage's write depends on rows of the table."""
    return bool(write.reads.predicates or write.reads.files or write.reads.whole_table)


def output_of(result: CommitResult, *, schema_string: str | None = None, writes: Sequence[StagedWrite] = ()) -> TableUse:
    """Return the version that a commit has written.

    :param writes: its staged writes; needed to tell an overwrite of the whole table from one of a part.
    """
    return TableUse(
        uri=result.table,
        version=result.version,
        schema_string=schema_string,
        num_records=result.num_records,
        num_files=result.num_files,
        num_bytes=result.num_bytes,
        lifecycle=lifecycle(result, writes),
    )


def lifecycle(result: CommitResult, writes: Sequence[StagedWrite] = ()) -> str | None:
    """Return OpenLineage's lifecycle state for a commit; ``None`` if only rows changed."""
    operation = result.operation
    if operation in CREATES or result.version == 0:
        return "CREATE"
    if operation == "TRUNCATE":
        return "TRUNCATE"
    if operation in ALTERS:
        return "ALTER"
    if operation in OVERWRITES or any(_overwrites_all(write) for write in writes):
        return "OVERWRITE"
    return None


def _overwrites_all(write: StagedWrite) -> bool:
    partly = write.replace_where or write.parameters or write.operation != "WRITE"
    return write.mode == "overwrite" and not partly and write.data_change and not write.already_committed


def with_symlink(use: TableUse, table: Any, delta_conn_id: str | None) -> TableUse:
    """Return the use with the task's name for the table as symlink, if that is below a connection's base path."""
    if not isinstance(table, str) or not table.strip("/") or "://" in table or table.startswith("/"):
        return use
    return replace(use, symlink=(delta_conn_id or "delta_default", table.strip("/")))
