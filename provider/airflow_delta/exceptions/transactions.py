"""Errors of transactions: conflicts, commits, what travels between tasks, and publications of several tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta.exceptions.base import DeltaError
from airflow_delta.exceptions.tables import DeltaIllegalStateException
from airflow_delta.masking import masked

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


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


# -- outcome of the commit ----------------------------------------------------------------------------------------------------


class MaxCommitRetriesExceededException(DeltaIllegalStateException):
    """The commit lost the race for a version more often, or for longer, than allowed. Nothing was written."""

    error_class = "DELTA_MAX_COMMIT_RETRIES_EXCEEDED"
    retry = "lost race"


class CommitStateUnknownException(DeltaError):
    """The store did not say whether the commit was written, and reading the log did not settle it. Do not clean up."""

    error_class = "DELTA_COMMIT_STATE_UNKNOWN"
    retry = "unknown"


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

    def __init__(self, message: str, *, hook: str = "", **about: Unpack[About]) -> None:
        super().__init__(message, **about)
        self.hook = hook


# -- payloads between tasks ---------------------------------------------------------------------------------------------------


class StagingException(DeltaError):
    """A payload or a file between start and commit violates the contract."""

    error_class = "DELTA_STAGING"
    retry = "refused"
    refuses_publication = True
    may_be_wrong_answer = True


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
    """A stage failed on the cluster with an error that is not one of Delta's, such as one of Spark."""

    error_class = "DELTA_STAGE_FAILED"


class MissingStageException(StagingException):
    """A stage that the commit expects has no result."""

    error_class = "DELTA_STAGING_MISSING"


class UpstreamFailedException(StagingException):
    """A task between start and commit failed or has not ended, so nothing is published."""

    error_class = "DELTA_UPSTREAM_FAILED"


class ChecksOutdatedException(StagingException):
    """A task between start and commit has not seen what would be published, so nothing is.

    A stage has run again since, or others have changed rows that a check has read, and that must hold for them.

    :param checks: the task instances, by task id and map index (-1 if it is not mapped).
    """

    error_class = "DELTA_CHECKS_OUTDATED"

    def __init__(self, message: str, *, checks: tuple[tuple[str, int], ...] = (), **about: Unpack[About]) -> None:
        super().__init__(message, **about)
        self.checks = checks


class StageConflictException(StagingException):
    """Two stages of a transaction contradict each other (both rewrite a file, or a partition)."""

    error_class = "DELTA_STAGING_CONFLICT"


class DeltaAuditFailedException(DeltaError):
    """The staged writes of a transaction failed their audit. Nothing is published.

    :param failed: names of the checks that failed.
    """

    error_class = "DELTA_AUDIT_FAILED"
    retry = "audit"
    refuses_publication = True

    def __init__(self, message: str, *, failed: tuple[str, ...] = (), **about: Unpack[About]) -> None:
        super().__init__(message, **about)
        self.failed = failed


class TransactionAbortedException(StagingException):
    """The transaction was aborted; its staged files may be gone."""

    error_class = "DELTA_TRANSACTION_ABORTED"


class TransactionAlreadyCommittedException(DeltaIllegalStateException):
    """The transaction key is already in the log, and the rerun policy (or the state of the table) does not allow a rerun."""

    error_class = "DELTA_TRANSACTION_ALREADY_COMMITTED"
    retry = "refused"


class TransactionExpiredException(DeltaIllegalStateException):
    """It is no longer known whether a transaction was committed: keys and log entries of its time have expired."""

    error_class = "DELTA_TRANSACTION_EXPIRED"
    retry = "refused"


# -- publications of several tables -------------------------------------------------------------------------------------------


class _PublicationError(DeltaError):
    """Has the publication's id, and what the error lists; URIs are masked."""

    listed: ClassVar[tuple[str, ...]]

    def __init__(self, message: str, *, publication: str = "", **more: Any) -> None:
        lists = {name: more.pop(name, ()) for name in self.listed}
        super().__init__(message, **more)
        self.publication = publication
        for name, items in lists.items():
            setattr(self, name, tuple(masked(item) if isinstance(item, str) else item for item in items))


class PublicationPendingException(_PublicationError):
    """A publication of several tables is under way and could not be settled yet. Nothing is lost: run the task again.

    :param publication: its id.
    :param tables: URIs of its tables, the anchor first.
    """

    error_class = "DELTA_PUBLICATION_PENDING"
    listed = ("tables",)
    tables: tuple[str, ...]


class PublicationUndoneException(_PublicationError, DeltaConcurrentModificationException):
    """A publication was taken back on every table, since another commit came between the decision and its turn on one of them.

    ``table``, ``winning_version`` and ``winning_commit`` are of that commit.

    :param publication: id of the publication.
    :param dirty_reads: commits that may have been built on rows before they were taken back: table, version and operation.
    """

    error_class = "DELTA_PUBLICATION_UNDONE"
    listed = ("dirty_reads",)
    dirty_reads: tuple[Mapping[str, Any], ...]


class PublicationSplitException(_PublicationError, DeltaIllegalStateException):
    """A publication is on some of its tables only, for good: it could not be completed, nor taken back. A person must decide.

    :param publication: its id.
    :param published: URIs of the tables that show it.
    :param missing: URIs of the tables that do not.
    """

    error_class = "DELTA_PUBLICATION_SPLIT"
    retry = "refused"
    listed = ("published", "missing")
    published: tuple[str, ...]
    missing: tuple[str, ...]
