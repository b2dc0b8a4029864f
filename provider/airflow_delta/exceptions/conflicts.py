"""Conflicts of a transaction with a concurrent commit, under Delta's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_delta.exceptions.base import DeltaError


class DeltaConcurrentModificationException(DeltaError):
    """A concurrent commit conflicts with this transaction, which cannot be committed any more.

    :param winning_version: version of the conflicting commit.
    :param winning_commit: its ``commitInfo`` as a mapping with Delta's field names, if it has one.
    :param partition: partition of the conflicting file as ``[col=value, ...]``, if there is one.
    :param partition_values: that partition as serialised values by column name.
    :param table_name: name of the table, else ``delta.`uri```.
    """

    error_class = "DELTA_CONCURRENT_MODIFICATION"
    retry = "conflict"
    refuses_publication = True
    sql_state: ClassVar[str] = "2D521"
    has_hint: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        winning_version: int | None = None,
        winning_commit: Mapping[str, Any] | None = None,
        partition: str | None = None,
        partition_values: Mapping[str, str | None] | None = None,
        table_name: str | None = None,
    ) -> None:
        super().__init__(message, table=table, version=winning_version)
        self.winning_version = winning_version
        self.winning_commit = winning_commit
        self.partition = partition
        self.partition_values = partition_values
        self.table_name = table_name if table_name is not None else table

    @property
    def operation(self) -> str:
        """Operation of the conflicting commit; ``TRANSACTION`` if unknown."""
        return str((self.winning_commit or {}).get("operation") or "TRANSACTION")

    @property
    def condition(self) -> str:
        """Delta's error condition: the error class; for conflicts over files also whether the partition is known."""
        if not self.has_hint:
            return self.error_class
        return f"{self.error_class}.{'WITHOUT_HINT' if self.partition is None else 'WITH_PARTITION_HINT'}"

    @property
    def message_parameters(self) -> dict[str, str]:
        """Parameters of Delta's error message."""
        parameters = {"operation": self.operation, "tableName": str(self.table_name), "version": str(self.winning_version)}
        if self.partition is not None:
            parameters["partitionValues"] = self.partition
        return parameters


class ConcurrentWriteException(DeltaConcurrentModificationException):
    """Another writer took the version, and this commit cannot be retried at a later one."""

    error_class = "DELTA_CONCURRENT_WRITE"


class MetadataChangedException(DeltaConcurrentModificationException):
    """The table's metadata was changed concurrently."""

    error_class = "DELTA_METADATA_CHANGED"


class ProtocolChangedException(DeltaConcurrentModificationException):
    """The table's protocol was changed concurrently."""

    error_class = "DELTA_PROTOCOL_CHANGED"


class ConcurrentAppendException(DeltaConcurrentModificationException):
    """Files were added concurrently that this transaction would have read."""

    error_class = "DELTA_CONCURRENT_APPEND"
    has_hint = True


class ConcurrentDeleteReadException(DeltaConcurrentModificationException):
    """A file that this transaction read was deleted concurrently."""

    error_class = "DELTA_CONCURRENT_DELETE_READ"
    has_hint = True


class ConcurrentDeleteDeleteException(DeltaConcurrentModificationException):
    """A file that this transaction deletes was deleted concurrently."""

    error_class = "DELTA_CONCURRENT_DELETE_DELETE"
    has_hint = True


class ConcurrentTransactionException(DeltaConcurrentModificationException):
    """A concurrent commit wrote an application transaction id (``appId``) or domain that this transaction relies on."""

    error_class = "DELTA_CONCURRENT_TRANSACTION"
