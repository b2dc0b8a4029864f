"""How far long operations are: which of them tell it, in which words, and how often."""

from __future__ import annotations

import logging

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.storage import progress
from airflow_delta.log.storage.progress import Progress, tracked

LOGGER = "airflow_delta.log.storage.progress"


@pytest.fixture
def told(caplog, monkeypatch):
    """The lines, without a pause between them."""
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(progress, "_display", progress._Log())
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_a_line_says_how_many_of_how_many_how_fast_and_how_long_yet(told, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Progress("Reading footers of /t", 10_000) as reading:
        clock[0] += 20
        reading.advance(2_000)
    with Progress("Listing /t", unit="objects") as listing:
        clock[0] += 200
        listing.advance(1_000)
    assert told() == [
        "Reading footers of /t: 2,000 of 10,000 files (20 %), 100 a second, 20 s so far, 80 s left.",
        "Reading footers of /t: 2,000 files, done in 20 s.",
        "Listing /t: 1,000 objects, 5 a second, 3 min so far.",
        "Listing /t: 1,000 objects, done in 3 min.",
    ]


def test_short_operations_say_nothing_and_long_ones_a_line_in_ten_seconds(caplog, monkeypatch):
    caplog.set_level(logging.INFO, LOGGER)
    monkeypatch.setattr(progress, "_display", progress._Log())
    clock = [1.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    list(tracked(range(1000), "Short", 1000))
    assert not caplog.records
    with Progress("Outer", 2) as outer:
        for _ in range(2):
            for _ in tracked(range(100), "Inner", 100):
                clock[0] += 1  # 200 seconds in all
            outer.advance()
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "done in" not in line]) == 20
    assert {line.partition(":")[0] for line in lines} == {"Outer", "Inner"} or {"Inner"}


def test_an_operation_that_failed_is_not_done(told):
    def work():
        yield 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(tracked(work(), "Work", 2))
    assert len(told()) == 1


def test_it_costs_next_to_nothing(monkeypatch):
    """A clock that is asked once an item, whatever the operation."""
    asked = []
    real = progress.time.monotonic
    monkeypatch.setattr(progress.time, "monotonic", lambda: asked.append(1) or real())
    assert sum(tracked(range(10_000), "Work", 10_000)) == sum(range(10_000))
    assert len(asked) <= 10_002


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_reading_the_log_and_writing_a_checkpoint(told, tmp_path, policy):
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    configuration = {"delta.checkpointPolicy": policy} if policy == "v2" else None
    for number in range(5):
        rows = pa.table({"id": [number], "part": [number % 2]})
        write_deltalake(tmp_path, rows, mode="append", partition_by=["part"], configuration=configuration if not number else None)
    uri = str(tmp_path)
    log = DeltaLog.for_table(uri)
    log.snapshot.files()
    assert any(line.startswith(f"Reading files of {uri}: 5 of 5 files (100 %), ") for line in told())
    assert any(line.startswith(f"Replaying the log of {uri}: 5 of 5 commits (100 %)") for line in told())
    log.checkpoint(log.snapshot)
    assert any(line.startswith(f"Writing the checkpoint of {uri}: 5 of 5 files (100 %)") for line in told())
    before = len(told())
    DeltaLog.for_table(uri).snapshot.files()
    assert any(line.startswith(f"Reading the checkpoint of {uri}: ") for line in told()[before:])
    assert DeltaTable(tmp_path).version() == 4
