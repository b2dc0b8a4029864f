"""The fixtures of pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.testing.lake import Lake
from airflow_delta.testing.runs import DagRunner, new_database


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """An empty lake in a folder of the test; the connection ``delta_default`` leads to it, ``lake.connect(id)`` adds others."""
    folder = tmp_path / "lake"
    folder.mkdir()
    made = Lake(folder, monkeypatch.setenv)
    made.connect("delta_default")
    return made


@pytest.fixture
def run_dag(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> DagRunner:
    """Runs Dags on a real Airflow, which this test has for itself: ``run_dag("dags/orders.py")``."""
    return DagRunner(tmp_path / "airflow", lambda: new_database(tmp_path_factory.getbasetemp()))
