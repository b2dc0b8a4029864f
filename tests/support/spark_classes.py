"""Make an archive of the classes that Spark loads: a JVM that maps it starts on less than half the processor time.

    python tests/support/spark_classes.py ARCHIVE

Where Java cannot make one, the file is empty: JVMs ignore it, as they do with the archive of another Java.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def load_classes(directory: Path) -> None:
    """Do a little of what the tests do with Spark."""
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as sf

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.range(100).select("id", (sf.col("id") % 3).alias("key"), sf.col("id").cast("string").alias("text"))
    rows.write.partitionBy("key").parquet(str(directory / "rows"))
    written = spark.read.schema(rows.schema).parquet(str(directory / "rows"))
    order = Window.partitionBy("key").orderBy("id")
    counted = written.where("text > '1'").withColumn("before", sf.lag("id").over(order)).groupBy("key").agg(sf.max("before"))
    written.join(counted, "key", "left").join(spark.createDataFrame([(1, "a")], "key LONG, name STRING"), "key").collect()
    spark.stop()


def main(archive: Path) -> None:
    draft = archive.with_name(f"{archive.name}.{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={draft}"
    with tempfile.TemporaryDirectory() as directory:
        load_classes(Path(directory))
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    draft.touch()
    draft.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
