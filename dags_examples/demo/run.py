"""``make demo``: backfill a year of flights through a real Airflow, kill two tasks on the way, and prove what the table holds.

The table stays in ``.demo/table``: a second run finds every month's transaction in its log and adds nothing. Everything else of the
run (AIRFLOW_HOME, its database and logs) is thrown away at the end; after a failure it is kept, and its path is printed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import IO

import report
import verdict
from progress import Months, follow
from services import Airflow, DemoError
from source import COLUMNS, MONTHS, YEAR, write_months

from airflow_delta.log import DeltaLog, Metadata
from airflow_delta.transaction import Operation

ROOT = Path(__file__).parents[2] / ".demo"
DAG = "flights_demo"
KILLED_STAGE, KILLED_COMMIT = 3, 6  # months
STAGE, COMMIT = "flights.transform", "flights.commit"
MONTHS_AT_ONCE = 4
WAIT_FOR_OTHER = 60  # seconds


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    ROOT.mkdir(exist_ok=True)
    started = time.monotonic()
    try:
        with _lock() as lock:
            return _demo(started, lock)
    except DemoError as error:
        print(f"\n{error}\n\nThe demo FAILED after {time.monotonic() - started:.0f} s.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nInterrupted: nothing of Airflow is left running. The table keeps the months that were committed.", file=sys.stderr
        )
        return 130


def _demo(started: float, lock: IO[str]) -> int:
    table, home = ROOT / "table", ROOT / f"airflow-{os.getpid()}"
    for left in ROOT.glob("airflow-*"):
        shutil.rmtree(left, ignore_errors=True)
    before = verdict.look(table)
    killed = {"STAGE": KILLED_STAGE, "COMMIT": KILLED_COMMIT}
    killed = {what: month for what, month in killed.items() if month not in before.months}
    variables = {"FLIGHTS_DEMO": str(ROOT)} | {f"FLIGHTS_DEMO_KILLED_{what}": _name(month) for what, month in killed.items()}

    report.section(f"Starting Airflow: database, scheduler, Dag processor, API server, triggerer (AIRFLOW_HOME={home})")
    months = None
    airflow = Airflow(home, variables, lock.fileno())
    try:
        write_months(ROOT / "source")
        if before.version < 0:
            _create(table)
        airflow.run("database", "db", "migrate")
        airflow.start(DAG)
        report.section(f"Backfilling {len(MONTHS)} months into {table}, {MONTHS_AT_ONCE} at a time")
        _say_what_is_killed(killed)
        span = ("--from-date", f"{YEAR}-01-01", "--to-date", f"{YEAR}-12-01")
        airflow.run("backfill", "backfill", "create", "--dag-id", DAG, *span, "--max-active-runs", str(MONTHS_AT_ONCE))
        months = follow(airflow, DAG, len(MONTHS), started)
        if months.failed:
            raise DemoError(f"Dag runs failed: {', '.join(months.failed)}. The logs of their tasks are in {airflow.logs}.")
    except DemoError:
        airflow.stop()
        print(f"\nAirflow's home with all logs is kept: {home}", file=sys.stderr)
        raise
    except BaseException:
        airflow.stop()
        shutil.rmtree(home, ignore_errors=True)
        raise
    airflow.stop()
    shutil.rmtree(home, ignore_errors=True)
    return _judge(table, before, months, killed, started)


def _say_what_is_killed(killed: dict[str, int]) -> None:
    if month := killed.get("STAGE"):
        print(f"  planned: the stage of {_name(month)} is killed (SIGKILL) in its first try, after it wrote its files")
    if month := killed.get("COMMIT"):
        print(
            f"  planned: the commit of {_name(month)} is killed in its first try, after its log entry, before its success is reported"
        )
    if not killed:
        print("  every month is in the table already: the runs find their transactions in its log, and nothing is killed")


def _judge(table: Path, before: verdict.State, months: Months, killed: dict[str, int], started: float) -> int:
    tries = {
        _name(month): f"stage {months.tries(_name(month), STAGE)}, commit {months.tries(_name(month), COMMIT)}"
        for month in MONTHS
    }
    report.section("History of the table (tries: what Airflow needed in this run)")
    report.table(verdict.history(table, tries))

    report.section("Verdict: the table, read back through delta-rs, against the source")
    compared = list(verdict.compare(table))
    head = ("month", "source rows", "table rows", "source checksum", "table checksum", "written by version", "")
    report.table([head, *(row for _, row in compared)])
    after = verdict.look(table)
    checks = {
        f"{len(MONTHS)} months, each with the rows of the source, by count and checksum, from exactly one version": all(
            good for good, _ in compared
        )
    }
    if month := killed.get("STAGE"):
        checks[
            f"the stage of {_name(month)} was killed and needed 2 tries; the killed try left {after.unreferenced} unlisted file"
        ] = months.tries(_name(month), STAGE) == 2 and after.unreferenced > before.unreferenced
    if month := killed.get("COMMIT"):
        checks[f"the commit of {_name(month)} was killed after its log entry and needed 2 tries, for one version"] = (
            months.tries(_name(month), COMMIT) == 2
        )
    if len(before.months) == len(MONTHS):
        checks[
            f"nothing was added: version {before.version} before and {after.version} after, the same {len(after.on_disk)} files"
        ] = before == after
    print()
    for text, good in checks.items():
        print(f"  {'ok   ' if good else 'WRONG'}  {text}")
    passed = all(checks.values())
    print(f"\nThe demo {'passed' if passed else 'FAILED'} after {time.monotonic() - started:.0f} s.", flush=True)
    return 0 if passed else 1


def _create(table: Path) -> None:
    """Create the empty table: runs that come first at the same time would each want to, and only one of them may."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in COLUMNS.items()]
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=["month"],
        created_time=int(time.time() * 1000),
    )
    with DeltaLog.for_table(str(table)).with_new_transaction() as transaction:
        transaction.update_metadata_for_new_table(metadata)
        transaction.commit([], Operation.create_table(metadata.partition_columns))


def _name(month: int) -> str:
    return f"{YEAR}-{month:02}"


def _lock() -> IO[str]:
    """Take the lock of the folder; the guard of an interrupted run may hold it for some seconds more."""
    lock = (ROOT / "lock").open("w")
    deadline = time.monotonic() + WAIT_FOR_OTHER
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DemoError(f"Another demo is at work in {ROOT}: wait for its end, or stop it.") from None
            time.sleep(1)
        else:
            return lock


if __name__ == "__main__":
    sys.exit(main())
