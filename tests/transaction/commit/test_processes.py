"""Many processes appending to one table at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_delta
from support.table import Table

WORKER = """
import sys
from airflow_delta.log import AddFile, DeltaLog
from airflow_delta.transaction import Operation

uri, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = DeltaLog.for_table(uri)
sys.stdin.read()  # all start at once
for index in range(count):
    add = AddFile(path=f"{name}-{index}", partition_values={}, size=1, modification_time=1, data_change=True)
    version = log.start_transaction().commit([add], Operation.write())
    print(version, add.path)
"""


def test_every_append_lands_exactly_once(tmp_path: Path) -> None:
    processes, appends = 6, 15
    table = Table(tmp_path / "table")
    table.create()
    source = str(Path(airflow_delta.__file__).parent.parent)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(table.path), f"worker{number}", str(appends)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": source, "PATH": ""},
        )
        for number in range(processes)
    ]
    try:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.stdin = None
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * processes
    said = {int(version): path for output in outputs for version, path in (line.split() for line in output.splitlines())}
    total = processes * appends
    assert table.versions() == list(range(total + 1)), "versions are contiguous"
    written = {version: table.lines(version)[-1]["add"]["path"] for version in range(1, total + 1)}
    assert written == said, "each process was told the version that its file has"
    assert len(set(written.values())) == total
    snapshot = table.log().snapshot
    assert snapshot.version == total
    assert set(snapshot.files()["path"].to_pylist()) == set(written.values())


def test_starting_and_appending_imports_little(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create()
    script = (
        WORKER + "\nprint([name for name in ('pyarrow', 'sqlglot', 'obstore', 'tenacity', 'airflow') if name in sys.modules])"
    )
    source = str(Path(airflow_delta.__file__).parent.parent)
    output = subprocess.run(
        [sys.executable, "-c", script, str(table.path), "w", "3"],
        input="",
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": source, "PATH": ""},
    ).stdout
    assert output.splitlines()[-1] == "[]"


@pytest.mark.parametrize("processes", [4])
def test_processes_that_create_the_same_table(tmp_path: Path, processes: int) -> None:
    script = """
import sys
from airflow_delta.exceptions import ProtocolChangedException
from airflow_delta.log import DeltaLog, Metadata
from airflow_delta.transaction import Operation

log = DeltaLog.for_table(sys.argv[1])
txn = log.start_transaction()
txn.update_metadata_for_new_table(Metadata(id=sys.argv[2], schema_string=sys.argv[3], created_time=1))
print("ready", flush=True)
sys.stdin.readline()
try:
    print("created", txn.commit([], Operation.create_table()))
except ProtocolChangedException as error:
    assert "create it before" in str(error)
    print("lost", error.winning_version)
"""
    root = tmp_path / "table"
    text = json.dumps({"type": "struct", "fields": [{"name": "v", "type": "integer", "nullable": True, "metadata": {}}]})
    source = str(Path(airflow_delta.__file__).parent.parent)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(root), f"id{number}", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": source, "PATH": ""},
        )
        for number in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    outputs = sorted(worker.communicate(timeout=60)[0].strip() for worker in workers)
    assert outputs == ["created 0", *["lost 0"] * (processes - 1)]
