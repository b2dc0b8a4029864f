"""Spark application of the example ``delta_spark_submit``: computes the totals of a day and stages them.

Takes the day as its argument; which table, transaction and directory to write to is in the request that came with the job.
"""

import sys

from pyspark.sql import SparkSession

from airflow_delta.spark import delta_stage

if __name__ == "__main__":
    day = sys.argv[1]
    spark = SparkSession.builder.appName("daily_totals").getOrCreate()
    stage = delta_stage(spark)
    receipts = spark.range(1000).selectExpr("id % 7 AS store", "id AS cents")
    totals = receipts.groupBy("store").sum("cents").withColumnRenamed("sum(cents)", "cents")
    stage.write(totals.selectExpr(f"DATE'{day}' AS day", "*"))
    spark.stop()
