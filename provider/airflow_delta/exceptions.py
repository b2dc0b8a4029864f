"""Every error of the provider, under Delta's own names where Delta has one.

Each carries ``error_class``, Delta's error class (or ours, prefixed the same way), so that a retry policy or a log search
can tell errors apart without parsing text. No message holds the credentials of a URL. This module imports only the standard
library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_delta.masking import masked


class DeltaError(Exception):
    """Base of all errors raised by this provider.

    :param message: what happened, on which table and version, and what to do next.
    :param table: URI of the table, when known.
    :param version: version of the table that the error is about, when there is one.
    """

    error_class: ClassVar[str] = "DELTA_ERROR"

    def __init__(self, message: str, *, table: str | None = None, version: int | None = None) -> None:
        message = masked(message)
        super().__init__(message)
        self.message = message
        self.table = None if table is None else masked(table)
        self.version = version

    def __str__(self) -> str:
        return f"[{self.error_class}] {self.message}"


# -- what the caller asked for ------------------------------------------------------------------------------------------------


class DeltaIllegalArgumentException(DeltaError, ValueError):
    """An argument is not valid: an option, an identifier, a combination."""

    error_class = "DELTA_ILLEGAL_ARGUMENT"


class DeltaAnalysisException(DeltaError, ValueError):
    """A schema, a predicate or a metadata change does not fit the table."""

    error_class = "DELTA_ANALYSIS"


class ReadLimitException(DeltaError):
    """What is asked for would take more bytes or rows than a reader is allowed, as the pages in Airflow's UI are."""

    error_class = "DELTA_READ_LIMIT_EXCEEDED"


class DeltaTableNotFoundException(DeltaAnalysisException):
    """The location holds no Delta table (no ``_delta_log`` with a commit or a checkpoint)."""

    error_class = "DELTA_MISSING_DELTA_TABLE"


class DeltaTableAlreadyExistsException(DeltaAnalysisException):
    """A table is to be created where there is one (Spark: TABLE_OR_VIEW_ALREADY_EXISTS)."""

    error_class = "TABLE_OR_VIEW_ALREADY_EXISTS"


class NonEmptyLocationException(DeltaAnalysisException):
    """A table is to be created where other files are."""

    error_class = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"


class SchemaMismatchException(DeltaAnalysisException):
    """Data to be written does not have the table's schema (Delta: DELTA_METADATA_MISMATCH)."""

    error_class = "DELTA_METADATA_MISMATCH"


class PredicateException(DeltaAnalysisException):
    """A predicate does not parse, or names a column that the table does not have."""

    error_class = "DELTA_INVALID_PREDICATE"


class ReplaceWhereMismatchException(DeltaAnalysisException):
    """Rows to be written do not satisfy the ``replaceWhere`` predicate."""

    error_class = "DELTA_REPLACE_WHERE_MISMATCH"


class VacuumRetentionPeriodTooShortException(DeltaIllegalArgumentException):
    """VACUUM was asked to delete files that are younger than the table says they must stay."""

    error_class = "DELTA_VACUUM_RETENTION_PERIOD_TOO_SHORT"


class DeltaUnsupportedOperationException(DeltaError):
    """The operation is not possible on a table with these features."""

    error_class = "DELTA_UNSUPPORTED_OPERATION"


class InvariantViolationException(DeltaError, ValueError):
    """A row breaks a NOT NULL column or another invariant of the table."""

    error_class = "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"


class ConstraintViolationException(InvariantViolationException):
    """A row breaks a CHECK constraint, an invariant, or the expression of a generated column."""

    error_class = "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"


class CharVarcharLimitException(InvariantViolationException):
    """A text is longer than its ``char(n)`` or ``varchar(n)`` column takes."""

    error_class = "DELTA_EXCEED_CHAR_VARCHAR_LIMIT"


class IdentityInsertException(DeltaAnalysisException):
    """Rows bring values for an identity column that only the table may give (``GENERATED ALWAYS``)."""

    error_class = "DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED"


class AppendOnlyException(DeltaError):
    """A commit would delete data from a table with ``delta.appendOnly=true``."""

    error_class = "DELTA_CANNOT_MODIFY_APPEND_ONLY"


# -- what the table is --------------------------------------------------------------------------------------------------------


class InvalidProtocolVersionException(DeltaError):
    """The table needs a reader or writer version that this provider does not know."""

    error_class = "DELTA_INVALID_PROTOCOL_VERSION"


class DeltaUnsupportedTableFeatureException(DeltaError):
    """The table lists features that this provider does not support.

    :param features: names of the features, as the protocol spells them.
    """

    error_class = "DELTA_UNSUPPORTED_FEATURES"

    def __init__(
        self, message: str, *, features: tuple[str, ...] = (), table: str | None = None, version: int | None = None
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.features = features


class ProtocolDowngradeException(DeltaError):
    """A commit would lower the table's protocol."""

    error_class = "DELTA_INVALID_PROTOCOL_DOWNGRADE"


class DeltaIllegalStateException(DeltaError, RuntimeError):
    """The table or the transaction is in a state that does not allow this."""

    error_class = "DELTA_ILLEGAL_STATE"


class PathOutsideTableException(DeltaIllegalStateException):
    """A path leads, or may lead, out of the table: through a symbolic link, by ``..``, or to what is no file."""

    error_class = "DELTA_PATH_OUTSIDE_TABLE"


class RowIdAssignmentWithoutStatsException(DeltaIllegalStateException):
    """A file of a table with row tracking does not say how many rows it has, so it cannot get row ids."""

    error_class = "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS"


class FeatureDropConflictException(DeltaIllegalStateException):
    """A commit drops a table feature that the table made use of again meanwhile."""

    error_class = "DELTA_FEATURE_DROP_CONFLICT_REVALIDATION_FAIL"


class MissingCommitInfoException(DeltaIllegalStateException):
    """A commit of a table with in-commit timestamps carries none."""

    error_class = "DELTA_MISSING_COMMIT_INFO"


class MissingCommitTimestampException(DeltaIllegalStateException):
    """A commit of a table with in-commit timestamps has a ``commitInfo`` without one."""

    error_class = "DELTA_MISSING_COMMIT_TIMESTAMP"


class InvalidCommittedVersionException(DeltaIllegalStateException):
    """The commit is in the log and stays there, but the log as it is listed does not show it."""

    error_class = "DELTA_INVALID_COMMITTED_VERSION"


class DeltaDuplicateActionsException(DeltaIllegalStateException):
    """One commit adds a file twice, removes it twice, or both adds and removes it."""

    error_class = "DELTA_DUPLICATE_ACTIONS_FOUND"


class DeltaDuplicateDomainException(DeltaIllegalStateException):
    """One commit sets a metadata domain twice."""

    error_class = "DELTA_DUPLICATE_DOMAIN_METADATA_INTERNAL_ERROR"


class DeltaLogCorruptedException(DeltaIllegalStateException):
    """A file of the log cannot be understood: malformed JSON, a truncated checkpoint, no protocol or metadata."""

    error_class = "DELTA_LOG_CORRUPTED"


class DeltaChecksumMismatchException(DeltaLogCorruptedException):
    """A version's checksum file does not describe the state that its log gives.

    :param mismatches: for every field that differs, what the checksum says and what the log gives.
    """

    error_class = "DELTA_TXN_LOG_FAILED_INTEGRITY"

    def __init__(
        self,
        message: str,
        *,
        mismatches: Mapping[str, tuple[Any, Any]] | None = None,
        table: str | None = None,
        version: int | None = None,
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.mismatches = dict(mismatches or {})


class VersionsNotContiguousException(DeltaLogCorruptedException):
    """A commit file between two others is missing."""

    error_class = "DELTA_VERSIONS_NOT_CONTIGUOUS"


class VersionNotFoundException(DeltaError, LookupError):
    """The log does not hold the asked version: it was cleaned up, or was never written.

    :param earliest: earliest version that can still be rebuilt.
    :param latest: latest version of the table.
    """

    error_class = "DELTA_VERSION_NOT_FOUND"

    def __init__(
        self,
        message: str,
        *,
        earliest: int | None = None,
        latest: int | None = None,
        table: str | None = None,
        version: int | None = None,
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.earliest = earliest
        self.latest = latest


class DeltaFileNotFoundException(DeltaError, LookupError):
    """A file that the log or a staged write lists is not on storage."""

    error_class = "DELTA_FILE_NOT_FOUND"


class ForkedProcessException(DeltaIllegalStateException):
    """A forked child inherited an object-store runtime that its parent had used; using it would hang for ever."""

    error_class = "DELTA_FORKED_PROCESS"


# -- what others committed ----------------------------------------------------------------------------------------------------


class DeltaConcurrentModificationException(DeltaError):
    """Another transaction committed something that this one cannot be serialised with. Final for this transaction.

    :param winning_version: version of the commit that this transaction lost against.
    :param winning_commit: that commit's ``commitInfo`` as a mapping of Delta's field names, when it has one.
    :param partition: partition of the conflicting file as ``[col=value, ...]``, when there is one.
    :param partition_values: that partition, serialised values by column name.
    :param table_name: the table's name, else ``delta.`uri```.
    """

    error_class = "DELTA_CONCURRENT_MODIFICATION"
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
        """The winner's operation; ``TRANSACTION`` when it does not say."""
        return str((self.winning_commit or {}).get("operation") or "TRANSACTION")

    @property
    def condition(self) -> str:
        """Delta's error condition: the error class, for conflicts over files with whether the partition is known."""
        if not self.has_hint:
            return self.error_class
        return f"{self.error_class}.{'WITHOUT_HINT' if self.partition is None else 'WITH_PARTITION_HINT'}"

    @property
    def message_parameters(self) -> dict[str, str]:
        """The parameters of Delta's error message."""
        parameters = {"operation": self.operation, "tableName": str(self.table_name), "version": str(self.winning_version)}
        if self.partition is not None:
            parameters["partitionValues"] = self.partition
        return parameters


class ConcurrentWriteException(DeltaConcurrentModificationException):
    """Another writer took the version, and this commit may not be retried on a later one."""

    error_class = "DELTA_CONCURRENT_WRITE"


class MetadataChangedException(DeltaConcurrentModificationException):
    """The table's metadata was changed concurrently."""

    error_class = "DELTA_METADATA_CHANGED"


class ProtocolChangedException(DeltaConcurrentModificationException):
    """The table's protocol was changed concurrently."""

    error_class = "DELTA_PROTOCOL_CHANGED"


class ConcurrentAppendException(DeltaConcurrentModificationException):
    """Files were added that this transaction should have read."""

    error_class = "DELTA_CONCURRENT_APPEND"
    has_hint = True


class ConcurrentDeleteReadException(DeltaConcurrentModificationException):
    """A file that this transaction read was deleted."""

    error_class = "DELTA_CONCURRENT_DELETE_READ"
    has_hint = True


class ConcurrentDeleteDeleteException(DeltaConcurrentModificationException):
    """A file that this transaction deletes was deleted by another."""

    error_class = "DELTA_CONCURRENT_DELETE_DELETE"
    has_hint = True


class ConcurrentTransactionException(DeltaConcurrentModificationException):
    """Another commit wrote the application transaction id (``appId``) or domain that this transaction relied on."""

    error_class = "DELTA_CONCURRENT_TRANSACTION"


# -- how the commit ended -----------------------------------------------------------------------------------------------------


class MaxCommitRetriesExceededException(DeltaIllegalStateException):
    """The commit lost the race for a version more often, or for longer, than it was allowed to. Nothing was written."""

    error_class = "DELTA_MAX_COMMIT_RETRIES_EXCEEDED"


class CommitStateUnknownException(DeltaError):
    """The store did not say whether the commit was written, and reading the log did not settle it. Clean up nothing."""

    error_class = "DELTA_COMMIT_STATE_UNKNOWN"


class CommitCancelledException(DeltaError):
    """The task was told to stop before the log entry was put. Nothing was written."""

    error_class = "DELTA_COMMIT_CANCELLED"


class DeltaAssertionError(DeltaIllegalStateException, AssertionError):
    """A rule of the transaction's life cycle is broken (committed twice, metadata changed twice). A defect of the caller."""

    error_class = "DELTA_ASSERTION"


class PostCommitHookFailedException(DeltaError):
    """A post-commit hook failed. The commit stays.

    :param hook: name of the hook.
    """

    error_class = "DELTA_POST_COMMIT_HOOK_FAILED"

    def __init__(self, message: str, *, hook: str = "", table: str | None = None, version: int | None = None) -> None:
        super().__init__(message, table=table, version=version)
        self.hook = hook


# -- what travels between tasks -----------------------------------------------------------------------------------------------


class StagingException(DeltaError):
    """A payload or a file between start and commit is not what the contract says."""

    error_class = "DELTA_STAGING"


class ContractVersionException(StagingException):
    """A payload was written under another contract number."""

    error_class = "DELTA_STAGING_CONTRACT"


class HandleMismatchException(StagingException):
    """A transaction handle says something else than the Dag file or the log: another table, key, or commit."""

    error_class = "DELTA_STAGING_HANDLE_MISMATCH"


class ForeignTransactionException(StagingException):
    """A staged write belongs to another transaction (another execution of start)."""

    error_class = "DELTA_STAGING_FOREIGN_TRANSACTION"


class ManifestException(StagingException):
    """A manifest of staged actions is missing, truncated or altered."""

    error_class = "DELTA_STAGING_MANIFEST"


class StagedFileException(StagingException):
    """A staged data file is gone, has another size, or cannot be read as Parquet."""

    error_class = "DELTA_STAGING_FILE"


class MissingStageException(StagingException):
    """A stage that the commit expects did not report."""

    error_class = "DELTA_STAGING_MISSING"


class StageConflictException(StagingException):
    """Two stages of one transaction contradict each other (both rewrite a file, or a partition)."""

    error_class = "DELTA_STAGING_CONFLICT"


class DeltaAuditFailedException(DeltaError):
    """What a transaction has staged did not pass its audit. Nothing is published.

    :param failed: names of the checks that failed.
    """

    error_class = "DELTA_AUDIT_FAILED"

    def __init__(
        self, message: str, *, failed: tuple[str, ...] = (), table: str | None = None, version: int | None = None
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.failed = failed


class TransactionAbortedException(StagingException):
    """The transaction was aborted; its staged files may be gone."""

    error_class = "DELTA_TRANSACTION_ABORTED"


class TransactionAlreadyCommittedException(DeltaIllegalStateException):
    """The transaction key is already in the log, and the rerun policy (or the state of the table) does not allow a rerun."""

    error_class = "DELTA_TRANSACTION_ALREADY_COMMITTED"


class TransactionExpiredException(DeltaIllegalStateException):
    """Whether a transaction was committed can no longer be told: keys and log entries of its time have expired."""

    error_class = "DELTA_TRANSACTION_EXPIRED"
