"""REORG on Spark: files are rewritten like those of an OPTIMIZE."""

from airflow_delta.spark.optimize import run

__all__ = ["run"]
