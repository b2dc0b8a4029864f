"""What it costs an OPTIMIZE to record where rows went: time, and bytes beside the table.

python benchmarks/moved_rows.py [--files 32] [--rows 200000] [--laps 5]

One Spark session, local. Each lap compacts two copies of one table, with the record and without, in turns; medians. Files have
no deletion vectors, or each has one that marks every twentieth row (then rows are sorted before they are written).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
IN_MEMORY = Path("/dev/shm")
IDENTITY = {"task_id": "optimize", "map_index": -1, "attempt": "1-a"}


def new_table(spark: Any, path: Path, files: int, rows: int, *, marked: bool) -> Path:
    """Write a table of files with a long, a double and a text."""
    from airflow_delta.table.operations.rewrite.delete import plan_delete
    from support.table import Table

    table = Table(path, spark)
    begin = {"configuration": {"delta.enableDeletionVectors": "true"}}
    for number in range(files):
        first = number * rows
        data = f"SELECT id, rand(7) AS x, sha(string(id)) AS t FROM range({first}, {first + rows}, 1, 1)"
        table.write(data, begin=begin if number == 0 else None)
    if marked:
        table.run(plan_delete, predicate="id % 20 = 7")
    return path


def compact(spark: Any, origin: Path, copy: Path, record: bool) -> tuple[float, int, int]:
    """Compact a copy; return seconds, bytes of the record and bytes of the new data file."""
    from airflow_delta.contract.operations import OptimizeArguments
    from airflow_delta.log import DeltaLog
    from airflow_delta.spark.run_operation import run_operation
    from airflow_delta.table.operations.optimize.plan import select_for_optimize
    from airflow_delta.table.operations.optimize.run import run_rewrite

    shutil.copytree(origin, copy)

    def work(request: Any) -> Any:
        arguments = replace(OptimizeArguments.of(request), record_rows=record)
        return run_operation(spark, replace(request, arguments=arguments.to_dict()))

    started = time.perf_counter()
    run_rewrite(DeltaLog.for_table(str(copy)), select_for_optimize, work, identity=IDENTITY)
    seconds = time.perf_counter() - started
    [new] = DeltaLog.for_table(str(copy)).update().add_files()
    bytes_of_record = sum(path.stat().st_size for path in copy.rglob("moved-rows-*.json"))
    assert bool(bytes_of_record) == record
    shutil.rmtree(copy)
    return seconds, bytes_of_record, new.size


def measure(runs: Sequence[Callable[[], tuple[float, int, int]]], laps: int) -> list[tuple[float, int, int]]:
    """Return medians, after a lap that warms up."""
    found: list[list[tuple[float, int, int]]] = [[] for _ in runs]
    for lap in range(laps + 1):
        for position in range(len(runs)):
            at = (lap + position) % len(runs)
            found[at].append(runs[at]())
    return [(statistics.median(seconds for seconds, *_ in laps_of[1:]), *laps_of[-1][1:]) for laps_of in found]


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Print the table and return its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="smaller files, two laps")
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--rows", type=int, default=200_000, help="of each file")
    parser.add_argument("--laps", type=int, default=5)
    options = parser.parse_args(argv)
    rows, laps = (20_000, 2) if options.quick else (options.rows, options.laps)
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    work = Path(tempfile.mkdtemp(prefix="delta-moved-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    figures: list[dict[str, Any]] = []
    print(f"\n### OPTIMIZE of {options.files} files of {rows:,} rows into one\n")
    print("| files | without, s | with record, s | ratio | record, bytes | data, bytes |\n|---|---|---|---|---|---|", flush=True)
    try:
        for marked in (False, True):
            origin = new_table(spark, work / f"origin-{marked}", options.files, rows, marked=marked)
            runs = [partial(compact, spark, origin, work / "copy", record) for record in (False, True)]
            (without, _none, _data), (recorded, size, data) = measure(runs, laps)
            name = "with deletion vectors" if marked else "without deletion vectors"
            print(f"| {name} | {without:.2f} | {recorded:.2f} | {recorded / without:.2f} | {size:,} | {data:,} |", flush=True)
            figures.append({"name": f"record of moved rows, {name}", "without": without, "ours": recorded, "bytes": size})
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)
    return figures


if __name__ == "__main__":
    main()
