"""Many small files: stages into many partitions, dynamic overwrites of all of them, COPY INTO, and what a commit syncs.

python benchmarks/partitions.py [partitions ...]

One warm process, taking turns with delta-rs, the least CPU (user and system, threads included) of several laps: a busy machine
changes it less than seconds. In memory where there is room; what a commit waits for is measured in a folder on disk.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import write_deltalake

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.arrow.source_files import read_arrow_files
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.positions.files.pattern import SourcePattern
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, find_source_files
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.start.begin import begin

PARTITIONS = (100, 1_000, 5_000)
ROWS = 10_000
FILES = 1_000
LAPS = 5
COMMITS = 100
IN_MEMORY = Path("/dev/shm")


def spread(partitions: int) -> pa.Table:
    """Return rows of four columns, spread evenly."""
    numbers = range(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "p": pa.array([n * partitions // ROWS for n in numbers], pa.int32()),
            "delay": pa.array([n * 0.5 for n in numbers]),
            "tail": pa.array([f"N{n % 4000}" for n in numbers]),
        }
    )


class Timed:
    """CPU milliseconds of the steps of one transaction."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self._last = time.process_time()

    def step(self, name: str) -> None:
        now = time.process_time()
        self.steps[name] = self.steps.get(name, 0.0) + (now - self._last) * 1000
        self._last = now


def write(table: Path, rows: Callable[[Any], Any], mode: str, *, source: Path | None = None) -> dict[str, float]:
    """Stage and commit; return CPU milliseconds by step.

    :param rows: given what was found in ``source``.
    """
    timed, log = Timed(), DeltaLog.for_table(str(table))
    new = log.snapshot.version < 0
    partition_by = ["p"] if source is None and new else []
    handle = begin(log, app_id=f"benchmark-{time.time()}", txn_version=0, partition_by=partition_by)
    view = open_stage(log, handle, task_id="stage", attempt="1")
    found = None
    if source is not None:
        pattern = SourcePattern.parse(f"{source}/")
        found = find_source_files(view, store_for(pattern.base), pattern, CopyIntoOptions())
        found.check()
    request = plan_stage(view, mode=mode, **({"partition_by": partition_by} if partition_by else {}))
    timed.step("plan")
    report = stage_arrow(log, rows((found, view)), request)
    if found is not None:
        found.check()
    timed.step("stage")
    staged: StagedWrite = collect_stage(view, request, report)
    if found is not None and found.load is not None:
        staged = dataclasses.replace(staged, loads=(found.load,))
    timed.step("collect")
    publish(log, handle, [staged], attempt="1")
    timed.step("commit")
    return timed.steps


def least(laps: list[dict[str, float]]) -> dict[str, float]:
    """Return the least of each step, and of all together."""
    found = {name: min(lap[name] for lap in laps) for name in laps[0]}
    return {**found, "all": min(sum(lap.values()) for lap in laps)}


def cpu_of(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def line(*cells: Any) -> None:
    print("|", " | ".join(f"{c:,.1f}" if isinstance(c, float) else str(c) for c in cells), "|", flush=True)


def partitioned(work: Path, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Stage and commit rows into new partitions, then overwrite all of them dynamically."""
    print(f"\n### {ROWS:,} rows into many partitions, and a dynamic overwrite of all; CPU ms\n")
    line("partitions", "delta-rs", "ours", "ratio", "stage", "collect", "commit", "commit of the dynamic overwrite", "exponent")
    print("|" + "---|" * 9)
    found: list[dict[str, Any]] = []
    for count in counts:
        data, theirs, ours, dynamic = spread(count), [], [], []
        for lap in range(LAPS):
            table = work / f"{count}-{lap}"
            ours.append(write(table, lambda _: data, "append"))
            dynamic.append(write(table, lambda _: data, "dynamic"))
            shutil.rmtree(table)
            theirs.append(cpu_of(lambda: write_deltalake(str(table), data, partition_by=["p"])))
            shutil.rmtree(table)
        mine, again = least(ours), least(dynamic)["commit"]
        before = found[-1] if found else None
        exponent = math.log(again / before["dynamic"]) / math.log(count / before["partitions"]) if before else None
        found.append({"name": f"{count} partitions", "partitions": count, "delta-rs": min(theirs), "dynamic": again, **mine})
        line(
            count,
            min(theirs),
            mine["all"],
            f"{min(theirs) / mine['all']:.2f}x",
            mine["stage"],
            mine["collect"],
            mine["commit"],
            again,
            "-" if exponent is None else f"{exponent:.2f}",
        )
    return found


def copied(work: Path) -> dict[str, Any]:
    """Load many small Parquet files, each once, beside one write of the same files as a data set."""
    source = work / "source"
    source.mkdir()
    for number in range(FILES):
        pq.write_table(spread(1).slice(number % 100 * 100, 100).drop_columns(["p"]), source / f"{number:05d}.parquet")
    theirs, ours = [], []
    for lap in range(LAPS):
        table = work / f"copy-{lap}"
        ours.append(write(table, lambda found: read_arrow_files(found[0], found[1].schema), "append", source=source))
        shutil.rmtree(table)
        theirs.append(cpu_of(lambda: write_deltalake(str(table), ds.dataset(str(source)).scanner().to_reader())))
        shutil.rmtree(table)
    mine = least(ours)
    print(f"\n### COPY INTO of {FILES:,} Parquet files beside one write of the data set; CPU ms\n")
    line("delta-rs", "ours", "ratio", *mine)
    print("|" + "---|" * (3 + len(mine)))
    line(min(theirs), mine["all"], f"{min(theirs) / mine['all']:.2f}x", *mine.values())
    return {"name": f"COPY INTO of {FILES} files", "delta-rs": min(theirs), **mine}


def synced(work: Path) -> dict[str, Any]:
    """Count what a commit waits for, and time it beside a bare durable put in the same log."""
    table, data, waits, real = work / "synced", spread(1), [], os.fsync

    def fsync(descriptor: int) -> None:
        start = time.perf_counter()
        real(descriptor)
        waits.append((time.perf_counter() - start) * 1000)

    write(table, lambda _: data, "append")
    log, took, puts = DeltaLog.for_table(str(table)), [], []
    os.fsync = fsync
    try:
        for number in range(COMMITS):
            handle = begin(log, app_id=f"synced-{number}", txn_version=0)
            view = open_stage(log, handle, task_id="stage", attempt="1")
            request = plan_stage(view)
            staged = collect_stage(view, request, stage_arrow(log, data.slice(0, 1), request))
            waits.clear()
            publish(log, handle, [staged], attempt="1")
            took.append((len(waits), sum(waits)))
            waits.clear()
            log.store.put_if_absent(f"_delta_log/_bare-{number}", json.dumps({"bare": number}).encode())
            puts.append((len(waits), sum(waits)))
    finally:
        os.fsync = real
    syncs, bare = (sum(count for count, _ in each) / COMMITS for each in (took, puts))
    waited, waited_bare = (sorted(ms for _, ms in each)[COMMITS // 2] for each in (took, puts))
    print("\n### What a whole commit waits for on disk, checkpoints included\n")
    line("", "syncs", "durable puts", "median ms waited")
    print("|---|---|---|---|")
    line("commit", syncs, f"{syncs / bare:.2f}", waited)
    line("bare put", bare, "1", waited_bare)
    return {"name": "syncs of a commit", "syncs": syncs, "puts": syncs / bare}


def main(work: Path, counts: tuple[int, ...] = PARTITIONS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [*partitioned(work, counts), copied(work)]
    with tempfile.TemporaryDirectory(prefix="delta-synced-") as disk:
        found.append(synced(Path(disk)))
    return found


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="delta-partitions-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        main(folder, tuple(int(count) for count in sys.argv[1:]) or PARTITIONS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
