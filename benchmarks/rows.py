"""Reading and writing rows without Spark: `get_df` beside delta-rs's QueryBuilder, an arrow stage beside `write_deltalake`.

python benchmarks/rows.py [rows]

One warm process, the same table and the same rows, taking turns, the best of several laps; in memory where there is room, so that
our `fsync`, which delta-rs does without, costs nothing. Both sides return the same Arrow types. delta-rs's own texts are views of
what it decompressed: lines "as views" are its result as it is, beside our plain texts.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyroaring import BitMap64

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import write_deletion_vectors
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.start.begin import begin
from airflow_delta.transaction import Operation

ROWS_READ = 5_000_000
REPEATS = 7
IN_MEMORY = Path("/dev/shm")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "everything": ("select * from t", {}),
    "one column": ("select delay from t", {"columns": ["delay"]}),
    "one partition": ("select * from t where month = 3", {"where": "month = 3"}),
    "a tenth of the rows": ("select * from t where delay < 100", {"where": "delay < 100"}),
    "a hundredth of the rows": ("select * from t where delay < 10", {"where": "delay < 10"}),
    "5,000 sorted ids": (
        "select * from t where id >= 2600000 and id < 2605000",
        {"where": "id >= 2600000 AND id < 2605000"},
    ),
}
SHAPES = ("plain", "plain, ours", "wide strings", "nested", "vectors", "mapping")


def flights(rows: int) -> pa.Table:
    """Six columns, sorted by month, of which there are ten."""
    draw = random.Random(1)
    number = pa.array(range(rows), pa.int64())
    delays = pa.array([draw.random() * 1000 for _ in range(10_000)])
    month = pc.divide(pc.multiply(number, 10), rows).cast(pa.int32())
    some = pc.subtract(number, pc.multiply(pc.divide(number, 4_000), 4_000))
    delay = delays.take(pc.subtract(number, pc.multiply(pc.divide(number, 10_000), 10_000)))
    return pa.table(
        {
            "id": number,
            "month": month,
            "delay": pc.subtract(delay, pc.divide(number.cast(pa.float64()), 1e9)),
            "tail": pc.binary_join_element_wise("N", some.cast(pa.string()), ""),
            "at": pc.add(pc.multiply(number, 1_000_000), 1_356_998_400_000_000).cast(pa.timestamp("us", "UTC")),
            "late": pc.greater(delay, 500.0),
        }
    )


def shaped(shape: str, rows: int) -> pa.Table:
    """Return the flights; a tenth of them with strings of 400 bytes; a fifth with structs and lists."""
    if shape == "wide strings":
        data = flights(rows // 10)
        text = pc.binary_repeat(data["at"].cast(pa.string()), 16)
        return data.append_column("text", text)
    if shape == "nested":
        data = flights(rows // 5)
        pair = pa.StructArray.from_arrays([data[name].combine_chunks() for name in ("tail", "delay")], ["tail", "delay"])
        ends = pa.array(range(0, 2 * data.num_rows + 1, 2), pa.int32())
        values = pa.concat_arrays([data["id"].combine_chunks()] * 2)
        return data.append_column("pair", pair).append_column("list", pa.ListArray.from_arrays(ends, values))
    return flights(rows)


def write_ours(table: Path, data: pa.Table, configuration: dict[str, str | None] | None = None) -> None:
    """Stage rows for a new table and commit them."""
    log = DeltaLog.for_table(str(table))
    handle = begin(log, app_id="benchmark", txn_version=0, partition_by=["month"], configuration=configuration)
    view = open_stage(log, handle, task_id="stage", attempt="1")
    request = plan_stage(view, mode="append", partition_by=["month"])
    publish(log, handle, [collect_stage(view, request, stage_arrow(log, data, request))], attempt="1")


def write_theirs(table: Path, data: pa.Table) -> None:
    write_deltalake(str(table), data, partition_by=["month"])


def build(table: Path, shape: str, data: pa.Table) -> None:
    """Write a table to read: with delta-rs if it can."""
    if shape == "mapping":
        write_ours(table, data, {"delta.columnMapping.mode": "name"})
    elif shape == "plain, ours":
        write_ours(table, data)
    elif shape == "vectors":
        write_ours(table, data, {"delta.enableDeletionVectors": "true"})
        mark(table)
    else:
        write_theirs(table, data)


def mark(table: Path) -> None:
    """Delete every seventh row of each file by a vector."""
    log = DeltaLog.for_table(str(table))
    transaction = log.start_transaction()
    actions: list[Any] = []
    for file in log.update().add_files():
        rows = BitMap64(range(0, json.loads(file.stats)["numRecords"], 7))
        [vector] = write_deletion_vectors(log.store, "", [rows])
        stats = with_wide_bounds(file.stats, None)
        actions += [file.remove(1), msgspec.structs.replace(file, deletion_vector=vector, stats=stats, data_change=True)]
    transaction.commit(actions, Operation.delete("id % 7 = 0"))


def read_ours(table: Path, options: dict[str, Any]) -> pa.Table:
    return read_table(DeltaLog.for_table(str(table)), limit=None, **options).to_table()


def read_theirs(table: Path, query: str, types: pa.Schema | None = None) -> pa.Table:
    """Return the rows of a query, in given types or its own."""
    found = pa.table(QueryBuilder().register("t", DeltaTable(str(table))).execute(query).read_all())
    return found if types is None else found.select(types.names).cast(types)


def measured(work: Callable[[], pa.Table | None]) -> tuple[float, float, int | None]:
    """Return seconds, those of CPU, and the number of rows."""
    cpu, start = time.process_time(), time.perf_counter()
    result = work()
    took = time.perf_counter() - start, time.process_time() - cpu
    return *took, None if result is None else result.num_rows


def compare(name: str, theirs: Callable[[], pa.Table | None], ours: Callable[[], pa.Table | None]) -> dict[str, Any]:
    """Let both take turns, print a line and return it."""
    laps = [(measured(theirs), measured(ours)) for _ in range(REPEATS + 1)][1:]
    if any(a[2] != b[2] for a, b in laps):
        raise SystemExit(f"{name}: the engines return {laps[0][0][2]} and {laps[0][1][2]} rows")
    (a, b), (cpu_a, cpu_b) = ([min(lap[side][at] for lap in laps) for side in (0, 1)] for at in (0, 1))
    print(f"| {name} | {a * 1000:,.0f} | {b * 1000:,.0f} | {a / b:.2f}x | {cpu_a / cpu_b:.2f}x |", flush=True)
    return {"name": name, "delta-rs": a, "ours": b, "ratio": a / b, "cpu_ratio": cpu_a / cpu_b}


def main(work: Path, rows: int = ROWS_READ) -> list[dict[str, Any]]:
    found = []
    print(f"\n### Rows without Spark: {rows:,} rows, ten partitions, one warm process\n")
    print("| what | delta-rs ms | ours ms | ratio | ratio of CPU |\n|---|---|---|---|---|")
    for shape in SHAPES:
        table, data = work / shape.replace(" ", "-"), shaped(shape, rows)
        build(table, shape, data)
        for name, (query, options) in CASES.items():
            if shape in ("plain", "plain, ours") or name in ("everything", "one partition"):
                ours = partial(read_ours, table, options)
                found.append(compare(f"read, {shape}: {name}", partial(read_theirs, table, query, ours().schema), ours))
                if name == "everything" and shape in ("plain", "wide strings"):
                    found.append(compare(f"read, {shape}: {name}, as views", partial(read_theirs, table, query), ours))
        shutil.rmtree(table)
        if shape not in ("vectors", "mapping", "plain, ours"):
            places = (work / f"written-{number}" for number in range(4 * REPEATS))
            theirs, ours = (partial(written, write, places, data) for write in (write_theirs, write_ours))
            found.append(compare(f"write and commit, {shape}", theirs, ours))
    return found


def written(write: Callable[[Path, pa.Table], None], places: Iterator[Path], data: pa.Table) -> None:
    """Write a new table, and delete it."""
    table = next(places)
    write(table, data)
    shutil.rmtree(table)


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="delta-rows-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        main(folder, int(sys.argv[1]) if len(sys.argv) > 1 else ROWS_READ)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
