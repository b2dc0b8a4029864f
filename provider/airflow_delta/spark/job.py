"""A stage in a Spark job submitted to a cluster: three lines in any PySpark program.

::

    from airflow_delta.spark import delta_stage

    stage = delta_stage(spark)
    stage.write(stage.read().where("amount > 0"))

Run operations on Spark: from the request to the report.

The function ``run`` of the module here that is named like the operation does its work: ``add_constraint.py`` that of ``ADD
CONSTRAINT``. It takes the session and the request, and ``source`` if the operation has source rows.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark.errors import ParseException
from pyspark.sql import functions as sf

from airflow_delta.contract.files import REPORT_DIRECTORY, sealed, unsealed
from airflow_delta.contract.options import CONNECTION, REQUEST_PROPERTY, SECRET_PROPERTY
from airflow_delta.contract.request import SourceArguments, StageReport, StageRequest
from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    StagingException,
)
from airflow_delta.masking import masked
from airflow_delta.spark.errors import typed_error, useful_line, users_place
from airflow_delta.spark.read import read_scan_plan, run_query
from airflow_delta.spark.stage import stage_dataframe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_NAME = re.compile(r"[A-Z]+(?: [A-Z]+)*")


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
    """
    work = work_of(request.operation)
    if work is None:
        raise StagingException(f"There is no Spark work for {request.operation!r} (stage {request.stage} of {request.table})")
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
    secrets = secret_options(spark, request) if named.get(CONNECTION) else {}
    if (source := read_source(spark, named, secrets)) is not None:
        return source
    raise request.error(
        DeltaIllegalArgumentException,
        f"{request.operation} of stage {request.stage} has no source. Give it as SQL or as a path, or pass it to "
        "delta_stage(spark).run(source).",
    )


REQUEST_VARIABLE = "AIRFLOW_DELTA_REQUEST"
REQUEST_ARGUMENT = "--delta-request"


class DeltaStage:
    """A stage in a Spark job: :meth:`read` the table as the transaction sees it, :meth:`write` the new rows."""

    def __init__(self, spark: SparkSession, request: StageRequest) -> None:
        self.spark = spark
        self.request = request
        self._written = False

    def read(self) -> DataFrame:
        """Return the table at the version read (planned with ``read=``).

        :raises DeltaIllegalStateException: if the task did not plan a scan.
        """
        if self.request.scan is None:
            raise self.request.error(
                DeltaIllegalStateException,
                f"The stage {self.request.task_id} was submitted without a scan of table {self.request.table}. Set "
                "read=True, or "
                "read=<predicate>, on the task that submits it.",
            )
        return read_scan_plan(self.spark, self.request.scan)

    def new_rows(self, name: str) -> DataFrame:
        """Return the new rows of another table (planned with ``new_rows=``); the commit records that they were read.

        :param name: as the task calls the table.
        :raises DeltaIllegalStateException: if the task did not plan to read it.
        """
        found = next((source for source in self.request.sources if source.name == name), None)
        if found is None:
            known = ", ".join(repr(source.name) for source in self.request.sources) or "none"
            raise self.request.error(
                DeltaIllegalStateException,
                f"The stage {self.request.task_id} was submitted without the new rows of {name!r} (it has {known}). Set "
                "new_rows= on the task that submits it.",
            )
        return read_scan_plan(self.spark, found.scan)

    def write(self, df: DataFrame) -> StageReport:
        """Stage the DataFrame and write the report for the worker; once per job.

        :raises DeltaIllegalStateException: if it was called before.
        """
        return self._work(lambda: stage_dataframe(self.spark, df, self.request))

    def run(self, source: DataFrame | None = None) -> StageReport:
        """Run the operation of the task (DELETE, UPDATE, MERGE, OPTIMIZE, ...) and write the report; once per job.

        :param source: source rows of a MERGE; default: those that the task names.
        :raises DeltaIllegalStateException: if it was called before.
        """
        return self._work(lambda: run_operation(self.spark, self.request, source))

    def _work(self, work: Callable[[], StageReport]) -> StageReport:
        if self._written:
            raise self.request.error(
                DeltaIllegalStateException,
                f"The stage {self.request.task_id} has already written. Union the DataFrames, or use one task for each.",
            )
        self._written = True
        try:
            report = work()
        except Exception as raised:
            error = self._leave_error(raised)
            if error is raised:
                raise
            raise error from raised
        self._leave(report)
        return report

    def _leave_error(self, raised: BaseException) -> BaseException:
        """Report an error to the worker, and return it: typed, if it can be."""
        error = typed_error(raised, self.request.table) or raised
        if isinstance(error, DeltaError):
            message = error.message
        else:
            place = users_place(raised, str(error))
            message = f"{type(error).__name__}: {error}{f' ({place})' if place else ''}"
        self._leave(
            StageReport(
                transaction_id=self.request.transaction_id,
                stage=self.request.stage,
                attempt=self.request.attempt,
                differences=getattr(error, "differences", ()),
                error_class=type(error).__name__,
                # Database drivers, for example, repeat the URL.
                error_message=masked(message, _secrets(self.spark))[:4000],
            )
        )
        return error

    def _report_uncaught(self) -> None:
        """Report an error that ends the program before it wrote, too: on a cluster, its output is far from the task's log."""
        before = sys.excepthook

        def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            before(kind, error, trace)
            if self._written or not isinstance(error, Exception):
                return
            with contextlib.suppress(Exception):  # the session may have been stopped
                self._leave_error(error)

        sys.excepthook = report

    def _leave(self, report: StageReport) -> None:
        line = self.spark.range(1).select(sf.lit(sealed(report)).alias("value")).coalesce(1)
        line.write.mode("overwrite").option("compression", "none").text(f"{self.request.path}/{REPORT_DIRECTORY}")


def _secrets(spark: SparkSession) -> tuple[str, ...]:
    """Return the secret values that came with the application."""
    text = spark.conf.get(SECRET_PROPERTY, None)
    options = json.loads(base64.b64decode(text)) if text else {}
    return tuple(str(value) for value in options.values())


def delta_stage(spark: SparkSession, request: StageRequest | str | Mapping[str, Any] | None = None) -> DeltaStage:
    """Return the stage of this job.

    :param request: the request, its JSON, or the URI of a file that holds it; default: the Spark property
        ``spark.airflow_delta.request``, the environment variable ``AIRFLOW_DELTA_REQUEST``, or the program's argument
        ``--delta-request``.
    :raises DeltaIllegalArgumentException: if there is no request.
    """
    value: StageRequest | str | Mapping[str, Any] | None = request if request is not None else _given_request(spark)
    if value is None:
        raise DeltaIllegalArgumentException(
            f"This job was not submitted as a stage: neither the Spark property {REQUEST_PROPERTY} nor the environment "
            "variable "
            f"{REQUEST_VARIABLE}, nor the argument {REQUEST_ARGUMENT} holds a request. Submit it with "
            "DeltaStageSparkSubmitOperator."
        )
    if isinstance(value, str):
        value = _parsed(spark, value)
    stage = DeltaStage(spark, value if isinstance(value, StageRequest) else StageRequest.from_dict(value))
    stage._report_uncaught()
    return stage


def _given_request(spark: SparkSession) -> str | None:
    text = spark.conf.get(REQUEST_PROPERTY, None) or os.environ.get(REQUEST_VARIABLE)
    if text is None and REQUEST_ARGUMENT in sys.argv[:-1]:
        text = sys.argv[sys.argv.index(REQUEST_ARGUMENT) + 1]
    return text


def _parsed(spark: SparkSession, text: str) -> Mapping[str, Any]:
    if not text.lstrip().startswith("{"):
        rows = spark.read.option("wholetext", "true").text(escape_glob(text)).collect()
        if not rows:
            raise StagingException(f"The request of this stage is not at {text}; its transaction may have been aborted")
        text = str(rows[0][0])
    try:
        value = unsealed(text, "The request of this stage")
    except ValueError as error:
        raise StagingException(f"The request of this stage is not JSON ({error}): {text[:200]!r}") from error
    if not isinstance(value, Mapping):
        raise StagingException(f"The request of this stage is not a JSON object: {text[:200]!r}")
    return value
