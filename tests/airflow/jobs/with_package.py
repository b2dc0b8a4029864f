"""A program that gets the provider's modules by its arguments: it adds ten rows to what the table has."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.addPyFile(sys.argv[sys.argv.index("--delta-package") + 1])

from airflow_delta.spark import delta_stage  # noqa: E402 - after the line above

stage = delta_stage(spark)
stage.write(stage.read().selectExpr("id + 10 AS id", "v"))
