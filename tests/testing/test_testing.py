"""What ``airflow_delta.testing`` gives Dag authors, with a real Airflow and real kills."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.testing import POINTS, killed_at
from airflow_delta.testing.runs import DagRunError, DagRunner
from support import readers

pytestmark = pytest.mark.airflow

DAGS = Path(__file__).parent / "dags.py"
OBJECTS = "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend"
NUMBERS = [{"id": 1}, {"id": 2}, {"id": 3}]


@pytest.mark.slow
def test_a_run_its_states_and_its_results(lake, run_dag):
    run = run_dag(DAGS, "appended")
    assert (run.state, run.state_of("txn.commit"), run.tries_of("txn.commit")) == ("success", "success", 1)
    assert run.xcom("txn.commit")["version"] == 0
    numbers = lake.table("numbers")
    numbers.assert_version(0)
    numbers.assert_rows(NUMBERS)
    assert readers.rows(numbers.path) == numbers.rows()

    same = run_dag(DAGS, "appended", conf={"values": [9]})
    assert (same.run_id, same.state) == (run.run_id, "success"), "the same date is the same run"
    numbers.assert_version(0)
    other = run_dag(DAGS, "appended", logical_date=datetime(2026, 1, 2, tzinfo=UTC), conf={"values": [9]})
    assert other.run_id != run.run_id
    numbers.assert_rows([*NUMBERS, {"id": 9}])
    numbers.assert_rows(NUMBERS, version=0)


@pytest.mark.parametrize("backend", ["airflow.sdk.bases.xcom.BaseXCom", OBJECTS])
def test_what_tasks_returned_comes_from_the_xcom_backend(run_dag, tmp_path, monkeypatch, backend):
    monkeypatch.setenv("AIRFLOW__CORE__XCOM_BACKEND", backend)
    monkeypatch.setenv("AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH", f"file://{tmp_path}/xcoms")
    monkeypatch.setenv("AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD", "0")
    run = run_dag(DAGS, "handed_on")
    assert run.xcom("give") == {"pair": [1, 2], "text": '{"a": 1}'}  # as JSON
    assert run.xcom("text") == '{"a": 1}'
    assert (tmp_path / "xcoms").exists() is (backend == OBJECTS)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_of_the_commit_and_its_retry_publish_once(lake, run_dag, point):
    run = run_dag(DAGS, "appended", kill=killed_at(point, "txn.commit"))
    assert f"Killed at '{point}' in txn.commit" in run.log
    assert (run.state, run.tries_of("txn.commit")) == ("success", 2)
    public = point in ("after log entry", "before result")
    assert run.xcom("txn.commit")["committedBefore"] is public
    lake.table("numbers").assert_version(0)
    lake.table("numbers").assert_rows(NUMBERS)
    again = run.clear()
    assert (again.state, again.tries_of("txn.commit")) == ("success", 3)
    lake.table("numbers").assert_version(0)


@pytest.mark.slow
def test_a_kill_without_a_retry_fails_the_run(lake, run_dag):
    run = run_dag(DAGS, "not_retried", kill=killed_at("before log entry", "txn.commit"))
    assert (run.state_of("txn.commit"), run.state_of("txn.abort")) == ("failed", "success")
    lake.table("numbers").assert_version(-1)
    lake.table("numbers").assert_rows([])


@pytest.mark.slow
def test_a_dag_that_is_not_exactly_once_is_found_out(lake, run_dag, monkeypatch):
    monkeypatch.setenv("LAKE", str(lake.folder))
    run_dag(DAGS, "doubled", kill=killed_at("before result", "write"))
    with pytest.raises(AssertionError, match=r"2 found, 1 expected\.\nNot expected:\n  \{'id': 1\}"):
        lake.table("numbers").assert_rows([{"id": 1}])


@pytest.mark.slow
def test_one_instance_of_a_mapped_task(run_dag):
    run = run_dag(DAGS, "mapped", kill=killed_at("before result", "echo", map_index=1))
    assert [(run.xcom("echo", index), run.tries_of("echo", index)) for index in (0, 1)] == [(10, 1), (20, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "state", "version"), [("Reject", "skipped", -1), ("Approve", "success", 0)])
def test_approvals(lake, run_dag, choice, state, version):
    run = run_dag(DAGS, "approved", answers={"txn.approve": choice})
    assert run.state_of("txn.commit") == state
    lake.table("numbers").assert_version(version)


@pytest.mark.slow
def test_orders_that_cannot_be_carried_out(lake, run_dag, tmp_path):
    with pytest.raises(DagRunError, match="waits for an answer: pass answers="):
        run_dag(DAGS, "approved")
    with pytest.raises(DagRunError, match=r"defines 'appended', 'approved', .*, pass dag_id=\.$"):
        run_dag(DAGS)
    with pytest.raises(DagRunError, match=r"defines 'appended', .*, not 'other'\.$"):
        run_dag(DAGS, "other")
    with pytest.raises(DagRunError, match=r"The Dag file .*nowhere\.py does not exist\.$"):
        run_dag(tmp_path / "nowhere.py")
    with pytest.raises(DagRunError, match=r"has no task 'commit' to kill. Its tasks: txn.start"):
        run_dag(DAGS, "appended", kill=killed_at("before result", "commit"))
    (tmp_path / "broken.py").write_text("import nothing_of_the_kind")
    with pytest.raises(DagRunError, match=r"broken\.py cannot be imported: ModuleNotFoundError: No module named 'nothing_of"):
        run_dag(tmp_path / "broken.py")
    with pytest.raises(ValueError, match=r"no point 'somewhere'\. Points are 'before execute'"):
        killed_at("somewhere", "t")


@pytest.mark.slow
def test_a_kill_that_does_not_happen_is_no_proof(run_dag):
    with pytest.raises(DagRunError, match=r"txn\.start was not killed 'before log entry': try 1 of it did not come there"):
        run_dag(DAGS, "not_retried", kill=killed_at("before log entry", "txn.start"))


@pytest.mark.slow
def test_an_interval_before_the_date_and_the_error_of_a_task(run_dag):
    run = run_dag(DAGS, "monthly", logical_date="2026-02-01")
    with pytest.raises(AssertionError, match=r"Error of refuse: ValueError: no rows of 2026-01-01(?s:.*)Expected: success$"):
        run.assert_state("success")
    run.assert_state("failed")


# -- tables, without a run ------------------------------------------------------------------------------------------------------


class TestTables:
    def test_rows_that_a_dag_finds(self, lake):
        table = lake.table("found")
        assert table.rows() == []
        assert table.append([{"id": 1, "day": "a"}, {"id": 2, "day": "b"}], partition_by=["day"]) == 0
        assert table.append(pa.table({"id": [3], "day": ["a"]})) == 1
        assert sorted(row["id"] for row in table.rows(where="day = 'a'")) == [1, 3]
        assert sorted(row["id"] for row in readers.rows(table.path)) == [1, 2, 3]
        assert (table.path / "staged").is_dir()

    def test_rows_that_their_types_do_not_allow(self, lake):
        text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
        with pytest.raises(SchemaMismatchException, match=r"Column v .* row 0 "):
            lake.table("found").append(pa.table({"v": text}))

    def test_what_differs_is_said(self, lake):
        table = lake.table("found")
        with pytest.raises(ValueError, match="got no rows, and so no columns"):
            table.append([])
        with pytest.raises(AssertionError, match="found is at version -1, not 0:\nThere is no such table"):
            table.assert_version(0)
        table.append([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
        table.assert_rows([{"id": 1}, {"id": 1}])
        table.assert_rows([{"name": "b", "id": 1}, {"id": 1, "name": "a"}])
        with pytest.raises(AssertionError, match=r"(?s)Missing:\n  {'id': 2}\nNot expected:\n  {'id': 1}\n.*version 0: WRITE"):
            table.assert_rows([{"id": 1}, {"id": 2}])
        with pytest.raises(AssertionError, match="found has no column nmae, but id, name"):
            table.assert_rows([{"nmae": "a"}])
        with pytest.raises(AssertionError, match="2 found, 0 expected"):
            table.assert_rows([])
        with pytest.raises(AssertionError, match=r"is at version 0, not 1:\nIts versions, newest first:\n  version 0"):
            table.assert_version(1)


def test_without_pytest_it_says_what_to_install():
    code = "import sys; sys.modules['pytest'] = None; import airflow_delta.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert "pip install 'airflow-provider-delta[testing]'" in done.stderr


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        (None, "2026-01-01T00:00:00+00:00"),
        ("2026-01-02", "2026-01-02T00:00:00+00:00"),
        ("2026-01-02T03:00:00+02:00", "2026-01-02T03:00:00+02:00"),
        (datetime(2026, 1, 2), "2026-01-02T00:00:00+00:00"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    ],
)
def test_logical_dates(tmp_path, monkeypatch, given, moment):
    runner, ordered = DagRunner(tmp_path, lambda: tmp_path), []
    monkeypatch.setattr(runner, "_run", lambda order, _kill: ordered.append(order["logical_date"]))
    runner(DAGS, "appended", logical_date=given)
    assert ordered == [moment]
    with pytest.raises(ValueError, match="tomorrow"):
        runner(DAGS, "appended", logical_date="tomorrow")


def test_the_tests_process_gets_no_airflow():
    code = "import airflow_delta.testing, sys; print([m for m in ('airflow', 'pyspark', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.stdout.strip() == "[]", done.stderr
