"""Errors of Spark: what it lacks, cannot reach, or failed at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.exceptions.base import (
    DeltaError,
    DeltaUnsupportedOperationException,
)

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


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
