"""``DeltaDiffOperator`` before an approval, and ``airflow delta diff``, on a real Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.operators.diff import DeltaDiffOperator
from support import readers
from support.dag_runs import answer_when_asked
from support.running_tasks import context
from support.watching import commit, stage, start

pytestmark = pytest.mark.airflow

BODY = """Compared with version 0: 1 row added, 1 row removed, 1 row changed (by id).

Changed rows, each before and after:

| id | name |
| --- | --- |
| 2 | b → B |

Added rows:

| id | name |
| --- | --- |
| 4 | d |

Removed rows:

| id | name |
| --- | --- |
| 3 | c |"""


def body_of(run) -> str:
    """What Airflow shows whom it asks."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        of_run = select(HITLDetail.body).join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        return session.scalar(of_run.where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id))


@pytest.mark.slow
def test_an_approval_shows_what_the_commit_then_does(run_dag, tables):
    path = f"{tables}/previewed"
    deltalake.write_deltalake(path, pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
    with answer_when_asked("previewed", "Approve", by="ada"):
        run = run_dag("previewed", datetime(2026, 1, 1, tzinfo=UTC))
    assert run.state == "success"
    diff = run.xcom("txn.diff")
    assert (diff["exact"], diff["added"], diff["removed"], diff["changed"]) == (True, 1, 1, 1)
    assert diff["sample"]["changed"] == [{"before": {"id": 2, "name": "b"}, "after": {"id": 2, "name": "B"}}]
    assert diff["body"] == body_of(run) == BODY
    assert sorted((row["id"], row["name"]) for row in readers.rows(path)) == [(1, "a"), (2, "B"), (4, "d")]

    # A rerun of the same key has nothing to show.
    with answer_when_asked("previewed", "Approve", by="ada"):
        again = run_dag("previewed", datetime(2026, 1, 1, tzinfo=UTC))
    diff = again.xcom("txn.diff")
    assert (diff["alreadyCommitted"], diff["added"], diff["changed"]) == (True, 0, 0)
    assert diff["body"].startswith("Nothing will be published: the transaction is already in version 1 of")

    done = airflow("delta", "diff", path, "--keys", "id", "--rows", "1")
    assert done.stdout.splitlines()[0] == f"Version 1. {BODY.splitlines()[0]}"
    assert [line.split("|")[0].strip() for line in done.stdout.splitlines()[3:] if line.strip()] == ["+", "-", "before", "after"]
    data = json.loads(airflow("delta", "diff", path, "--version", "1", "--keys", "id", "-o", "json").stdout)
    assert {key: data[key] for key in ("version", "readVersion", "added", "removed", "changed")} == {
        "version": 1, "readVersion": 0, "added": 1, "removed": 1, "changed": 1,
    }  # fmt: skip
    assert json.loads(airflow("delta", "diff", path, "--max-compared", "1", "-o", "json").stdout)["exact"] is False
    failed = airflow("delta", "diff", path, "--keys", "nmae", code=1)
    assert "The key 'nmae' is not a column of table" in failed.stderr


def airflow(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    env = {**os.environ, "COLUMNS": "200", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "airflow", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=180, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


# -- one task -------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("outside_of_the_task_runner")
class TestOneTask:
    def test_xcom_is_not_believed(self, tmp_path):
        """A report whose files are not those of the stage is refused, as by the commit."""
        from airflow_delta.exceptions import StagingException

        handle = start(str(tmp_path / "table"))
        _, staged = stage(handle)
        elsewhere = {**staged, "transactionId": "another"}
        operator = DeltaDiffOperator(task_id="diff", transaction=handle, staged=[elsewhere])
        with pytest.raises(StagingException):
            operator.execute(context(operator))

    def test_a_new_column(self, tmp_path):
        uri = str(tmp_path / "table")
        deltalake.write_deltalake(uri, pa.table({"day": ["x"]}))
        handle = start(uri)
        asking, staged = stage(handle, merge_schema=True)
        operator = DeltaDiffOperator(task_id="diff", transaction=handle, staged=[staged], sample=0)
        running = context(operator)
        running["dag"].task_dict["stage"] = asking
        found = operator.execute(running)
        assert found["schemaChanges"] == [{"kind": "new", "column": "id", "before": None, "after": "bigint"}]
        assert found["body"] == "Compared with version 0: 3 rows added, 0 rows removed.\n\nNew columns: id (bigint)"

    def test_no_sample(self, tmp_path):
        handle = start(str(tmp_path / "table"))
        _, staged = stage(handle)
        operator = DeltaDiffOperator(task_id="diff", transaction=handle, staged=[staged], sample="0")
        found = operator.execute(context(operator))
        assert (found["added"], found["changed"], found["sample"]["added"]) == (3, None, [])
        assert found["body"] == "Compared with a new table: 3 rows added, 0 rows removed."
        assert found["schemaChanges"] == []
        committing = commit(handle, staged)
        committing.execute(context(committing))
