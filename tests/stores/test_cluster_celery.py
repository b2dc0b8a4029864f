"""A transaction whose tasks run on Celery, in whatever process, with two schedulers and XComs on S3.

``MAPPED_STAGES=1000`` makes it as large as in docs/scale.md.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from live.runs import Live
from stores.celery_airflow import CeleryAirflow

STAGES = int(os.environ.get("MAPPED_STAGES", "40"))


@pytest.fixture
def celery(versitygw: Any, tmp_path: Path) -> Iterator[Live]:
    sockets = Path(tempfile.mkdtemp(prefix="celery-pg-", dir="/tmp"))
    airflow = CeleryAirflow(tmp_path / "home", sockets, versitygw)
    try:
        airflow.start_redis()
        airflow.start()
        yield Live(airflow)
    finally:
        airflow.stop()
        shutil.rmtree(sockets, ignore_errors=True)


def test_mapped_stages_through_celery_and_a_store(celery: Live) -> None:
    """All stages are one version, though a scheduler is killed; what the tasks told each other went over the store."""
    airflow = celery.airflow
    schedulers = "SELECT count(*) FROM job WHERE job_type = 'SchedulerJob' AND state = 'running'"
    celery.until(lambda: airflow.query(schedulers)[0][0] == 2, "two schedulers run")
    table = celery.table("fan-in")
    run = celery.trigger("fan_in", table=str(table), stages=STAGES)
    celery.until(lambda: "success" in [run.state_of("txn.stage", index) for index in range(STAGES)], "a stage is done")
    airflow.kill("second-scheduler")
    run.wait()
    assert table.version == 0
    assert table.stages() == {run.run_id: [(index, run.tries_of("txn.stage", index)) for index in range(STAGES)]}
    # Links of the task's page are the only ones that do not go through the backend.
    in_database = "SELECT DISTINCT left(value #>> '{}', 5) FROM xcom WHERE run_id = %s AND key NOT LIKE '\\_link%%'"
    assert airflow.query(in_database, run.run_id) == [("s3://",)]
    said = airflow.xcoms()
    [result] = [value for value in said if isinstance(value, dict) and "attempts" in value]
    assert (result["numFiles"], result["numRecords"], result["version"]) == (STAGES, 3 * STAGES, 0)
    [handle] = [value for value in said if isinstance(value, dict) and "readVersion" in value and "attempts" not in value]
    assert handle["readVersion"] == -1
    times = airflow.query(
        "SELECT task_id, extract(epoch FROM max(end_date) - min(start_date))::float FROM task_instance WHERE run_id = %s"
        " AND state = 'success' GROUP BY task_id",
        run.run_id,
    )
    print(f"{STAGES} stages:", {task: round(seconds, 1) for task, seconds in times})
