"""Optimised writes: rows are shuffled first, so that files come out near a target size.

Otherwise every task writes a file for each partition of its rows. Adaptive execution merges and splits the partitions of a
``REBALANCE`` by their actual size, so that nothing has to be estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_delta.spark.align import quoted
from airflow_delta.spark.conf import session_settings
from airflow_delta.staging.report import StageRequest
from airflow_delta.staging.write import WriteArguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rebalanced(df: DataFrame, request: StageRequest, partitions: Sequence[str]) -> DataFrame:
    """Return the rows in tasks that each write few files, if the request asks for it.

    :param partitions: partition columns: the rows of a partition come together, split if they are more than a file holds.
    """
    if WriteArguments.of(request).optimize_write is None:
        return df
    from pyspark.sql import functions as sf

    return df.hint("rebalance", *[sf.col(quoted(name)) for name in partitions])


@contextmanager
def file_sizes(spark: SparkSession, request: StageRequest) -> Iterator[None]:
    """Set the session up so that adaptive execution gives each task the bytes of one file."""
    size = WriteArguments.of(request).optimize_write
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
