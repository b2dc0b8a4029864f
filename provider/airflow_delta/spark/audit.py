"""SQL checks of an audit on Spark, over views of the staged rows and of the table before and after the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import errors
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DateType, NullType, TimestampNTZType, TimestampType

from airflow_delta.contract.audit import AuditArguments, SqlAnswer, SqlCheck
from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.spark.older_spark import error_of_values
from airflow_delta.spark.queries import run_query
from airflow_delta.spark.session_settings import session_settings
from airflow_delta.spark.source_views import temporary_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEWS_ONLY = {"spark.sql.runSQLOnFiles": "false"}
"""A check is about the views that it is given: no ``text.`/etc/passwd```."""

MAX_MESSAGE = 1000
"""Characters of an error and of a figure in a report, which is sent by XCom."""


def run(spark: SparkSession, request: StageRequest) -> StageReport:
    """Run all checks of the request, whatever their answers.

    The views are temporary views of the session: they replace views of the same names, and are dropped at the end.
    """
    arguments = AuditArguments.of(request)
    plans = {name: ScanPlan.from_dict(plan) for name, plan in arguments.views.items()}
    with temporary_views(spark, plans):
        answers = [query_answer(spark, check).to_dict() for check in arguments.checks]
    return StageReport(
        transaction_id=request.transaction_id, stage=request.stage, attempt=request.attempt, answers=tuple(answers)
    )


def query_answer(spark: SparkSession, check: SqlCheck) -> SqlAnswer:
    """Return the answer of a check's query.

    An invalid query, or one that fails on the rows, is an answer too (``problem``); errors that a retry may fix are raised.
    """
    wrong = (
        errors.AnalysisException,  # also ParseException
        errors.ArithmeticException,
        errors.ArrayIndexOutOfBoundsException,
        errors.DateTimeException,
        errors.NumberFormatException,
    )
    try:
        with session_settings(spark, _VIEWS_ONLY):  # until the answer is there: Spark Connect parses a text when it runs
            return _answer(check, run_query(spark, check.sql, whose=f"the check {check.name!r}"))
    except Exception as error:
        text = str(error).split("\n\nJVM stacktrace")[0] if isinstance(error, wrong) else error_of_values(error)
        if text is None:
            raise
        return SqlAnswer(name=check.name, problem=f"the query failed: {' '.join(text.split())[:MAX_MESSAGE]}")


def _answer(check: SqlCheck, df: DataFrame) -> SqlAnswer:
    def no_answer(problem: str) -> SqlAnswer:
        return SqlAnswer(name=check.name, problem=f"{problem}; a check returns one row whose first column is a boolean")

    columns = df.schema.fields
    if not columns:
        return no_answer("the query has no columns")
    if not isinstance(columns[0].dataType, BooleanType | NullType):
        return no_answer(f"the first column, {columns[0].name}, is a {columns[0].dataType.simpleString()}")
    rows = _in_python(df).take(2)
    if len(rows) != 1:
        return no_answer("the query has no row" if not rows else "the query has more than one row")
    (row,) = rows
    figures = {field.name: str(row[position])[:MAX_MESSAGE] for position, field in enumerate(columns) if position}
    return SqlAnswer(name=check.name, passed=None if row[0] is None else bool(row[0]), figures=figures)


def _in_python(df: DataFrame) -> DataFrame:
    """Return rows with dates and times as text: Python cannot hold those before year 1 and after year 9999."""
    fields = df.schema.fields
    numbered = df.toDF(*(str(position) for position in range(len(fields))))  # names may be there twice
    times = (DateType, TimestampType, TimestampNTZType)
    columns = [(f"`{position}`", isinstance(field.dataType, times)) for position, field in enumerate(fields)]
    return numbered.select(*(sf.col(name).cast("string") if is_time else sf.col(name) for name, is_time in columns))
