"""Publications of several tables against separate commits of the same tables, and what other commits pay. Called by run.py.

python benchmarks/publications.py [--tables 1 2 5 10] [--laps 5] [--commits 2000] [--latency 0.02]

Each table gets one staged file. `window`: from the first table's log entry to the last one's, in which a foreign reader may see
some tables before others. On S3 (versitygw on loopback) `relay.py` adds the latency to each request, and counts them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "provider"), str(HERE.parent / "tests")]
IN_MEMORY = Path("/dev/shm")
LATENCY = 0.02
GOAL = 1.02
_ENTRY = re.compile(r"_delta_log/[0-9]{20}\.json$")


class Run(NamedTuple):
    """One publication, or one commit of each table.

    :param window: seconds from the first table's entry to the last one's.
    """

    seconds: float
    window: float
    requests: int = 0


class Lake:
    """Tables, each with one version, and what is measured there."""

    def __init__(self, root: str, count: int, options: dict[str, str] | None = None, relay: Any = None) -> None:
        self.uris = [f"{root}/t{number}" for number in range(count)]
        self._direct = dict(options or {})
        self._options = {**self._direct, "aws_endpoint_url": relay.url} if relay else self._direct
        self._relay = relay
        for uri in self.uris:
            self._commit(uri, f"first-{uuid.uuid4()}", through=self._direct)

    # -- work ------------------------------------------------------------------------------------------------------------------

    def _staged(self, uri: str, key: str) -> tuple[Any, Any]:
        import pyarrow as pa

        from airflow_delta.contract.staging_directory import new_attempt
        from airflow_delta.log import DeltaLog
        from airflow_delta.table.arrow.stage_rows import stage_arrow
        from airflow_delta.table.stage.stage_view import open_stage
        from airflow_delta.table.stage.write.collect import collect_stage
        from airflow_delta.table.stage.write.plan import plan_stage
        from airflow_delta.table.start.begin import begin

        log = DeltaLog.for_table(uri, self._direct)
        handle = begin(log, transaction_key=key)
        view = open_stage(log, handle, task_id="stage", attempt=new_attempt())
        request = plan_stage(view)
        report = stage_arrow(log, pa.table({"id": list(range(1000))}), request)
        return handle, collect_stage(view, request, report)

    def _commit(self, uri: str, key: str, *, through: dict[str, str]) -> None:
        from airflow_delta.contract.staging_directory import new_attempt
        from airflow_delta.log import DeltaLog
        from airflow_delta.table.commit.publish import publish

        handle, staged = self._staged(uri, key)
        publish(DeltaLog.for_table(uri, through), handle, [staged], attempt=new_attempt(), policy=_policy())

    def publication(self, *, intents: bool = True) -> Run:
        """Publish one staged file on each table as one publication."""
        from airflow_delta.contract.staging_directory import new_attempt
        from airflow_delta.log import DeltaLog
        from airflow_delta.publication import Member, PublicationOptions, publish_tables

        staged = [self._staged(uri, str(uuid.uuid4())) for uri in self.uris]

        def work() -> None:
            members = [
                Member(log=DeltaLog.for_table(uri, self._options), handle=handle, staged=[write])
                for uri, (handle, write) in zip(self.uris, staged, strict=True)
            ]
            options = PublicationOptions(intents=intents)
            result = publish_tables(members, attempt=new_attempt(), options=options, policy=_policy())
            assert result.outcome == "published"

        return self._measured(work, b'"airflow.publicationState":"published"')

    def separately(self) -> Run:
        """Commit one staged file on each table, one after the other."""
        from airflow_delta.contract.staging_directory import new_attempt
        from airflow_delta.log import DeltaLog
        from airflow_delta.table.commit.publish import publish

        staged = [self._staged(uri, str(uuid.uuid4())) for uri in self.uris]

        def work() -> None:
            for uri, (handle, write) in zip(self.uris, staged, strict=True):
                publish(DeltaLog.for_table(uri, self._options), handle, [write], attempt=new_attempt(), policy=_policy())

        return self._measured(work, b'"add"')

    def _measured(self, work: Callable[[], None], entry: bytes) -> Run:
        if self._relay is not None:
            self._relay.reset(LATENCY)
        with _puts(entry) as puts:
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
        assert len(puts) == len(self.uris)
        return Run(seconds, puts[-1] - puts[0], len(self._relay.requests) if self._relay is not None else 0)


def _policy() -> Any:
    """No checkpoints: they would be written in the time of one way or the other."""
    from airflow_delta.transaction import CommitPolicy

    return CommitPolicy(checkpoint="off")


@contextlib.contextmanager
def _puts(entry: bytes) -> Iterator[list[float]]:
    """Note when each log entry with some bytes in it was put."""
    from airflow_delta.log.storage.local import LocalStore
    from airflow_delta.log.storage.object import ObjectStore

    found: list[float] = []

    def noting(real: Callable[..., None]) -> Callable[..., None]:
        def put(store: Any, path: str, data: bytes, **options: Any) -> None:
            real(store, path, data, **options)
            if _ENTRY.search(path) and entry in data:
                found.append(time.perf_counter())

        return put

    with contextlib.ExitStack() as stack:
        for kind in (LocalStore, ObjectStore):
            stack.enter_context(mock.patch.object(kind, "put_if_absent", noting(kind.put_if_absent)))
        yield found


# -- what a commit pays that meets no publication -------------------------------------------------------------------------------


class Nothing:
    """In place of `OpenIntents`: a commit that does not look for publications."""

    def __init__(self, *_: object) -> None: ...

    def note(self, _: object) -> None: ...

    def __bool__(self) -> bool:
        return False


def commit_of_one_add(uri: str, commits: int, options: dict[str, str] | None = None, relay: Any = None) -> dict[str, Any]:
    """Commit one add again and again, in turns with the look for open publications and without; return medians of both."""
    from airflow_delta.log import AddFile, DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction import Operation
    from airflow_delta.transaction.commit import committer

    real, policy = committer.OpenIntents, _policy()
    log = DeltaLog.for_table(uri, options)
    found: dict[str, list[tuple[float, float, int]]] = {"with": [], "without": []}
    for turn in range(2 * commits + 20):
        name = ("with", "without")[(turn + turn // 2) % 2]  # each as often the first of a pair
        add = AddFile(path=f"{uuid.uuid4()}.parquet", partition_values={}, size=1, modification_time=1, data_change=True)
        if relay is not None:
            relay.reset(0.0)
        with contextlib.ExitStack() as stack:
            if name == "without":
                stack.enter_context(mock.patch.object(committer, "OpenIntents", Nothing))
                stack.enter_context(mock.patch.object(Snapshot, "intents", ()))
            wall, cpu = time.perf_counter(), time.process_time()
            log.start_transaction(policy=policy).commit([add], Operation.write("Append"))
            spent = (time.perf_counter() - wall, time.process_time() - cpu)
        if turn >= 20:
            found[name].append((*spent, len(relay.requests) if relay is not None else 0))
    assert committer.OpenIntents is real
    return {
        name: {
            "median": statistics.median(wall for wall, _, _ in runs),
            "cpu": statistics.median(cpu for _, cpu, _ in runs),
            "requests": statistics.median(requests for _, _, requests in runs),
        }
        for name, runs in found.items()
    }


# -- report ---------------------------------------------------------------------------------------------------------------------


def medians(runs: Sequence[Run]) -> Run:
    """Return the medians; the first run warms up."""
    kept = runs[1:] or runs
    return Run(
        statistics.median(run.seconds for run in kept),
        statistics.median(run.window for run in kept),
        round(statistics.median(run.requests for run in kept)),
    )


def compare(name: str, lake: Lake, count: int, laps: int) -> list[dict[str, Any]]:
    """Print a publication beside separate commits, taking turns."""
    ways: dict[str, Callable[[], Run]] = {
        "publication": lake.publication,
        "publication, intents=False": lambda: lake.publication(intents=False),
        "separate commits": lake.separately,
    }
    found: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(laps + 1):
        for way, run in ways.items():
            found[way].append(run())
    least, rows = medians(found["separate commits"]), []
    for way, runs in found.items():
        figure = medians(runs)
        ratio = f"{figure.seconds / least.seconds:.1f}"
        print(
            f"| {name} | {count} | {way} | {figure.requests or '-'} | {figure.seconds * 1000:,.0f} | {ratio} "
            f"| {figure.window * 1000:,.0f} |",
            flush=True,
        )
        rows.append({"name": f"{way} of {count} tables, {name}", "ours": figure._asdict()})
    return rows


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Print the tables and return their rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, nargs="*", default=[1, 2, 5, 10], help="none: only what one add pays")
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--commits", type=int, default=2000, help="of one add, each way; on S3 a tenth")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    from relay import Relay
    from stores.servers import Versitygw

    rows: list[dict[str, Any]] = []
    print(f"\n### Several tables: one publication against separate commits (load {os.getloadavg()[0]:.1f})\n")
    print("| store | tables | | requests | ms | of separate | window ms |\n|---|---|---|---|---|---|---|", flush=True)
    work = Path(tempfile.mkdtemp(prefix="delta-publications-"))
    memory = Path(tempfile.mkdtemp(prefix="delta-publications-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        for count in options.tables:
            rows += compare("local", Lake(str(work / f"local-{count}"), count), count, options.laps)
        with Versitygw(work) as store, Relay(store.url, work) as relay:
            for count in options.tables:
                root = f"s3://{store.container()}"
                rows += compare(
                    f"S3, {LATENCY * 1000:.0f} ms a request", Lake(root, count, store.options, relay), count, options.laps
                )
            print(f"\n### A commit of one add that meets no publication (load {os.getloadavg()[0]:.1f})\n")
            print("| table | look | ms | CPU ms | requests | ms, of without |\n|---|---|---|---|---|---|", flush=True)
            lake = Lake(str(memory / "one"), 1)
            rows += look("local, in memory", commit_of_one_add(lake.uris[0], options.commits))
            one = Lake(f"s3://{store.container()}", 1, store.options)
            through = {**store.options, "aws_endpoint_url": relay.url}
            rows += look("S3, no latency added", commit_of_one_add(one.uris[0], options.commits // 10, through, relay))
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return rows


def look(name: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Print what the look for publications costs; the goal is reached within 2 % and with as many requests."""
    without, rows = figures["without"], []
    for way, figure in figures.items():
        ratio = figure["median"] / without["median"]
        print(
            f"| {name} | {way} | {figure['median'] * 1000:.3f} | {figure['cpu'] * 1000:.3f} | {figure['requests']:.0f} "
            f"| {ratio:.3f} |",
            flush=True,
        )
        reached = ratio <= GOAL and figure["requests"] == without["requests"]
        rows.append({"name": f"one add, {way} the look, {name}", "ours": figure, "reached": reached})
    return rows


if __name__ == "__main__":
    main()
