"""Fifty people look at the pages of tables of 10^6 files, and Airflow's own API answers meanwhile as it does alone.

python benchmarks/pages.py [--viewers 50] [--seconds 60] [--files 1000000] [--json FILE]        (about five minutes)

A real API server of one process, on SQLite. Each viewer goes through the list, tables, older commits, single commits and, now and
then, the search for open transactions, with one to three seconds to look at each page. The API's probe asks for assets, Dags and
its health, five times a second. First it asks alone, then beside the viewers, in the same server.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tables

ROOT = Path(__file__).parents[1]
PERCENTILE_MS = 200.0
PROBES = ("/api/v2/assets?limit=50", "/api/v2/dags?limit=50", "/api/v2/monitor/health")
PLUGIN = "from airflow_delta.plugins.delta_tables import DeltaTablesPlugin\n"


# -- what there is to look at ---------------------------------------------------------------------------------------------------


def build(work: Path, files: int) -> list[Path]:
    """Tables of `files` files each: two of one commit, one of them with small commits after it, and two with a checkpoint."""
    one, then = work / "one_commit", work / "one_commit_and_more"
    for table in (one, then):
        (table / "_delta_log").mkdir(parents=True)
        tables.write_commit(table, 0, [tables.info("CREATE TABLE"), {"protocol": tables.PROTOCOL}, {"metaData": tables.METADATA}])
    with tables.commit_path(one, 1).open("w") as commit:
        commit.write(json.dumps(tables.info()) + "\n")
        for number in range(files):
            commit.write(json.dumps(tables.add(number), separators=(",", ":")) + "\n")
    os.link(tables.commit_path(one, 1), tables.commit_path(then, 1))
    for version in range(2, 60):
        tables.write_commit(then, version, [tables.info(), *(tables.add(files + 10 * version + i) for i in range(10))])
    checkpointed = [work / "checkpointed", work / "checkpointed_long"]
    tables.build_table(checkpointed[0], files)
    tables.build_table(checkpointed[1], files, tail=60)
    for table in checkpointed:  # what an attempt has left
        staged = table / "staged" / "11111111-2222-3333-4444-555555555555" / "load" / "1-0a1b2c3d"
        staged.mkdir(parents=True)
        (staged / "part-0.parquet").write_bytes(b"x" * 1000)
    return [one, then, *checkpointed]


def seed(found: list[str]) -> None:
    """Fill Airflow's database: an asset for each table, events of its commits; print a token. Runs in a process of its own."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    from airflow_delta.assets.delta import delta_asset_uri

    initdb()
    with create_session() as session:
        for table in found:
            uri = delta_asset_uri(table)
            asset = AssetModel(name=uri, uri=uri, group="asset", extra={})
            session.add(asset)
            session.flush()
            for version in range(60):
                said = {"table": table, "version": version, "transaction_id": f"t-{version}", "operation": "WRITE", "attempts": 1}
                session.add(AssetEvent(asset_id=asset.id, extra=said, source_dag_id="load", source_run_id=f"manual__{version}"))
        for number in range(200):
            session.add(AssetModel(name=f"other-{number}", uri=f"s3://other/{number}", group="asset", extra={}))
    user = SimpleAuthManagerUser(username="admin", role="admin")
    print(f"TOKEN {create_auth_manager().generate_jwt(user)}")


# -- the server -----------------------------------------------------------------------------------------------------------------


def environment(home: Path, port: int) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__SECRET_KEY": "a secret of the benchmark",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the benchmark, long enough for HMAC-SHA512, which wants sixty-four bytes",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "provider"),
        "PYTHONWARNINGS": "ignore",
    }


def start(home: Path, seeding: list[str]) -> tuple[subprocess.Popen, str, str]:
    """Fill a database and start an API server on it: its process, its address, and a token.

    :param seeding: script that fills the database and prints the token, with its arguments.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "plugins").mkdir()
    if not any(point.name == "delta_tables" for point in importlib.metadata.entry_points(group="airflow.plugins")):
        (home / "plugins" / "delta.py").write_text(PLUGIN)
    env = environment(home, port)
    seeded = subprocess.run([sys.executable, *seeding], env=env, capture_output=True, text=True)
    line = next((line for line in seeded.stdout.splitlines() if line.startswith("TOKEN ")), None)
    if line is None:
        raise SystemExit(f"The database was not filled:\n{seeded.stdout[-2000:]}\n{seeded.stderr[-4000:]}")
    command = [sys.executable, "-m", "airflow", "api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (home / "api-server.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5):
                return process, url, line.removeprefix("TOKEN ")
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"The API server did not start:\n{(home / 'api-server.log').read_text()[-4000:]}")


class Memory(threading.Thread):
    """What the server and its readers hold, once a second."""

    def __init__(self, server: int) -> None:
        super().__init__(daemon=True)
        self.server, self.going = server, True
        self.server_mb = self.readers_mb = self.reader_mb = 0.0
        self.most_readers = 0

    def run(self) -> None:
        import psutil

        while self.going:
            try:
                processes = [psutil.Process(self.server), *psutil.Process(self.server).children(recursive=True)]
                held = [(process.memory_info().rss / 1e6, "ui.reader" in str(process.cmdline())) for process in processes]
            except psutil.Error:
                continue
            readers = [mb for mb, is_reader in held if is_reader]
            # The largest, not the sum: a process that is just being started counts its parent's memory for a moment.
            self.server_mb = max(self.server_mb, max(mb for mb, is_reader in held if not is_reader))
            self.readers_mb = max(self.readers_mb, sum(readers))
            self.reader_mb = max(self.reader_mb, max(readers, default=0))
            self.most_readers = max(self.most_readers, len(readers))
            time.sleep(1)


# -- who looks --------------------------------------------------------------------------------------------------------------------


def path_of(table: Path, random_: random.Random) -> str:
    """Where a viewer goes next."""
    name = f"table={quote(str(table), safe='')}"
    kind = random_.random()
    last = 1 if table.name == "one_commit" else 59 if table.name == "one_commit_and_more" else 110
    if kind < 0.15:
        return "/delta-tables/"
    if kind < 0.5:
        return f"/delta-tables/table?{name}"
    if kind < 0.65:
        return f"/delta-tables/table?{name}&before={random_.randint(1, last)}"
    if kind < 0.95:
        return f"/delta-tables/commit?{name}&version={random_.randint(max(last - 5, 0), last)}"
    return f"/delta-tables/transactions?{name}"


async def view(client: Any, found: list[Path], number: int, until: float, seen: list[tuple[str, int, float]]) -> None:
    random_ = random.Random(number)
    await asyncio.sleep(random_.random() * 2)
    while time.monotonic() < until:
        path = path_of(random_.choice(found), random_)
        began = time.perf_counter()
        answer = await client.get(path, timeout=60)
        seen.append((path.split("?")[0], answer.status_code, time.perf_counter() - began))
        await asyncio.sleep(1 + 2 * random_.random())


async def probe(client: Any, until: float, seen: list[float]) -> None:
    number = 0
    while time.monotonic() < until:
        began = time.perf_counter()
        answer = await client.get(PROBES[number % len(PROBES)], timeout=60)
        if answer.status_code != 200:
            raise SystemExit(f"{answer.url}: {answer.status_code}")
        seen.append(time.perf_counter() - began)
        number += 1
        await asyncio.sleep(max(0.2 - (time.perf_counter() - began), 0))


async def probe_for(url: str, token: str, seconds: float) -> list[float]:
    import httpx

    probed: list[float] = []
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as api:
        await probe(api, time.monotonic() + seconds, probed)
    return probed


async def views(url: str, token: str, found: list[Path], viewers: int, seconds: float) -> list[tuple[str, int, float]]:
    import httpx

    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    until = time.monotonic() + seconds
    seen: list[tuple[str, int, float]] = []
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, limits=limits) as pages:
        await asyncio.gather(*(view(pages, found, number, until, seen) for number in range(viewers)))
    return seen


def measure(url: str, token: str, found: list[Path], viewers: int, seconds: float) -> tuple[list[float], list[Any]]:
    """The probe has a process of its own: the viewers of this one would be in its way, and count for the server's."""
    command = [sys.executable, __file__, "--probe", url, "--seconds", str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdin is not None
        asking.stdin.write(token)
        asking.stdin.close()
        seen = asyncio.run(views(url, token, found, viewers, seconds))
        assert asking.stdout is not None
        return json.loads(asking.stdout.read()), seen


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * value for value in values)
    at = lambda share: ordered[min(int(len(ordered) * share), len(ordered) - 1)]  # noqa: E731
    return {"n": len(ordered), "median": statistics.median(ordered), "p95": at(0.95), "p99": at(0.99), "max": ordered[-1]}


def row(name: str, values: dict[str, float]) -> str:
    return f"| {name} | {values['n']:,} | " + " | ".join(f"{values[key]:,.0f}" for key in ("median", "p95", "p99", "max")) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tables", type=Path, help="directory of tables that an earlier run built, or that this one is to build")
    parser.add_argument("--seed", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        seed(arguments.seed)
        return
    if arguments.probe is not None:
        print(json.dumps(asyncio.run(probe_for(arguments.probe, sys.stdin.read(), arguments.seconds))))
        return
    with tempfile.TemporaryDirectory(prefix="delta-pages-") as temporary:
        work = arguments.tables or Path(temporary) / "tables"
        if work.exists():
            found = sorted(path for path in work.iterdir() if path.is_dir())
        else:
            work.mkdir(parents=True)
            found = build(work, arguments.files)
        home = Path(temporary) / "airflow"
        home.mkdir()
        process, url, token = start(home, [__file__, "--seed", *map(str, found)])
        memory = Memory(process.pid)
        memory.start()
        try:
            measure(url, token, found, 0, 5)
            alone, _ = measure(url, token, found, 0, arguments.seconds)
            before = memory.server_mb
            beside, seen = measure(url, token, found, arguments.viewers, arguments.seconds)
        finally:
            memory.going = False
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
    print(f"\n### {arguments.viewers} viewers, {len(found)} tables of {arguments.files:,} files\n")
    print("| what is asked for | times | median ms | p95 | p99 | max |\n|---|---|---|---|---|---|")
    result = {"API alone": percentiles(alone), "API beside the viewers": percentiles(beside)}
    for kind in sorted({path for path, _, _ in seen}):
        result[kind] = percentiles([seconds for path, _, seconds in seen if path == kind])
    for name, values in result.items():
        print(row(name, values))
    statuses: dict[str, int] = {}
    for path, status, _ in seen:
        statuses[f"{path} {status}"] = statuses.get(f"{path} {status}", 0) + 1
    print(f"\nPages by status: {statuses}")
    print(
        f"The server held {before:,.0f} MB before the viewers and {memory.server_mb:,.0f} MB at most; its readers up to "
        f"{memory.reader_mb:,.0f} MB each, {memory.readers_mb:,.0f} MB together, {memory.most_readers} at a time."
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"percentiles": result, "statuses": statuses}, indent=2))
    if result["API beside the viewers"]["p99"] > PERCENTILE_MS:
        raise SystemExit(f"The API took more than {PERCENTILE_MS:g} ms at the 99th percentile.")


if __name__ == "__main__":
    main()
