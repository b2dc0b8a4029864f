"""Malformed parts of a checksum count as absent, and what is derived from them is correct or left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from support import tables

FEATURES = {"reader_features": ["deletionVectors"], "writer_features": ["deletionVectors"]}


@pytest.fixture
def log(table: Path) -> DeltaLog:
    """A table with 60 files, one of which has lost 7 rows: too many files for the checksum to list them."""
    vector = DeletionVectorDescriptor(storage_type="u", path_or_inline_dv="ab", offset=1, size_in_bytes=40, cardinality=7)
    files = [tables.add(f"f{number}") for number in range(59)]
    actions = (tables.metadata(), *files, tables.add("v", deletion_vector=vector))
    tables.write_commit(table, 0, tables.protocol(3, 7, **FEATURES), *actions)
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    log.checkpoint()
    assert crc(table, 0)["deletedRecordCountsHistogramOpt"]["deletedRecordCounts"][0] == 59
    return log


def crc(table: Path, version: int) -> dict[str, Any]:
    return json.loads(tables.crc_path(table, version).read_bytes())


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("deletedRecordCountsHistogramOpt", "nonsense"),
        ("deletedRecordCountsHistogramOpt", {"deletedRecordCounts": [1, 2]}),
        ("deletedRecordCountsHistogramOpt", {"deletedRecordCounts": [1] * 10}),
        ("deletedRecordCountsHistogramOpt", None),
    ],
)
def test_a_histogram_of_deleted_rows_that_does_not_fit(log: DeltaLog, table: Path, part: str, value: Any) -> None:
    tables.crc_path(table, 0).write_text(json.dumps({**crc(table, 0), part: value}))
    tables.append(table, 1)
    other = DeltaLog.for_table(str(table), {"durable": "false"})
    assert other.write_checksum(other.snapshot)
    content = crc(table, 1)
    assert (content["numFiles"], content["numDeletedRecordsOpt"], content["numDeletionVectorsOpt"]) == (61, 7, 1)
    assert part not in content


@pytest.mark.parametrize("missing", ["numDeletedRecordsOpt", "numDeletionVectorsOpt"])
def test_without_the_number_of_deleted_rows_none_is_made_up(log: DeltaLog, table: Path, missing: str) -> None:
    content = crc(table, 0)
    del content[missing]
    tables.crc_path(table, 0).write_text(json.dumps(content))
    tables.append(table, 1)
    other = DeltaLog.for_table(str(table), {"durable": "false"})
    assert other.write_checksum(other.snapshot)
    assert crc(table, 1)["numFiles"] == 61
    assert not {"numDeletedRecordsOpt", "numDeletionVectorsOpt"} & set(crc(table, 1))


@pytest.mark.parametrize("part", ["allFiles", "fileSizeHistogram", "setTransactions", "domainMetadata"])
def test_bytes_that_are_no_text(log: DeltaLog, table: Path, part: str) -> None:
    """JSON is UTF-8; a flipped bit in a part that is decoded on demand is found on demand."""
    content = {**crc(table, 0), part: "AAAA"}
    tables.crc_path(table, 0).write_bytes(json.dumps(content).encode().replace(b"AAAA", b"A\x80\x80A"))
    fresh = DeltaLog.for_table(str(table)).snapshot
    assert fresh.metadata == tables.metadata()
    assert fresh.transactions == {}
    assert fresh.domain_metadata == {}
    assert fresh.num_files == 60
