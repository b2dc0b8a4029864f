"""Optimised writes: the rows are shuffled before they are written, so that files come out near a target size.

Without, every task of the last step writes a file for each partition it has rows of. Adaptive execution joins and splits the
partitions of a ``REBALANCE`` by what the rows weigh when they arrive, so there is nothing to estimate beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_delta.spark.align import quoted
from airflow_delta.spark.conf import session_settings
from airflow_delta.staging.report import StageRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARGUMENT = "optimizeWrite"
"""Argument of a request: bytes of shuffled rows that go into one file."""


def rebalanced(df: DataFrame, request: StageRequest, partitions: Sequence[str]) -> DataFrame:
    """Return the rows in tasks that each write few files, where the request asks for it.

    :param partitions: partition columns: the rows of a partition come together, split where they are more than a file holds.
    """
    if ARGUMENT not in request.arguments:
        return df
    from pyspark.sql import functions as sf

    return df.hint("rebalance", *[sf.col(quoted(name)) for name in partitions])


@contextmanager
def file_sizes(spark: SparkSession, request: StageRequest) -> Iterator[None]:
    """Set the session up so that adaptive execution gives each task the bytes of one file."""
    size = request.arguments.get(ARGUMENT)
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
