"""Errors of requests, and of tables that do not allow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions.base import DeltaError

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


# -- invalid requests ---------------------------------------------------------------------------------------------------------


class DeltaDagWarning(UserWarning):
    """Something in a Dag file works, and may not be what its author means."""


class DeltaIllegalArgumentException(DeltaError, ValueError):
    """An argument is not valid: an option, an identifier or a combination."""

    error_class = "DELTA_ILLEGAL_ARGUMENT"
    retry = "refused"


class DeltaAnalysisException(DeltaError, ValueError):
    """A schema, a predicate or a metadata change does not fit the table."""

    error_class = "DELTA_ANALYSIS"
    retry = "refused"
    refuses_publication = True


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

    def __init__(self, message: str, *, differences: Sequence[Mapping[str, Any]] = (), **about: Unpack[About]) -> None:
        super().__init__(message, **about)
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
    retry = "refused"
    refuses_publication = True


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

    def __init__(self, message: str, *, condition: str | None = None, **about: Unpack[About]) -> None:
        super().__init__(message, **about)
        self.condition = condition


class InvariantViolationException(DeltaError, ValueError):
    """A row breaks a NOT NULL column or another invariant of the table."""

    error_class = "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"
    retry = "refused"


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
    retry = "refused"
    refuses_publication = True


# -- state of the table -------------------------------------------------------------------------------------------------------


class InvalidProtocolVersionException(DeltaError):
    """The table needs a reader or writer version that this provider does not support."""

    error_class = "DELTA_INVALID_PROTOCOL_VERSION"
    retry = "refused"
    refuses_publication = True


class DeltaUnsupportedTableFeatureException(DeltaError):
    """The table lists features that this provider does not support.

    :param features: names of the features, as the protocol spells them.
    """

    error_class = "DELTA_UNSUPPORTED_FEATURES"
    retry = "refused"
    refuses_publication = True

    def __init__(self, message: str, *, features: tuple[str, ...] = (), **about: Unpack[About]) -> None:
        super().__init__(message, **about)
        self.features = features


class ProtocolDowngradeException(DeltaError):
    """A commit would lower the table's protocol."""

    error_class = "DELTA_INVALID_PROTOCOL_DOWNGRADE"
    retry = "refused"


class DeltaIllegalStateException(DeltaError, RuntimeError):
    """The table or the transaction is in a state that does not allow this."""

    error_class = "DELTA_ILLEGAL_STATE"


class PathOutsideTableException(DeltaIllegalStateException):
    """A path leads out of the table, or might: through a symbolic link, by ``..``, or to something that is not a file."""

    error_class = "DELTA_PATH_OUTSIDE_TABLE"
    retry = "refused"


class RowIdAssignmentWithoutStatsException(DeltaIllegalStateException):
    """A file of a table with row tracking has no row count, so it cannot get row ids."""

    error_class = "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS"


class FeatureDropConflictException(DeltaIllegalStateException):
    """A commit drops a table feature that the table has started to use again meanwhile."""

    error_class = "DELTA_FEATURE_DROP_CONFLICT_REVALIDATION_FAIL"
    retry = "refused"


class FeatureDropWaitException(DeltaIllegalStateException):
    """A table feature can only be dropped once the versions that use it have left the log."""

    error_class = "DELTA_FEATURE_DROP_WAIT_FOR_RETENTION_PERIOD"


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

    def __init__(self, message: str, *, mismatches: Mapping[str, tuple[Any, Any]] | None = None, **about: Unpack[About]) -> None:
        super().__init__(message, **about)
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
    retry = "refused"
    refuses_publication = True
    may_be_wrong_answer = True

    def __init__(self, message: str, *, earliest: int | None = None, latest: int | None = None, **about: Unpack[About]) -> None:
        super().__init__(message, **about)
        self.earliest = earliest
        self.latest = latest


class DeltaFileNotFoundException(DeltaError, LookupError):
    """A file listed in the log or in a staged write does not exist."""

    error_class = "DELTA_FILE_NOT_FOUND"
    refuses_publication = True
    may_be_wrong_answer = True


class ForkedProcessException(DeltaIllegalStateException):
    """A forked child inherited an object-store runtime that its parent had used; it would hang for ever."""

    error_class = "DELTA_FORKED_PROCESS"
