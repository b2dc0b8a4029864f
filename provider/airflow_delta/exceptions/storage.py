"""Errors of a table's storage: places, credentials, and what a store cannot do."""

from __future__ import annotations

from airflow_delta.exceptions.base import (
    DeltaError,
    DeltaIllegalStateException,
    DeltaUnsupportedOperationException,
)


class LocationNotWritableException(DeltaError, OSError):
    """A directory of the table cannot be created: a part of the path is missing or a file, or this user may not write there."""

    error_class = "DELTA_LOCATION_NOT_WRITABLE"


class CredentialsUnavailableException(DeltaError, OSError):
    """The credentials of a connection could not be fetched now: who is asked for them did not answer, or not in time."""

    error_class = "DELTA_CREDENTIALS_UNAVAILABLE"


class ConditionalPutException(DeltaUnsupportedOperationException):
    """The store overwrites an object that a conditional put must not touch, so commits to it could be lost."""

    error_class = "DELTA_CONDITIONAL_PUT_NOT_SUPPORTED"


class PathOutsideTableException(DeltaIllegalStateException):
    """A path leads out of the table, or might: through a symbolic link, by ``..``, or to something that is not a file."""

    error_class = "DELTA_PATH_OUTSIDE_TABLE"
    retry = "refused"


class ForkedProcessException(DeltaIllegalStateException):
    """A forked child inherited an object-store runtime that its parent had used; it would hang for ever."""

    error_class = "DELTA_FORKED_PROCESS"
