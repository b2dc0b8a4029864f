"""A driver that finds what other runs of its job have left: a good report of its own request ends it, nothing else does."""

from __future__ import annotations

import sys

import pytest

from airflow_delta.contract.request import StageReport
from airflow_delta.contract.sealed import sealed
from airflow_delta.spark import delta_stage
from airflow_delta.table.stage.write.job_runs import put_request, read_report
from airflow_delta.table.stage.write.plan import plan_stage
from support.table import Table, metadata

pytestmark = pytest.mark.spark


@pytest.fixture
def drive(tmp_path, spark, monkeypatch):
    """Run a driver beside a report that is there; return what the worker collects, and the directories of the attempt."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the stage sets its own
    table = Table(tmp_path / "table", spark)
    table.commit(metadata())
    request = plan_stage(table.view(table.begin()))
    uri = put_request(table.log(), request)

    def run(text: str | None = None, **differs: object):
        about = {"transaction_id": request.transaction_id, "stage": request.stage, "attempt": request.attempt, **differs}
        left = sealed(StageReport(**about)) if text is None else text
        table.log().store.put(f"{request.directory}/reports/there/part-00000.txt", left.encode())
        delta_stage(spark, uri).write(spark.sql("SELECT 1 AS value"))
        written = [path for path in (table.path / request.directory).iterdir() if path.is_dir() and path.name != "reports"]
        return read_report(table.log(), request), written

    return run


def test_a_good_report_ends_it_before_it_writes(drive):
    report, written = drive(directories=("there",))
    assert (report.directories, written) == (("there",), [])


@pytest.mark.parametrize(
    "differs",
    [{"transaction_id": "another"}, {"stage": "another"}, {"attempt": "9-another"}, {"error_class": "OSError"}, {"text": "{}"}],
    ids=lambda differs: next(iter(differs)),
)
def test_any_other_does_not(drive, differs):
    report, written = drive(**differs)
    assert [path.name for path in written] == list(report.directories)
