"""Optimised writes: rows are shuffled first, so that files come out near a target size.

Otherwise every task writes a file for each partition of its rows. Adaptive execution merges and splits the partitions of a
``REBALANCE`` by their actual size, so that nothing has to be estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.spark.align import spark_name
from airflow_delta.spark.older_spark import rebalance
from airflow_delta.spark.session_settings import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rebalanced(df: DataFrame, size: int | None, partitions: Sequence[str]) -> DataFrame:
    """Return the rows in tasks that each write few files.

    :param size: ``optimize_write`` of the request; ``None``: leave the rows as they are.
    :param partitions: partition columns: the rows of a partition come together, split if they are more than a file holds.
    """
    if size is None:
        return df
    return rebalance(df, [sf.col(spark_name(name)) for name in partitions])


@contextmanager
def file_sizes(spark: SparkSession, size: int | None) -> Iterator[None]:
    """Set the session up so that adaptive execution gives each task the bytes of one file.

    :param size: ``optimize_write`` of the request; ``None``: leave the session as it is.
    """
    if size is None:
        yield
        return
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": f"{size}b",
    }
    with session_settings(spark, settings):
        yield
