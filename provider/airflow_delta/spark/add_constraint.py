"""ADD CONSTRAINT and SET NOT NULL on Spark: check that no row violates the new rule. SYNC IDENTITY: find the furthest value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType

from airflow_delta.contract.operations import ConstraintArguments
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import (
    ConstraintViolationException,
    DeltaAnalysisException,
    InvariantViolationException,
    StagingException,
)
from airflow_delta.spark.align import spark_name, spark_value
from airflow_delta.spark.read import read_plan_files
from airflow_delta.spark.session_settings import WRITE_SETTINGS, session_settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def run(spark: SparkSession, request: StageRequest) -> StageReport:
    """Check every row of the planned files in one pass that reads only the columns of the rules.

    :raises ConstraintViolationException: if rows break a constraint; a null does, as in Delta.
    :raises InvariantViolationException: if a column that is to be NOT NULL is null.
    :raises DeltaAnalysisException: if an expression names no column of the table, or is not a condition.
    """
    if request.rewrite is None:
        raise StagingException(f"{request.operation} of stage {request.stage} was planned without files to check")
    arguments = ConstraintArguments.of(request)
    constraints, not_null = arguments.constraints, arguments.not_null
    with session_settings(spark, WRITE_SETTINGS):
        rows = read_plan_files(spark, request.rewrite, request.rewrite.files)
        broken = [_breaks(rows, name, text, request) for name, text in constraints.items()]
        counts = _counts(rows, [*broken, *(_is_null(path) for path in not_null)])
        furthest = _furthest(rows, arguments.furthest)
    where = f"{request.table} version {request.read_version}"
    for (name, text), count in zip(constraints.items(), counts, strict=False):
        if count:
            raise request.error(
                ConstraintViolationException,
                f"{count} rows of table {where} violate the new CHECK constraint {name} ({text}): it is false or null for them "
                "(DELTA_NEW_CHECK_CONSTRAINT_VIOLATION). Change or delete them first.",
            )
    for path, count in zip(not_null, counts[len(broken) :], strict=True):
        if count:
            raise request.error(
                InvariantViolationException,
                f"{count} rows of table {where} have no value in column {'.'.join(path)}, which is to be NOT NULL "
                "(DELTA_NEW_NOT_NULL_VIOLATION). Set a value in them, or delete them.",
            )
    return StageReport(transaction_id=request.transaction_id, stage=request.stage, attempt=request.attempt, furthest=furthest)


def _breaks(rows: DataFrame, name: str, text: str, request: StageRequest) -> Column:
    try:
        found = rows.select(spark_value(text)).schema[0].dataType
    except AnalysisException as error:
        raise request.error(
            DeltaAnalysisException,
            f"The constraint {name} ({text}) cannot be checked for table {request.table} version {request.read_version}: "
            f"{str(error).splitlines()[0]}",
        ) from error
    if not isinstance(found, BooleanType):
        raise request.error(
            DeltaAnalysisException,
            f"The constraint {name} ({text}) is not a condition, but of type {found.simpleString()} "
            "(DELTA_NON_BOOLEAN_CHECK_CONSTRAINT)",
        )
    return ~sf.coalesce(spark_value(text), sf.lit(False))


def _is_null(path: Sequence[str]) -> Column:
    return sf.col(".".join(map(spark_name, path))).isNull()


def _furthest(rows: DataFrame, steps: Mapping[str, int]) -> dict[str, int]:
    """Return the largest value of each column, or the smallest if its values count down."""
    if not steps:
        return {}
    ends = [(sf.max if step > 0 else sf.min)(spark_name(name)) for name, step in steps.items()]
    (found,) = rows.agg(*ends).collect()
    return {name: int(value) for name, value in zip(steps, found, strict=True) if value is not None}


def _counts(rows: DataFrame, broken: list[Column]) -> list[int]:
    if not broken:
        return []
    (found,) = rows.agg(*(sf.count_if(column) for column in broken)).collect()
    return [int(count) for count in found]
