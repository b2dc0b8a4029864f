"""A query of an author on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.queries import check_query
from airflow_delta.spark.session_settings import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TAKEN_AS_WRITTEN = {"spark.sql.variable.substitute": "false"}


def run_query(spark: SparkSession, text: str, *, whose: str, parameters: Mapping[str, Any] | None = None) -> DataFrame:
    """Return the rows of a query of an author, or run a statement that prepares the session.

    :param whose: what the text is, for the message.
    """
    check_query(text, whose=whose)
    with session_settings(spark, _TAKEN_AS_WRITTEN):
        return spark.sql(text, args=dict(parameters)) if parameters else spark.sql(text)
