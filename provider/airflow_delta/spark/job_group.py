"""Concurrent Spark jobs, from threads of one driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_delta.spark.older_spark import thread_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_job_group(spark: SparkSession, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for another thread: its jobs keep the group, pool and tags of this thread's jobs.

    So they end together if a streaming query is stopped or a group of jobs is cancelled.

    :param work: work of the thread. Wrap it for each thread: all calls share one copy of the properties.
    """
    return thread_target(spark, work)
