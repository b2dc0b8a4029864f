"""Stages that are submitted in client mode, and whose worker was lost: what the next try takes over.

Operator, hook, table and processes are real; ``spark-submit`` is a program that stages a few rows without Spark.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.execution_time.context import set_current_context

from airflow_delta.exceptions import (
    DeltaIllegalStateException,
    SchemaMismatchException,
    StagedFileException,
    StagingException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.table.start.begin import begin
from airflow_delta.tasks.spark import earlier_try
from airflow_delta.tasks.spark.earlier_try import REQUEST_KEY
from airflow_delta.tasks.spark.runner import SparkRunner
from support.programs import python_program
from support.running_tasks import context, kept

SPARK_SUBMIT = """\
import json, os, pathlib, sys, time
import pyarrow as pa, pyarrow.parquet as pq

conf = dict(value.split("=", 1) for name, value in zip(sys.argv, sys.argv[1:]) if name == "--conf")
path = pathlib.Path(conf["spark.airflow_delta.request"].removeprefix("file://"))
request = json.loads(path.read_text())
with open({runs!r}, "a") as runs:
    print(os.getpid(), request["attempt"], file=runs)
time.sleep(float(conf.get("spark.test.seconds", 0)))
directory = path.parent
(directory / "run").mkdir()
pq.write_table(pa.table({{"id": pa.array([1, 2, 3], pa.int64())}}), directory / "run" / "part-0.parquet")
schema = {{"type": "struct", "fields": [{{"name": "id", "type": "long", "nullable": True, "metadata": {{}}}}]}}
report = {{
    "contract": 1, "transactionId": request["transactionId"], "stage": request["stage"], "attempt": request["attempt"],
    "written": {{"run": {{"numFiles": 1, "numRows": 3, "numBytes": (directory / "run" / "part-0.parquet").stat().st_size}}}},
    "directories": ["run"], "schemaString": json.dumps(schema),
}}
if "spark.test.error" in conf:
    report |= {{"errorClass": "SchemaMismatchException", "errorMessage": conf["spark.test.error"]}}
(directory / "reports").mkdir()
(directory / "reports" / "part-00000.txt").write_text(json.dumps(report))
sys.exit("spark.test.error" in conf)
"""


class World:
    def __init__(self, path: Path):
        self.log = DeltaLog.for_table(str(path / "table"))
        self.handle = begin(self.log, transaction_key="a")
        self.runs = path / "runs"
        self.tries = 0

    def operator(self, **kwargs):
        conf = kwargs.pop("conf", {"spark.test.seconds": "0"})
        return DeltaStageSparkSubmitOperator(
            task_id="stage", transaction=self.handle.to_dict(), application="job.py", package_uri="/p.zip", conf=conf, **kwargs
        )

    def execute(self, operator):
        self.tries += 1
        try:
            return operator.execute(context(operator, try_number=self.tries))
        finally:
            program = getattr(operator._hook, "_submit_sp", None)
            if program is not None:  # the hook leaves its pipe open
                program.stdout.close()

    def attempt(self, **kwargs):
        """Run the task once more, as a new process would; return the number of the try whose rows it collected."""
        staged = self.execute(self.operator(**kwargs))
        assert staged["numRecords"] == 3
        return int(staged["attempt"].split("-")[0])

    def lost_attempt(self, **kwargs):
        """A try that is gone while its application goes on: its process, without the wait of the one that submitted it."""
        operator = self.operator(**kwargs)
        started = []

        def submit(_application):
            command = operator._hook._build_spark_submit_command("job.py")
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            raise SystemExit("the worker was killed")

        built = operator._get_hook

        def hook():
            made = built()
            made.submit = submit
            return made

        operator._get_hook = hook
        with pytest.raises(SystemExit):
            self.execute(operator)
        return started[0]

    @property
    def submitted(self):
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def world(tmp_path, monkeypatch, outside_of_the_task_runner):
    monkeypatch.setattr(earlier_try, "_POLL", 0.1)
    made = World(tmp_path)
    program = python_program(tmp_path / "bin" / "spark-submit", SPARK_SUBMIT.format(runs=str(made.runs)))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    return made


def test_nothing_is_kept_of_a_try_that_succeeded(world):
    assert world.attempt() == 1
    assert not kept()


def test_the_report_that_was_left_is_taken(world):
    world.lost_attempt().wait()
    assert kept()[REQUEST_KEY]["transactionId"] == world.handle.transaction_id
    assert world.attempt() == 1
    assert world.submitted == 1
    assert not kept()


def test_an_application_that_still_runs_here_is_waited_for(world):
    slow = {"spark.test.seconds": "3"}
    process = world.lost_attempt(conf=slow)
    threading.Thread(target=process.wait, daemon=True).start()  # else it would stay as a zombie of this process
    assert world.attempt(conf=slow) == 1
    assert world.submitted == 1


def test_an_application_that_is_gone_is_replaced(world):
    slow = {"spark.test.seconds": "3"}
    process = world.lost_attempt(conf=slow)
    process.kill()
    process.wait()
    assert world.attempt(conf=slow) == 2


def test_the_note_is_there_before_the_application(world):
    """The worker is gone between the note and the submission: nothing runs, and nothing is waited for."""
    operator = world.operator()
    operator._get_hook = lambda: (_ for _ in ()).throw(SystemExit("the worker was killed"))
    with pytest.raises(SystemExit):
        world.execute(operator)
    assert REQUEST_KEY in kept()
    assert world.attempt() == 2


@pytest.mark.parametrize(
    "change", [{"application_args": ["another"]}, {"mode": "overwrite"}, {"conf": {"spark.test.seconds": "0.0"}}]
)
def test_other_work_is_done_anew(world, change):
    world.lost_attempt().wait()
    assert world.attempt(**change) == 2


def test_the_work_of_another_transaction_is_left_alone(world):
    world.lost_attempt().wait()
    world.handle = begin(world.log, transaction_key="b")
    assert world.attempt() == 2


def test_a_try_that_failed_is_repeated(world):
    failing = {"spark.test.error": "no such column"}
    world.lost_attempt(conf=failing).wait()
    with pytest.raises(SchemaMismatchException, match="no such column"):
        world.attempt(conf=failing)
    assert world.submitted == 2


def test_clearing_a_stage_that_succeeded_runs_it_again(world):
    assert [world.attempt(), world.attempt()] == [1, 2]


def test_a_task_that_is_not_durable_keeps_nothing(world):
    world.lost_attempt(durable=False).wait()
    assert not kept()
    assert world.attempt(durable=False) == 2


def test_half_of_a_report_is_none(world):
    world.lost_attempt().wait()
    report = next(Path(world.log.uri, kept()[REQUEST_KEY]["directory"]).rglob("part-00000.txt"))
    report.write_text(report.read_text()[:100])
    assert world.attempt() == 2


def test_rows_that_cannot_be_read_are_taken_over_once(world):
    world.lost_attempt().wait()
    rows = next(Path(world.log.uri, kept()[REQUEST_KEY]["directory"]).rglob("part-0.parquet"))
    rows.write_bytes(b"half of a file")
    with pytest.raises(StagedFileException):
        world.attempt()
    assert world.attempt() == 3


def test_a_driver_that_succeeded_without_a_report_is_not_taken_twice(world, monkeypatch):
    """Else nothing but a new transaction would ever run the application again, whatever its author has mended."""
    submitted = []
    cluster = SimpleNamespace(
        submit_job=lambda _: submitted.append("driver") or "driver",
        get_job_status=lambda *_: "FINISHED",
        is_job_active=lambda _: False,
        is_job_succeeded=lambda _: True,
        poll_until_complete=lambda *_: None,
    )
    monkeypatch.setattr(DeltaStageSparkSubmitOperator, "_backend", cluster)
    monkeypatch.setattr(DeltaStageSparkSubmitOperator, "_get_hook", lambda _: SimpleNamespace(_should_track_driver_status=True))
    for _ in range(2):
        with pytest.raises(StagingException, match="left no report"):
            world.attempt()
    assert len(submitted) == 2


def test_ending_the_task_ends_the_application_that_it_waits_for(world):
    slow = {"spark.test.seconds": "60"}
    process = world.lost_attempt(conf=slow)
    threading.Thread(target=process.wait, daemon=True).start()
    operator = world.operator(conf=slow)

    def stop():
        until = time.monotonic() + 120
        while not world.submitted and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)  # so that the task is waiting, as a rule; it must not matter
        operator.on_kill()

    threading.Thread(target=stop).start()
    with pytest.raises(DeltaIllegalStateException, match="told to stop"):
        world.execute(operator)
    process.wait(timeout=240)
    assert process.returncode == -signal.SIGKILL
    assert world.submitted == 1


def test_a_task_that_was_told_to_stop_submits_nothing(world):
    operator = world.operator()
    operator.on_kill()
    with pytest.raises(DeltaIllegalStateException, match="told to stop"):
        world.execute(operator)
    assert world.submitted == 0


def test_processes_that_end_meanwhile_do_not_keep_the_others_alive(world, monkeypatch):
    killed = []

    def process(pid):
        def kill():
            if pid == 1:
                raise psutil.NoSuchProcess(pid)
            killed.append(pid)

        return SimpleNamespace(kill=kill)

    earlier = earlier_try.EarlierTry(world.log, new_request(world), logging.getLogger())
    monkeypatch.setattr(earlier, "_applications", lambda: [process(1), process(2)])
    earlier.kill()
    assert killed == [2]


def test_a_submission_without_properties(world, monkeypatch):
    """``conf=None`` is the default of Airflow's hook."""

    def submit(hook, application):
        raise ChildProcessError(",".join(hook._conf))

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    operator = DeltaDeleteOperator(task_id="delete", spark_submit={"conf": None, "py_files": None}, spark_conn_id="spark_default")
    with pytest.raises(ChildProcessError, match=r"spark\.airflow_delta\.request"):
        operator.hold(SparkRunner).run(world.log, new_request(world))


class TestOfATableOperator:
    """``spark_submit=`` of the operations; their context is the running task's."""

    @pytest.fixture
    def deletes(self, world, monkeypatch):
        def attempt(work, **kwargs):
            operator = DeltaDeleteOperator(task_id="delete", spark_submit={}, package_uri="/p.zip", **kwargs)
            request = new_request(world)
            monkeypatch.setattr(SparkSubmitHook, "submit", lambda _hook, _application: work(request))
            with set_current_context(context(operator)):
                return operator.hold(SparkRunner).work_on(world.log, request)

        return attempt

    def test_takes_over_what_was_reported(self, world, deletes):
        def lost(request):
            finish(world, request)
            raise SystemExit("the worker was killed")

        with pytest.raises(SystemExit):
            deletes(lost)
        asked, report = deletes(lambda request: pytest.fail("it ran again"))
        assert (asked.attempt, report.attempt) == ("1-00000001", "1-00000001")
        assert not kept()

    def test_does_other_work_anew(self, world, deletes):
        def lost(request):
            finish(world, request)
            raise SystemExit("the worker was killed")

        with pytest.raises(SystemExit):
            deletes(lost)
        asked, _ = deletes(lambda request: finish(world, request), config_kwargs={"spark.sql.ansi.enabled": "false"})
        assert asked.attempt == "1-00000002"


def new_request(world):
    from airflow_delta.table.stage.stage_view import open_stage
    from airflow_delta.table.stage.write.plan import plan_stage

    world.tries += 1
    return plan_stage(open_stage(world.log, world.handle, task_id="delete", attempt=f"1-{world.tries:08}"))


def finish(world, request):
    """Do what a submitted application does: put the request, leave the report."""
    from airflow_delta.contract.request import StageReport
    from airflow_delta.table.stage.write.job_runs import put_request

    put_request(world.log, request)
    report = StageReport(transaction_id=request.transaction_id, stage=request.stage, attempt=request.attempt)
    world.log.store.put(f"{request.directory}/reports/part-00000.txt", json.dumps(report.to_dict()).encode())
    return report
