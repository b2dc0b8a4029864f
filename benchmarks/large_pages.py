"""Pages of much: a list of 500 tables, tables of 10^5 files, an open transaction with 1,000 stages.

python benchmarks/large_pages.py [--json FILE]        (about five minutes; needs Chromium)

A real API server of one process, on SQLite. Of each page: CPU of the server and of its readers, for the first answer, for
later ones that find nothing kept (the least of five laps), and for those that come at once after another; bytes, rows of its
tables, and when Chromium paints it for the first time. The goals are 0.3 s of CPU for a later answer, and 1 s to the first paint.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pages
import tables

CPU_S, PAINT_MS = 0.3, 1000.0
TABLES, RUNS, EVENTS = 500, 30, 60
FILES = 100_000
STAGES = 1_000
LAPS = 5
KEPT_FOR = 11.0
"""Seconds after which the server keeps no answer."""

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


# -- what there is to look at ---------------------------------------------------------------------------------------------------


def build(work: Path) -> list[dict[str, Any]]:
    """Build the tables, and return handle and staged writes of the transaction that is open on the last one."""
    tables.build_table(work / "checkpointed", FILES)
    one = work / "one_commit"
    (one / "_delta_log").mkdir(parents=True)
    tables.write_commit(one, 0, [tables.info("CREATE TABLE"), {"protocol": tables.PROTOCOL}, {"metaData": tables.METADATA}])
    tables.write_commit(one, 1, [tables.info(), *map(tables.add, range(FILES))])
    with_checksum(work / "checkpointed", work / "with_checksum")
    staged = work / "with_checksum" / "staged" / "11111111-2222-3333-4444-555555555555" / "load" / "1-0a1b2c3d"
    staged.mkdir(parents=True)  # what an attempt has left
    (staged / "part-0.parquet").write_bytes(b"x" * 1000)
    return open_transaction(work / "staged")


def with_checksum(original: Path, table: Path) -> None:
    """The same table after a commit of this provider, which leaves a checksum."""
    from airflow_delta.log import AddFile, DeltaLog
    from airflow_delta.transaction import Operation

    shutil.copytree(original, table)
    add = AddFile(**{**OWN_FILE, "path": "date=2024-01-01/country=AT/own.parquet"})
    DeltaLog.for_table(str(table)).start_transaction().commit([add], Operation.write("Append"))


OWN_FILE: dict[str, Any] = {
    "partition_values": {"date": "2024-01-01", "country": "AT"},
    "size": 1,
    "modification_time": 1,
    "data_change": True,
    "stats": '{"numRecords":1}',
}


def open_transaction(table: Path) -> list[dict[str, Any]]:
    """A table of 100 partitions, and a transaction with 1,000 stages of ten rows into a partition each."""
    import pyarrow as pa

    from airflow_delta.contract.staging_directory import new_attempt
    from airflow_delta.log import DeltaLog
    from airflow_delta.table.arrow.stage_rows import stage_arrow
    from airflow_delta.table.commit.publish import publish
    from airflow_delta.table.stage.stage_view import open_stage
    from airflow_delta.table.stage.write.collect import collect_stage
    from airflow_delta.table.stage.write.plan import plan_stage
    from airflow_delta.table.start.begin import begin

    log = DeltaLog.for_table(str(table), {"durable": "false"})

    def stage(handle: Any, task_id: str, index: int, rows: Any) -> Any:
        view = open_stage(log, handle, task_id=task_id, map_index=index, attempt=new_attempt())
        request = plan_stage(view)
        return collect_stage(view, request, stage_arrow(log, rows, request))

    def rows(parts: range) -> Any:
        part = [f"{each:04}" for each in parts for _ in range(10)]
        return pa.table({"part": part, **{f"c{column}": list(range(len(part))) for column in range(10)}})

    first = begin(log, app_id="first", txn_version=0, partition_by=["part"])
    publish(log, first, [stage(first, "load", -1, rows(range(100)))], attempt=new_attempt())
    handle = begin(log, app_id="wide/txn/run_0", txn_version=0)
    staged = [stage(handle, "txn.load", index, rows(range(index, index + 1))) for index in range(STAGES)]
    return [handle.to_dict(), *(one.to_dict() for one in staged)]


def seed(work: Path) -> None:
    """Fill Airflow's database and print a token. Runs in a process of its own."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.models.connection import Connection
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        session.add(Connection(conn_id="lake", conn_type="delta", host=str(work)))
        session.add(DagBundleModel(name="dags"))
        session.flush()
        for number in range(TABLES):
            session.add(DagModel(dag_id=f"load_{number:03}", bundle_name="dags", max_active_tasks=16, is_paused=False))
        session.add(DagModel(dag_id="wide", bundle_name="dags", max_active_tasks=16, is_paused=False))
    for number in range(TABLES):
        seed_table(work / f"table_{number:03}", f"load_{number:03}", fails=number % 5 == 0)
    for name in ("checkpointed", "one_commit", "with_checksum"):
        seed_asset(work / name)
    seed_transaction(work / "staged", json.loads((work / "transaction.json").read_text()))
    user = SimpleAuthManagerUser(username="admin", role="admin")
    print(f"TOKEN {create_auth_manager().generate_jwt(user)}")


def seed_asset(table: Path, *tasks: tuple[str, str]) -> int:
    from airflow.models.asset import AssetModel, TaskOutletAssetReference
    from airflow.utils.session import create_session

    from airflow_delta.assets.delta import delta_asset_uri

    uri = delta_asset_uri(str(table))
    with create_session() as session:
        asset = AssetModel(name=uri, uri=uri, group="asset", extra={})
        session.add(asset)
        session.flush()
        for dag_id, task_id in tasks:
            session.add(TaskOutletAssetReference(asset_id=asset.id, dag_id=dag_id, task_id=task_id))
        return int(asset.id)


def seed_table(table: Path, dag_id: str, *, fails: bool) -> None:
    """A table that a Dag of three tasks has written every day; of some, the latest run has failed."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    asset_id = seed_asset(table, (dag_id, "txn.commit"))
    events = []
    for version in range(EVENTS):
        at = BEGIN + timedelta(days=version, minutes=5)
        said = {
            "table": str(table),
            "version": version,
            "read_version": version - 1,
            "transaction_id": f"t-{version}",
            "operation": "WRITE",
            "timestamp": int(at.timestamp() * 1000),
            "num_records": 1000 * version,
            "num_bytes": 1_000_000 + version,
            "attempts": 1,
            "versions_checked": 0,
            "committed_before": False,
        }
        source = {"source_dag_id": dag_id, "source_run_id": f"run_{version}", "source_task_id": "txn.commit"}
        events.append({"asset_id": asset_id, "extra": said, **source, "source_map_index": -1, "timestamp": at})
    with create_session() as session:
        session.execute(AssetEvent.__table__.insert(), events)
    for version in range(EVENTS - RUNS, EVENTS):
        failed = fails and version == EVENTS - 1
        states = {"txn.start": "success", "txn.load": "failed" if failed else "success"}
        states["txn.commit"] = "upstream_failed" if failed else "success"
        seed_run(dag_id, version, {(task, -1): state for task, state in states.items()})


OPERATORS = {"txn.start": "DeltaStartTransactionOperator", "txn.commit": "DeltaCommitOperator"}


def seed_run(dag_id: str, number: int, states: dict[tuple[str, int], str | None], *, is_over: bool = True) -> int:
    """A Dag run with the states of its tasks, by task id and map index."""
    import uuid

    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    begin = BEGIN + timedelta(days=number)
    with create_session() as session:
        failed = any(state not in ("success", None) for state in states.values())
        run = DagRun(dag_id=dag_id, run_id=f"run_{number}", run_type="scheduled", logical_date=begin, run_after=begin)
        run.data_interval_start, run.data_interval_end, run.start_date = begin, begin + timedelta(days=1), begin
        session.add(run)
        session.flush()
        run.state = "running" if not is_over else "failed" if failed else "success"
        rows = [
            {
                "id": uuid.uuid4(),
                "task_id": task_id,
                "dag_id": dag_id,
                "run_id": run.run_id,
                "map_index": map_index,
                "start_date": None if state is None else begin + timedelta(seconds=index),
                "end_date": None if state is None else begin + timedelta(seconds=index + 1),
                "state": state,
                "try_number": 0 if state is None else 1,
                "max_tries": 0,
                "pool": "default_pool",
                "pool_slots": 1,
                "operator": OPERATORS.get(task_id, "PythonOperator"),
                "custom_operator_name": "",
                "executor_config": {},
                "span_status": "not_started",
                "task_display_name": task_id,
            }
            for index, ((task_id, map_index), state) in enumerate(states.items())
        ]
        session.execute(TaskInstance.__table__.insert(), rows)
        return int(run.id)


def seed_transaction(table: Path, reports: list[dict[str, Any]]) -> None:
    """The run whose stages have reported, and whose commit waits."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    seed_asset(table, ("wide", "txn.commit"))
    tasks = [("txn.start", -1), *(("txn.load", index) for index in range(STAGES))]
    run = seed_run("wide", 0, {**dict.fromkeys(tasks, "success"), ("txn.commit", -1): None}, is_over=False)
    with create_session() as session:
        rows = [
            {
                "dag_run_id": run,
                "task_id": task_id,
                "map_index": map_index,
                "key": "return_value",
                "dag_id": "wide",
                "run_id": "run_0",
                "value": json.dumps(value),
                "timestamp": BEGIN,
            }
            for (task_id, map_index), value in zip(tasks, reports, strict=True)
        ]
        session.execute(XComModel.__table__.insert(), rows)


# -- what is measured -----------------------------------------------------------------------------------------------------------


def cpu(server: int) -> tuple[float, float]:
    """CPU seconds of the server, and of its readers, those that have ended included."""
    import psutil

    process = psutil.Process(server)
    parents = [process, *(child for child in process.children(recursive=True) if "ui.reader" not in str(child.cmdline()))]
    readers = [child for child in process.children(recursive=True) if "ui.reader" in str(child.cmdline())]
    own = ended = read = 0.0
    for one in parents:
        times = one.cpu_times()
        own, ended = own + times.user + times.system, ended + times.children_user + times.children_system
    for one in readers:
        times = one.cpu_times()
        read += times.user + times.system
    return own, read + ended


class Server:
    def __init__(self, process: Any, url: str, token: str) -> None:
        import httpx

        self.pid, self.url, self.token = process.pid, url, token
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def json(self, path: str) -> Any:
        answer = self._client.get(path)
        answer.raise_for_status()
        return answer.json()

    def ask(self, path: str) -> dict[str, Any]:
        before, began = cpu(self.pid), time.perf_counter()
        answer = self._client.get(path)
        seconds, after = time.perf_counter() - began, cpu(self.pid)
        body = re.search(r"<main>.*</main>", answer.text, re.DOTALL)
        return {
            "status": answer.status_code,
            "seconds": seconds,
            "server": after[0] - before[0],
            "readers": after[1] - before[1],
            "bytes": int(answer.headers.get("content-length") or len(answer.content)),
            "rows": len(re.findall("<tr[ >]", body.group() if body else answer.text)),
        }


PAINTED = """() => new Promise((resolve) => {
  const told = () => Object.fromEntries(performance.getEntriesByType("paint").map(({name, startTime}) => [name, startTime]));
  const wait = () => "first-contentful-paint" in told() ? resolve({...told(), elements: document.getElementsByTagName("*").length})
    : setTimeout(wait, 10);
  wait();
})"""


def paints(server: Server, paths: dict[str, str], pause: float) -> dict[str, dict[str, Any]]:
    """When Chromium paints each page first: a fresh profile each time, but a browser that runs."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[dict[str, Any]]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(3):
            time.sleep(pause)
            for name, path in paths.items():
                context = browser.new_context(base_url=server.url, viewport={"width": 1440, "height": 1000})
                context.add_cookies([{"name": "_token", "value": server.token, "url": server.url}])
                page = context.new_page()
                page.goto(path, wait_until="load", timeout=60_000)
                found.setdefault(name, []).append(page.evaluate(PAINTED))
                context.close()
        browser.close()
    return {
        name: {
            "first paint": statistics.median(one["first-paint"] for one in several),
            "first contentful paint": statistics.median(one["first-contentful-paint"] for one in several),
            "elements": several[0]["elements"],
        }
        for name, several in found.items()
    }


def paths_of(server: Server, work: Path) -> dict[str, str]:
    def of(page: str, name: str, **more: object) -> str:
        asked = "".join(f"&{key}={quote(str(value))}" for key, value in more.items())
        return f"/delta-tables/{page}?table={quote(str(work / name), safe='')}{asked}"

    (told,) = server.json(of("api/table", "staged"))["transactions"]
    return {
        f"list of {TABLES} tables": "/delta-tables/",
        "its last page": f"/delta-tables/?page={(TABLES + 3) // 50}",
        "a table of 10^5 files": of("table", "checkpointed"),
        "the same with a checksum": of("table", "with_checksum"),
        "its staged files": of("transactions", "with_checksum", part=1),
        "a table of one commit": of("table", "one_commit"),
        "that commit of 10^5 files": of("commit", "one_commit", version=1),
        "the table of the transaction": of("table", "staged"),
        f"a transaction of {STAGES:,} stages": of("transaction", "staged", id=told["transaction_id"]),
    }


def measured(server: Server, paths: dict[str, str]) -> dict[str, dict[str, Any]]:
    def asked() -> dict[str, dict[str, Any]]:
        return {name: server.ask(path) for name, path in paths.items()}

    time.sleep(KEPT_FOR)
    first, later = asked(), []
    for _ in range(LAPS):
        time.sleep(KEPT_FOR)
        later.append(asked())
    kept = {name: [server.ask(path) for _ in range(LAPS)] for name, path in paths.items()}
    return {
        name: {
            "first": first[name],
            "later": min((answers[name] for answers in later), key=total),
            "at once": min(kept[name], key=total),
        }
        for name in paths
    }


def total(answer: dict[str, Any]) -> float:
    return float(answer["server"] + answer["readers"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tables", type=Path, help="directory of tables that an earlier run built, or that this one is to build")
    parser.add_argument("--only", default="", help="part of the names of pages")
    parser.add_argument("--seed", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        seed(arguments.seed)
        return
    with tempfile.TemporaryDirectory(prefix="delta-pages-") as temporary:
        work = arguments.tables or Path(temporary) / "tables"
        if not work.exists():
            work.mkdir(parents=True)
            (work / "transaction.json").write_text(json.dumps(build(work)))
        home = Path(temporary) / "airflow"
        home.mkdir()
        process, url, token = pages.start(home, [__file__, "--seed", str(work)])
        try:
            server = Server(process, url, token)
            paths = {name: path for name, path in paths_of(server, work).items() if arguments.only in name}
            found = measured(server, paths)
            painted = paints(server, paths, KEPT_FOR) if CHROMIUM else {}
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
    print("\n| page | first: CPU ms, of it readers | later | at once | bytes | rows | first paint ms | contentful | elements |")
    print("|---|---|---|---|---|---|---|---|---|")
    late = []
    for name, answers in found.items():
        cells = [f"{1000 * total(one):,.0f}, {1000 * one['readers']:,.0f}" for one in answers.values()]
        last, paint = answers["later"], painted.get(name, {})
        seen = [f"{paint[key]:,.0f}" if paint else "" for key in ("first paint", "first contentful paint", "elements")]
        print(f"| {name} | {' | '.join(cells)} | {last['bytes']:,} | {last['rows']:,} | {' | '.join(seen)} |")
        if last["status"] != 200:
            raise SystemExit(f"{name}: {last['status']}")
        if total(last) > CPU_S or (paint and paint["first contentful paint"] > PAINT_MS):
            late.append(name)
    if arguments.json:
        arguments.json.write_text(json.dumps({"answers": found, "paints": painted}, indent=2))
    if late:
        raise SystemExit(f"Beyond the goals: {', '.join(late)}")


if __name__ == "__main__":
    sys.exit(main())
