"""What Spark's errors mean, where its author can do something about it: typed errors that say what."""

from __future__ import annotations

import re

from airflow_delta.exceptions import DeltaError, LocationNotWritableException
from airflow_delta.spark.connectors import storage_error
from airflow_delta.spark.mixed_versions import version_error
from airflow_delta.spark.useful_lines import spark_job_error

_MKDIRS = re.compile(r"Mkdirs failed to create (\S+)")


def typed_error(error: BaseException | str, uri: str = "") -> DeltaError | None:
    """Return the typed error if Spark cannot work as it is set up, or has failed; ``None`` for any other error.

    :param uri: the table's location for Spark.
    """
    known = storage_error(error, uri) or _not_created(error, uri) or version_error(error, uri)
    return known if known is not None or isinstance(error, str) else spark_job_error(error, uri)


def _not_created(error: BaseException | str, uri: str) -> LocationNotWritableException | None:
    """Return the typed error if Hadoop could not create a directory, of which it does not say why."""
    if isinstance(error, DeltaError) or (found := _MKDIRS.search(str(error))) is None:
        return None
    return LocationNotWritableException(
        f"Spark cannot create the directory {found[1]}{f' of table {uri}' if uri else ''}. Check the path, that the file system "
        "is mounted where Spark runs, and that its user may write there.",
        table=uri or None,
    )
