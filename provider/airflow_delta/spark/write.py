"""A WRITE whose rows the request names: those of a query, or of files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.errors import ParseException

from airflow_delta.contract.operations import FileArguments, QueryArguments, WriteArguments
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.sql_parameters import parameters_of_json
from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException
from airflow_delta.spark.queries import run_query
from airflow_delta.spark.source_files import read_spark_files
from airflow_delta.spark.stage import stage_dataframe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(spark: SparkSession, request: StageRequest) -> StageReport:
    """Write the rows that the request names.

    :raises DeltaIllegalArgumentException: if it names none: the program has them.
    """
    arguments = WriteArguments.of(request)
    if arguments.query is not None:
        rows = _rows_of_query(spark, request, arguments.query)
    elif arguments.files is not None:
        rows = _rows_of_files(spark, request, arguments.files)
    else:
        raise request.error(
            DeltaIllegalArgumentException,
            f"The rows of stage {request.stage} are those of a program: it passes them to delta_stage(spark).write(df).",
        )
    return stage_dataframe(spark, rows, request)


def _rows_of_query(spark: SparkSession, request: StageRequest, given: QueryArguments) -> DataFrame:
    whose = f"the stage {request.task_id!r}"
    try:
        for statement in given.preparation:
            run_query(spark, statement, whose=whose)
        # As a subquery, where Spark's grammar allows nothing but a query: `WITH ... INSERT` would run at once.
        text = f"SELECT * FROM ({given.query}\n)"  # noqa: S608
        return run_query(spark, text, whose=whose, parameters=parameters_of_json(given.parameters))
    except ParseException as error:
        raise _not_a_query(whose, error) from error


def _not_a_query(whose: str, error: Exception) -> DeltaAnalysisException:
    said = str(error).strip().partition("\n")[0]
    return DeltaAnalysisException(
        f"The SQL of {whose} is not a query that Spark can parse: {said} A stage writes the rows of its query itself: leave out "
        "INSERT, CREATE TABLE and the like."
    )


def _rows_of_files(spark: SparkSession, request: StageRequest, given: FileArguments) -> DataFrame:
    return read_spark_files(
        spark,
        given.paths,
        file_format=given.format,
        options=given.options,
        table=None if request.schema_string is None else json.loads(request.schema_string),
        columns=given.columns,
    )
