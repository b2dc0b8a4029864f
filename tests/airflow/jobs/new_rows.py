"""A Spark application that stages the new rows of another table."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from airflow_delta.spark import delta_stage

stage = delta_stage(SparkSession.builder.getOrCreate())
stage.write(stage.new_rows(sys.argv[1]))
