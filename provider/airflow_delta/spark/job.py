"""A stage in a Spark job submitted to a cluster: three lines in any PySpark program.

::

    from airflow_delta.spark import delta_stage

    stage = delta_stage(spark)
    stage.write(stage.read().where("amount > 0"))
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf

from airflow_delta.contract.options import REQUEST_ARGUMENT, REQUEST_PROPERTY, SECRET_PROPERTY
from airflow_delta.contract.request import StageReport, StageRequest, is_report_of
from airflow_delta.contract.sealed import sealed, unsealed
from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.contract.staging_directory import REPORT_DIRECTORY
from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    StagingException,
)
from airflow_delta.masking import masked
from airflow_delta.spark.errors import spark_condition, typed_error, users_place
from airflow_delta.spark.read import read_scan_plan
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.spark.stage import stage_dataframe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


logger = logging.getLogger(__name__)

REQUEST_VARIABLE = "AIRFLOW_DELTA_REQUEST"


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
        if (earlier := self._reported_before()) is not None:
            logger.warning(
                "Stage %s of %s is already staged by another run of this job: this one ends here.",
                self.request.stage,
                self.request.table,
            )
            return earlier
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
        """Leave a report beside those of other runs: a service may run a job twice, and the worker takes the first good one."""
        line = self.spark.range(1).select(sf.lit(sealed(report)).alias("value")).coalesce(1)
        line.write.option("compression", "none").text(f"{self.request.path}/{REPORT_DIRECTORY}/{uuid.uuid4().hex[:8]}")

    def _reported_before(self) -> StageReport | None:
        """Return the report of another run of this job that has staged everything."""
        # The directory is there, with the request: of one that is not, Spark would log a page.
        reader = self.spark.read.options(wholetext="true", recursiveFileLookup="true", pathGlobFilter="part-*.txt")
        try:
            rows = reader.text(escape_glob(self.request.path)).collect()
        except AnalysisException as error:
            if spark_condition(error) != "PATH_NOT_FOUND":
                raise
            return None
        for row in rows:
            with contextlib.suppress(ValueError, DeltaError):  # a damaged one is for the worker to refuse
                report = StageReport.from_dict(unsealed(str(row[0]), "A report of this stage"))
                if report.error_class is None and is_report_of(report, self.request):
                    return report
        return None


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
        try:
            rows = spark.read.option("wholetext", "true").text(escape_glob(text)).collect()
        except AnalysisException as error:
            if spark_condition(error) != "PATH_NOT_FOUND":
                raise
            rows = []
        if not rows:
            raise StagingException(
                f"The request of this stage is not at {text}: its transaction has ended, by a commit or an abort. Clear the task "
                "that plans the stage, with everything downstream."
            )
        text = str(rows[0][0])
    try:
        value = unsealed(text, "The request of this stage")
    except ValueError as error:
        raise StagingException(f"The request of this stage is not JSON ({error}): {text[:200]!r}") from error
    if not isinstance(value, Mapping):
        raise StagingException(f"The request of this stage is not a JSON object: {text[:200]!r}")
    return value
