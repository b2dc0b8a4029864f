"""The example with three tables, in a real Airflow: killed between tables, then retried; the audit that refuses all of them.

Read by delta-rs and by DuckDB.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.testing import killed_at
from support import readers

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]

DAG_FILE = Path(__file__).parents[2] / "dags_examples/delta_several_tables.py"
COMMIT = "month_end.commit"
ROWS = {"orders": 3, "lines": 4, "totals": 2}


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setenv("DELTA_EXAMPLES", str(tmp_path))
    return {name: str(tmp_path / "month_end" / name) for name in ROWS}


def rows(tables: dict[str, str]) -> dict[str, int]:
    """How many rows each table has: every reader says the same."""
    return {name: len(readers.rows(table)) for name, table in tables.items() if Path(table, "_delta_log").is_dir()}


@pytest.mark.parametrize(("point", "entry"), [("before log entry", 2), ("after log entry", 3), ("before log entry", 5)])
def test_killed_between_tables_then_retried(run_dag, tables, point, entry):
    """The entries are an intent on two tables, the decision, and the other two tables."""
    run_dag(DAG_FILE).assert_state("success")
    assert rows(tables) == ROWS
    run = run_dag(DAG_FILE, logical_date="2026-02-01", kill=killed_at(point, COMMIT, entry=entry))
    run.assert_state("success")
    assert run.tries_of(COMMIT) == 2
    result = run.xcom(COMMIT)
    assert result["outcome"] == "published"
    both = {"orders": 6, "lines": 8, "totals": 2}
    assert rows(tables) == both
    assert run.xcom("report") == {table: result["tables"][table]["version"] for table in tables.values()}

    again = run.clear(COMMIT)
    again.assert_state("success")
    assert again.xcom(COMMIT)["committedBefore"]
    assert rows(tables) == both


def test_an_audit_over_all_tables_lets_none_through(run_dag, tables):
    run = run_dag(DAG_FILE, conf={"wrong_by": 1})
    run.assert_state("failed")
    states = {name: run.state_of(f"month_end.{name}") for name in ("sums", "commit", "abort", "watcher")}
    assert states == {"sums": "failed", "commit": "upstream_failed", "abort": "success", "watcher": "success"}
    assert rows(tables) == {}
    assert "totals are the sum of the lines" in run.log
