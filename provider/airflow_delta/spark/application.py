"""The Spark application of submitted operations: the request says what to do.

Submitted by the provider's operators with ``spark.airflow_delta.request`` set, or by hand with ``--delta-request``.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_delta.spark.job import delta_stage


def main() -> None:
    """Run the operation and write the report beside the staged files."""
    spark = SparkSession.builder.getOrCreate()
    try:
        delta_stage(spark).run()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
