"""Errors of a table's protocol: versions and features that are not supported, or cannot be changed so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.exceptions.base import (
    DeltaError,
    DeltaIllegalStateException,
)

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


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


class FeatureDropConflictException(DeltaIllegalStateException):
    """A commit drops a table feature that the table has started to use again meanwhile."""

    error_class = "DELTA_FEATURE_DROP_CONFLICT_REVALIDATION_FAIL"
    retry = "refused"


class FeatureDropWaitException(DeltaIllegalStateException):
    """A table feature can only be dropped once the versions that use it have left the log."""

    error_class = "DELTA_FEATURE_DROP_WAIT_FOR_RETENTION_PERIOD"
