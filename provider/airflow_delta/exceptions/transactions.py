"""Errors of a transaction and its commit: not committed, not known, or ended before. They are independent of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.exceptions.base import DeltaError, DeltaIllegalStateException
from airflow_delta.exceptions.staging import StagingException

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


# -- conflicts with other commits ---------------------------------------------------------------------------------------------


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
