"""Random orders of what may happen around a job: whatever a service runs, kills or runs again, its rows are published once.

A driver is a generator whose steps are those of ``delta_stage(spark)``: read the request, look for a report, write, leave one. It
writes by Arrow, since the order of the steps is what counts here; a real Spark runs twice in ``spark/test_package.py``.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.sealed import sealed
from airflow_delta.contract.staging_directory import REPORT_DIRECTORY
from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException, StagingException
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.operations.collect import collect_operation
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.stage.write.job_runs import put_request, read_report, read_request
from airflow_delta.table.stage.write.plan import plan_stage
from support.table import Table

ROWS = pa.table({"value": pa.array(range(5), pa.int32())})


@dataclass
class Drawn:
    """One transaction with one stage by a job, and all that happens to it."""

    table: Table
    random: random.Random
    drivers: list[Iterator[None]] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    staged: StagedWrite | None = None
    collected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ended: str | None = None
    before: int = 0

    def __post_init__(self) -> None:
        self.handle = self.table.begin()
        self.plan()

    def plan(self) -> None:
        """The first task, also when it is cleared."""
        try:
            request = plan_stage(self.table.view(self.handle))
        except DeltaIllegalStateException:
            return
        put_request(self.table.log(), request)
        self.plans.append(request.directory)

    def driver(self) -> None:
        """Runs of the newest plan's job at once; sometimes of one that the service has kept of an older plan."""
        directory = self.plans[-1] if self.random.random() < 0.8 else self.random.choice(self.plans)
        for _ in range(self.random.randrange(1, 4)):
            self.drivers.append(self.steps(directory, fails=self.random.random() < 0.2))

    def steps(self, directory: str, *, fails: bool) -> Iterator[None]:
        log = self.table.log()
        request = read_request(log, directory)
        yield
        if any("error" not in path.name for path in self.reports(request)):
            return
        yield
        report = stage_arrow(log, ROWS, request)
        yield
        if fails:
            about = {"transaction_id": request.transaction_id, "stage": request.stage, "attempt": request.attempt}
            report = StageReport(**about, error_class="OSError", error_message="the executors were lost")
        name = f"{uuid.UUID(int=self.random.getrandbits(128)).hex[:8]}{'-error' if fails else ''}"
        path = f"{directory}/{REPORT_DIRECTORY}/{name}/part-00000.txt"
        log.store.put(path, sealed(report).encode())
        moment = self.random.randrange(1_700_000_000, 1_800_000_000)  # clocks of drivers differ
        os.utime(self.table.path / path, (moment, moment))

    def reports(self, request: StageRequest) -> list:
        return list((self.table.path / request.directory / REPORT_DIRECTORY).glob("*"))

    def step(self) -> None:
        if self.drivers:
            one = self.random.choice(self.drivers)
            try:
                next(one)
            except (StopIteration, StagingException, OSError):  # its request may be gone
                self.drivers.remove(one)

    def kill(self) -> None:
        if self.drivers:
            self.drivers.remove(self.random.choice(self.drivers))

    def collect(self) -> None:
        """The last task: of the newest plan, whose output it has."""
        directory = self.plans[-1]
        view = self.table.view(self.handle)
        try:
            request = read_request(view.log, directory)
            report = read_report(view.log, request)
        except DeltaError:
            return
        earlier = self.collected.setdefault(directory, report.directories)
        assert earlier == report.directories, "another run was collected than before"
        try:
            self.staged = collect_operation(view, request, report)
        except DeltaError:
            assert self.ended == "aborted", "what was reported is not there"

    def commit(self) -> None:
        if self.staged is None or self.ended is not None:
            return
        self.table.publish(self.handle, self.staged)
        self.ended = "committed"

    def abort(self) -> None:
        if self.ended is None and self.random.random() < 0.3:
            self.table.abort(self.handle)
            self.ended = "aborted"

    def vacuum(self) -> None:
        """With a week's retention: nothing of today is deleted, whoever it belongs to."""
        vacuum(self.table.log())

    def run(self, number_of_steps: int) -> None:
        often = {self.step: 12, self.collect: 3, self.driver: 2, self.kill: 1}
        seldom = {self.plan: 0.3, self.commit: 0.5, self.abort: 0.5, self.vacuum: 0.3}
        weights = often | seldom
        for action in self.random.choices(list(weights), list(weights.values()), k=number_of_steps):
            action()
        while self.drivers:  # a driver that comes back a day later
            self.step()
        if self.ended is None:
            self.driver_to_end()
            self.collect()
            self.commit()

    def driver_to_end(self) -> None:
        for _ in self.steps(self.plans[-1], fails=False):
            pass


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_the_rows_are_there_once(tmp_path, seed):
    drawn = random.Random(seed)
    table = Table(tmp_path / "table")
    table.create()
    published = 0
    for _ in range(3):
        history = Drawn(table, drawn)
        history.run(drawn.randrange(20, 100))
        assert history.ended in ("committed", "aborted")
        published += history.ended == "committed"
        # After the end of a transaction nobody needs what was not published.
        vacuum(table.log(), retention_hours=0, retention_check=False, transaction_timeout_hours=0)
        assert table.rows() == sorted([(value,) for value in range(5)] * published, key=repr)
