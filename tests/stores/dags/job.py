"""A Spark application of the cluster tests: ``job.py rows | changed | gated FILE | operation FILE``.

The first two stage rows. The others wait until the file exists: ``gated`` on the executors, before it stages rows; ``operation``
in the driver, before it runs the operation of the task.
"""

import os
import sys
import time

from pyspark.sql import SparkSession

from airflow_delta.spark import delta_stage

ROWS = "SELECT id, id * 10 AS v, id % 4 AS part FROM range(40)"


def wait(rows):
    """Say that the work has begun, and wait for the file."""
    open(f"{GATE}.{os.getpid()}.started", "w").close()
    until = time.monotonic() + 120
    while not os.path.exists(GATE) and time.monotonic() < until:
        time.sleep(0.1)
    return rows


if __name__ == "__main__":
    what = sys.argv[1]
    spark = SparkSession.builder.getOrCreate()
    stage = delta_stage(spark)
    if what == "rows":
        stage.write(spark.sql(ROWS))
    elif what == "changed":
        stage.write(stage.read().selectExpr("id", "v + 1 AS v", "part"))
    elif what == "operation":
        GATE = sys.argv[2]
        wait(None)
        stage.run()
    else:
        GATE = sys.argv[2]
        rows = spark.sql(ROWS).repartition(4)
        stage.write(spark.createDataFrame(rows.rdd.mapPartitions(wait), rows.schema))
    spark.stop()
