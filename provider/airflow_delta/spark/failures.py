"""What Spark's errors mean, where its author can do something about it: typed errors that say what."""

from __future__ import annotations

from airflow_delta.exceptions import DeltaError
from airflow_delta.spark.connectors import storage_error
from airflow_delta.spark.mixed_versions import version_error
from airflow_delta.spark.useful_lines import spark_job_error


def typed_error(error: BaseException | str, uri: str = "") -> DeltaError | None:
    """Return the typed error if Spark cannot work as it is set up, or has failed; ``None`` for any other error.

    :param uri: the table's location for Spark.
    """
    known = storage_error(error, uri) or version_error(error, uri)
    return known if known is not None or isinstance(error, str) else spark_job_error(error, uri)
