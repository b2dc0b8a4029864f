"""on_kill: Spark work ends within Airflow's grace time, whatever hangs; and what is left when no on_kill was called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.tasks.spark import ending
from airflow_delta.tasks.spark.ending import SessionKiller, within
from airflow_delta.tasks.spark.runner import SparkRunner
from airflow_delta.tasks.spark.session import TaskSession
from airflow_delta.tasks.spark.submission import SparkSubmission

GRACE = 5.0


class Log(list):
    """The lines of a task log."""

    def warning(self, text, *arguments):
        self.append(text % arguments)

    info = warning


class TestWithin:
    def test_waits_for_what_is_quick(self):
        done = []
        assert within(5.0, lambda: done.append(1), what="It", logger=Log())
        assert done

    def test_does_not_wait_for_what_hangs(self):
        log = Log()
        assert not within(0.2, threading.Event().wait, what="Ending it", logger=log)
        assert log == ["Ending it takes longer than 0.2 s; the task does not wait for it."]

    def test_tells_what_fails(self):
        def fail():
            raise RuntimeError("no such driver")

        log = Log()
        assert within(5.0, fail, what="Ending it", logger=log)
        assert log == ["Ending it failed: no such driver"]


@pytest.fixture
def jvm():
    """A process that stands where PySpark keeps its driver."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def session(process, interrupt=lambda: None):
    return SimpleNamespace(_sc=SimpleNamespace(_gateway=SimpleNamespace(proc=process)), interruptAll=interrupt)


class TestSession:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch):
        monkeypatch.setattr(ending, "WAIT", 0.3)

    def test_jobs_that_heed_the_interruption_keep_their_driver(self, jvm):
        killer = SessionKiller(session(jvm, lambda: killer.done()), owned=True, logger=Log())
        killer.kill()
        time.sleep(1.0)
        assert jvm.poll() is None

    @pytest.mark.parametrize("interrupt", [lambda: None, threading.Event().wait], ids=["unheeded", "hangs"])
    def test_a_driver_that_goes_on_is_killed(self, jvm, interrupt):
        SessionKiller(session(jvm, interrupt), owned=True, logger=Log()).kill()
        assert jvm.wait(timeout=60) == -signal.SIGKILL

    def test_a_driver_of_other_code_is_not(self, jvm):
        SessionKiller(session(jvm), owned=False, logger=Log()).kill()
        time.sleep(1.0)
        assert jvm.poll() is None

    def test_a_session_without_a_driver_here(self):
        interrupted = threading.Event()
        SessionKiller(SimpleNamespace(interruptAll=interrupted.set), owned=True, logger=Log()).kill()
        assert interrupted.wait(60)

    def test_the_signal_handler_does_not_wait(self, jvm, monkeypatch):
        monkeypatch.setattr(ending, "WAIT", 30.0)
        held, interrupted = threading.Event(), threading.Event()

        def interrupt():
            held.wait(30)
            interrupted.set()

        SessionKiller(session(jvm, interrupt), owned=True, logger=Log()).kill()
        assert not interrupted.is_set()
        assert jvm.poll() is None
        held.set()


def test_a_submitted_application_is_ended_within_the_grace_time():
    # SparkSubmitHook waits without a bound for the command that ends a driver on the cluster.
    operator = DeltaDeleteOperator(task_id="task", spark_submit={})
    runner = operator.hold(SparkRunner)
    asked, ended = threading.Event(), threading.Event()

    def hangs():
        asked.set()
        threading.Event().wait(60)
        ended.set()

    runner._submission = SparkSubmission(
        task=operator, log=None, request=None, application="job.py", spark_conn_id="spark_default"
    )
    runner._submission.use(SimpleNamespace(on_kill=hangs))
    operator.on_kill()
    assert asked.is_set()
    assert not ended.is_set()
    assert ending.WAIT < GRACE


JOB = """
    import time
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    print("jvm", spark.sparkContext._gateway.proc.pid, flush=True)
    spark.range(4).repartition(4).rdd.foreach(lambda row: time.sleep(300))
"""


@pytest.mark.airflow
@pytest.mark.spark
class TestWithSpark:
    @pytest.mark.slow
    def test_a_driver_ends_with_a_worker_that_was_killed(self):
        """SIGKILL, an eviction, a lost node: nobody calls on_kill."""
        worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(JOB)], stdout=subprocess.PIPE, text=True)
        try:
            pid = int(next(line for line in worker.stdout if line.startswith("jvm")).split()[1])
            driver = psutil.Process(pid)
            time.sleep(5.0)  # the job runs
            workers = driver.children(recursive=True)
            worker.kill()
            _, alive = psutil.wait_procs([driver, *workers], timeout=120)
            assert not alive
        finally:
            worker.kill()
            worker.communicate()

    @pytest.mark.slow
    def test_a_job_of_a_session_ends_within_the_grace_time(self, tmp_path):
        """SIGTERM as Airflow sends it: the handler calls on_kill, and the task's own code goes on."""
        script = """
            import signal
            import time
            from airflow_delta.log import DeltaLog
            from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
            from airflow_delta.tasks.spark.session import TaskSession

            operator = DeltaStagePySparkOperator(task_id="stage", python_callable=lambda: None)
            signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
            with operator.hold(TaskSession).session(DeltaLog.for_table("/lake/t")) as spark:
                print("jvm", spark.sparkContext._gateway.proc.pid, flush=True)
                spark.range(4).repartition(4).rdd.foreach(lambda row: time.sleep(300))
        """
        environment = {**os.environ, "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}'}
        worker = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            pid = int(next(line for line in worker.stdout if line.startswith("jvm")).split()[1])
            driver = psutil.Process(pid)
            time.sleep(5.0)
            worker.terminate()
            assert worker.wait(timeout=120) != 0
            driver.wait(timeout=120)
        finally:
            worker.kill()
            worker.communicate()

    def test_told_to_stop_before_the_session_was_there(self):
        operator = DeltaStagePySparkOperator(task_id="stage", python_callable=lambda: None)
        operator.on_kill()
        session = operator.hold(TaskSession).session(DeltaLog.for_table("/lake/t"))
        with pytest.raises(DeltaIllegalStateException, match="told to stop"), session:
            pytest.fail("the work began")
