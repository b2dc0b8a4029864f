"""The stderr of a driver JVM: what a green task must not show as an error, on a real Spark."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_delta.tasks.spark.driver_log import DriverLog, quiet

ROOT = Path(__file__).parents[2]
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

LINES = [
    (DEBUG, "WARNING: Using incubator modules: jdk.incubator.vector"),
    (DEBUG, "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties"),
    (DEBUG, 'Setting default log level to "WARN".'),
    (DEBUG, "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel)."),
    (DEBUG, "Picked up JAVA_TOOL_OPTIONS: -Xmx1g"),
    (DEBUG, "NOTE: Picked up JDK_JAVA_OPTIONS: --add-opens=java.base/java.lang=ALL-UNNAMED"),
    (DEBUG, "26/11/23 13:02:18 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin"),
    (DEBUG, "26/11/23 13:02:17 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 10.0.0.1 instead"),
    (DEBUG, "26/11/23 13:02:17 WARN FileStreamSink: Assume no metadata directory. Error while looking for metadata directory"),
    (WARNING, "26/11/23 13:02:17 WARN Utils: Service 'SparkUI' could not bind on port 4040. Attempting port 4041."),
    (INFO, "26/11/23 13:02:17 INFO SparkContext: Running Spark version 4.2.0"),
    (WARNING, "OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory failed"),
    (WARNING, "2026-11-23 13:02:17,123 WARN  [main] some.Logger - another layout"),
    (ERROR, "[2026-11-23T13:02:17Z] ERROR some.Logger: another layout"),
    (WARNING, '{"ts":"2026-11-23T13:02:17Z","level":"WARN","msg":"structured","logger":"org.apache.spark.Some"}'),
    (INFO, "printed by a UDF: WARN is a word in it"),
    (INFO, '{"printed": "JSON"}'),
    (ERROR, "26/11/23 13:02:26 ERROR Executor: Exception in task 1.0 in stage 0.0 (TID 1)"),
    (DEBUG, "org.apache.spark.api.python.PythonException: Traceback (most recent call last):"),
    (DEBUG, '  File "a.py", line 1, in f'),
    (DEBUG, "ValueError: no"),
    (DEBUG, "\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:665)"),
    (DEBUG, "Caused by: java.io.IOException: broken"),
    (DEBUG, "\tat java.base/java.lang.Thread.run(Thread.java:840)"),
    (DEBUG, "\t... 12 more"),
    (INFO, "printed after the trace"),
    (ERROR, 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'),
]


def test_each_line_has_its_own_level(caplog):
    with caplog.at_level(DEBUG, logger="airflow_delta.spark.driver"):
        DriverLog().follow(io.BytesIO("\n".join(line for _, line in LINES).encode() + b"\n\n\xff not UTF-8"))
    assert [(record.levelno, record.getMessage()[-20:]) for record in caplog.records] == [
        *((level, "Some: structured" if "structured" in line else line[-20:]) for level, line in LINES),
        (INFO, "\N{REPLACEMENT CHARACTER} not UTF-8"),
    ]


def test_settings_of_the_author_and_of_the_machine_win(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert quiet({"spark.master": "local[*]"}) == {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false"}
    assert quiet({"spark.master": "spark://m:7077"}) == {"spark.ui.showConsoleProgress": "false"}
    assert quiet({"spark.remote": "sc://m"}) == {}
    (tmp_path / "spark-defaults.conf").write_text("# spark.ui.showConsoleProgress true\nspark.ui.enabled=true\n")
    assert quiet({"spark.master": "local[*]"}) == {"spark.ui.showConsoleProgress": "false"}


PROGRAM = """
import json, logging, socket, sys
taken = socket.create_server(("0.0.0.0", 4040), reuse_port=True) if len(sys.argv) > 2 else None
lines = []
class Handler(logging.Handler):
    def emit(self, record):
        lines.append((record.levelno, record.getMessage()))
logging.getLogger("airflow_delta").setLevel(logging.DEBUG)
logging.getLogger("airflow_delta").addHandler(Handler())
from airflow_delta.tasks.spark.session import quiet, start_driver
properties = {"spark.master": "local[2]", "spark.app.name": "quiet", "spark.own": "mine", **json.loads(sys.argv[1])}
properties = {**quiet(properties), **properties}
start_driver(properties)
from pyspark.sql import SparkSession
builder = SparkSession.builder
for key, value in properties.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.range(0, 1_000_000, 1, 8).selectExpr("sum(id)").collect()
spark._jvm.System.err.println("from a UDF")
ui = spark.sparkContext.uiWebUrl
try:
    spark.range(1).selectExpr("raise_error('boom')").collect()
except Exception:
    pass
spark.stop()
import time
time.sleep(0.5)
print(json.dumps({"lines": lines, "ui": ui}))
"""


def run_program(properties: dict[str, str], *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(properties), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "provider"), "PYTHONWARNINGS": "ignore", **env},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.slow
def test_a_driver_writes_nothing_to_the_stderr_of_its_task():
    done = run_program({"spark.driver.host": "127.0.0.1"}, "port 4040 is taken", JAVA_TOOL_OPTIONS="-Dsome=thing")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ui"] is None
    loud = [(level, line.splitlines()[0]) for level, line in said["lines"] if level > INFO]
    assert len(loud) >= 2
    assert all(" in stage " in line for _, line in loud), loud  # only what failed
    assert (INFO, "from a UDF") in map(tuple, said["lines"])
    assert any(level == DEBUG and line.startswith("\tat ") for level, line in said["lines"])


@pytest.mark.slow
@pytest.mark.spark
def test_settings_that_were_given_win():
    done = run_program({"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "true", "spark.ui.port": "0"})
    assert done.stderr == ""
    assert json.loads(done.stdout.splitlines()[-1])["ui"].startswith("http://")


@pytest.mark.slow
@pytest.mark.spark
def test_a_driver_that_does_not_start_says_why():
    done = run_program({"spark.driver.memory": "lots"})
    assert (
        "DeltaIllegalStateException: [DELTA_ILLEGAL_STATE] Spark's Java process ended before it was ready. It said: "
        in done.stderr
    )
    assert "lots" in done.stderr
    done = run_program({}, JAVA_HOME="/nowhere")
    assert "/nowhere/bin/java" in done.stderr
