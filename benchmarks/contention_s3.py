"""Processes that append to one table on S3 (versitygw on loopback), beside delta-rs in the same run. Called by run.py.

python benchmarks/contention_s3.py [--processes 8 16] [--commits 50] [--interval 10] [--laps 1]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tables

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
ENGINES = ("delta-rs", "ours")
HEAD = (
    "| processes | engine | commits/s | ratio | failed | p50 ms | p95 ms | slowest ms | requests a commit | puts that lost a race "
    "| CPU ms a commit |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


class Gateway:
    """versitygw, with what its access log tells."""

    def __init__(self, directory: Path) -> None:
        from stores.servers import Versitygw

        self.store = Versitygw(directory)
        self._log = directory / "access.log"
        self.store.argv[-2:-2] = ["--access-log", str(self._log)]
        self._read = 0

    def requests(self) -> Counter[str]:
        """Return the requests since the last call, by method, path's kind and status."""
        with self._log.open() as lines:
            lines.seek(self._read)
            text = lines.read()
            self._read = lines.tell()
        found: Counter[str] = Counter()
        for line in text.splitlines():
            asked = re.search(r" s3_(\w+) (\S+) \S+ (\d{3}) ", line)
            if asked:
                operation, key, status = asked.groups()
                kind = re.sub(r"^.*/(?:\d{20}\.)?", "", key)
                found[f"{operation} {kind} {status}"] += 1
        return found


def table_of(store: Any, name: str, interval: int | None, work: Path) -> str:
    """Make a table and return its URI."""
    from stores.servers import s3_client

    local = work / name
    tables.build_json_table(local, 1, checkpoint_interval=interval)
    bucket = store.container()
    client = s3_client(store.options)
    for path in sorted((local / "_delta_log").iterdir()):
        client.put_object(Bucket=bucket, Key=f"{name}/_delta_log/{path.name}", Body=path.read_bytes())
    client.close()
    return f"s3://{bucket}/{name}"


def added(store: Any, uri: str) -> list[list[str]]:
    """Return the files that each commit added."""
    from stores.servers import s3_client

    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    client = s3_client(store.options)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/_delta_log/")
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    found = []
    for key in keys:
        if re.search(r"/\d{20}\.json$", key):
            lines = client.get_object(Bucket=bucket, Key=key)["Body"].read().splitlines()
            found.append([action["add"]["path"] for action in map(json.loads, lines) if "add" in action])
    client.close()
    return found


def race(gateway: Gateway, engine: str, processes: int, commits: int, uri: str) -> dict[str, Any]:
    """Let processes commit, and check that the log holds what they committed."""
    environment = {**os.environ, "STORAGE_OPTIONS": json.dumps(gateway.store.options)}
    at = time.time() + 2 + processes * (0.35 if engine == "ours" else 0.25)
    command = [sys.executable, str(HERE / "case.py"), engine, "contention", uri, f"{commits}:{at}"]
    gateway.requests()
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(processes)]
    results = [json.loads(worker.communicate(timeout=1800)[0].strip().splitlines()[-1]) for worker in workers]
    asked = gateway.requests()
    seconds = sorted(value for result in results for value in result["seconds"])
    files = added(gateway.store, uri)
    if len(files) != len(seconds) + 2 or len({path for paths in files for path in paths}) != len(seconds) + 1:
        raise SystemExit(f"{engine}, {processes} processes: {len(seconds)} commits succeeded, the log holds {len(files) - 2}")
    took = max(result["end"] for result in results) - min(result["begin"] for result in results)
    return {
        "rate": len(seconds) / took,
        "failed": sum(result["failed"] for result in results),
        "p50": seconds[len(seconds) // 2],
        "p95": seconds[int(len(seconds) * 0.95)],
        "slowest": seconds[-1],
        "requests": sum(asked.values()) / len(seconds),
        "lost": sum(number for name, number in asked.items() if re.match(r"PutObject json (409|412)", name)) / len(seconds),
        "cpu": sum(result["cpu"] for result in results) / len(seconds),
        "kinds": dict(asked.most_common()),
    }


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Print the table and return its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--commits", type=int, default=50)
    parser.add_argument("--interval", type=int, default=10, help="of checkpoints; 0: none")
    parser.add_argument("--laps", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument("--verbose", action="store_true", help="requests by kind")
    options = parser.parse_args(argv)
    interval = options.interval or None
    every = f", a checkpoint every {interval}" if interval else ""
    print(f"\n### Processes appending to one table on S3, {options.commits} commits each{every}\n\n{HEAD}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="delta-contention-") as directory:
        work = Path(directory)
        gateway = Gateway(work)
        with gateway.store:
            for lap in range(options.laps):
                for count in options.processes:
                    row: dict[str, Any] = {"name": f"contention on S3, {count} processes{every}"}
                    for engine in options.engines:
                        name = f"{engine}-{count}-{lap}"
                        found = race(gateway, engine, count, options.commits, table_of(gateway.store, name, interval, work))
                        row[engine] = found
                        ratio = found["rate"] / row["delta-rs"]["rate"] if "delta-rs" in row else 0
                        times = " | ".join(f"{found[key] * 1000:,.0f}" for key in ("p50", "p95", "slowest"))
                        print(
                            f"| {count} | {engine} | {found['rate']:.1f} | {ratio:.1f}x | {found['failed']} | {times} "
                            f"| {found['requests']:.1f} | {found['lost']:.1f} | {found['cpu'] * 1000:.0f} |",
                            flush=True,
                        )
                        if options.verbose:
                            print(found["kinds"], flush=True)
                    rows.append(row)
    return rows


if __name__ == "__main__":
    main()
