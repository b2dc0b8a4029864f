"""Run operations on Spark: from the request to the report.

The function ``run`` of the module here that is named like the operation does its work: ``add_constraint.py`` that of ``ADD
CONSTRAINT``. It takes the session and the request, and ``source`` if the operation has source rows.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.errors import ParseException

from airflow_delta.contract.arguments import SourceArguments
from airflow_delta.contract.options import CONNECTION, SECRET_PROPERTY
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaError,
    DeltaIllegalArgumentException,
    StagingException,
)
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.spark.errors import useful_line
from airflow_delta.spark.older_spark import check_work
from airflow_delta.spark.queries import run_query
from airflow_delta.spark.source_views import source_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = lazy_pattern(r"[A-Z]+(?: [A-Z]+)*")


def work_of(operation: str) -> Callable[..., StageReport] | None:
    """Return the function that runs an operation, ``None`` if there is none."""
    if _NAME.fullmatch(operation) is None:  # the name comes from a file beside the table
        return None
    name = f"airflow_delta.spark.{operation.lower().replace(' ', '_')}"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    return getattr(module, "run", None)


def run_operation(spark: SparkSession, request: StageRequest, source: DataFrame | None = None) -> StageReport:
    """Run an operation.

    :param source: source rows of a MERGE; default: those that the request names.
    :raises StagingException: if nothing here does that operation.
    :raises DeltaIllegalArgumentException: if the operation needs a source and has none, or has one and needs none.
    :raises SparkVersionException: if this is Spark 3.5, which lacks what the table needs.
    """
    check_work(request)
    work = work_of(request.operation)
    if work is None:
        raise StagingException(f"There is no Spark work for {request.operation!r} (stage {request.stage} of {request.table})")
    with source_views(spark, request):  # until it has run: Spark Connect looks a view up when its rows are read
        if "source" not in inspect.signature(work).parameters:
            if source is not None:
                raise request.error(DeltaIllegalArgumentException, f"{request.operation} takes no source (stage {request.stage})")
            report = work(spark, request)
        else:
            report = work(spark, request, _named_source(spark, request) if source is None else source)
    if not isinstance(report, StageReport):
        raise request.error(DeltaError, f"{request.operation} left no report")
    return report


def read_source(spark: SparkSession, named: Mapping[str, Any], secrets: Mapping[str, str]) -> DataFrame | None:
    """Return the rows of a source: ``sql``, or ``format`` (default ``parquet``) with ``path`` and ``options``.

    :param secrets: options from a connection; the source's own options override them.
    :return: ``None`` if it names no rows.
    :raises DeltaAnalysisException: if Spark cannot parse the SQL.
    """
    if sql := named.get("sql"):
        try:
            return run_query(spark, sql, whose="the source")
        except ParseException as error:
            raise DeltaAnalysisException(
                f"The SQL of the source is not a query that Spark can parse: {useful_line(str(error))}"
            ) from None
    if not named.get("path") and not named.get("format"):
        return None
    reader = spark.read.format(named.get("format", "parquet")).options(**{**secrets, **(named.get("options") or {})})
    return reader.load(named["path"]) if named.get("path") else reader.load()


def secret_options(spark: SparkSession, request: StageRequest) -> dict[str, str]:
    """Return the secret options of the source that came with the application.

    :raises DeltaIllegalArgumentException: if there are none.
    """
    text = spark.conf.get(SECRET_PROPERTY, None)
    if not text:
        raise request.error(
            DeltaIllegalArgumentException,
            f"The source of stage {request.stage} needs the options of a connection, and this application did not get them: the "
            f"Spark property {SECRET_PROPERTY} is missing. Submit it with the provider's operator.",
        )
    options: dict[str, str] = json.loads(base64.b64decode(text))
    return options


def _named_source(spark: SparkSession, request: StageRequest) -> DataFrame:
    """Return the source named in the arguments."""
    named = SourceArguments.of(request).source or {}
    secrets = secret_options(spark, request) if named.get(CONNECTION) and not named.get("sql") else {}
    if (source := read_source(spark, named, secrets)) is not None:
        return source
    raise request.error(
        DeltaIllegalArgumentException,
        f"{request.operation} of stage {request.stage} has no source. Give it as SQL or as a path, or pass it to "
        "delta_stage(spark).run(source).",
    )
