"""Errors between start and commit: payloads, staged files, stages and checks that do not fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.exceptions.base import DeltaError

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


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
