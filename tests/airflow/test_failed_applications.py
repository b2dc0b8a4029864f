"""What the task of a failed Spark application says first: the application's own error, not the command that ran it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_delta.exceptions import MissingSparkException, SparkJobException, StageFailedException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.table.start.begin import begin
from airflow_delta.tasks.spark.application_output import application_error, ended_by
from airflow_delta.tasks.spark.installed import java_error
from support.running_tasks import context

ROOT = Path(__file__).parents[2]
HEAD = """\
from pyspark.sql import SparkSession
from airflow_delta.spark import delta_stage
spark = SparkSession.builder.getOrCreate()
"""
PROPERTIES = {"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.host": "127.0.0.1"}


@pytest.fixture
def handle(tmp_path, monkeypatch, outside_of_the_task_runner):
    monkeypatch.setenv("AIRFLOW_CONN_LOCAL", json.dumps({"conn_type": "spark", "host": "local[2]", "extra": PROPERTIES}))
    write_deltalake(tmp_path / "table", pa.table({"id": [1, 2]}))
    return begin(DeltaLog.for_table(str(tmp_path / "table")), transaction_key="a")


def failure_of(handle, tmp_path, program, kind=StageFailedException):
    """Run a program as a stage, and return the error of the task."""
    job = tmp_path / "job.py"
    job.write_text(program)
    stage = DeltaStageSparkSubmitOperator(
        task_id="load", transaction=handle.to_dict(), spark_conn_id="local", application=str(job)
    )
    with pytest.raises(kind) as found:
        stage.execute(context(stage))
    assert found.value.__cause__ is None, "its text would come first"
    return found.value.message


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.slow
def test_the_error_of_the_program_comes_first(handle, tmp_path):
    program = f"{HEAD}def load():\n    raise ValueError('no rows at https://me:secret@host/x')\nload()\n"
    message = failure_of(handle, tmp_path, program)
    assert message == (
        "The Spark application job.py of stage load failed: ValueError: no rows at https://***@host/x "
        f"({tmp_path}/job.py, line 5, in load) (exit code 1). Its output is above in this log."
    )


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.slow
def test_an_error_before_the_stage_writes_is_reported_beside_the_table(handle, tmp_path):
    """In cluster mode, the program's output is far from the task's log."""
    message = failure_of(handle, tmp_path, f"{HEAD}stage = delta_stage(spark)\nrows = {{}}['2026-01-01']\n")
    assert message.startswith(
        f"Stage load failed on the cluster: KeyError: '2026-01-01' ({tmp_path}/job.py, line 5). Its output is above"
    )


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_driver_that_was_killed(handle, tmp_path):
    message = failure_of(handle, tmp_path, f"{HEAD}import os\nos.kill(os.getppid(), 9)\n")
    assert message.startswith(
        "The Spark application job.py of stage load failed: the driver was killed by SIGKILL. A process was"
    )
    assert "memory runs out" in message


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_more_ways_to_fail(handle, tmp_path):
    query = "SELECT collect_list(repeat(cast(id AS string), 1000)) FROM range(2000000)"
    said = failure_of(handle, tmp_path, f"{HEAD}spark.sql({query!r}).collect()\n")
    assert "OutOfMemoryError" in said or "Java ran out of memory" in said  # what the program sees of it differs
    assert "spark.driver.memory" in said
    said = failure_of(handle, tmp_path, f"{HEAD}spark.sql('SELECT idd FROM range(3)')\n")
    assert "job.py of stage load failed: AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] " in said
    assert f"({tmp_path}/job.py, line 4)" in said
    function = "from pyspark.sql.functions import udf\nf = udf(lambda x: 1 // (x - 3), 'long')\n"
    said = failure_of(handle, tmp_path, f"{HEAD}{function}spark.range(9).select(f('id')).collect()\n")
    assert "failed: Python code failed on an executor: ZeroDivisionError: " in said
    assert f'{tmp_path}/job.py", line 5' in said
    assert "failed: SyntaxError: " in failure_of(handle, tmp_path, "def f(:\n")
    assert "failed: it ended with exit code 3, and printed none." in failure_of(
        handle, tmp_path, f"{HEAD}import sys\nsys.exit(3)\n"
    )


def test_without_java_one_line_says_what_to_do(handle, tmp_path, monkeypatch):
    """A submitted stage, a submitted operation, and a session."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    none = f"{tmp_path}/none/bin/java does not exist: JAVA_HOME is wrong"
    message = failure_of(handle, tmp_path, HEAD, MissingSparkException)
    assert message.startswith(f"Spark needs Java 17 or newer on this worker, and {none}. Install one (Debian: ")
    assert message.endswith('A stage of small data needs neither Spark nor Java: @task.delta_stage(engine="arrow").')
    delete = DeltaDeleteOperator(
        task_id="delete", transaction=handle.to_dict(), predicate="id = 1", spark_conn_id="local", spark_submit={}
    )
    with pytest.raises(MissingSparkException, match=none):
        delete.execute(context(delete))


def test_what_spark_says_of_java():
    assert "JAVA_HOME is not set" in str(java_error("JAVA_HOME is not set"))
    wrong = "/a b/bin/spark-class: line 96: /opt/my java/bin/java: No such file or directory"
    assert "and /opt/my java/bin/java does not exist" in str(java_error(wrong))
    assert "is older" in str(java_error("java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main"))
    assert java_error("26/11/25 17:13:50 INFO SparkContext: Running Spark version 4.2.0") is None


SESSION = """
import json, os, subprocess, sys
from pathlib import Path
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.execution_time import task_runner
from support.running_tasks import context
from support.state_store import Supervisor
ExecutorSafeguard.test_mode, task_runner.SUPERVISOR_COMMS = True, Supervisor()
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator

def killed(spark):
    process = spark._sc._gateway.proc
    wait = process.wait

    def late(timeout=None):  # a busy machine: its connections are closed, but it is still there
        if timeout == 0:
            raise subprocess.TimeoutExpired(process.args, 0)
        return wait(timeout)

    process.wait, process.poll = late, lambda: None
    process.kill()
    return spark.range(3)

def own(spark):
    raise ConnectionResetError("of another server")

def typo(spark):
    return spark.sql("SELECT idd FROM range(3)")

for name in sys.argv[2:]:
    task = DeltaStagePySparkOperator(
        task_id="load", transaction=json.loads(sys.argv[1]), spark_conn_id="local", python_callable=globals()[name]
    )
    try:
        task.execute(context(task))
    except Exception as error:
        print("RESULT " + json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_says_where_it_failed_and_how_its_driver_ended(handle, tmp_path):
    program = tmp_path / "dags.py"
    program.write_text(SESSION)
    done = subprocess.run(
        [sys.executable, program, json.dumps(handle.to_dict()), "own", "typo", "killed"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "provider"), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    results = [json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(results) == 3, done.stderr[-3000:]
    own, typo, killed = results
    assert own == ["ConnectionResetError", "of another server"]
    assert typo[0] == SparkJobException.__name__
    assert f"line 1 pos 7. Called from {program}, line 28, in typo." in typo[1]
    assert killed[0] == SparkJobException.__name__
    assert "Spark's driver, a Java process of this task, ended during the work" in killed[1]
    assert "killed by SIGKILL. A process was killed, which a machine or a cluster does when its memory runs out" in killed[1]


LOG = "26/11/25 17:13:50 INFO SparkContext: Invoking stop() from shutdown hook"
NESTED = """\
26/11/25 17:13:49 ERROR Executor: Exception in task 0.0
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):
  File "/jobs/other.py", line 99, in f
KeyError: 'not this one'
"""
HANDLED = """\
Traceback (most recent call last):
  File "/jobs/load.py", line 3, in <module>
    {}["a"]
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/jobs/load.py", line 5, in <module>
    main()
  File "/jobs/load.py", line 4, in main
    json.loads("")
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""
DATABASE = """\
Traceback (most recent call last):
  File "/jobs/load.py", line 8, in <module>
    rows.count()
  File "/venv/lib/python3.11/site-packages/pyspark/sql/classic/dataframe.py", line 439, in count
  File "/venv/lib/python3.11/site-packages/py4j/protocol.py", line 327, in get_return_value
py4j.protocol.Py4JJavaError: An error occurred while calling o32.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.1 executor 1): ExecutorLostFailure (executor 1 exited caused by one of the running \
tasks) Reason: Command exited with code 137
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""
SCALA = """\
Exception in thread "main" java.lang.IllegalStateException: no rows
\tat org.apache.spark.sql.Dataset.count(Dataset.scala:1)
\tat com.example.Load$.main(Load.scala:12)
"""
YARN = """\
26/11/25 17:13:50 INFO Client:
\t client token: N/A
\t diagnostics: N/A
26/11/25 17:14:50 INFO Client:
\t diagnostics: Application application_1_0001 failed 1 times due to AM Container exited with  exitCode: 137
Exception in thread "main" org.apache.spark.SparkException: Application application_1_0001 finished with failed status
\tat org.apache.spark.deploy.yarn.Client.run(Client.scala:1)
"""
JSON = "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (/jobs/load.py, line 4, in main)"
LOST = (
    "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137 "
    "(/jobs/load.py, line 8)"
)
MEMORY = "java.lang.OutOfMemoryError: Java heap space\n\tat java.base/java.util.Arrays.copyOf(Arrays.java:3745)\n"
EXECUTOR = """\
Traceback (most recent call last):
  File "/jobs/load.py", line 8, in <module>
    spark.range(9).select(f("id")).collect()
  File "/opt/pyspark/errors/exceptions/captured.py", line 263, in deco
    raise converted from None
pyspark.errors.exceptions.captured.PythonException:{end}
  An exception was thrown from the Python worker. Please see the stack trace below.
{logged}Traceback (most recent call last):
  File "/opt/pyspark.zip/pyspark/worker.py", line 3395, in main
    process()
  File "/jobs/load.py", line 5, in <lambda>
    f = udf(lambda x: 1 // (x - 3), "long")
ZeroDivisionError: integer division or modulo by zero
"""
ZERO = "ZeroDivisionError: integer division or modulo by zero"
WORKER = f'Python code failed on an executor: {ZERO} (File "/jobs/load.py", line 5, in <lambda>)'
OUTPUTS = {
    "a Python worker": (EXECUTOR.format(logged="", end=" "), f"{WORKER} (/jobs/load.py, line 8)"),
    "a Python worker, and a line of Spark's log within": (EXECUTOR.format(logged=f"{LOG}\n", end=" "), WORKER),
    "chained, with Python's own frames": (HANDLED, JSON),
    "after the errors of executors": (NESTED + HANDLED, JSON),
    "executors alone": (NESTED, None),
    "lost executors": (DATABASE, LOST),
    "Scala": (SCALA, "IllegalStateException: no rows (Load.scala:12)"),
    "YARN": (YARN, "Application application_1_0001 failed 1 times due to AM Container exited with  exitCode: 137"),
    "memory": (MEMORY, "OutOfMemoryError: Java heap space"),
    "nothing": ("", None),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name):
    output, said = OUTPUTS[name]
    found = application_error([*output.splitlines(), LOG])
    assert (found.said if found is not None else None) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, ""), (None, ""), (1, "exit code 1"), (137, "killed by SIGKILL"), (-9, "killed by SIGKILL"), (143, "ended by SIGTERM")],
)
def test_exit_codes(code, said):
    assert ended_by(code) == said


def test_a_failed_application_may_be_tried_again(caplog):
    """As what Airflow's hook raises may."""
    caplog.set_level(logging.ERROR)
    decision = FINAL_ERRORS.evaluate(StageFailedException("the driver was killed"), 1, 2)
    assert decision.action.value == "default"
