"""``make demo``: backfill a year of flights through a real Airflow, kill two tasks on the way, and prove what the table holds.

The table stays in ``.demo/table``, or with ``STORE=s3`` on an S3 gateway whose objects are in ``.demo/s3``. A second run finds
every month's transaction in its log and adds nothing. Everything else of the run (AIRFLOW_HOME, its database and logs) is thrown
away at the end; after a failure it is kept, and its path is printed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import place
import report
import verdict
from airflow_services import Airflow, DemoError
from place import Place
from progress import Months, follow
from report import Clock
from source import MONTHS, YEAR, write_months

ROOT = Path(__file__).parents[2] / ".demo"
DAG = "flights_demo"
STAGE, COMMIT = "flights.transform", "flights.commit"
KILLED = {STAGE: 3, COMMIT: 6}  # in which month
VARIABLES = {STAGE: "FLIGHTS_DEMO_KILLED_STAGE", COMMIT: "FLIGHTS_DEMO_KILLED_COMMIT"}
WHEN = {STAGE: "after it wrote its files", COMMIT: "after its log entry, before it could say so"}
ALL_RIGHT = "every month has the rows of the source, by count and by checksum, from exactly one version"
MONTHS_AT_ONCE = 4
WAIT_FOR_OTHER = 60  # seconds


class _Stopped(BaseException):
    """The process was asked to end, by the signal in ``args``."""


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    clock = Clock()
    ROOT.mkdir(exist_ok=True)
    try:
        with _lock() as lock:
            return _demo(clock, lock)
    except DemoError as error:
        print(f"\n{error}\n\nThe demo FAILED after {clock.seconds} s.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _interrupted(signal.SIGINT)
    except _Stopped as stop:
        return _interrupted(stop.args[0])


def _stop(number: int, _: object) -> None:
    raise _Stopped(number)


def _interrupted(number: int) -> int:
    name = signal.Signals(number).name
    print(f"\nStopped by {name}. Nothing of Airflow runs any more; the table keeps what was committed.", file=sys.stderr)
    return 128 + number


def _demo(clock: Clock, lock: IO[str]) -> int:
    with place.opened(os.environ.get("STORE") or "local", ROOT, clock.say) as table:
        return _backfilled(table, clock, lock)


def _backfilled(table: Place, clock: Clock, lock: IO[str]) -> int:
    before = verdict.look(table)
    planned = {task: month for task, month in KILLED.items() if month not in before.months}
    months = _backfill(table, before, planned, clock, lock)

    report.section("History of the table (attempts: of this run; logged by: the try of the commit that wrote the log entry)")
    tries = {month: f"stage {months.tries(month, STAGE)}, commit {months.tries(month, COMMIT)}" for month in months.runs}
    report.table(verdict.history(table, tries))

    report.section("Verdict: the table, read back through delta-rs, against the source")
    compared = list(verdict.compare(table))
    head = ("month", "source rows", "table rows", "source checksum", "table checksum", "written by version", "")
    report.table([head, *(row for _, row in compared)])
    print()
    passed = all(good for good, _ in compared)
    for good, text in [(passed, ALL_RIGHT), *_checks(table, months, planned, before)]:
        print(f"  {'ok   ' if good else 'WRONG'}  {text}")
        passed = passed and good
    print(f"\nThe demo {'passed' if passed else 'FAILED'} after {clock.seconds} s.", flush=True)
    return 0 if passed else 1


def _backfill(table: Place, before: verdict.State, planned: dict[str, int], clock: Clock, lock: IO[str]) -> Months:
    home = ROOT / f"airflow-{os.getpid()}"
    for left in ROOT.glob("airflow-*"):
        shutil.rmtree(left, ignore_errors=True)
    report.section(f"Starting Airflow in {home}")
    killed = {(_name(month), task) for task, month in planned.items()}
    variables = {"FLIGHTS_DEMO": str(ROOT), **table.variables} | {VARIABLES[task]: month for month, task in killed}
    airflow = Airflow(home, variables, lock.fileno())
    try:
        write_months(ROOT / "source")
        airflow.run("database", "db", "migrate")
        airflow.run("dags", "dags", "reserialize")
        # Before anything else uses the database: SQLite refuses one of two that write at once.
        span = ("--from-date", f"{YEAR}-01-01", "--to-date", f"{YEAR}-12-01")
        airflow.run("backfill", "backfill", "create", "--dag-id", DAG, *span, "--max-active-runs", str(MONTHS_AT_ONCE))
        clock.say("database: ready, backfill: created")
        airflow.start(DAG, clock.say)
        report.section(f"Backfilling {len(MONTHS)} months into {table.uri}, {MONTHS_AT_ONCE} at a time")
        for month, task in sorted(killed):
            print(f"  planned: {task} of {month} is killed in its first try, {WHEN[task]}")
        if before.complete:
            print("  every month is in the table: the runs will find their transactions in its log; nothing is killed")
        months = follow(airflow, DAG, len(MONTHS), killed, clock)
    except (KeyboardInterrupt, _Stopped):
        airflow.stop()
        shutil.rmtree(home, ignore_errors=True)
        raise
    except BaseException:
        airflow.stop()
        print(f"\nAirflow's home, with all logs, is kept until the next run: {home}", file=sys.stderr)
        raise
    airflow.stop()
    shutil.rmtree(home, ignore_errors=True)
    return months


def _checks(table: Place, months: Months, planned: dict[str, int], before: verdict.State) -> Iterator[tuple[bool, str]]:
    after = verdict.look(table)
    if month := planned.get(STAGE):
        tries, left = months.tries(_name(month), STAGE), len(after.unlisted - before.on_disk)
        what = f"{STAGE} of {_name(month)} was killed in try 1, try {tries} succeeded"
        yield tries > 1 and left > 0, f"{what}; what the killed one left ({left} file) is in no version"
    if month := planned.get(COMMIT):
        tries, logged = months.tries(_name(month), COMMIT), verdict.logged_by(table, months.run_ids[_name(month)])
        what = f"{COMMIT} of {_name(month)} was killed after try {logged} had written the log entry"
        yield tries > 1 and logged == "1", f"{what}; try {tries} found it, and added nothing"
    if before.complete:
        versions = f"version {before.version} before and {after.version} after"
        yield before == after, f"this run added nothing: {versions}; files: {len(before.on_disk)} and {len(after.on_disk)}"


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
