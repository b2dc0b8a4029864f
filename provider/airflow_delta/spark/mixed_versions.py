"""Errors of a Spark whose parts do not fit together: driver and cluster, or their Pythons, of different versions."""

from __future__ import annotations

import re
import sys

from airflow_delta.exceptions import DeltaError, SparkVersionException

_PYTHON = re.compile(
    r"PYTHON_VERSION_MISMATCH[^\n]*|Cannot run program \"[^\"]*python[^\"]*\"[^\n]*|PYSPARK_PYTHON[^\n]* No such file[^\n]*"
)
_SPARK = re.compile(r"InvalidClassException: \S+; local class incompatible[^\n]*")
_LONGEST = 300


def version_error(error: BaseException | str, uri: str = "") -> SparkVersionException | None:
    """Return the typed error if the parts of Spark do not fit together; ``None`` for any other error.

    :param uri: the table's location for Spark.
    """
    if isinstance(error, DeltaError):
        return None
    text = str(error)
    if found := _PYTHON.search(text):
        return SparkVersionException(
            f"Python code cannot run on Spark's executors: {found[0][:_LONGEST]}. Their Python has to be of the driver's minor "
            f"version ({sys.version_info.major}.{sys.version_info.minor} here): install it there and name it with "
            "PYSPARK_PYTHON or spark.pyspark.python. See docs/how-to/cluster.md.",
            table=uri or None,
        )
    if found := _SPARK.search(text):
        return SparkVersionException(
            f"The driver's Spark is not the cluster's: {found[0][:_LONGEST]}. Submit with the cluster's own spark-submit, or "
            "install its version of PySpark. See docs/how-to/cluster.md.",
            table=uri or None,
        )
    return None
