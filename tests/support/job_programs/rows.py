"""A program of an author's: the rows of some SQL, to write, or as the source of the task's operation."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.addPyFile(sys.argv[sys.argv.index("--delta-package") + 1])

from airflow_delta.spark import delta_stage  # noqa: E402 - after the line above

stage, rows = delta_stage(spark), spark.sql(sys.argv[sys.argv.index("--sql") + 1])
stage.write(rows) if "--write" in sys.argv else stage.run(rows)
