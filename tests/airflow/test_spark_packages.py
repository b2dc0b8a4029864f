"""PySpark and its client of two versions in one environment: named before a session is made."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalStateException, MissingSparkException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.tasks.spark.installed import check_pyspark, check_spark_here
from airflow_delta.tasks.spark.properties import submit_error
from airflow_delta.tasks.spark.session import TaskSession


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs versions of PySpark, as far as their metadata goes, before those of this environment."""

    def do(**versions: str) -> None:
        for name, version in versions.items():
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return do


def test_this_environment_has_one_version(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_pyspark()
    assert not caplog.records


def test_another_patch_is_a_warning(install, caplog: pytest.LogCaptureFixture) -> None:
    install(pyspark="4.2.10", pyspark_client="4.2.9")
    with caplog.at_level(logging.WARNING):
        check_pyspark()
    (record,) = caplog.records
    assert "pyspark 4.2.10 and pyspark-client 4.2.9 are both installed" in record.getMessage()
    assert 'pip install --force-reinstall --no-deps "pyspark==4.2.9" "pyspark-client==4.2.9"' in record.getMessage()


@pytest.mark.parametrize(("full", "client", "wanted"), [("4.3.0", "4.2.0", "4.2.0"), ("4.1.2", "4.10.0", "4.1.2")])
def test_another_release_stops_the_task(install, full: str, client: str, wanted: str) -> None:
    install(pyspark=full, pyspark_client=client)
    task = DeltaStagePySparkOperator(task_id="stage", python_callable=lambda: None, transaction={})
    said = f"pyspark {full} and pyspark-client {client}.*pyspark=={wanted}"
    session = task.hold(TaskSession).session(DeltaLog.for_table("/lake/t"))
    with pytest.raises(DeltaIllegalStateException, match=said), session:
        pytest.fail("a session was made")


WITHOUT = [
    # what cannot be imported, what is said first
    ("pyspark", "This task works on Spark, and PySpark is not installed on this worker"),
    ("pyspark.core", "This task runs Spark in its own process (master local[*]), and only pyspark-client is installed"),
]


@pytest.mark.parametrize(("missing", "said"), WITHOUT)
@pytest.mark.parametrize("operation", ["merge", "sql", "function"])
def test_without_spark_the_extra_is_named_first(monkeypatch, missing: str, said: str, operation: str) -> None:
    if missing != "pyspark":  # a session of another test would do
        monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setitem(sys.modules, missing, None)  # as Python remembers a module that is not there
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    task = {  # each is parsed without Spark
        "merge": lambda: DeltaMergeOperator(task_id="t", table="/lake/t", source="SELECT 1 AS id", condition="s.id = t.id"),
        "sql": lambda: DeltaStageSqlOperator(task_id="t", sql="SELECT 1 AS id", transaction={}),
        "function": lambda: DeltaStagePySparkOperator(task_id="t", python_callable=lambda: None, transaction={}),
    }[operation]()
    session = task.hold(TaskSession).session(DeltaLog.for_table("/lake/t"))
    with pytest.raises(MissingSparkException) as found, session:
        pytest.fail("a session was made")
    assert found.value.message.startswith(said)
    assert 'Install the extra "spark" there: pip install "airflow-provider-delta[spark]"' in found.value.message


def test_the_client_is_enough_for_spark_connect(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.core", None)
    check_spark_here({"spark.remote": "sc://spark:15002"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark:15002")
    check_spark_here({"spark.master": "local[*]"})


CONNECT = """
import sys
sys.modules["grpc"] = None
from airflow_delta.exceptions import MissingSparkException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.tasks.spark.session import TaskSession
task = DeltaStagePySparkOperator(task_id="t", python_callable=lambda: None, transaction={}, spark_conn_id="connect")
try:
    with task.hold(TaskSession).session(DeltaLog.for_table("/lake/t")):
        pass
except MissingSparkException as error:
    print(error.message)
"""


def test_a_client_of_spark_connect_that_is_not_whole(tmp_path: Path) -> None:
    """In a process of its own, where no session is active; from a file, since PySpark takes others for doctests."""
    url = {"AIRFLOW_CONN_CONNECT": "spark-connect://127.0.0.1:1"}
    (tmp_path / "task.py").write_text(CONNECT)
    done = subprocess.run(
        [sys.executable, tmp_path / "task.py"], env={**os.environ, **url}, capture_output=True, text=True, check=True
    )
    assert "grpcio >= 1.48.1 must be installed" in done.stdout
    assert 'pip install "airflow-provider-delta[connect]"' in done.stdout


@pytest.mark.parametrize("refused", [False, True])
def test_a_worker_without_spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """Of a folder on PATH, or a program there, that its user must not use the system says "refused" rather than "not found"."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if refused:
        (tmp_path / "spark-submit").touch(mode=0o644)
    with pytest.raises(PermissionError if refused else FileNotFoundError) as caught:
        subprocess.run(["spark-submit"], check=True)
    error = submit_error(caught.value, "/lake/t", "spark_default")
    assert isinstance(error, MissingSparkException)
    assert "There is no spark-submit on this worker to submit the application with" in error.message
    assert ("may not execute it" in error.message) == refused
    for kind in (FileNotFoundError, PermissionError):
        assert submit_error(kind(2, "none", "/data/spark_rows"), "/lake/t", "spark_default") is None
