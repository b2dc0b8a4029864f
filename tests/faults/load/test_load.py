"""Many processes commit to one table for a long time, beside checkpoints, log cleanup, VACUUM and readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.transaction import Operation
from faults.load.processes import RETENTION, live_after, live_of, path_of
from stores.install import PROGRAMS
from stores.servers import Versitygw
from support.table import metadata

TESTS = Path(__file__).parents[2]
MEMORY = {"short": 24 << 20, "long": 64 << 20}
"""Bytes that a writer may grow by: once, by the largest checkpoint that it wrote, whose memory the allocator keeps."""
LATE = 16 << 20
"""Bytes that most writers may grow by in the second half."""

Started = tuple[list["subprocess.Popen[str]"], list["subprocess.Popen[str]"]]


@contextmanager
def started(roles: list[tuple[str, int, dict[str, Any]]], uri: str) -> Iterator[Started]:
    """Start processes, and end them in any case; the writers, and the others."""
    processes: list[tuple[str, subprocess.Popen[str]]] = []
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    try:
        for role, number, given in roles:
            command = [sys.executable, "-m", "faults.load.processes", role, uri, str(number), json.dumps(given)]
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            processes.append((role, process))
        for _, process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1][-3000:]
        for _, process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        yield [p for role, p in processes if role == "write"], [p for role, p in processes if role != "write"]
    finally:
        for _, process in processes:
            process.kill()
            process.communicate()


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Tell a process to stop, if it has not, and return what it found."""
    output, errors = process.communicate()
    assert process.returncode == 0, errors[-4000:]
    return dict(json.loads(output))


def create(uri: str, options: dict[str, str]) -> DeltaLog:
    log = DeltaLog.for_table(uri, options)
    transaction = log.start_transaction()
    retention = f"interval {RETENTION} seconds"
    configuration = {"delta.deletedFileRetentionDuration": retention, "delta.logRetentionDuration": retention}
    transaction.update_metadata_for_new_table(metadata(configuration=configuration))
    assert transaction.commit([], Operation.manual_update()) == 0
    return log


@pytest.fixture(params=["local", "s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """A place for a table: what it is on, its URI, and storage options."""
    if request.param == "local":
        yield "local", str(tmp_path / "table"), {}
        return
    if not PROGRAMS["versitygw"].exists():
        pytest.fail("Not installed: versitygw. Run python tests/stores/install.py versitygw", pytrace=False)
    with Versitygw(tmp_path) as server:
        yield "s3", f"{server.root(server.container())}/table", server.options


def test_nothing_is_lost_and_nothing_grows(
    table: tuple[str, str, dict[str, str]], is_long: bool, figures: Callable[..., None]
) -> None:
    store, uri, options = table
    writers, commits, keep = (16, 1250, 1000) if is_long else (4, 150, 100)
    log = create(uri, options)
    log.store.put_if_absent("data/orphan.bin", b"x", durable=False)
    roles: list[tuple[str, int, dict[str, Any]]] = [
        *(("write", number, {"options": options, "commits": commits}) for number in range(writers)),
        *(("read", number, {"options": options}) for number in range(2)),
        ("maintain", 0, {"options": options, "keep": keep}),
    ]
    with started(roles, uri) as (writing, others):
        written = [result_of(process) for process in writing]
        *read, maintained = [result_of(process) for process in others]

    told = sorted((version, seconds) for found in written for version, seconds in found["told"])
    versions = [version for version, _ in told]
    log = DeltaLog.for_table(uri, options)
    snapshot = log.update()
    live = live_of(snapshot)
    grown = [found["memory"][-1] - found["memory"][2] for found in written]
    late = [found["memory"][-1] - found["memory"][len(found["memory"]) // 2] for found in written]
    few = min(1000, len(told) // 4)
    figures(
        f"load_{store}",
        tried=writers * commits,
        writers=writers,
        reads=sum(found["reads"] for found in read),
        vacuums=maintained["vacuums"],
        vacuumed_files=maintained["deleted"],
        entries_in_the_log=max(maintained["entries"]),
        memory_of_a_writer_mb=[round(max(found["memory"][at] for found in written) / 1e6, 1) for at in (2, -1)],
        grown_mb=round(max(grown) / 1e6, 1),
        median_grown_in_second_half_mb=round(median(late) / 1e6, 1),
        first_ms=_milliseconds(seconds for _, seconds in told[:few]),
        last_ms=_milliseconds(seconds for _, seconds in told[-few:]),
        failed=writers * commits - len(set(versions)),
    )

    assert len(told) == len(set(versions)) == writers * commits, "each commit has a version of its own"
    vacuumed = 2 * maintained["vacuums"]  # VACUUM START and VACUUM END
    assert snapshot.version == len(told) + vacuumed
    assert live == {path_of(writer, number) for writer in range(writers) for number in live_after(commits - 1)}
    assert max(grown) < MEMORY["long" if is_long else "short"], f"bytes that each writer grew by: {grown}"
    assert median(late) < LATE, f"in the second half: {late}"
    # A commit and a checksum for each version that is kept, a checkpoint for every tenth, and what comes in between cleanups.
    assert maintained["entries"]
    assert maintained["entries"][-1] < 2.2 * keep + 100
    if is_long:  # in a short run the writers are through before the first checkpoints are
        assert max(maintained["entries"]) < 2 * 2.2 * keep + 1000
    assert maintained["vacuums"] > 0
    vacuum(log, retention_hours=0, retention_check=False)
    on_storage = {status.path for status in log.store.list_recursive("data")}
    assert on_storage == live


def _milliseconds(seconds: Any) -> dict[str, float]:
    """Return the median, and what 5 and 1 of a hundred take longer than."""
    found = list(seconds)
    percentiles = quantiles(found, n=100)
    return {
        "p50": round(median(found) * 1000, 1),
        "p95": round(percentiles[94] * 1000, 1),
        "p99": round(percentiles[98] * 1000, 1),
    }
