"""What becomes of an operation when one of its requests fails: ``python tests/stores/faults.py [s3|azure-sas ...]`` prints it.

The requests of an operation are counted in a run without faults. Then it runs once for each request and each fault that can
happen to it (a listing can be stale, a body can break off). It must give the right answer or an error of this provider; after an
error it runs again, as a retried task does, and must give the right answer. Then delta-rs reads the table: nothing is lost or
doubled.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / "provider"), str(Path(__file__).parents[1])]

import deltalake
import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.contract.request import StageReport
from airflow_delta.contract.staging_directory import REPORT_DIRECTORY, new_attempt
from airflow_delta.log import DeltaLog
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.job_runs import read_report
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.start.begin import begin
from stores.proxy import FaultProxy, Rule
from stores.servers import STORES, WAYS
from stores.tables import client
from support.table import Table

ELSEWHERE = ("503 SlowDown", "500 after it took effect", "response lost", "expired token from here on")
"""Faults that other stores than S3 answer in ways of their own; what the client does with the others is the same for all."""

AT_MOST = int(os.environ.get("FAULT_CASES", "4"))
"""Requests that each fault happens to; ``python tests/stores/faults.py`` takes all of them."""

PASSING = (
    "503 SlowDown",
    "429 TooManyRequests",
    "500 after it took effect",
    "response lost",
    "connection reset",
    "body cut under its own length",
)
"""Faults of one request that a task survives without a retry."""

LISTING = r"list-type=2|comp=list"
EXPIRED = {"s3": (400, "ExpiredToken"), "azure": (403, "AuthenticationFailed"), "gcs": (401, "AuthenticationRequired")}


def faults(store: str) -> dict[str, Rule]:
    """Return what can happen to a request."""
    status, code = EXPIRED[store]
    return {
        "503 SlowDown": Rule("status"),
        "429 TooManyRequests": Rule("status", status=429, code="TooManyRequests"),
        "500 after it took effect": Rule("status_after", status=500, code="InternalError"),
        "response lost": Rule("lost"),
        "connection reset": Rule("reset"),
        "slow body": Rule("slow", "GET", seconds=0.01),
        "truncated body": Rule("truncated", "GET"),
        "body cut under its own length": Rule("cut", "GET", target=rf"^(?!.*({LISTING}))"),
        "expired token from here on": Rule("status", times=None, status=status, code=code),
        "listing misses the newest object": Rule("stale", "GET", target=LISTING),
    }


FAULTS = tuple(faults("s3"))
SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})


class StoreTable(Table):
    """A table on a store, with a direct way to it and one through the proxy.

    :param way: how requests through the proxy are signed (:data:`stores.servers.WAYS`).
    :ivar ids: that it must have.
    """

    def __init__(self, store: str, server: Any, proxy: FaultProxy, bucket: str, name: str, way: str = "key") -> None:
        super().__init__(name)
        self.way = way
        self.label = store if way == "key" else f"{store}-{way}"
        self.store, self.server, self.proxy, self.bucket, self.name = store, server, proxy, bucket, name
        self.ids: list[int] = []
        self.is_stale = False
        self.numbers = itertools.count()

    @property
    def uri(self) -> str:
        return f"{self.server.root(self.bucket)}/{self.name}"

    def log(self) -> DeltaLog:
        """A log without faults."""
        return DeltaLog.for_table(self.uri, self.server.options)

    @property
    def objects(self) -> Any:
        return client(self.server.options, self.server.root(self.bucket))

    @property
    def through(self) -> DeltaLog:
        """A log that nobody has opened yet, as every task has it."""
        return DeltaLog.for_table(self.uri, self.server.signed(self.way, self.proxy.url))

    def staged(self, ids: Iterable[int], *, manifest: bool = False) -> tuple[Any, Any]:
        """Begin, and stage two finished files."""
        handle = self.begin()
        put_rows(self, rows_of(self, handle), ids)
        with mock.patch("airflow_delta.table.stage.stage_view.INLINE_LIMIT", 10 if manifest else 1 << 20):
            return handle, self.stage_files(handle, path="rows")

    def committed(self, ids: Iterable[int]) -> StoreTable:
        """Commit rows without faults."""
        self.publish(*self.staged(ids))
        self.ids += ids
        return self

    def rows(self, version: int | None = None) -> list[int]:
        """Return the rows that delta-rs reads."""
        table = deltalake.DeltaTable(self.uri, version=version, storage_options={**self.server.options, "allow_http": "true"})
        return sorted(table.to_pyarrow_table().column("id").to_pylist())

    def check(self) -> None:
        assert self.rows() == sorted(self.ids), f"{self.uri} has other rows than were committed"


def put_rows(table: StoreTable, directory: str, ids: Iterable[int]) -> list[int]:
    """Put two files with rows; return their sizes."""
    ids, sizes = list(ids), []
    for number, part in enumerate((ids[::2], ids[1::2])):
        body = io.BytesIO()
        pq.write_table(pa.table({"id": pa.array(part, pa.int64())}), body)
        obstore.put(table.objects, f"{directory}/part-{number}.parquet", body.getvalue())
        sizes.append(len(body.getvalue()))
    return sizes


def rows_of(table: StoreTable, handle: Any) -> str:
    return f"{handle.staging_path.removeprefix(f'{table.server.root(table.bucket)}/')}/rows"


# -- operations: what is prepared without faults, what runs with them, and what must hold then ----------------------------------

Act = Callable[[], Any]
Check = Callable[[Any], None]


def start(table: StoreTable) -> tuple[Act, Check]:
    """Begin a transaction; a stale listing shows the version before, which is a right one to begin on."""
    key, latest = f"start-{next(table.numbers)}", table.log().update().version

    def check(version: int) -> None:
        assert version == latest or (table.is_stale and version == latest - 1)

    return lambda: begin(table.through, transaction_key=key).read_version, check


def read(table: StoreTable) -> tuple[Act, Check]:
    """Read the list of files, from checkpoint and commits; a stale listing may show the version before."""
    files = {version: names(table.log().snapshot_at(version)) for version in (2, 3)}

    def act() -> tuple[int, list[str]]:
        snapshot = table.through.update()
        return snapshot.version, names(snapshot)

    def check(answer: tuple[int, list[str]]) -> None:
        assert files[answer[0]] == answer[1]
        assert answer[0] == 3 or table.is_stale

    return act, check


def names(snapshot: Any) -> list[str]:
    return sorted(snapshot.files().column("path").to_pylist())


def stage(table: StoreTable) -> tuple[Act, Check]:
    """Read the report of a Spark job, and turn what it wrote into staged actions, from the footers."""
    handle = table.begin()
    request = plan_stage(table.view(handle))
    sizes = put_rows(table, f"{table.name}/{request.directory}/run", range(6))
    report = StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=("run",),
        written={"run": {"numFiles": 2, "numRows": 6, "numBytes": sum(sizes)}},
        schema_string=SCHEMA,
    )
    path = f"{table.name}/{request.directory}/{REPORT_DIRECTORY}/part-00000.txt"
    obstore.put(table.objects, path, json.dumps(report.to_dict()).encode())

    def act() -> Any:
        log = table.through
        stage = open_stage(log, handle, task_id="stage", attempt=request.attempt)
        return collect_stage(stage, request, read_report(log, request))

    def check(staged: Any) -> None:
        assert (staged.num_files, staged.num_records) == (2, 6)

    return act, check


def commit(table: StoreTable, *, manifest: bool = False) -> tuple[Act, Check]:
    """Publish a staged write; its retry has the same handle."""
    ids = list(range(1000 * (next(table.numbers) + 1), 1000 * (next(table.numbers) + 1) + 4))
    handle, staged = table.staged(ids, manifest=manifest)
    expected = table.log().update().version + 1
    table.ids += ids

    def check(version: int) -> None:
        assert version == expected
        table.check()

    return lambda: publish(table.through, handle, [staged], attempt=new_attempt()).version, check


def commit_with_manifest(table: StoreTable) -> tuple[Act, Check]:
    """Publish a staged write whose actions are in a manifest."""
    return commit(table, manifest=True)


def create(table: StoreTable) -> tuple[Act, Check]:
    """Begin and publish the first version of a table. Its files are staged without faults."""
    new = StoreTable(table.store, table.server, table.proxy, table.bucket, f"new-{next(table.numbers)}", table.way)
    new.ids += range(4)
    key = f"start-{next(table.numbers)}"

    def act() -> int:
        handle = begin(new.through, transaction_key=key)
        if handle.committed is not None:
            return int(publish(new.through, handle, [], attempt=new_attempt()).version)
        put_rows(new, rows_of(new, handle), new.ids)
        staged = new.stage_files(handle, path="rows")
        return int(publish(new.through, handle, [staged], attempt=new_attempt()).version)

    def check(version: int) -> None:
        assert version == 0
        new.check()

    return act, check


def checkpoint(table: StoreTable) -> tuple[Act, Check]:
    """Write a checkpoint, from which everybody reads afterwards."""
    table.committed([10_000 * (next(table.numbers) + 1)])

    def check(_: None) -> None:
        table.check()
        assert table.log().update().files().num_rows > 0

    return lambda: table.through.checkpoint(), check


def clean(table: StoreTable) -> tuple[Act, Check]:
    """VACUUM: what it deletes is in no version, and what is in one stays."""
    orphan = f"orphan-{next(table.numbers)}.parquet"
    obstore.put(table.objects, f"{table.name}/{orphan}", b"x")

    def act() -> Any:
        return vacuum(table.through, retention_hours=0, retention_check=False, clock=lambda: int(time.time() * 1000) + HOUR)

    def check(_: Any) -> None:
        table.check()
        assert table.is_stale or table.log().store.head(orphan) is None

    return act, check


def give_up(table: StoreTable) -> tuple[Act, Check]:
    """Abort: the staged files go, and the table stays as it is."""
    handle, _ = table.staged(range(4))

    def check(outcome: str) -> None:
        assert outcome in ("deleted", "marked")
        table.check()

    return lambda: abort(table.through, handle).outcome, check


OPERATIONS: dict[str, Callable[[StoreTable], tuple[Act, Check]]] = {
    "start": start,
    "read the log": read,
    "read staged files": stage,
    "commit": commit,
    "commit with a manifest": commit_with_manifest,
    "start and commit of a new table": create,
    "checkpoint": checkpoint,
    "VACUUM": clean,
    "abort": give_up,
}


# -- cases ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What one fault at one request led to: ``right``, or the class of the error; then the retry was right."""

    store: str
    operation: str
    fault: str
    request: str
    result: str


def cases(
    table: Any,
    operation: str,
    fault: str,
    at_most: int | None = None,
    *,
    operations: Mapping[str, Any] = OPERATIONS,
    at: str = "",
) -> Iterator[Outcome]:
    """Run an operation once for each of its requests to which the fault can happen.

    :param table: or tables, for other operations.
    :param at_most: only so many of the requests, spread evenly, others for each fault.
    :param at: of the requests that a fault can happen to without being about reads, only puts whose target matches.

    :raises AssertionError: if an answer is wrong, an error is not of this provider, or rows are lost or doubled.
    """
    rule = faults(table.store)[fault]
    if at and not rule.method:
        rule, at_most = replace(rule, method="PUT", target=at), None
    table.proxy.set()
    table.is_stale = rule.fault == "stale"
    act, check = operations[operation](table)
    check(act())
    count = sum(replace(rule, times=None).takes(request["method"], request["target"]) for request in table.proxy.requests)
    for number in _chosen(count, at_most, FAULTS.index(fault)):
        act, check = operations[operation](table)
        table.proxy.set(replace(rule, skip=number))
        try:
            answer, error = act(), None
        except Exception as raised:
            answer, error = None, raised
        fired = [request for request in table.proxy.requests if request["fault"]]
        table.proxy.set()
        where = f"{fault} at request {number}" + (f", {short(fired[0])}" if fired else "")
        try:
            if error is None:
                check(answer)
            else:
                is_ours(error, where)
                check(act())
        except AssertionError as wrong:
            raise AssertionError(f"{operation}: {where}: {wrong or 'the answer is wrong'}") from wrong
        except Exception as again:
            raise AssertionError(f"{operation}: {where}: {error!r}; then again: {again!r}") from again
        if fired:
            result = "right" if error is None else type(error).__name__
            yield Outcome(getattr(table, "label", table.store), operation, fault, short(fired[0]), result)


def _chosen(count: int, at_most: int | None, shift: int) -> list[int]:
    if at_most is None or count <= at_most:
        return list(range(count))
    return sorted({(shift + number * count // at_most) % count for number in range(at_most)})


def is_ours(error: Exception, where: str) -> None:
    """Refuse an error that is not typed by this provider, or says nothing."""
    assert type(error).__module__.startswith("airflow_delta."), f"{where} led to {error!r}"
    assert str(error), where


def short(request: dict[str, Any]) -> str:
    """Return a request without what differs from run to run."""
    path, _, query = request["target"].partition("?")
    kind = "list" if re.search(LISTING, query) else ("delete" if "delete" in query else path.rpartition("/")[2])
    return f"{request['method']} {re.sub(r'[0-9a-f]{8,}|[0-9]+', '*', kind)}"


def table_on(name: str, server: Any, proxy: FaultProxy) -> StoreTable:
    """Return a table of four versions, with a checkpoint at version 1.

    :param name: of the store and, after a hyphen, of how requests are signed.
    """
    store, _, way = name.partition("-")
    table = StoreTable(store, server, proxy, server.container(), "t", way or "key")
    for number in range(4):
        table.committed([number])
        if number == 1:
            table.log().checkpoint()
    return table


def report(outcomes: Iterable[Outcome]) -> str:
    """Return the cases as a table in Markdown."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.store, outcome.operation, outcome.fault), Counter())[outcome.result] += 1
    lines = ["| store | operation | fault | cases | right answer | typed error, then right |", "|---|---|---|---|---|---|"]
    for (store, operation, fault), results in found.items():
        errors = ", ".join(f"{count} {name}" for name, count in sorted(results.items()) if name != "right")
        lines.append(f"| {store} | {operation} | {fault} | {results.total()} | {results['right']} | {errors or 0} |")
    total = sum((results for results in found.values()), Counter())
    lines.append(f"\n{total.total()} cases: {total['right']} right, {total.total() - total['right']} errors, 0 lost or doubled.")
    return "\n".join(lines)


def main() -> None:
    def run(store: str, server: Any, proxy: FaultProxy, _: argparse.Namespace) -> Iterator[Outcome]:
        for operation in OPERATIONS:
            table = table_on(store, server, proxy)
            for fault in FAULTS:
                yield from cases(table, operation, fault)

    parser = argparse.ArgumentParser(description="Print what becomes of operations when requests of a store fail.")
    print_report(parser, run, default=["s3"])


def print_report(
    parser: argparse.ArgumentParser,
    run: Callable[[str, Any, FaultProxy, argparse.Namespace], Iterable[Outcome]],
    *,
    default: list[str],
) -> None:
    """Run the cases of each store that the command line names, and print what came of them."""
    parser.add_argument("stores", nargs="*", default=default, choices=[*STORES, *WAYS], help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the cases to this file")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for store in arguments.stores:
            (directory := place / store).mkdir()
            server = stack.enter_context(STORES[store.partition("-")[0]](directory))
            proxy = stack.enter_context(FaultProxy(server.url, directory))
            outcomes += run(store, server, proxy, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(outcome) for outcome in outcomes], indent=1))
    if outcomes:
        print(report(outcomes))


if __name__ == "__main__":
    main()
