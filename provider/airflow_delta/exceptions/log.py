"""Errors of a log: what is damaged, contradicts itself, or is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions.base import (
    DeltaError,
    DeltaIllegalStateException,
)

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


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
