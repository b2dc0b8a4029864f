"""Processes that append to one table on each store, writing its checkpoints as they go."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.transaction import Operation
from support.table import metadata

PROCESSES, APPENDS, INTERVAL = 6, 10, 5

WORKER = """
import json, sys
from airflow_delta.log import AddFile, DeltaLog
from airflow_delta.transaction import Operation

uri, options, name, count = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
log = DeltaLog.for_table(uri, options)
log.snapshot.metadata
print("ready", flush=True)
sys.stdin.read()  # all start at once
for index in range(count):
    add = AddFile(path=f"{name}-{index}", partition_values={}, size=1, modification_time=1, data_change=True)
    print(log.start_transaction().commit([add], Operation.write()), add.path)
"""


def test_every_append_lands_exactly_once(store: Any) -> None:
    uri = f"{store.root(store.container())}/t"
    log = DeltaLog.for_table(uri, store.options)
    transaction = log.start_transaction()
    transaction.update_metadata_for_new_table(metadata(configuration={"delta.checkpointInterval": str(INTERVAL)}))
    transaction.commit([], Operation.manual_update())
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, uri, json.dumps(store.options), f"worker{number}", str(APPENDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    said = {int(version): path for output in outputs for version, path in (line.split() for line in output.splitlines())}
    total = PROCESSES * APPENDS
    assert sorted(said) == list(range(1, total + 1)), "one commit for each version"
    entries = {version: log.store.read(commit_file(version)).splitlines()[-1] for version in said}
    assert {version: json.loads(line)["add"]["path"] for version, line in entries.items()} == said
    snapshot = DeltaLog.for_table(uri, store.options).snapshot
    assert snapshot.version == total
    assert sorted(snapshot.files()["path"].to_pylist()) == sorted(said.values())
    assert snapshot.segment.checkpoint is not None
    assert snapshot.num_files == total
