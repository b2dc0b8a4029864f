"""Every error of the provider, under Delta's own name where Delta has one.

Each has an ``error_class``, Delta's or one of ours in the same style, so that retry policies and log searches can tell errors
apart without parsing messages. Credentials in URLs are masked in all messages. This module imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from airflow_delta.masking import masked


class DeltaError(Exception):
    """Base of all errors raised by this provider.

    :param message: what happened, on which table and version, and what to do next.
    :param table: URI of the table, if known.
    :param version: version of the table that the error is about, if there is one.
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


ErrorT = TypeVar("ErrorT", bound=DeltaError)


class Subject:
    """What errors are about: a table, at a version where one is known."""

    __slots__ = ()

    def _about(self) -> tuple[str, int | None]:
        """Return the table's URI and the version."""
        raise NotImplementedError

    def error(self, kind: type[ErrorT], message: str, **more: Any) -> ErrorT:
        """Return an error about this table and version.

        :param more: further arguments of that kind of error; ``version`` if it is about another version.
        """
        table, version = self._about()
        return kind(message, **{"table": table, "version": version, **more})


class TableRead(Subject):
    """A table at the version that a transaction reads."""

    __slots__ = ()

    table: str
    read_version: int

    def _about(self) -> tuple[str, int | None]:
        return self.table, self.read_version


# -- invalid requests ---------------------------------------------------------------------------------------------------------


class DeltaIllegalArgumentException(DeltaError, ValueError):
    """An argument is not valid: an option, an identifier or a combination."""

    error_class = "DELTA_ILLEGAL_ARGUMENT"


class DeltaAnalysisException(DeltaError, ValueError):
    """A schema, a predicate or a metadata change does not fit the table."""

    error_class = "DELTA_ANALYSIS"


class ReadLimitException(DeltaError):
    """A request would read more bytes or rows than allowed, for example by the pages in Airflow's UI."""

    error_class = "DELTA_READ_LIMIT_EXCEEDED"


class DeltaTableNotFoundException(DeltaAnalysisException):
    """The location holds no Delta table (no ``_delta_log`` with a commit or a checkpoint)."""

    error_class = "DELTA_MISSING_DELTA_TABLE"


class DeltaTableAlreadyExistsException(DeltaAnalysisException):
    """A table cannot be created because it exists (Spark: TABLE_OR_VIEW_ALREADY_EXISTS)."""

    error_class = "TABLE_OR_VIEW_ALREADY_EXISTS"


class NonEmptyLocationException(DeltaAnalysisException):
    """A table cannot be created because there are other files at its location."""

    error_class = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"


class LocationNotWritableException(DeltaError, OSError):
    """A directory of the table cannot be created: a part of the path is missing or a file, or this user may not write there."""

    error_class = "DELTA_LOCATION_NOT_WRITABLE"


class CredentialsUnavailableException(DeltaError, OSError):
    """The credentials of a connection could not be fetched now: who is asked for them did not answer, or not in time."""

    error_class = "DELTA_CREDENTIALS_UNAVAILABLE"


class SchemaMismatchException(DeltaAnalysisException):
    """Data to be written does not match the table's schema (Delta: DELTA_METADATA_MISMATCH)."""

    error_class = "DELTA_METADATA_MISMATCH"


class SchemaDriftException(SchemaMismatchException):
    """The schema of new rows is not the expected one, and the write is strict (``schema_policy="strict"``).

    :param differences: JSON forms of :class:`airflow_delta.contract.drift.SchemaDifference`.
    """

    error_class = "DELTA_SCHEMA_DRIFT"

    def __init__(
        self,
        message: str,
        *,
        differences: Sequence[Mapping[str, Any]] = (),
        table: str | None = None,
        version: int | None = None,
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.differences = tuple(dict(difference) for difference in differences)


class PredicateException(DeltaAnalysisException):
    """A predicate does not parse, or refers to a column that the table does not have."""

    error_class = "DELTA_INVALID_PREDICATE"


class ReplaceWhereMismatchException(DeltaAnalysisException):
    """Rows to be written do not satisfy the ``replaceWhere`` predicate."""

    error_class = "DELTA_REPLACE_WHERE_MISMATCH"


class VacuumRetentionPeriodTooShortException(DeltaIllegalArgumentException):
    """VACUUM was asked to delete files that are younger than the table's retention period."""

    error_class = "DELTA_VACUUM_RETENTION_PERIOD_TOO_SHORT"


class DeltaUnsupportedOperationException(DeltaError):
    """The operation is not possible on a table with these features."""

    error_class = "DELTA_UNSUPPORTED_OPERATION"


class ConditionalPutException(DeltaUnsupportedOperationException):
    """The store overwrites an object that a conditional put must not touch, so commits to it could be lost."""

    error_class = "DELTA_CONDITIONAL_PUT_NOT_SUPPORTED"


class MissingSparkException(DeltaUnsupportedOperationException):
    """The work needs Spark in this process, and PySpark is not installed here, or only its client, or there is no Java."""

    error_class = "DELTA_SPARK_MISSING"


class SparkStorageException(DeltaUnsupportedOperationException):
    """Spark cannot reach the table's store as it is set up."""

    error_class = "DELTA_SPARK_STORAGE"


class MissingSparkConnectorException(SparkStorageException):
    """Spark has no connector for the table's store: a JAR is missing, or the scheme is one that it does not know."""

    error_class = "DELTA_SPARK_CONNECTOR_MISSING"


class SparkCredentialsException(SparkStorageException):
    """Spark has no credentials for the table's store, or the store refuses them."""

    error_class = "DELTA_SPARK_CREDENTIALS"


class SparkVersionException(DeltaUnsupportedOperationException):
    """Driver and cluster are of different versions of Spark or Python, and cannot work together."""

    error_class = "DELTA_SPARK_VERSION_MISMATCH"


class SparkJobException(DeltaError, RuntimeError):
    """Spark's work failed: a query of the author, data that it cannot handle, or Spark itself.

    :param condition: Spark's name of the error, such as ``UNRESOLVED_COLUMN.WITH_SUGGESTION``.
    """

    error_class = "DELTA_SPARK_JOB_FAILED"

    def __init__(
        self, message: str, *, condition: str | None = None, table: str | None = None, version: int | None = None
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.condition = condition


class InvariantViolationException(DeltaError, ValueError):
    """A row breaks a NOT NULL column or another invariant of the table."""

    error_class = "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"


class ConstraintViolationException(InvariantViolationException):
    """A row breaks a CHECK constraint, an invariant, or the expression of a generated column."""

    error_class = "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"


class CharVarcharLimitException(InvariantViolationException):
    """A string is longer than its ``char(n)`` or ``varchar(n)`` column allows."""

    error_class = "DELTA_EXCEED_CHAR_VARCHAR_LIMIT"


class IdentityInsertException(DeltaAnalysisException):
    """Rows have values for an identity column that only the table may assign (``GENERATED ALWAYS``)."""

    error_class = "DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED"


class AppendOnlyException(DeltaError):
    """A commit would delete data from a table with ``delta.appendOnly=true``."""

    error_class = "DELTA_CANNOT_MODIFY_APPEND_ONLY"


# -- state of the table -------------------------------------------------------------------------------------------------------


class InvalidProtocolVersionException(DeltaError):
    """The table needs a reader or writer version that this provider does not support."""

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
    """A path leads out of the table, or might: through a symbolic link, by ``..``, or to something that is not a file."""

    error_class = "DELTA_PATH_OUTSIDE_TABLE"


class RowIdAssignmentWithoutStatsException(DeltaIllegalStateException):
    """A file of a table with row tracking has no row count, so it cannot get row ids."""

    error_class = "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS"


class FeatureDropConflictException(DeltaIllegalStateException):
    """A commit drops a table feature that the table has started to use again meanwhile."""

    error_class = "DELTA_FEATURE_DROP_CONFLICT_REVALIDATION_FAIL"


class MissingCommitInfoException(DeltaIllegalStateException):
    """A commit of a table with in-commit timestamps has no ``commitInfo``."""

    error_class = "DELTA_MISSING_COMMIT_INFO"


class MissingCommitTimestampException(DeltaIllegalStateException):
    """A commit of a table with in-commit timestamps has a ``commitInfo`` without timestamp."""

    error_class = "DELTA_MISSING_COMMIT_TIMESTAMP"


class InvalidCommittedVersionException(DeltaIllegalStateException):
    """The commit was written and is valid, but a listing of the log does not show it."""

    error_class = "DELTA_INVALID_COMMITTED_VERSION"


class DeltaDuplicateActionsException(DeltaIllegalStateException):
    """One commit adds a file twice, removes it twice, or both adds and removes it."""

    error_class = "DELTA_DUPLICATE_ACTIONS_FOUND"


class DeltaDuplicateDomainException(DeltaIllegalStateException):
    """One commit sets a metadata domain twice."""

    error_class = "DELTA_DUPLICATE_DOMAIN_METADATA_INTERNAL_ERROR"


class DeltaLogCorruptedException(DeltaIllegalStateException):
    """The log cannot be read: malformed JSON, a truncated checkpoint, no protocol or metadata."""

    error_class = "DELTA_LOG_CORRUPTED"


class RowCountMismatchException(DeltaIllegalStateException):
    """A data file has another number of rows than the log says (``numRecords``), so no row of it is rewritten."""

    error_class = "DELTA_ROW_COUNT_MISMATCH"


class DeltaChecksumMismatchException(DeltaLogCorruptedException):
    """A version's checksum file does not match the state in its log.

    :param mismatches: for every field that differs, the value in the checksum and the value in the log.
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
    """The requested version is not in the log: it was cleaned up, or never written.

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
    """A file listed in the log or in a staged write does not exist."""

    error_class = "DELTA_FILE_NOT_FOUND"


class ForkedProcessException(DeltaIllegalStateException):
    """A forked child inherited an object-store runtime that its parent had used; it would hang for ever."""

    error_class = "DELTA_FORKED_PROCESS"


# -- conflicts with other commits ---------------------------------------------------------------------------------------------


class DeltaConcurrentModificationException(DeltaError):
    """A concurrent commit conflicts with this transaction, which cannot be committed any more.

    :param winning_version: version of the conflicting commit.
    :param winning_commit: its ``commitInfo`` as a mapping with Delta's field names, if it has one.
    :param partition: partition of the conflicting file as ``[col=value, ...]``, if there is one.
    :param partition_values: that partition as serialised values by column name.
    :param table_name: name of the table, else ``delta.`uri```.
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


# -- outcome of the commit ----------------------------------------------------------------------------------------------------


class MaxCommitRetriesExceededException(DeltaIllegalStateException):
    """The commit lost the race for a version more often, or for longer, than allowed. Nothing was written."""

    error_class = "DELTA_MAX_COMMIT_RETRIES_EXCEEDED"


class CommitStateUnknownException(DeltaError):
    """The store did not say whether the commit was written, and reading the log did not settle it. Do not clean up."""

    error_class = "DELTA_COMMIT_STATE_UNKNOWN"


class CommitCancelledException(DeltaError):
    """The task was asked to stop before it wrote the commit. Nothing was written."""

    error_class = "DELTA_COMMIT_CANCELLED"


class DeltaAssertionError(DeltaIllegalStateException, AssertionError):
    """A transaction was used in the wrong way (committed twice, metadata changed twice): a bug in the calling code."""

    error_class = "DELTA_ASSERTION"


class PostCommitHookFailedException(DeltaError):
    """A post-commit hook failed. The commit itself is valid.

    :param hook: name of the hook.
    """

    error_class = "DELTA_POST_COMMIT_HOOK_FAILED"

    def __init__(self, message: str, *, hook: str = "", table: str | None = None, version: int | None = None) -> None:
        super().__init__(message, table=table, version=version)
        self.hook = hook


# -- payloads between tasks ---------------------------------------------------------------------------------------------------


class StagingException(DeltaError):
    """A payload or a file between start and commit violates the contract."""

    error_class = "DELTA_STAGING"


class ContractVersionException(StagingException):
    """A payload has another contract version."""

    error_class = "DELTA_STAGING_CONTRACT"


class HandleMismatchException(StagingException):
    """A transaction handle does not match the Dag file or the log: another table, key or commit."""

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


class StageFailedException(DeltaError):
    """A stage failed on the cluster with an error that is none of Delta's, such as one of Spark."""

    error_class = "DELTA_STAGE_FAILED"


class MissingStageException(StagingException):
    """A stage that the commit expects has no result."""

    error_class = "DELTA_STAGING_MISSING"


class UpstreamFailedException(StagingException):
    """A task between start and commit failed or has not ended, so nothing is published."""

    error_class = "DELTA_UPSTREAM_FAILED"


class StageConflictException(StagingException):
    """Two stages of a transaction contradict each other (both rewrite a file, or a partition)."""

    error_class = "DELTA_STAGING_CONFLICT"


class DeltaAuditFailedException(DeltaError):
    """The staged writes of a transaction failed their audit. Nothing is published.

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
    """It is no longer known whether a transaction was committed: keys and log entries of its time have expired."""

    error_class = "DELTA_TRANSACTION_EXPIRED"


# -- publications of several tables -------------------------------------------------------------------------------------------


class PublicationPendingException(DeltaError):
    """A publication of several tables is under way and could not be settled yet. Nothing is lost: run the task again.

    :param publication: its id.
    :param tables: URIs of its tables, the anchor first.
    """

    error_class = "DELTA_PUBLICATION_PENDING"

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        version: int | None = None,
        publication: str = "",
        tables: Sequence[str] = (),
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.publication = publication
        self.tables = tuple(masked(uri) for uri in tables)


class PublicationUndoneException(DeltaConcurrentModificationException):
    """A publication was taken back on every table, since another commit came between the decision and its turn on one of them.

    ``table``, ``winning_version`` and ``winning_commit`` are of that commit.

    :param publication: id of the publication.
    :param dirty_reads: commits that may have been built on rows before they were taken back: table, version and operation.
    """

    error_class = "DELTA_PUBLICATION_UNDONE"

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        winning_version: int | None = None,
        winning_commit: Mapping[str, Any] | None = None,
        publication: str = "",
        dirty_reads: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message, table=table, winning_version=winning_version, winning_commit=winning_commit)
        self.publication = publication
        self.dirty_reads = tuple(dirty_reads)


class PublicationSplitException(DeltaIllegalStateException):
    """A publication is on some of its tables only, for good: it could not be completed, nor taken back. A person must decide.

    :param publication: its id.
    :param published: URIs of the tables that show it.
    :param missing: URIs of the tables that do not.
    """

    error_class = "DELTA_PUBLICATION_SPLIT"

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        version: int | None = None,
        publication: str = "",
        published: Sequence[str] = (),
        missing: Sequence[str] = (),
    ) -> None:
        super().__init__(message, table=table, version=version)
        self.publication = publication
        self.published = tuple(masked(uri) for uri in published)
        self.missing = tuple(masked(uri) for uri in missing)
