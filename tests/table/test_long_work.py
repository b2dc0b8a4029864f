"""Operations on many files say how far they are."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from airflow_delta.log import DeltaLog
from airflow_delta.log.storage import progress
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.statistics import compute_statistics
from airflow_delta.table.operations.vacuum.run import vacuum

LOGGER = "airflow_delta.log.storage.progress"


@pytest.fixture
def told(caplog, monkeypatch):
    """Return a function that says whether a line began like this; there is no pause between lines."""
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(progress, "_display", progress._Log())
    caplog.set_level(logging.INFO, LOGGER)
    return lambda text: any(record.getMessage().startswith(text) for record in caplog.records if record.name == LOGGER)


def test_operations_on_a_table(told, tmp_path):
    for number in range(4):
        write_deltalake(tmp_path, pa.table({"id": [number]}), mode="append" if number < 3 else "overwrite")
    uri = str(tmp_path)
    compute_statistics(DeltaLog.for_table(uri))
    assert told(f"Reading the footers of files of {uri}: 1 of 1 files (100 %), ")
    restore(DeltaLog.for_table(uri), version=2, transaction_key="k", attempt="1-0")
    assert told(f"Looking for the files of version 2 of {uri}: 3 of 3 files (100 %), ")
    vacuum(DeltaLog.for_table(uri), retention_hours=0, retention_check=False, clock=lambda: 10**14)
    assert told(f"Listing {uri}: ")
    assert told(f"Deleting from {uri}: 1 of 1 files (100 %), ")


def test_a_directory_of_parquet_files(told, tmp_path):
    for number in range(3):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    convert_to_delta(DeltaLog.for_table(str(tmp_path)), transaction_key="k", attempt="1-0")
    assert told(f"Listing {tmp_path}: 3 files, ")
    assert told(f"Reading the footers of files of {tmp_path}: 3 of 3 files (100 %), ")
