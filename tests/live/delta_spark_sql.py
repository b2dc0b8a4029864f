"""Another engine, in a process of its own: run statements with Delta Spark."""

from __future__ import annotations

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from support.delta_jars import EXTENSIONS, one_at_a_time
from support.programs import pyspark_environment

CONFIGURATION = {
    **EXTENSIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def main(statements: list[str]) -> None:
    os.environ.update(pyspark_environment())
    builder = SparkSession.builder.master("local[1]").appName("another-engine")
    for key, value in CONFIGURATION.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryDirectory() as scratch:
        builder = builder.config("spark.sql.warehouse.dir", f"{scratch}/warehouse").config("spark.local.dir", scratch)
        with one_at_a_time():
            session = builder.getOrCreate()
        for statement in statements:
            session.sql(statement).collect()
        session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
