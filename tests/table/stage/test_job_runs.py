"""Reports of a job that a service ran more than once: one of them is collected, whoever asks and whatever comes later."""

from __future__ import annotations

import itertools
import os
import threading

import pytest

from airflow_delta.contract.request import StageReport
from airflow_delta.contract.sealed import sealed
from airflow_delta.exceptions import SchemaMismatchException, StagingException
from airflow_delta.table.stage.write.job_runs import put_request, read_report, reported_error, reports_left
from airflow_delta.table.stage.write.plan import plan_stage
from support.table import Table, metadata


@pytest.fixture
def job(tmp_path):
    """A request on storage, and a function that leaves the report of a run."""
    table = Table(tmp_path / "table")
    table.commit(metadata())
    request = plan_stage(table.view(table.begin()))
    put_request(table.log(), request)
    seconds = itertools.count(1_700_000_000)

    def leave(run: str, text: str | None = None, **report: object) -> None:
        about = {"transaction_id": request.transaction_id, "stage": request.stage, "attempt": request.attempt}
        path = table.path / request.directory / "reports" / run / "part-00000.txt"
        path.parent.mkdir(parents=True)
        path.write_text(sealed(StageReport(**about, **report)) if text is None else text)
        os.utime(path, (moment := next(seconds), moment))

    return table, request, leave


def test_the_first_good_report_is_collected_whatever_comes_later(job):
    table, request, leave = job
    leave("b", directories=("b",))
    leave("a", directories=("a",))
    assert read_report(table.log(), request).directories == ("b",)
    leave("0", directories=("0",))
    (table.path / request.directory / "reports" / "b" / "part-00000.txt").touch()  # now it is the newest
    assert read_report(table.log(), request).directories == ("b",)


@pytest.mark.parametrize("failed_first", [True, False])
def test_a_run_that_failed_does_not_hide_one_that_has_staged(job, failed_first):
    table, request, leave = job
    runs = [("bad", {"error_class": "OSError", "error_message": "lost"}), ("good", {"directories": ("good",)})]
    for run, report in runs if failed_first else runs[::-1]:
        leave(run, **report)
    assert reported_error(table.log(), request) is None
    assert read_report(table.log(), request).directories == ("good",)


def test_the_error_of_the_last_run_is_raised_and_a_retry_of_the_job_may_still_stage(job):
    table, request, leave = job
    leave("one", error_class="OSError", error_message="lost")
    leave("two", error_class="SchemaMismatchException", error_message="no column id")
    with pytest.raises(SchemaMismatchException, match="no column id"):
        read_report(table.log(), request)
    leave("three", directories=("three",))
    assert read_report(table.log(), request).directories == ("three",)


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ([], "and no other file: it did not run for this plan, ended before it wrote anything, or"),
        (
            ["a1/part-0.parquet", "b2/_temporary/0/part-1"],
            r"but other files \(2, the last one of 2023-11-14 22:13:20 UTC\)",
        ),
        (
            ["reports/c3/_temporary/0/_temporary/attempt/part-00000.txt"],
            r"but other files \(1, .*: it was stopped before its end",
        ),
    ],
    ids=["nothing", "rows", "a report that is being written"],
)
def test_without_a_report_the_error_says_what_else_is_there_and_not_that_the_job_ended(job, left, said):
    """A service may still be running it: whoever collects sees the storage only."""
    table, request, _ = job
    directory = table.path / request.directory
    (directory / "application.py").touch()  # the worker's, as the request is
    for index, name in enumerate(left):
        (directory / name).parent.mkdir(parents=True)
        (directory / name).touch()
        os.utime(directory / name, (1_700_000_000 - index,) * 2)
    with pytest.raises(StagingException, match=rf"left no report at .*/reports, {said}") as error:
        read_report(table.log(), request)
    assert "It may also still be running" in str(error.value)
    assert "ended, and" not in str(error.value)


def test_a_report_that_is_being_written_or_damaged_is_not_collected(job):
    table, request, leave = job
    leave("writing/_temporary/0/_temporary/attempt", directories=("x",))
    leave("empty", "")
    with pytest.raises(StagingException, match="left no report"):
        read_report(table.log(), request)
    leave("damaged", sealed(StageReport(transaction_id="t", stage="s", attempt="1-a")).replace("1-a", "1-b"))
    with pytest.raises(StagingException, match="damaged"):
        read_report(table.log(), request)
    leave("good", directories=("good",))
    assert read_report(table.log(), request).directories == ("good",)


@pytest.mark.parametrize("other", ["transaction_id", "stage", "attempt"])
def test_a_report_of_another_request_is_told_and_hides_none(job, other):
    table, request, leave = job
    about = {"transaction_id": request.transaction_id, "stage": request.stage, "attempt": request.attempt, other: "another"}
    leave("foreign", sealed(StageReport(**about, directories=("foreign",))))
    with pytest.raises(StagingException, match=r"is of another request: of stage .*another"):
        read_report(table.log(), request)
    leave("good", directories=("good",))
    assert read_report(table.log(), request).directories == ("good",)


def test_what_is_left_is_told_without_choosing(job):
    table, request, leave = job
    assert reports_left(table.log(), request) == []
    assert reported_error(table.log(), request) is None
    leave("one", error_class="StagingException", error_message="typed, too")
    assert "typed, too" in str(reported_error(table.log(), request))
    leave("two", directories=("two",))
    error, report = reports_left(table.log(), request)
    assert isinstance(error, StagingException)
    assert report.directories == ("two",)
    assert reported_error(table.log(), request) is None
    assert not (table.path / request.directory / "collected.json").exists()


def test_a_collected_report_that_is_gone_is_not_replaced_by_another(job):
    table, request, leave = job
    leave("one", directories=("one",))
    read_report(table.log(), request)
    leave("two", directories=("two",))
    (table.path / request.directory / "reports" / "one" / "part-00000.txt").unlink()
    with pytest.raises(StagingException, match="was collected is gone"):
        read_report(table.log(), request)


def test_all_who_collect_at_once_take_the_same_report(job):
    """Whatever each of them sees of the directory when it looks."""
    table, request, leave = job
    found: list[tuple[str, ...]] = []
    leave("run-0", directories=("run-0",))
    start = threading.Barrier(9)

    def collect() -> None:
        start.wait()
        found.append(read_report(table.log(), request).directories)

    def more() -> None:
        start.wait()
        for number in range(1, 9):
            leave(f"-{number}", directories=(f"-{number}",))

    threads = [threading.Thread(target=collect) for _ in range(8)] + [threading.Thread(target=more)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_who_chooses_second_takes_what_the_first_has_chosen(job, monkeypatch):
    """Although it has seen less: a report that another's clock calls older came between its look and its choice."""
    table, request, leave = job
    leave("b", directories=("b",))
    log = table.log()
    read_many, first = log.store.read_many, []

    def other_comes_between(paths):
        if not first:
            first.append(None)
            leave("a", directories=("a",))
            os.utime(table.path / request.directory / "reports" / "a" / "part-00000.txt", (1_600_000_000,) * 2)
            first[0] = read_report(table.log(), request).directories
        return read_many(paths)

    monkeypatch.setattr(log.store, "read_many", other_comes_between)
    assert read_report(log, request).directories == first[0] == ("a",)
    assert read_report(table.log(), request).directories == ("a",)


def test_a_report_of_an_earlier_release_lies_in_the_directory_itself(job):
    table, request, leave = job
    leave(".", directories=("old",))
    assert read_report(table.log(), request).directories == ("old",)
