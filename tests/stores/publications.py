"""Publications on stores, one request of which fails: ``python tests/stores/publications.py`` prints the matrix.

The tables are on one store, or on two of which the proxy stands before the first. As in :mod:`stores.faults`, the answer is
right, or the error is typed and the next try of the task is right: published on all tables, taken back or refused, never half.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / "provider"), str(Path(__file__).parents[1])]

import deltalake

from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import PublicationUndoneException
from airflow_delta.log import DeltaLog
from airflow_delta.publication import (
    Member,
    PublicationOptions,
    abort_tables,
    get_versions,
    open_publications,
    publication_states,
    publish_tables,
    settle,
)
from publication.points import killed, visited
from stores.faults import FAULTS, Outcome, StoreTable, cases, print_report
from stores.proxy import FaultProxy
from stores.servers import STORES

PUTS = r"[0-9]{20}(\.|%2E)json|publication(-|%2D)[0-9a-f]{16}(\.|%2E)json"
"""Puts of log entries and plans; on GCS names are escaped."""

NAMES = ("first", "second", "third")
Act = tuple[Callable[[], Any], Callable[[Any], None]]


@dataclass
class Lake:
    """Tables that are published together.

    :param store: name of the store whose requests can fail, that of the first table.
    :param proxy: stands before it.
    """

    store: str
    proxy: FaultProxy
    tables: list[StoreTable]
    is_stale: bool = False
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def through(self, table: StoreTable) -> DeltaLog:
        """A log that nobody has opened yet; its requests can fail if the table is on that store."""
        return table.through if table.store == self.store else table.log()

    def open(self, uri: str) -> DeltaLog:
        return next(self.through(table) for table in self.tables if table.uri == uri)

    def members(self) -> tuple[list[Member], int]:
        """Begin a transaction on each table, and stage four rows; return the first of their ids, too."""
        start = 1000 * next(self.numbers)
        return [self._member(table, start) for table in self.tables], start

    @staticmethod
    def _member(table: StoreTable, start: int) -> Member:
        handle, staged = table.staged(range(start, start + 4))
        return Member(log=table.log(), handle=handle, staged=[staged])

    def publish(self, members: list[Member], *, intents: bool = True) -> str:
        """Publish as one try of a commit task does; return the outcome."""
        opened = [self.through(table) for table in self.tables]
        tried = [Member(log=log, handle=m.handle, staged=m.staged) for log, m in zip(opened, members, strict=True)]
        options = PublicationOptions(anchor=self.tables[0].uri, patience=0.0, intents=intents)
        try:
            return publish_tables(tried, attempt=new_attempt(), options=options, open_table=self.open).outcome
        except PublicationUndoneException:
            return "undone"

    def note(self, start: int) -> None:
        """Expect the rows on every table."""
        for table in self.tables:
            table.ids += range(start, start + 4)

    def check(self) -> None:
        """Check that delta-rs reads the rows of every publication that is published, and that a vector has all of them."""
        logs = {table.uri: table.log() for table in self.tables}
        for table in self.tables:
            table.check()
            assert not open_publications(logs[table.uri]), f"a publication is left open on {table.uri}"
        vector = get_versions(logs)
        assert vector.versions == {uri: log.update().version for uri, log in logs.items()}, vector
        assert not vector.held_back
        assert not vector.split
        known = [publication_states(log) for log in logs.values()]
        for publication in set().union(*known):
            states = {found[publication] for found in known if publication in found}
            assert states in ({1}, {2}, {2, 3}), f"{publication} has the states {states}"


def change_properties(table: StoreTable) -> None:
    """Have delta-rs change the metadata, which conflicts with everything."""
    options = {**table.server.options, "allow_http": "true"}
    days = 30 + table.log().update().version
    deltalake.DeltaTable(table.uri, storage_options=options).alter.set_table_properties(
        {"delta.logRetentionDuration": f"interval {days} days"}
    )


# -- operations: what is prepared without faults, what runs with them, and what must hold then ----------------------------------


def expecting(lake: Lake, outcome: str) -> Callable[[Any], None]:
    def check(found: str) -> None:
        assert found == outcome
        lake.check()

    return check


def publish(lake: Lake) -> Act:
    """Publish from the start."""
    members, start = lake.members()
    lake.note(start)
    return lambda: lake.publish(members), expecting(lake, "published")


def go_on(lake: Lake) -> Act:
    """Somebody else finds a publication on its last table whose worker was killed after the decision."""
    members, start = lake.members()
    lake.note(start)
    killed(lambda: lake.publish(members), f"published {lake.tables[0].name}", "after")
    table = lake.tables[-1]
    [found] = open_publications(table.log())

    def act() -> str:
        return settle(lake.through(table), found.publication, lake.open, patience=0.0).outcome

    return act, expecting(lake, "published")


def take_back(lake: Lake) -> Act:
    """A foreign writer changes the last table right after the decision."""
    members, _ = lake.members()
    killed(lambda: lake.publish(members), f"published {lake.tables[0].name}", "after")
    change_properties(lake.tables[-1])
    return lambda: lake.publish(members), expecting(lake, "undone")


def refuse(lake: Lake) -> Act:
    """Abort a publication whose worker was killed before the decision."""
    members, _ = lake.members()
    killed(lambda: lake.publish(members), f"published {lake.tables[0].name}", "before")

    def act() -> str:
        opened = [lake.through(table) for table in lake.tables]
        given_up = [Member(log=log, handle=member.handle) for log, member in zip(opened, members, strict=True)]
        return abort_tables(given_up, open_table=lake.open).outcome

    return act, expecting(lake, "refused")


OPERATIONS: dict[str, Callable[[Lake], Act]] = {"publish": publish, "go on": go_on, "take back": take_back, "refuse": refuse}


def lake_on(places: list[tuple[str, Any]], proxy: FaultProxy) -> Lake:
    """Return tables of one version, on the stores in turn.

    :param places: name and server of the store of each table.
    """
    proxy.set()
    buckets = {store: server.container() for store, server in places}
    tables = [
        StoreTable(store, server, proxy, buckets[store], name) for name, (store, server) in zip(NAMES, places, strict=False)
    ]
    return Lake(places[0][0], proxy, [table.committed([number]) for number, table in enumerate(tables)])


def windows(lake: Lake, repeats: int = 5) -> list[float]:
    """Return for how many milliseconds a foreign reader may have seen the first table before the last."""
    found = []
    for _ in range(repeats):
        members, start = lake.members()
        seen: dict[str, float] = {}
        with visited(lambda when, name, seen=seen: seen.setdefault(f"{when} {name}", time.perf_counter())):  # type: ignore[misc]
            assert lake.publish(members) == "published"
        lake.note(start)
        first, last = (f"after published {lake.tables[number].name}" for number in (0, -1))
        found.append(1000 * (seen[last] - seen[first]))
    return found


def main() -> None:
    def run(store: str, server: Any, proxy: FaultProxy, arguments: argparse.Namespace) -> Iterator[Outcome]:
        places = [(store, server)] * arguments.tables
        if arguments.windows:
            lake = lake_on(places, proxy)
            lake.store = ""  # not through the proxy, which limits the rate
            print(store, " ".join(f"{milliseconds:.1f}" for milliseconds in sorted(windows(lake))), "ms", flush=True)
            return
        for operation, fault in itertools.product(OPERATIONS, FAULTS):
            yield from cases(lake_on(places, proxy), operation, fault, operations=OPERATIONS)

    parser = argparse.ArgumentParser(description="Print what becomes of publications when requests of a store fail.")
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--windows", action="store_true", help="only print how long the tables differ for a foreign reader")
    print_report(parser, run, default=list(STORES))


if __name__ == "__main__":
    main()
