"""Tables of 10^3 to 10^6 files on S3 (versitygw) with 20 ms added to each request: requests, seconds and peak memory as a curve.

python benchmarks/scale.py [--sizes 1000 10000 ...] [--cases NAME ...] [--latency 0.02] [--record]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tables

HERE = Path(__file__).parent
RECORDED = HERE / "scale.json"
SIZES = [1_000, 10_000, 100_000, 1_000_000]
ENGINES = ("delta-rs", "ours")
IN_PARTITION = 100
"""Files of one partition, in tables of every size."""

CASES = {
    "start": "start of a transaction",
    "partition": "files of one partition (100)",
    "statistics": "files by statistics, ordered (100)",
    "scattered": "files by statistics, unordered (100)",
    "partition-v2": "files of one partition, V2 checkpoint",
    "collect": "footers of the staged files (1% of the table)",
    "publish": "commit of these files",
    "commit": "commit of one file",
    "checkpoint": "checkpoint",
    "checkpoint-v2": "checkpoint, V2",
    "vacuum-dry": "vacuum, dry run",
    "vacuum": "vacuum (1% of the files)",
}
OURS_ONLY = {"scattered", "partition-v2", "collect", "publish", "checkpoint-v2"}


# -- tables -----------------------------------------------------------------------------------------------------------------------


def date(number: int) -> str:
    return (datetime.date(1990, 1, 1) + datetime.timedelta(days=number)).isoformat()


def data_path(i: int) -> str:
    return f"date={date(i // IN_PARTITION)}/part-{i:07d}-4f1c.c000.snappy.parquet"


def stats(i: int, files: int) -> str:
    """``id`` grows with the date; the other columns are in any order."""
    low = i * tables.ROWS
    any_low = i * 7_919 % files * tables.ROWS
    names = tables.DATA_COLUMNS[1:]
    least = "".join(f',"{name}":{any_low + k}' for k, name in enumerate(names))
    most = "".join(f',"{name}":{any_low + k + tables.ROWS - 1}' for k, name in enumerate(names))
    nulls = "".join(f',"{name}":0' for name in names)
    return (
        f'{{"numRecords":{tables.ROWS},"minValues":{{"id":{low}{least}}},"maxValues":{{"id":{low + tables.ROWS - 1}{most}}},'
        f'"nullCount":{{"id":0{nulls}}}}}'
    )


def adds(files: int, start: int, stop: int) -> pa.Table:
    rows = range(start, stop)
    dates = [date(i // IN_PARTITION) for i in rows]
    count = len(dates)
    values = pa.MapArray.from_arrays(
        pa.array(range(count + 1), pa.int32()), pa.array(["date"] * count), pa.array(dates, pa.string())
    )
    kind = tables.CHECKPOINT_SCHEMA.field("add").type
    arrays = [
        pa.array([data_path(i) for i in rows]),
        values,
        pa.array([1] * count, pa.int64()),
        pa.array([tables.NOW] * count, pa.int64()),
        pa.array([False] * count),
        pa.array([stats(i, files) for i in rows]),
        pa.nulls(count, tables.MAP),
    ]
    columns = [
        pa.StructArray.from_arrays(arrays, fields=list(kind)) if f.name == "add" else pa.nulls(count, f.type)
        for f in tables.CHECKPOINT_SCHEMA
    ]
    return pa.table(columns, schema=tables.CHECKPOINT_SCHEMA)


def build_log(table: Path, files: int, *, v2: bool = False) -> None:
    """Write a log whose checkpoint is ours, with a tail of ten commits that have checksums."""
    from airflow_delta.log import AddFile, DeltaLog
    from airflow_delta.transaction import Operation

    log = table / "_delta_log"
    log.mkdir(parents=True)
    metadata = {**(tables.V2_METADATA if v2 else tables.METADATA), "partitionColumns": ["date"]}
    schema = json.loads(metadata["schemaString"])
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "country"]
    metadata["schemaString"] = json.dumps(schema)
    head = [{"protocol": tables.V2_PROTOCOL if v2 else tables.PROTOCOL}, {"metaData": metadata}]
    checkpoint = log / f"{99:020d}.checkpoint.parquet"
    with pq.ParquetWriter(checkpoint, tables.CHECKPOINT_SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist([tables._arrow_row(a) for a in head], tables.CHECKPOINT_SCHEMA))
        for start in range(0, files, 100_000):
            writer.write_table(adds(files, start, min(start + 100_000, files)))
    for version in (99, 100):
        tables.write_commit(table, version, [tables.info()])
    opened = DeltaLog.for_table(str(table))
    opened.checkpoint()
    for path in log.glob(f"{99:020d}*"):
        path.unlink()
    opened = DeltaLog.for_table(str(table))
    for number in range(10):
        new = [
            AddFile(
                path=f"date={date(0)}/tail-{number}-{k}.parquet",
                partition_values={"date": date(0)},
                size=1,
                modification_time=tables.NOW,
                data_change=True,
                stats='{"numRecords":1}',
            )
            for k in range(10)
        ]
        opened.start_transaction().commit(new, Operation.write("Append"))


class Links:
    """Files of the same content in any number: hard links, as a file may have 65,000."""

    def __init__(self, source: Path) -> None:
        self._source, self._number = source, 0

    def make(self, path: Path) -> None:
        if self._number % 60_000 == 0:
            self._current = self._source.with_suffix(f".{uuid.uuid4()}")
            shutil.copy2(self._source, self._current)
        os.link(self._current, path)
        self._number += 1


def build_objects(table: Path, files: int, source: Path) -> None:
    """Make the objects that the log names: a byte each, older than any retention."""
    links = Links(source)
    for number in range(files // IN_PARTITION):
        directory = table / f"date={date(number)}"
        directory.mkdir()
        for i in range(number * IN_PARTITION, (number + 1) * IN_PARTITION):
            links.make(table / data_path(i))


def build_orphans(table: Path, files: int, source: Path) -> None:
    """Make the objects that VACUUM finds: one in each partition's directory."""
    links = Links(source)
    for number in range(files // IN_PARTITION):
        links.make(table / f"date={date(number)}" / "orphan.parquet")


# -- one measurement, in its own process ----------------------------------------------------------------------------------------


def table_options() -> tuple[str, dict[str, str]]:
    return os.environ["SCALE_TABLE"], json.loads(os.environ["SCALE_OPTIONS"])


def ours(case: str, files: int) -> Iterator[Any]:
    """Prepare, yield, do what is measured, yield the result."""
    import airflow_delta.log.checkpoint_write.writer
    import airflow_delta.log.expressions.predicate
    import airflow_delta.log.replay.filter
    import airflow_delta.log.replay.live_files  # noqa: F401
    import airflow_delta.table.commit.publish as publish
    import airflow_delta.table.operations.vacuum.run as run_vacuum
    import airflow_delta.table.stage.stage_view as stage_view
    import airflow_delta.table.stage.write.collect as collect_write
    import airflow_delta.table.start.begin as begin
    from airflow_delta.log import AddFile, DeltaLog
    from airflow_delta.transaction import Operation, OptimisticTransaction

    OptimisticTransaction.get_active()
    uri, options = table_options()
    log = DeltaLog.for_table(uri, options)
    middle = files // IN_PARTITION // 2
    low = middle * IN_PARTITION * tables.ROWS
    bounds = f">= {low} AND {{}} < {low + IN_PARTITION * tables.ROWS}"
    if case == "start":
        yield
        yield begin.begin(log, transaction_key="run").read_version
    elif case in ("partition", "statistics", "scattered"):
        predicates = {
            "partition": f"date = '{date(middle)}'",
            "statistics": f"id {bounds.format('id')}",
            "scattered": f"c0 {bounds.format('c0')}",
        }
        yield
        yield log.snapshot.files(predicates[case], columns=["path", "size", "partition_values"]).num_rows
    elif case in ("collect", "publish"):
        handle = begin.begin(log, transaction_key="run", transaction_id="00000000-0000-4000-8000-000000000000")
        if case == "collect":
            yield
        staged = collect_write.collect_files(stage_view.open_stage(log, handle, task_id="job", attempt="1-a"), path="job")
        if case == "publish":
            log = DeltaLog.for_table(uri, options)
            yield
            publish.publish(log, handle, [staged], attempt="1-b")
        yield staged.num_files
    elif case == "commit":
        add = AddFile(
            path=f"date={date(0)}/new.parquet",
            partition_values={"date": date(0)},
            size=1,
            modification_time=1,
            data_change=True,
            stats='{"numRecords":1}',
        )
        yield
        yield log.start_transaction().commit([add], Operation.write("Append"))
    elif case == "checkpoint":
        yield
        log.checkpoint()
        yield log.snapshot.version
    elif case in ("vacuum-dry", "vacuum"):
        yield
        yield run_vacuum.vacuum(log, dry_run=case == "vacuum-dry").num_files


def delta_rs(case: str, files: int) -> Iterator[Any]:
    import deltalake
    import pyarrow.compute as pc
    from deltalake.transaction import AddAction

    uri, options = table_options()
    options = {**options, "conditional_put": "etag"}
    middle = files // IN_PARTITION // 2
    low = middle * IN_PARTITION * tables.ROWS
    yield
    table = deltalake.DeltaTable(uri, storage_options=options)
    if case == "start":
        table.transaction_version("run")
        yield table.version()
    elif case == "partition":
        yield len(table.file_uris([("date", "=", date(middle))]))
    elif case == "statistics":
        found = pa.table(table.get_add_actions(flatten=True))
        yield found.filter((pc.field("max.id") >= low) & (pc.field("min.id") < low + IN_PARTITION * tables.ROWS)).num_rows
    elif case == "commit":
        table.create_write_transaction(
            [AddAction(f"date={date(0)}/new.parquet", 1, {"date": date(0)}, 1, True, '{"numRecords":1}')],
            mode="append",
            schema=table.schema(),
            partition_by=["date"],
        )
        yield 0
    elif case == "checkpoint":
        table.create_checkpoint()
        yield 0
    elif case in ("vacuum-dry", "vacuum"):
        yield len(table.vacuum(dry_run=case == "vacuum-dry", full=True))


def peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(engine: str, case: str, files: int) -> dict[str, Any]:
    steps = (ours if engine == "ours" else delta_rs)(case.removesuffix("-v2"), files)
    next(steps)
    before, cpu, begun = peak_mb(), time.process_time(), time.time()
    value = next(steps)
    ended = time.time()
    return {
        "begun": begun,
        "ended": ended,
        "seconds": ended - begun,
        "cpu": time.process_time() - cpu,
        "before_mb": round(before),
        "peak_mb": round(peak_mb()),
        "value": value,
    }


# -- the curve ----------------------------------------------------------------------------------------------------------------


def kind(request: dict[str, Any]) -> str:
    method, target = request["method"], request["target"]
    if method == "GET" and ("list-type=" in target or target.split("?")[0].count("/") < 3):
        return "LIST"
    if "uploadId=" in target or "uploads" in target.partition("?")[2]:
        return "PART"
    return "DELETE" if method == "POST" or method == "DELETE" else method


class Bench:
    """The tables of one size after the other, on one gateway."""

    def __init__(self, work: Path, latency: float) -> None:
        from relay import Relay
        from stores.servers import Versitygw

        self.work, self.latency = work, latency
        self.store = Versitygw(work)
        self.relay_of = Relay

    def run(self, sizes: list[int], cases: list[str], engines: tuple[str, ...], *, verbose: bool) -> list[dict[str, Any]]:
        rows = []
        with self.store, self.relay_of(self.store.url, self.work) as self.relay:
            bucket = self.store.container()
            for files in sizes:
                rows += self.size(bucket, files, cases, engines, verbose=verbose)
        return rows

    def size(self, bucket: str, files: int, cases: list[str], engines: tuple[str, ...], *, verbose: bool) -> list[dict[str, Any]]:
        root = self.work / "objects" / bucket
        plain, v2 = f"table-{files}", f"v2-{files}"
        build_log(root / plain, files)
        if any(case.endswith("-v2") for case in cases):
            build_log(root / v2, files, v2=True)
        source = self.work / f"source-{files}"
        source.write_bytes(b"x")
        os.utime(source, (1_500_000_000, 1_500_000_000))
        if {"vacuum", "vacuum-dry"} & set(cases):
            build_objects(root / plain, files, source)
        if {"collect", "publish"} & set(cases):
            self.stage(root / plain, files // 100)
        rows = []
        for case in cases:
            name = v2 if case.endswith("-v2") else plain
            for engine in engines:
                if engine == "delta-rs" and case in OURS_ONLY:
                    continue
                if case in ("vacuum", "vacuum-dry"):
                    shutil.rmtree(root / plain / "staged", ignore_errors=True)
                    for path in (root / plain).glob("date=*/orphan.parquet"):
                        path.unlink()
                    build_orphans(root / plain, files, source)
                rows.append(self.measured(root / name, f"s3://{bucket}/{name}", engine, case, files, verbose=verbose))
        shutil.rmtree(root / plain)
        shutil.rmtree(root / v2, ignore_errors=True)
        return rows

    def stage(self, table: Path, count: int) -> None:
        """Put Parquet files of a megabyte below the staging path, as another job would."""
        random = os.urandom
        numbers = pa.array(int.from_bytes(random(8), "little", signed=True) for _ in range(12_000))
        columns = [
            numbers.take(pa.array(range(k, 12_000 + k), pa.int64()) if not k else pa.array([*range(k, 12_000), *range(k)]))
            for k in range(10)
        ]
        source = self.work / f"staged-{count}.parquet"
        pq.write_table(pa.table(columns, names=tables.DATA_COLUMNS), source)
        links = Links(source)
        job = table / "staged" / "00000000-0000-4000-8000-000000000000" / "job"
        for number in range(count):
            directory = job / f"date={date(number)}"
            directory.mkdir(parents=True, exist_ok=True)
            links.make(directory / f"part-{number:05d}.parquet")

    def measured(self, table: Path, uri: str, engine: str, case: str, files: int, *, verbose: bool) -> dict[str, Any]:
        log = table / "_delta_log"
        before = set(log.rglob("*"))
        hint = (log / "_last_checkpoint").read_bytes()
        options = {**self.store.options, "aws_endpoint_url": self.relay.url}
        environment = {**os.environ, "SCALE_TABLE": uri, "SCALE_OPTIONS": json.dumps(options)}
        self.relay.reset(self.latency)
        relay_cpu, store_cpu = self.relay.cpu, sum(self.store.process.cpu_times()[:2])
        command = [sys.executable, str(HERE / "scale.py"), "--measure", engine, case, str(files)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
        row: dict[str, Any] = {"files": files, "case": case, "engine": engine}
        if done.returncode:
            row["error"] = (done.stderr.strip().splitlines() or ["failed"])[-1][:300]
        else:
            row |= json.loads(done.stdout.strip().splitlines()[-1])
            begun, ended = row.pop("begun"), row.pop("ended")
            row |= {"seconds": round(row["seconds"], 3), "cpu": round(row["cpu"], 3)}
            asked = [r for r in self.relay.requests if begun <= r["begun"] <= ended]
            row["kinds"] = dict(sorted(Counter(map(kind, asked)).items()))
            row["requests"] = len(asked)
            row["mb"] = round(sum(r["up"] + r["down"] for r in asked) / 1e6, 2)
            row["relay_cpu"] = round(self.relay.cpu - relay_cpu, 2)
            row["store_cpu"] = round(sum(self.store.process.cpu_times()[:2]) - store_cpu, 2)
            row["waves"] = waves(asked)
            if verbose:
                for r in asked[:60]:
                    print(
                        f"    {r['begun'] - begun:7.3f} {r['ended'] - r['begun']:.3f} {r['method']} {r['target'][-150:]} {r['status']} {r['up']} {r['down']}"
                    )
        for path in sorted(log.rglob("*"), reverse=True):
            if path not in before:
                path.unlink() if path.is_file() else path.rmdir()
        (log / "_last_checkpoint").write_bytes(hint)
        for path in (table / "staged").rglob("*.commit*"):
            path.unlink()
        print(line(row), flush=True)
        return row


def waves(requests: list[dict[str, Any]]) -> float:
    """Return how many requests had to wait for one another: the time in which any was under way, in mean requests."""
    if not requests:
        return 0.0
    busy, until = 0.0, 0.0
    for r in sorted(requests, key=lambda r: r["begun"]):
        busy += max(0.0, r["ended"] - max(until, r["begun"]))
        until = max(until, r["ended"])
    mean = sum(r["ended"] - r["begun"] for r in requests) / len(requests)
    return round(busy / mean, 1) if mean > 0 else 0.0


def line(row: dict[str, Any]) -> str:
    start = f"| {row['files']:,} | {CASES[row['case']]} | {row['engine']} "
    if "error" in row:
        return f"{start}| {row['error'][:100]} | | | | | |"
    kinds = ", ".join(f"{n} {name}" for name, n in row["kinds"].items())
    return (
        f"{start}| {row['requests']:,} | {kinds} | {row['mb']:,.1f} | {row['seconds']:.2f} | {row['cpu']:.2f} "
        f"| {row['peak_mb'] - row['before_mb']:,} |"
    )


HEAD = "| files | measure | engine | requests | by kind | MB | seconds | CPU s | peak MB above imports |\n|---|---|---|---|---|---|---|---|---|"


def record(rows: list[dict[str, Any]], latency: float) -> None:
    """Replace the points that were taken, and keep the others."""
    known = json.loads(RECORDED.read_text())["rows"] if RECORDED.exists() else []
    points = {(row["files"], row["case"], row["engine"]): row for row in (*known, *rows)}
    order = sorted(points, key=lambda key: (key[0], list(CASES).index(key[1]), key[2]))
    text = ",\n  ".join(json.dumps(points[key]) for key in order)
    RECORDED.write_text(f'{{"latency": {latency}, "rows": [\n  {text}\n]}}\n')


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Print the curve and return its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--record", action="store_true", help=f"write the figures to {RECORDED.name}")
    parser.add_argument("--verbose", action="store_true", help="print the requests")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        engine, case, files = options.measure
        print(json.dumps(measure(engine, case, int(files))))
        return []
    sys.path.insert(0, str(HERE.parent / "tests"))
    print(f"\n### Tables on S3, {options.latency * 1000:.0f} ms added to each request\n\n{HEAD}", flush=True)
    work = Path(tempfile.mkdtemp(prefix="delta-scale-"))
    try:
        rows = Bench(work, options.latency).run(options.sizes, options.cases, tuple(options.engines), verbose=options.verbose)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.record:
        record(rows, options.latency)
    return rows


if __name__ == "__main__":
    main()
