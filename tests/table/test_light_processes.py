"""A task is a fresh process, and its largest cost is imports: no step loads a library that its own work does not need.

pyarrow imports pandas at the first conversion of a plain Python value, unnoticed: ``airflow_delta.log.arrow`` is there instead.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.log import DeltaLog, Metadata
from airflow_delta.transaction import Operation

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("one_task.py")
HEAVY = {"pandas", "numpy", "pyarrow", "sqlglot", "obstore", "pyspark", "nanoarrow"}
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("at", "timestamp"), ("price", "decimal(10,2)"), ("day", "date"))
    ],
}


def step(name: str, work: Path) -> set[str]:
    """Run one step and return the heavy modules that it loaded."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "provider"), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(SCRIPT), name, str(work)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


def stats(number: int) -> str:
    low = {"id": number, "at": f"2024-01-0{number}T10:00:00.000Z", "price": 1.5}
    return json.dumps({"numRecords": 1, "minValues": low, "maxValues": low, "nullCount": dict.fromkeys(low, 0)})


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A partitioned table with a checkpoint, and commits after it of which the next one's tenth writes another."""
    from airflow_delta.log import AddFile

    log = DeltaLog.for_table(str(tmp_path / "table"))
    txn = log.start_transaction()
    configuration = {"delta.checkpointInterval": "4"}
    metadata = Metadata(
        id="1f5b2a3c-0000-4000-8000-000000000001",
        schema_string=json.dumps(SCHEMA),
        partition_columns=["day"],
        configuration=configuration,
    )
    txn.update_metadata_for_new_table(metadata)
    txn.commit([], Operation.create_table([]))
    for number, day in enumerate((*DAYS, *DAYS), start=1):
        add = AddFile(
            path=f"day={day}/{number}.parquet",
            partition_values={"day": day},
            size=100,
            modification_time=1,
            data_change=True,
            stats=stats(number),
        )
        log.start_transaction().commit([add], Operation.write("Append"))
    assert (tmp_path / "table" / "_delta_log" / f"{4:020}.checkpoint.parquet").exists()
    assert log.update().version == 6
    return tmp_path


def write_as_spark_would(work: Path) -> None:
    """Leave the files and the report of a stage."""
    request = StageRequest.from_dict(json.loads((work / "request.json").read_text()))
    folder = work / "table" / request.directory / "run" / "day=2024-01-02"
    folder.mkdir(parents=True)
    rows = pa.table(
        {
            "id": pa.array([7], pa.int64()),
            "at": pa.array([dt.datetime(2024, 1, 2, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("2.00")], pa.decimal128(10, 2)),
        }
    )
    pq.write_table(rows, folder / "part-0.parquet")
    report = StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=("run",),
        written={"run": {"numFiles": 1, "numRows": 1, "numBytes": (folder / "part-0.parquet").stat().st_size}},
        schema_string=json.dumps(SCHEMA),
        partition_columns=("day",),
    )
    (work / "report.json").write_text(json.dumps(report.to_dict()))


ARROW = {"pyarrow", "numpy"}  # pyarrow imports numpy where it is installed


def test_the_tasks_of_an_overwrite(work: Path) -> None:
    loaded = {"start": step("start", work), "plan": step("plan", work)}
    write_as_spark_would(work)
    loaded |= {"collect": step("collect", work), "commit": step("commit", work)}
    # Whole partitions are replaced: what the plan tells Spark needs no list of files.
    assert loaded == {"start": set(), "plan": set(), "collect": ARROW, "commit": ARROW}
    assert DeltaLog.for_table(str(work / "table")).snapshot.num_files == 3, "two days were replaced by one file"


@pytest.mark.parametrize(
    "name", ["list_a_partition", "list_by_statistics", "list_all_files", "check_for_conflicts", "write_a_checkpoint"]
)
def test_what_reads_and_writes_the_list_of_files(work: Path, name: str) -> None:
    assert step(name, work) == ARROW


def test_a_delete_of_a_partition(work: Path) -> None:
    step("start", work)
    assert step("delete_a_partition", work) == ARROW
