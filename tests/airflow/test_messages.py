"""Errors that a Dag author meets on the first day: what is wrong, where, and what to do, in the first line."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowNotFoundException
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from airflow_delta.assets.delta import commits_of_events, delta_asset
from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, SparkJobException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.spark.errors import useful_line
from airflow_delta.spark.run_operation import read_source
from airflow_delta.tasks.functions import not_a_dataframe
from airflow_delta.tasks.spark.session import ask_once, typed_errors

JOB = """An error occurred while calling o158.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 4.0 (TID 9) (10.0.0.1 executor driver): org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] \
Encountered error while reading file s3a://lake/a.parquet.  SQLSTATE: KD001
	at org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:940)
Caused by: java.io.IOException: Checksum error at 0
	at java.base/java.lang.Thread.run(Thread.java:840)
	... 12 more
"""
CONNECT = """(org.apache.spark.SparkException) [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012

JVM stacktrace:
org.apache.spark.SparkArithmeticException
	at org.apache.spark.sql.errors.QueryExecutionErrors$.divideByZeroError(QueryExecutionErrors.scala:205)"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            JOB,
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://lake/a.parquet.  SQLSTATE: KD001; caused by: "
            "Checksum error at 0.",
        ),
        (CONNECT, "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012."),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'.\n\n== SQL ==\nselec 1",
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'.",
        ),
        (  # of an executor
            "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 2 times, most recent "
            "failure: Lost task 0.1 in stage 1.0 (TID 2) (10.0.0.1 executor 1): java.lang.OutOfMemoryError: Java heap space\n"
            "\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)\nCaused by: java.lang.OutOfMemoryError: Java heap space\n",
            "java.lang.OutOfMemoryError: Java heap space.",
        ),
        ("", ""),
        (": \n", ""),
    ],
)
def test_the_useful_line_of_a_spark_error(text, said):
    assert useful_line(text) == said


def test_a_wrong_query_is_not_retried_although_the_error_has_no_cause():
    wrong, other = (
        SparkJobException("no", condition=condition) for condition in ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "DIVIDE_BY_ZERO")
    )
    assert FINAL_ERRORS.evaluate(wrong, 1, 3).action is RetryAction.FAIL
    assert FINAL_ERRORS.evaluate(other, 1, 3).action is RetryAction.DEFAULT


@pytest.mark.spark
class TestSparkErrors:
    def test_a_column_that_is_not_there(self, spark, caplog):
        with (
            caplog.at_level(logging.DEBUG, logger="airflow_delta"),
            pytest.raises(SparkJobException) as caught,
            typed_errors("s3://lake/t"),
        ):
            spark.range(1).select("idd")
        first = str(caught.value).splitlines()[0]
        assert "Spark failed on table s3://lake/t: [UNRESOLVED_COLUMN.WITH_SUGGESTION]" in first
        assert "Did you mean one of the following? [`id`]" in first
        assert any("\tat " in record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG)
        assert type(caught.value.__cause__).__name__ == "AnalysisException"  # for rules of retry policies
        assert caught.value.condition == "UNRESOLVED_COLUMN.WITH_SUGGESTION"

    @pytest.mark.parametrize("query", [lambda spark: spark.range(1).selectExpr("idd"), lambda spark: spark.sql("SELECT idd")])
    def test_an_error_that_the_author_catches_is_no_red_line(self, spark, caplog, query):
        class Kept(logging.Handler):
            def emit(self, record):
                red.append(record.getMessage())

        red, kept = [], Kept()
        loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
        for each in loggers:
            each.addHandler(kept)
        try:
            with (
                caplog.at_level(logging.DEBUG, logger="airflow_delta"),
                typed_errors("s3://lake/t"),
                pytest.raises(AnalysisException),
            ):
                query(spark)
        finally:
            for each in loggers:
                each.removeHandler(kept)
        assert not red
        (said,) = (record for record in caplog.records if "`idd` cannot be resolved" in record.getMessage())
        assert said.levelno == logging.DEBUG

    def test_java_is_no_part_of_the_error(self, spark, tmp_path, caplog):
        spark.range(3).coalesce(1).write.parquet(str(tmp_path / "t"))
        (file,) = (tmp_path / "t").glob("*.parquet")
        file.write_bytes(b"x" * 100)
        rows = spark.read.schema("id long").parquet(str(tmp_path / "t"))
        with (
            caplog.at_level(logging.DEBUG, logger="airflow_delta"),
            pytest.raises(SparkJobException) as caught,
            typed_errors("s3://lake/t"),
        ):
            rows.collect()
        assert "FAILED_READ_FILE" in str(caught.value).splitlines()[0]
        assert caught.value.__cause__ is None
        assert "\tat " not in str(caught.value)
        assert any("\tat " in record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG)
        frames = []
        trace = caught.value.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert "collect" in frames  # where the author's code failed

    def test_sql_of_a_source_that_does_not_parse_is_named(self, spark):
        said = r"The SQL of the source is not a query that Spark can parse: \[PARSE_SYNTAX_ERROR\] Syntax error at or near 'SE"
        with pytest.raises(DeltaAnalysisException, match=said):
            read_source(spark, {"sql": "SELEC 1 AS id"}, {})

    def test_an_error_of_the_author_stays_as_it_is(self):
        with pytest.raises(ZeroDivisionError), typed_errors("s3://lake/t"):
            1 / 0  # noqa: B018


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (
            pd.DataFrame({"id": [1]}),
            [
                "returned a pandas.",
                "DataFrame, expected a Spark DataFrame (pyspark.sql.DataFrame)",
                "spark.createDataFrame(frame)",
            ],
        ),
        (pa.table({"id": [1]}), ["returned a pyarrow.lib.Table", "spark.createDataFrame(frame)"]),
        (None, ["returned None", "Return the DataFrame instead of writing it"]),
        (3, ["returned a int", "AirflowSkipException"]),
    ],
)
def test_a_function_that_returns_no_dataframe(result, parts):
    for purpose in ("to write", "to merge"):
        message = not_a_dataframe("load", result, purpose).message
        assert "the task 'load'" in message
        for part in parts:
            assert part in message
        assert (f'engine="arrow" {purpose} it without Spark' in message) is isinstance(result, pd.DataFrame | pa.Table)
    assert 'engine="arrow"' not in not_a_dataframe("load", result, "of the batch").message


EVENTS = SimpleNamespace(extra={"version": 1, "dedupe_key": "t/1"})


@pytest.mark.parametrize(
    "given",
    [{delta_asset("s3://lake/t"): [EVENTS]}, EVENTS, [delta_asset("s3://lake/t")], ["text"], "text", None, [{"version": 1}]],
)
def test_commits_of_what_are_no_events(given):
    with pytest.raises(DeltaIllegalArgumentException, match=r"Pass triggering_asset_events\[asset\]"):
        commits_of_events(given)


def test_a_connection_that_does_not_exist_is_named_with_its_parameter():
    with pytest.raises(
        AirflowNotFoundException, match=r"no connection 'lkae', which delta_conn_id names\. Create one of type delta"
    ):
        DeltaHook("lkae").get_log("s3://lake/t")


SCRIPT = """
import logging
from types import SimpleNamespace
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.spark.session import TaskSession

session = TaskSession(config_kwargs={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.master": "local[1]"})
session.task = SimpleNamespace(dag_id="d", task_id="t", log=logging.getLogger("x"), is_cancelled=False)
with session.session(DeltaHook().get_log("/nowhere/t")) as spark:
    print("RESULT", spark.sparkContext.parallelize([1, 2, 3]).map(lambda value: value + 1).sum())
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_local_session_runs_functions_with_the_python_of_the_worker(tmp_path):
    """Not with the first ``python3`` of the PATH, which here is none at all."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PATH": f"{other.parent}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2] / "provider")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert "RESULT 9" in done.stdout, done.stderr[-3000:]


@pytest.mark.spark
def test_an_error_of_spark_is_never_without_a_reason(spark):
    """A Python worker that dies says nothing, and neither does Spark."""
    from airflow_delta.spark.errors import spark_job_error

    try:
        spark._jvm.java.util.ArrayDeque().removeFirst()
    except Exception as error:
        told = spark_job_error(error, "s3://lake/t")
    assert told is not None
    assert "s3://lake/t: ." not in str(told)
    assert "NoSuchElementException" in str(told)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_connect_server_that_has_ended_is_asked_once():
    """Its client prints an object of gRPC, and would repeat what follows a failure for ten minutes."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        session = ConnectSession(f"sc://127.0.0.1:{taken.getsockname()[1]}")
        ask_once(session)
        began = time.monotonic()
        with pytest.raises(SparkJobException) as caught, typed_errors("s3://lake/t"):
            session.range(3).collect()
        session.stop()
        assert time.monotonic() - began < 30
    said = str(caught.value)
    assert "Spark failed on table s3://lake/t: Spark Connect's server does not answer (UNAVAILABLE: " in said
    assert "Check that it runs; if it ended during the work, its own log says why." in said
    assert "InactiveRpcError" not in said
