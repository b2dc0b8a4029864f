"""A model of what an operation costs on an object store, checked against the points that scale.py recorded.

python benchmarks/scale_model.py            # measured, modelled, ratio
python benchmarks/scale_model.py --predict  # 10^8 files, 10^5 partitions, 10^3 concurrent runs on S3

An operation is a list of steps, one after the other; a step is a number of equal requests, some at a time. Each formula stands
in benchmarks/README.md in words.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "scale.json"

PAGE = 1_000
"""Keys of a listing, and of a request that deletes."""
ROW_GROUP = 20_000
"""Files of a row group of our checkpoints."""
SIDECAR = 50_000
WINDOW = 32.0
"""Megabytes of a checkpoint that are read together."""
REQUEST = 8.0
"""Megabytes of a range of them, at most."""
PART = 16.0
SINGLE_PUT = 32.0
OPENING = 4
"""Requests that a start needs however many commits have landed: see :func:`opened`."""
AGES_SEEN, LOSSES = 8, 4
"""Of ``transaction/commit/fairness.py``: winners whose ages count, and losses in a row without a wait."""


# -- constants ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """What a store takes for requests, in seconds.

    :param listing: of a page of keys, beside the round trip.
    :param bandwidth: megabytes a second of one connection.
    :param capacity: requests a second that it answers at most.
    :param pages: pages of listings a second that it answers at most.
    :param crowd: seconds that a second of CPU takes.
    """

    round_trip: float
    put: float
    listing: float
    bandwidth: float
    capacity: float
    pages: float
    crowd: float = 1.0


@dataclass(frozen=True)
class Machine:
    """What our side takes, in seconds of CPU or bytes; fitted to the recorded points."""

    start: float = 0.01
    plan: float = 0.04
    part: float = 0.004
    row_group: float = 0.0003
    footer: float = 0.0008
    file_by_statistics: float = 4e-7
    file_in_commit: float = 8e-6
    file_in_checkpoint: float = 8e-6
    file_in_vacuum: float = 14e-6
    column_bytes: float = 24.0
    """Of a file in the columns that a predicate on unordered statistics reads."""
    checkpoint_bytes: float = 243.0
    """Of a file in a checkpoint, with statistics of ten columns."""
    footer_bytes: float = 8_000.0
    """Of a row group in the footer of a checkpoint."""
    key_bytes: float = 340.0
    """Of a key in a listing."""


GATEWAY = Store(round_trip=0.025, put=0.03, listing=0.02, bandwidth=100.0, capacity=700.0, pages=20.0, crowd=2.5)
"""versitygw on loopback with 20 ms added, on the two cores that it shares with the client, the relay and other work."""
S3 = Store(round_trip=0.02, put=0.04, listing=0.08, bandwidth=80.0, capacity=5_500.0, pages=1_000.0)
"""Amazon S3 in the same region: what its documents and common measurements say, not measured here."""


# -- operations -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A table and what is done on it.

    :param files: live files.
    :param staged: files that the transaction adds.
    :param tail: commits since the checkpoint.
    :param deleted: files that VACUUM deletes.
    """

    files: int
    staged: int = 0
    tail: int = 10
    deleted: int = 0


@dataclass(frozen=True)
class Step:
    """Requests of a kind, ``at_once`` at a time; ``megabytes`` and ``cpu`` are those of all of them."""

    kind: str
    number: int = 1
    at_once: int = 1
    megabytes: float = 0.0
    cpu: float = 0.0


def seconds(steps: list[Step], store: Store) -> float:
    """Return how long the steps take: rounds of requests and bytes over the connections in use, or CPU, or the store's limit."""
    total = 0.0
    for step in steps:
        each = {"PUT": store.put, "PART": store.put, "LIST": store.round_trip + store.listing}.get(step.kind, store.round_trip)
        rounds = math.ceil(step.number / step.at_once)
        transfer = step.megabytes / (store.bandwidth * min(step.at_once, max(step.number, 1), 4))
        limit = step.number / (store.pages if step.kind == "LIST" else store.capacity)
        total += max(rounds * each + transfer, step.cpu * store.crowd, limit)
    return total


def requests(steps: list[Step]) -> int:
    return sum(step.number for step in steps)


def opened(work: Work, machine: Machine) -> list[Step]:
    """Hint, listing from the checkpoint on, checksum, the head of the newest commit."""
    return [Step("GET"), Step("LIST"), Step("GET", 2, cpu=machine.start)]


def tail(work: Work) -> list[Step]:
    return [Step("GET", work.tail, 16)]


def footers(work: Work, machine: Machine, *, v2: bool = False) -> list[Step]:
    """The footer of each checkpoint file; what is larger than 64 KB takes a second request."""
    parts = math.ceil(work.files / SIDECAR) if v2 else 1
    groups = math.ceil(work.files / parts / ROW_GROUP)
    each = 1 if groups * machine.footer_bytes <= 65_536 else 2
    size = parts * max(groups * machine.footer_bytes, 65_536) / 1e6
    cpu = machine.plan + parts * (machine.part + groups * machine.row_group)
    return [*([Step("GET")] if v2 else []), Step("GET", parts * each, 8 if v2 else 1, size, cpu)]


def start(work: Work, machine: Machine) -> list[Step]:
    return opened(work, machine)


def partition(work: Work, machine: Machine, *, v2: bool = False) -> list[Step]:
    """Footers tell the one row group with the partition: its partition values, then its paths."""
    return [*opened(work, machine), *tail(work), *footers(work, machine, v2=v2), Step("GET", 2)]


def statistics(work: Work, machine: Machine) -> list[Step]:
    return [*opened(work, machine), *tail(work), *footers(work, machine), Step("GET", 2), Step("GET", 2)]


def scattered(work: Work, machine: Machine) -> list[Step]:
    """The columns of every row group, which are in three places, then the paths of every row group with a hit."""
    groups = math.ceil(work.files / ROW_GROUP)
    columns = work.files * machine.column_bytes / 1e6
    hits = min(groups, 100)
    read = [Step("GET", 3 * groups, 10, columns, work.files * machine.file_by_statistics), Step("GET", hits, 10, hits * 0.11)]
    return [*opened(work, machine), *tail(work), *footers(work, machine), *read]


def collect(work: Work, machine: Machine) -> list[Step]:
    """A listing, two ranged reads of each file that another job than Spark's wrote, its footer and its front, a manifest."""
    listing = Step("LIST", math.ceil(work.staged / PAGE))
    manifest = [Step("PUT", megabytes=work.staged * 500 / 1e6)] if work.staged > 50 else []
    return [listing, Step("GET", 2 * work.staged, 32, work.staged * 0.066, work.staged * machine.footer), *manifest]


def publish(work: Work, machine: Machine) -> list[Step]:
    """The listing of what was staged, the marker and the commit, with the checksum; clean-up."""
    pages = math.ceil(work.staged / PAGE)
    size = work.staged * 1_000 / 1e6
    listed = [Step("LIST", pages + 2), Step("GET", 4), Step("HEAD", 2), Step("DELETE", 2)]
    return [*listed, Step("PUT", 4, megabytes=size, cpu=work.staged * machine.file_in_commit * 4)]


def commit(work: Work, machine: Machine) -> list[Step]:
    return [*opened(work, machine), Step("LIST"), Step("PUT", 2)]


def checkpoint(work: Work, machine: Machine, *, v2: bool = False) -> list[Step]:
    """Everything is read in ranges of up to 8 MB, and written in one put, in parts, or in sidecars four at a time."""
    size = work.files * machine.checkpoint_bytes / 1e6
    parts = math.ceil(work.files / SIDECAR) if v2 else 1
    groups = math.ceil(work.files / ROW_GROUP)
    read = Step("GET", max(3 * groups, parts), 10, size, work.files * machine.file_in_checkpoint)
    if v2:
        written = [Step("PUT", parts + 2, 4, size), Step("HEAD", 2), Step("LIST", math.ceil(parts / PAGE))]
    elif size > SINGLE_PUT:
        written = [Step("PART", math.ceil(size / PART) + 2, 4, size), Step("PUT"), Step("HEAD")]
    else:
        written = [Step("PUT", 1, 1, size), Step("PUT"), Step("HEAD")]
    return [*opened(work, machine), *tail(work), *footers(work, machine, v2=v2), read, Step("GET"), *written]


def vacuum_dry(work: Work, machine: Machine) -> list[Step]:
    """A listing of the whole table, in pieces at once, then every live path and tombstone."""
    pieces = min(32, work.files // 5_000)
    pieces = pieces if pieces > 1 else 1
    keys = work.files + work.deleted
    listed = Step("LIST", math.ceil(keys / PAGE) + pieces, min(16, pieces), keys * machine.key_bytes / 1e6)
    groups = math.ceil(work.files / ROW_GROUP)
    paths = Step("GET", groups + 2, 10, work.files * 6 / 1e6, work.files * machine.file_in_vacuum)
    return [*opened(work, machine), Step("LIST", 3), *tail(work), *footers(work, machine), listed, paths]


def vacuum(work: Work, machine: Machine) -> list[Step]:
    batches = math.ceil(work.deleted / PAGE)
    return [*vacuum_dry(work, machine), Step("DELETE", batches, 8), Step("LIST", 4 + batches), Step("PUT", 4)]


OPERATIONS: dict[str, Callable[[Work, Machine], list[Step]]] = {
    "start": start,
    "partition": partition,
    "statistics": statistics,
    "scattered": scattered,
    "partition-v2": lambda work, machine: partition(work, machine, v2=True),
    "collect": collect,
    "publish": publish,
    "commit": commit,
    "checkpoint": checkpoint,
    "checkpoint-v2": lambda work, machine: checkpoint(work, machine, v2=True),
    "vacuum-dry": vacuum_dry,
    "vacuum": vacuum,
}


# -- writers of one table -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contention:
    """Constants of the commit loop.

    :param put: seconds of a put of a commit or of its checksum, won or lost.
    :param read: seconds to read a winning commit.
    :param cpu: seconds of CPU of one attempt, on one of ``cores``.
    :param think: seconds between two commits of a writer.
    """

    put: float
    read: float
    cpu: float = 0.002
    think: float = 0.0
    cores: int = 2


def contend(writers: int, commits: int, constants: Contention, seed: int = 1) -> dict[str, float]:
    """Let writers commit to one table by the rule of ``transaction/commit/fairness.py``.

    The first put of a version wins. Each loser reads the winner, waits if it is younger than others that won, and puts again; a
    writer's age is the number of commits that landed since its commit began.
    """
    chance = random.Random(seed)

    def jitter(mean: float) -> float:
        return mean * (0.8 + 0.4 * chance.random())

    load = max(1.0, writers / constants.cores) * constants.cpu
    version = asked = lost = 0
    left, losses, known = [commits] * writers, [0] * writers, [0] * writers
    began = [(0.0, 0)] * writers
    seen: list[deque[int]] = [deque(maxlen=AGES_SEEN) for _ in range(writers)]
    age_of: list[int] = [0]  # of each version
    durations: list[float] = []
    events = [(constants.think * chance.random(), writer, "begin") for writer in range(writers)]
    heapq.heapify(events)

    def learn(writer: int, until: int) -> None:
        seen[writer].extend(age_of[known[writer] + 1 : until + 1])
        known[writer] = until

    def put(writer: int, at: float) -> None:
        heapq.heappush(events, (at + load + jitter(constants.put), writer, "put"))

    def wait(writer: int, at: float) -> None:
        ages = sorted(seen[writer])
        too_young = ages[len(ages) // 2] - (known[writer] - began[writer][1]) if ages else 0
        pause = 0.0
        if too_young > 1:
            pause = too_young * constants.put * chance.uniform(0.5, 1)
        elif losses[writer] and losses[writer] % LOSSES == 0:
            pause = constants.put * chance.random()
        if pause:
            heapq.heappush(events, (at + pause + jitter(constants.read), writer, "look"))
        else:
            put(writer, at)

    now = 0.0
    while events:
        now, writer, what = heapq.heappop(events)
        if what == "put":
            asked += 1
            if known[writer] < version:
                lost, asked, losses[writer] = lost + 1, asked + 1, losses[writer] + 1
                learn(writer, known[writer] + 1)
                wait(writer, now + jitter(constants.read))
                continue
            age_of.append(version - began[writer][1])
            version += 1
            learn(writer, version)
            durations.append(now - began[writer][0])
            asked += 1  # the checksum
            left[writer] -= 1
            if left[writer]:
                heapq.heappush(events, (now + jitter(constants.put) + jitter(constants.think), writer, "begin"))
            continue
        # A listing and the commits since the last look; a writer that comes back after a while reads the checksum instead.
        asked += min(OPENING, 1 + version - known[writer]) if constants.think and what == "begin" else 1 + version - known[writer]
        learn(writer, version)
        if what == "begin":
            losses[writer], began[writer] = 0, (now, version)
            wait(writer, now + jitter(constants.read))
        else:
            put(writer, now)
    durations.sort()
    return {
        "rate": version / now,
        "requests": asked / version,
        "lost": lost / version,
        "p50": durations[len(durations) // 2],
        "p95": durations[int(len(durations) * 0.95)],
        "slowest": durations[-1],
    }


CONTENTION = Contention(put=0.006, read=0.004, cpu=0.0006)
"""versitygw without added latency, on the two cores that it shares with the writers; fitted to the measured points."""
MEASURED_CONTENTION = (
    {"writers": 8, "rate": 87.6, "requests": 12.5, "p95": 0.24},
    {"writers": 16, "rate": 67.7, "requests": 20.6, "p95": 0.77},
)
"""From benchmarks/contention_s3.py, 50 commits of each writer."""


# -- the check --------------------------------------------------------------------------------------------------------------------


def work_of(files: int) -> Work:
    """Return what scale.py does on a table of a size."""
    return Work(files, staged=files // 100, deleted=files // 100)


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return measured and modelled requests and seconds of every recorded point."""
    found = []
    for row in rows:
        if row["engine"] != "ours" or "error" in row:
            continue
        steps = OPERATIONS[row["case"]](work_of(row["files"]), Machine())
        found.append(
            {
                "case": row["case"],
                "files": row["files"],
                "requests": (row["requests"], requests(steps)),
                "seconds": (row["seconds"], seconds(steps, GATEWAY)),
            }
        )
    return found


def predict() -> None:
    """Print the costs of a table of 10^8 files and 10^5 partitions, and of 10^3 writers."""
    print("\n| files | operation | requests | seconds on S3 |\n|---|---|---|---|")
    for files in (10**6, 10**7, 10**8):
        for case, steps_of in OPERATIONS.items():
            steps = steps_of(Work(files, staged=10_000, deleted=files // 100), Machine())
            print(f"| {files:,} | {case} | {requests(steps):,} | {seconds(steps, S3):,.1f} |")
    print(f"\n{CONTENTION_HEAD}")
    for writers, think in ((8, 0.0), (16, 0.0), (100, 0.0), (1_000, 60.0), (1_000, 600.0)):
        on_s3 = Contention(put=S3.put, read=S3.round_trip, think=think, cores=writers)
        print(contention_row(writers, think, contend(writers, 20 if writers < 1_000 else 5, on_s3)))


CONTENTION_HEAD = (
    "| writers | a commit every | commits/s | requests a commit | lost puts | p50 s | p95 s | slowest s |\n"
    "|---|---|---|---|---|---|---|---|"
)


def contention_row(writers: int, think: float, found: dict[str, float]) -> str:
    """Return a line of the table of writers."""
    cells = (f"{writers:,}", think or "-", *(f"{found[name]:.1f}" for name in ("rate", "requests", "lost")))
    return f"| {' | '.join(map(str, cells))} | {found['p50']:.2f} | {found['p95']:.2f} | {found['slowest']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--predict", action="store_true", help="large tables and many writers on S3")
    if parser.parse_args().predict:
        predict()
        return
    print(
        "| files | operation | requests measured | modelled | ratio | seconds measured | modelled | ratio |\n|---|---|---|---|---|---|---|---|"
    )
    for point in compare(json.loads(RECORDED.read_text())["rows"]):
        (asked, expected), (took, thought) = point["requests"], point["seconds"]
        print(
            f"| {point['files']:,} | {point['case']} | {asked:,} | {expected:,} | {expected / asked:.2f} "
            f"| {took:.2f} | {thought:.2f} | {thought / took:.2f} |"
        )
    print(f"\n{CONTENTION_HEAD}")
    for point in MEASURED_CONTENTION:
        writers = int(point["writers"])
        print(f"{contention_row(writers, 0, contend(writers, 50, CONTENTION))} (measured: {point})")


if __name__ == "__main__":
    main()
