"""Errors of requests, and of rows and tables that do not allow them. They are independent of each other but for their kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions.base import (
    DeltaAnalysisException,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
)

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


# -- invalid requests ---------------------------------------------------------------------------------------------------------


class DeltaDagWarning(UserWarning):
    """Something in a Dag file works, and may not be what its author means."""


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


class RowIdAssignmentWithoutStatsException(DeltaIllegalStateException):
    """A file of a table with row tracking has no row count, so it cannot get row ids."""

    error_class = "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS"
