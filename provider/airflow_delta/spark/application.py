"""The Spark application of submitted operations: the request says what to do.

Submitted by the provider's operators with ``spark.airflow_delta.request`` set, or by hand or any service with
``--delta-request URI``. With ``--delta-package URI`` this file is all that a cluster needs: it fetches the modules from there.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile

import pyspark
from pyspark.sql import SparkSession

PACKAGE_ARGUMENT = "--delta-package"
"""As in ``contract/options.py``, which is in the package."""


def main() -> None:
    """Run the operation and write the report beside the staged files."""
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (3, 5):
        sys.exit(f"This program needs Spark 3.5 or newer, and this is Spark {pyspark.__version__}.")
    # A service that made the session ends it, too.
    is_own = SparkSession.getActiveSession() is None
    spark = SparkSession.builder.getOrCreate()
    try:
        if PACKAGE_ARGUMENT in sys.argv[:-1]:
            add_package(spark, sys.argv[sys.argv.index(PACKAGE_ARGUMENT) + 1])
        from airflow_delta.spark.job import delta_stage

        delta_stage(spark).run()
    finally:
        if is_own:
            spark.stop()


def add_package(spark: SparkSession, uri: str) -> None:
    """Have this driver import the modules of a zip on storage, before any that are installed; executors need none."""
    literal = re.sub(r"([*?\[\]{}\\])", r"\\\1", uri)  # no pattern
    data = spark.read.format("binaryFile").load(literal).select("content").collect()[0][0]
    path = os.path.join(tempfile.mkdtemp(prefix="airflow-delta-"), "airflow_delta.zip")
    with open(path, "wb") as file:
        file.write(bytes(data))
    sys.path.insert(0, path)


if __name__ == "__main__":
    main()
