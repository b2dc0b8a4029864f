"""Spark jobs that run side by side, from threads of one driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_thread(spark: SparkSession, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for one other thread: its jobs keep the group, the pool and the tags of this thread's jobs.

    So they end with them: when a streaming query is stopped, or a group of jobs is cancelled.

    :param work: what the thread does. Wrap it anew for each thread: one copy of the properties is shared by all calls.
    """
    from pyspark import inheritable_thread_target

    wrapped: Callable[..., Any] = inheritable_thread_target(spark)(work)
    return wrapped
