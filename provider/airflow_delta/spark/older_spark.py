"""What PySpark 3.5 lacks of PySpark 4's interface, by other means; most services still run it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import inheritable_thread_target
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from airflow_delta.contract.spark_versions import check_request, check_scan
from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from airflow_delta.contract.payloads import ScanPlan
    from airflow_delta.contract.request import StageRequest

IS_OLDER = int(pyspark.__version__.split(".")[0]) < 4
"""Whether this is PySpark 3.5."""

METADATA = "_metadata"


_OF_VALUES = r"org\.apache\.spark\.Spark(?:Arithmetic|ArrayIndexOutOfBounds|DateTime|NumberFormat)Exception: ([^\n]*)"


def check_work(request: StageRequest) -> None:
    """Refuse the work of a request that this Spark cannot do.

    :raises SparkVersionException: if the table has a variant, or files to read are from before a type was widened.
    """
    if IS_OLDER:
        check_request(pyspark.__version__, request)


def check_plan(plan: ScanPlan) -> None:
    """Refuse a scan that this Spark cannot do.

    :raises SparkVersionException: if there is a variant, or a column whose type was widened.
    """
    if IS_OLDER:
        check_scan(pyspark.__version__, plan)


def error_of_values(error: BaseException) -> str | None:
    """Return what Spark 3.5 says of values that a query cannot compute, such as a division by zero; ``None`` of all else.

    There the error of a task is one of the gateway; Spark 4 raises the query's own.
    """
    found = re.search(_OF_VALUES, str(error)) if IS_OLDER else None
    return None if found is None else found[1]


def try_cast(column: Column, wanted: DataType) -> Column:
    """Return a column as another atomic type, null where a value does not fit, whatever the session's ANSI setting."""
    if not IS_OLDER:
        return column.try_cast(wanted)
    # Only Spark 3.5's SQL has it, where a column without a name is the argument of a lambda function.
    cast = sf.expr(f"x -> try_cast(x AS {wanted.simpleString()})")
    return sf.call_function("transform", sf.array(column), cast).getItem(0)


def metadata_column(df: DataFrame) -> Column:
    """Return the column ``_metadata`` of files, also if a column of the table has that name.

    :raises DeltaIllegalArgumentException: if one has, on Spark Connect 3.5, which cannot tell them apart.
    """
    if not IS_OLDER:
        return df.metadataColumn(METADATA)
    if hasattr(df, "_jdf"):
        return Column(df._jdf.metadataColumn(METADATA))
    if METADATA in (name.lower() for name in df.columns):
        raise DeltaIllegalArgumentException(
            f"Spark Connect {pyspark.__version__} cannot read files with a column {METADATA}. Run this stage without Connect, or "
            "on Spark 4."
        )
    return sf.col(METADATA)


def after_epoch(micros: str) -> str:
    """Return SQL for the time without a zone that is so many microseconds after 1970.

    :param micros: SQL of a BIGINT.
    """
    epoch = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
    if not IS_OLDER:
        return f"timestampadd(MICROSECOND, {micros}, {epoch})"
    # There, it adds an INT: 35 minutes at most.
    return f"({epoch} + make_dt_interval(0, 0, 0, CAST(CAST({micros} AS DECIMAL(20, 0)) / 1000000 AS DECIMAL(18, 6))))"


def rebalance(df: DataFrame, columns: Sequence[Any]) -> DataFrame:
    """Return the rows in tasks that each write few files: those of a partition together, split if they are many.

    On Spark Connect 3.5 they are not split.
    """
    if not IS_OLDER:
        return df.hint("rebalance", *columns)
    if not hasattr(df, "_jdf"):
        return df.repartition(*columns) if columns else df
    java: Any = df.sparkSession.sparkContext._jvm
    parameters = java.PythonUtils.toSeq([column._jc.expr() for column in columns])
    return DataFrame(df._jdf.hint("rebalance", parameters), df.sparkSession)


def thread_target(spark: SparkSession, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for another thread whose jobs keep the properties of this thread's.

    On Spark Connect 3.5 they do not keep them.
    """
    if not IS_OLDER:
        wrapped: Callable[..., Any] = inheritable_thread_target(spark)(work)
        return wrapped
    return inheritable_thread_target(work) if hasattr(spark, "_jsparkSession") else work
