"""Do on Spark what an operation asks for: from the request to the report."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException, StagingException
from airflow_delta.staging.options import CONNECTION, SECRET_PROPERTY
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPERATIONS = {
    "DELETE": "delete:stage_delete",
    "UPDATE": "update:stage_update",
    "MERGE": "merge:stage_merge",
    "OPTIMIZE": "optimize:stage_optimize",
    "REORG": "optimize:stage_optimize",
    "ADD CONSTRAINT": "constraint_check:check_constraint",
    "AUDIT": "audit:run_checks",
}
"""Module and function by operation."""

WITH_SOURCE = {"MERGE"}
"""Operations that work with rows of a source."""


def run_operation(spark: SparkSession, request: StageRequest, source: DataFrame | None = None) -> StageReport:
    """Do the data work of an operation.

    :param source: the rows that a MERGE merges; default: what ``request.arguments["source"]`` names.
    :raises StagingException: the operation is none of :data:`OPERATIONS`.
    :raises DeltaIllegalArgumentException: the operation needs a source and has none, or has one and needs none.
    """
    target = OPERATIONS.get(request.operation)
    if target is None:
        raise StagingException(f"There is no Spark work for {request.operation!r} (stage {request.stage} of {request.table})")
    module, function = target.split(":")
    work = getattr(import_module(f"airflow_delta.spark.{module}"), function)
    if request.operation not in WITH_SOURCE:
        if source is not None:
            raise DeltaIllegalArgumentException(
                f"{request.operation} takes no source (stage {request.stage})", table=request.table
            )
        report = work(spark, request)
    else:
        report = work(spark, request, _named_source(spark, request) if source is None else source)
    if not isinstance(report, StageReport):
        raise DeltaError(f"{request.operation} left no report", table=request.table)
    return report


def read_source(spark: SparkSession, named: Mapping[str, Any], secrets: Mapping[str, str]) -> DataFrame | None:
    """Return the rows of a source: ``sql``, or ``format`` (default ``parquet``) with ``path`` and ``options``.

    :param secrets: options that come from a connection; the source's own go over them.
    :return: ``None`` when it names no rows.
    """
    if sql := named.get("sql"):
        return spark.sql(sql)
    if not named.get("path") and not named.get("format"):
        return None
    reader = spark.read.format(named.get("format", "parquet")).options(**{**secrets, **(named.get("options") or {})})
    return reader.load(named["path"]) if named.get("path") else reader.load()


def secret_options(spark: SparkSession, request: StageRequest) -> dict[str, str]:
    """Return the options of the source that came along with the application, out of everybody's sight.

    :raises DeltaIllegalArgumentException: there are none.
    """
    text = spark.conf.get(SECRET_PROPERTY, None)
    if not text:
        raise DeltaIllegalArgumentException(
            f"The source of stage {request.stage} needs the options of a connection, and this application did not get them: the "
            f"Spark property {SECRET_PROPERTY} is missing. Submit it with the provider's operator.",
            table=request.table,
        )
    options: dict[str, str] = json.loads(base64.b64decode(text))
    return options


def _named_source(spark: SparkSession, request: StageRequest) -> DataFrame:
    """Return the source that the arguments name."""
    named = request.arguments.get("source") or {}
    secrets = secret_options(spark, request) if named.get(CONNECTION) else {}
    if (source := read_source(spark, named, secrets)) is not None:
        return source
    raise DeltaIllegalArgumentException(
        f"{request.operation} of stage {request.stage} has no source. Give it as SQL or as a path, or pass it to "
        "delta_stage(spark).run(source).",
        table=request.table,
    )
