"""A Spark application whose rows do not fit the table: a column of another type."""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_delta.spark import delta_stage

spark = SparkSession.builder.getOrCreate()
delta_stage(spark).write(spark.sql("SELECT 'many' AS id"))
