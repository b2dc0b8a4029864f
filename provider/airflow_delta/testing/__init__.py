"""Test your own Dags with pytest: a lake in a folder, Dag runs on a real Airflow, kills at named points, tables and their rows.

Needs the extra ``testing``. In the ``conftest.py`` of your tests::

    pytest_plugins = ["airflow_delta.testing"]

which brings the fixtures :func:`lake` and :func:`run_dag`. Nothing here imports Airflow into the process of the tests: each run
has a process of its own, with a home and a database that are thrown away.
"""

from __future__ import annotations

try:
    import pytest  # noqa: F401
except ImportError as error:
    raise ImportError(
        "airflow_delta.testing needs pytest, which only tests need: pip install 'airflow-provider-delta[testing]'"
    ) from error

from airflow_delta.testing.kills import POINTS, Kill, killed_at
from airflow_delta.testing.lake import Lake, LakeTable, lake, run_dag
from airflow_delta.testing.runs import DagRunner, FinishedRun

__all__ = ["POINTS", "DagRunner", "FinishedRun", "Kill", "Lake", "LakeTable", "killed_at", "lake", "run_dag"]
