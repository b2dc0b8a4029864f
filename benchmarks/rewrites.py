"""DELETE, UPDATE, MERGE and OPTIMIZE of small tables: whole processes of the worker, of delta-rs, and of the worker with Spark.

python benchmarks/rewrites.py [--rows 1000 100000] [--repeats N] [--without-spark] [--json FILE]      (some minutes)

Each process opens a fresh copy of the table, does one operation, and ends. CPU is user + system, of the JVM too; both CPU and wall
time are the least of all repeats. All engines leave the same rows, as delta-rs reads them.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "provider" / "airflow_delta"
FILES = 30
"""Of each table, all of the same size."""

WORK = {
    "DELETE of one customer in a hundred": ("delete", "customer = 77"),
    "UPDATE of one customer in a hundred": ("update", "customer = 77"),
    "MERGE of 2,000 rows": ("merge", None),
    "OPTIMIZE of 30 files": ("optimize", None),
}


def build(table: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import write_deltalake

    for first in range(FILES):
        ids = pa.array(range(first * rows // FILES, (first + 1) * rows // FILES), pa.int64())
        customer = pc.bit_wise_and(pc.multiply(ids, 2654435761), (1 << 20) - 1)
        customer = pc.subtract(customer, pc.multiply(pc.divide(customer, 100), 100))
        texts = pc.binary_join_element_wise("payload of row ", ids.cast(pa.string()), "")
        write_deltalake(
            table, pa.table({"id": ids, "customer": customer, "value": pa.array([0] * len(ids)), "payload": texts}), mode="append"
        )


def source(table: str) -> Any:
    """Return the rows of a MERGE: half of their ids are in the table."""
    import pyarrow as pa

    rows = int(table.rpartition("-")[2])
    ids = pa.array([*range(rows // 2, rows // 2 + 1000), *range(rows, rows + 1000)], pa.int64())
    texts = [f"payload of row {number}" for number in ids.to_pylist()]
    return pa.table({"id": ids, "customer": pa.array([1] * 2000), "value": pa.array([7] * 2000), "payload": texts})


# -- one operation, in a process of its own ----------------------------------------------------------------------------------------


def plan_of(work: str, where: str | None) -> Callable[[Any], Any]:
    """Return the function that plans an operation; what another one needs is not imported, as in its task."""
    if work == "delete":
        from airflow_delta.table.operations.rewrite.delete import plan_delete

        return partial(plan_delete, predicate=where)
    if work == "update":
        from airflow_delta.table.operations.rewrite.update import plan_update

        return partial(plan_update, set={"value": "value + 1"}, predicate=where)
    if work == "merge":
        from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
        from airflow_delta.table.operations.merge.plan import plan_merge

        clauses = [when_matched_update(), when_not_matched_insert()]
        return partial(plan_merge, condition="target.id = source.id", clauses=clauses)
    from airflow_delta.table.operations.optimize.plan import plan_optimize

    return plan_optimize


def by_worker(table: str, work: str, where: str | None, spark: Any = None) -> None:
    from airflow_delta.contract.staging_directory import new_attempt
    from airflow_delta.log import DeltaLog
    from airflow_delta.table.commit.publish import publish
    from airflow_delta.table.stage.stage_view import open_stage
    from airflow_delta.table.start.begin import begin

    log = DeltaLog.for_table(table)
    handle = begin(log, transaction_key="benchmark")
    stage = open_stage(log, handle, task_id="stage", attempt=new_attempt())
    planned = plan_of(work, where)(stage)
    if spark is None:
        from airflow_delta.table.arrow.rewrite.run import run_in_worker

        report = run_in_worker(log, planned.request, source(table) if work == "merge" else None)
    else:
        from airflow_delta.spark.run_operation import run_operation

        report = run_operation(spark, planned.request, spark.createDataFrame(source(table)) if work == "merge" else None)
    publish(log, handle, [planned.collect(planned.request, report)], attempt=new_attempt())


def by_spark(table: str, work: str, where: str | None) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    by_worker(table, work, where, spark)


def by_delta_rs(table: str, work: str, where: str | None) -> None:
    from deltalake import DeltaTable

    found = DeltaTable(table)
    if work == "delete":
        found.delete(where)
    elif work == "update":
        found.update({"value": "value + 1"}, predicate=where)
    elif work == "merge":
        merger = found.merge(source(table), "target.id = source.id", source_alias="source", target_alias="target")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
    else:
        found.optimize.compact()


ENGINES = {"worker": by_worker, "delta-rs": by_delta_rs, "Spark": by_spark}


def cpu_of_this_process() -> float:
    """Return the CPU of this process and of those that it has started, in seconds."""
    import psutil

    of = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in of)


# -- comparing ---------------------------------------------------------------------------------------------------------------------


def measured(engine: str, table: Path, work: str, where: str | None) -> tuple[float, float]:
    """Return CPU and wall time of a process, in seconds."""
    started = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, __file__, "--run", engine, str(table), work, where or ""],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return float(done.stdout.split()[-1]), time.monotonic() - started


def contents(table: Path) -> tuple[int, int, int]:
    """Return the number of rows, and the sums of two columns, as delta-rs reads them."""
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "value"])
    return rows.num_rows, pc.sum(rows.column("id")).as_py(), pc.sum(rows.column("value")).as_py()


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        engine, table, work, where = sys.argv[2:]
        ENGINES[engine](table, work, where or None)
        print(cpu_of_this_process())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    compileall.compile_dir(PACKAGE, quiet=1)
    engines = [name for name in ENGINES if name != "Spark" or not given.without_spark]
    figures: dict[str, Any] = {}
    print("| rows | work | " + " | ".join(f"{name}: CPU, wall (s)" for name in engines) + " | delta-rs / worker |")
    print("|---" * (len(engines) + 3) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for rows in given.rows:
            base = Path(folder) / f"base-{rows}"
            build(base, rows)
            for name, (work, where) in WORK.items():
                best = dict.fromkeys(engines, (float("inf"), float("inf")))
                found = set()
                for _ in range(given.repeats):
                    for engine in engines:
                        table = Path(folder) / f"table-{rows}"
                        shutil.copytree(base, table)
                        cpu, wall = measured(engine, table, work, where)
                        best[engine] = min(best[engine][0], cpu), min(best[engine][1], wall)
                        found.add(contents(table))
                        shutil.rmtree(table)
                if len(found) != 1:
                    raise SystemExit(f"{name} of {rows} rows: {found}")
                ratios = [theirs / ours for ours, theirs in zip(best["worker"], best["delta-rs"], strict=True)]
                told = " | ".join(f"{cpu:.2f}, {wall:.2f}" for cpu, wall in best.values())
                print(f"| {rows:,} | {name} | {told} | {ratios[0]:.2f}, {ratios[1]:.2f} |", flush=True)
                figures[f"{rows} {name}"] = best
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
