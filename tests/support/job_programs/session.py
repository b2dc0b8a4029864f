"""A session that runs one program after the other, as those of Livy, Databricks and Glue do: a line of JSON each, on stdin."""

from __future__ import annotations

import json
import platform
import runpy
import sys
import traceback

from pyspark.sql import SparkSession

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").appName("airflow-delta-jobs").getOrCreate()
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
    print(f"job: Spark {spark.version}, Python {platform.python_version()}, Java {java}", flush=True)
    for line in sys.stdin:
        number, *sys.argv = json.loads(line)
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            print(f"job {number}: done", flush=True)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print(f"job {number}: failed", flush=True)
    spark.stop()
