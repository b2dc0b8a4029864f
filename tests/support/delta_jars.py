"""Delta Spark's JARs, for the suites that start it.

They come from Maven Central through Spark's own ``spark.jars.packages``, into Ivy's cache: only the first run on a machine
needs the network.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Built for Spark 4.2 and Scala 2.13, as the pinned PySpark is."""

AVRO = "org.apache.spark:spark-avro_2.13:4.2.0"
"""Reads and writes files of Avro; of the pinned PySpark's version."""

EXTENSIONS = {
    "spark.jars.packages": DELTA,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What makes a session of Spark one of Delta Spark."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let the processes of one run resolve the JARs one after the other: Ivy's cache is not made for several writers."""
    with (Path(tempfile.gettempdir()) / "airflow-delta-tests-ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
