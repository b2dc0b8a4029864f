"""PySpark and its client of two versions in one environment: named before a session is made."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.spark_packages import check_pyspark
from airflow_delta.operators.spark_session import TaskSession


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
