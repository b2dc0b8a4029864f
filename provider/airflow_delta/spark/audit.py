"""The SQL checks of an audit on Spark: over views of what is staged, and of the table after and before the commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_delta.spark.read import read_scan_plan
from airflow_delta.staging.audit import CHECKS, PLANS, SqlAnswer, SqlCheck
from airflow_delta.staging.contract import ScanPlan
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_MESSAGE = 1000
"""Characters that a report keeps of an error, and of a figure: it travels in XCom."""


def run_checks(spark: SparkSession, request: StageRequest) -> StageReport:
    """Ask every check of the request, whatever the others answer.

    The views are temporary views of the session; ones of the same names are replaced, and dropped at the end.
    """
    checks = [SqlCheck.from_dict(check) for check in request.arguments.get(CHECKS) or ()]
    plans = {name: ScanPlan.from_dict(plan) for name, plan in (request.arguments.get(PLANS) or {}).items()}
    with _views(spark, plans):
        answers = [answer(spark, check).to_dict() for check in checks]
    return StageReport(
        transaction_id=request.transaction_id, stage=request.stage, attempt=request.attempt, answers=tuple(answers)
    )


@contextmanager
def _views(spark: SparkSession, plans: dict[str, ScanPlan]) -> Iterator[None]:
    made: list[str] = []
    try:
        for name, plan in plans.items():
            read_scan_plan(spark, plan).createOrReplaceTempView(name)
            made.append(name)
        yield
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def answer(spark: SparkSession, check: SqlCheck) -> SqlAnswer:
    """Return what the query of a check answers.

    A query that is wrong, or whose rows make it fail, is an answer as well (``problem``); what a retry may change is raised.
    """
    from pyspark import errors

    wrong = (
        errors.AnalysisException,  # ParseException is one
        errors.ArithmeticException,
        errors.ArrayIndexOutOfBoundsException,
        errors.DateTimeException,
        errors.NumberFormatException,
    )
    try:
        return _answer(check, spark.sql(check.sql))
    except wrong as error:
        text = " ".join(str(error).split("\n\nJVM stacktrace")[0].split())
        return SqlAnswer(name=check.name, problem=f"the query failed: {text[:MAX_MESSAGE]}")


def _answer(check: SqlCheck, df: DataFrame) -> SqlAnswer:
    from pyspark.sql.types import BooleanType, NullType

    def no_answer(problem: str) -> SqlAnswer:
        return SqlAnswer(name=check.name, problem=f"{problem}; a check answers with one row, whose first column is a boolean")

    columns = df.schema.fields
    if not columns:
        return no_answer("the query has no columns")
    if not isinstance(columns[0].dataType, BooleanType | NullType):
        return no_answer(f"the first column, {columns[0].name}, is a {columns[0].dataType.simpleString()}")
    rows = df.take(2)
    if len(rows) != 1:
        return no_answer("the query has no row" if not rows else "the query has more than one row")
    (row,) = rows
    figures = {field.name: str(row[position])[:MAX_MESSAGE] for position, field in enumerate(columns) if position}
    return SqlAnswer(name=check.name, passed=None if row[0] is None else bool(row[0]), figures=figures)
