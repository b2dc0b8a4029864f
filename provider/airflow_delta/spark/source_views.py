"""The tables that SQL of a request reads, as temporary views of the session while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.contract.request import StageRequest
from airflow_delta.spark.read import read_scan_plan

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession


@contextmanager
def temporary_views(spark: SparkSession, plans: Mapping[str, ScanPlan]) -> Iterator[None]:
    """Make views, in place of views of the same names, and drop them at the end.

    :param plans: what to read, by name of the view.
    """
    made: list[str] = []
    try:
        for name, plan in plans.items():
            read_scan_plan(spark, plan).createOrReplaceTempView(name)
            made.append(name)
        yield
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def source_views(spark: SparkSession, request: StageRequest) -> AbstractContextManager[None]:
    """Make the views of a request for the SQL of its source."""
    new_rows = {source.view: source.scan for source in request.sources if source.view is not None}
    return temporary_views(spark, {**new_rows, **{view.name: view.scan for view in request.views}})
