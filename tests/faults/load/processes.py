"""The processes of a load test: ``python -m faults.load.processes ROLE URI NUMBER JSON``.

Each prints what it found as one line of JSON.

A writer owns its files. Its commit ``i`` adds file ``i``; every tenth is a compaction, which removes the writer's other files.
So what is live of a writer after its commit ``i`` are the files from the last multiple of ten to ``i``, at every version.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections import defaultdict
from typing import Any

from airflow_delta.log import AddFile, DeltaLog, RemoveFile, Snapshot
from airflow_delta.log.cleanup import DAY, clean_up_expired_logs
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.transaction import Operation

EACH = 10
"""Commits of a writer up to its next compaction."""
RETENTION = 30
"""Seconds that removed files are kept."""


def path_of(writer: int, number: int) -> str:
    return f"data/{writer}-{number}.bin"


def live_after(number: int) -> set[int]:
    """Return which files of a writer are live after its commit ``number``."""
    return set(range(number - number % EACH, number + 1))


def resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write(log: DeltaLog, writer: int, *, commits: int) -> dict[str, Any]:
    """Commit as often as told, on one log; return each version with its seconds, and the memory on the way."""
    told: list[tuple[int, float]] = []
    memory: list[int] = []
    for number in range(commits):
        path = path_of(writer, number)
        log.store.put_if_absent(path, b"x", durable=False)
        compacts = number > 0 and number % EACH == 0
        add = AddFile(path=path, partition_values={}, size=1, modification_time=_now(), data_change=not compacts)
        gone = sorted(live_after(number - 1)) if compacts else []
        for old in gone:
            assert log.store.head(path_of(writer, old)) is not None, f"{path_of(writer, old)} was deleted while it was live"
        removes = [
            RemoveFile(path=path_of(writer, old), deletion_timestamp=_now(), data_change=False, extended_file_metadata=False)
            for old in gone
        ]
        begun = time.monotonic()
        version = log.start_transaction().commit([*removes, add], Operation.optimize() if compacts else Operation.write())
        told.append((version, time.monotonic() - begun))
        if number % (commits // 20 or 1) == 0:
            memory.append(resident())
    return {"told": told, "memory": [*memory, resident()]}


def read(log: DeltaLog, reader: int, *, options: dict[str, str]) -> dict[str, Any]:
    """Read the table until told to stop, by turns on one log and on a new one."""
    chance, reads, versions = random.Random(reader), 0, [0]
    while not _stopped():
        own = log if reads % 2 else DeltaLog.for_table(log.uri, options)
        snapshot = own.update()
        assert snapshot.version >= versions[-1], f"version {snapshot.version} after {versions[-1]}"
        live = live_of(snapshot)
        for path in chance.sample(sorted(live), min(3, len(live))):
            assert own.store.head(path) is not None, f"{path} of version {snapshot.version} does not exist"
        reads += 1
        versions.append(snapshot.version)
    return {"reads": reads, "versions": len(set(versions)), "memory": [resident()]}


def live_of(snapshot: Snapshot) -> set[str]:
    """Return the live files.

    :raises AssertionError: if what is live of a writer is not what one of its commits has left.
    """
    paths = snapshot.files(columns=["path"])["path"].to_pylist()
    owned: dict[str, set[int]] = defaultdict(set)
    for path in paths:
        writer, number = path.removeprefix("data/").removesuffix(".bin").split("-")
        owned[writer].add(int(number))
    for writer, numbers in owned.items():
        assert numbers == live_after(max(numbers)), f"of writer {writer}, version {snapshot.version} has {sorted(numbers)}"
    assert len(paths) == len(set(paths))
    return set(paths)


def maintain(log: DeltaLog, _number: int, *, keep: int, options: dict[str, Any]) -> dict[str, Any]:
    """Clean up the log behind the newest ``keep`` versions, and vacuum, until told to stop; return how many files the log had.

    An expired version is one of yesterday, which no version of a test is: the clock of the cleanup is two days fast.
    """
    entries: list[int] = []
    vacuums, deleted, cleaned = 0, 0, 0
    stopped = False
    while not stopped:
        stopped = _stopped(0.2)
        version = log.update().version
        if version >= cleaned + keep * 1.25 or (stopped and version > keep):
            entries.append(_entries(log))
            clean_up_expired_logs(log.snapshot_at(version - keep), now=_now() + 2 * DAY)
            entries.append(_entries(log))
            cleaned = version - keep
            # As each task does, on a log of its own: commits that this one has not read yet may have been cleaned up.
            deleted += vacuum(DeltaLog.for_table(log.uri, options)).num_files
            vacuums += 1
    return {"entries": entries, "vacuums": vacuums, "deleted": deleted, "memory": [resident()]}


def _entries(log: DeltaLog) -> int:
    return len(log.store.list_from(LOG_DIRECTORY, "", stat=False))


def _now() -> int:
    return int(time.time() * 1000)


def _stopped(seconds: float = 0.0) -> bool:
    """Tell whether the test has closed our input."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def main(role: str, uri: str, number: str, text: str) -> None:
    given = json.loads(text)
    log = DeltaLog.for_table(uri, given["options"])
    log.checkpoint()  # its imports must not count as growth later
    print("ready", flush=True)
    sys.stdin.readline()  # all begin at once
    if role == "write":
        found = write(log, int(number), commits=given["commits"])
    elif role == "read":
        found = read(log, int(number), options=given["options"])
    else:
        found = maintain(log, int(number), keep=given["keep"], options=given["options"])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
