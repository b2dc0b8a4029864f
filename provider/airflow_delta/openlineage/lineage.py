"""What a task has read and written of tables, kept as plain values until somebody asks for its lineage.

Airflow asks in a child process after the task is done, where neither connections nor storage may be used any more. So everything
is noted while the task runs, and only where OpenLineage's provider is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_delta.staging.contract import CommitResult, StagedWrite, TransactionHandle

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
"""Operations of Delta that OpenLineage has a word for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """A table that a task has read or written.

    :param uri: URI of the table, or an absolute path.
    :param version: that was read or written; ``None``: not yet known.
    :param schema_string: Spark's JSON form of its schema.
    :param symlink: connection and name, where the task names the table below a connection's base path.
    :param lifecycle: ``CREATE``, ``OVERWRITE``, ``TRUNCATE``, ``ALTER``, or ``None``: rows came or went.
    """

    uri: str
    version: int | None = None
    schema_string: str | None = None
    symlink: tuple[str, str] | None = None
    num_records: int | None = None
    num_files: int | None = None
    num_bytes: int | None = None
    lifecycle: str | None = None


@dataclass(slots=True)
class Lineage:
    """The tables of one task. A table that is noted again under the same version counts once."""

    inputs: dict[tuple[str, int | None], TableUse] = field(default_factory=dict)
    outputs: dict[tuple[str, int | None], TableUse] = field(default_factory=dict)

    def read(self, use: TableUse) -> None:
        """Note a table that was read."""
        self.inputs[use.uri, use.version] = use

    def wrote(self, use: TableUse) -> None:
        """Note a version that was written."""
        self.outputs[use.uri, use.version] = use

    def read_by(self, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
        """Note the version that a transaction has read, when one of its stages has looked at the table."""
        if handle.read_version >= 0 and any(looked_at_table(write) for write in writes):
            self.read(TableUse(uri=handle.table, version=handle.read_version, schema_string=handle.schema_string))


def looked_at_table(write: StagedWrite) -> bool:
    """Tell whether what a stage has written depends on rows of the table."""
    return bool(write.reads.predicates or write.reads.files or write.reads.whole_table)


def output_of(result: CommitResult, *, schema_string: str | None = None, writes: Sequence[StagedWrite] = ()) -> TableUse:
    """Return the version that a commit has written.

    :param writes: what it consists of; tells an overwrite of the whole table from one of a part.
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
    """Return what a commit did to the table as a whole, in OpenLineage's words; ``None``: nothing, only rows came or went."""
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
    """Return the use with the name that the task has for the table, where that is one below a connection's base path."""
    if not isinstance(table, str) or not table.strip("/") or "://" in table or table.startswith("/"):
        return use
    return replace(use, symlink=(delta_conn_id or "delta_default", table.strip("/")))
