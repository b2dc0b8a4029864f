"""Paths of partitions: what delta-rs does to files that we or Delta Spark spelled, and what we make of files that it spelled."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.read.read_table import read_table
from airflow_delta.transaction import Operation
from support.readers import _comparable
from support.sql_values import PARTITION_VALUES
from support.table import Table
from table.arrow_stages import read, write

ROWS = [{"id": number, "p": value} for number, value in enumerate(PARTITION_VALUES)]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Each value with an even row and, in another file, an odd one."""
    table = Table(tmp_path / "table")
    for odd in (0, 1):
        rows = pa.table({"id": [2 * row["id"] + odd for row in ROWS], "p": PARTITION_VALUES})
        write(table, rows, begin={"partition_by": ["p"]})
    return table


def values(table: Table) -> dict[int, str]:
    return {row["id"]: row["p"] for row in read(table)}


def rewrite_paths(table: Table, spell: object) -> None:
    """Spell the paths of the log in another way."""
    for commit in (table.path / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_bytes().splitlines()]
        for line in lines:
            for action in ("add", "remove"):
                if action in line:
                    line[action]["path"] = spell(line[action]["path"])  # type: ignore[operator]
        commit.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    for checksum in (table.path / "_delta_log").glob("*.crc"):
        checksum.unlink()


def as_delta_spark(path: str) -> str:
    """Return a path as ``java.net.URI`` spells it: letters beyond ASCII are left as they are."""
    return (
        "".join(f"%{byte:02X}" if chr(byte) in ' \t\n"#%<>?[\\]^`{|}' else chr(byte) for byte in unquote(path).encode())
        .encode("latin-1")
        .decode()
    )


@pytest.mark.parametrize("checkpoint", [False, True])
def test_delta_rs_changes_what_we_wrote(table: Table, checkpoint: bool) -> None:
    assert all(add["path"].isascii() for version in (0, 1) for add in table.actions(version)["add"])
    expected = {2 * row["id"] + odd: row["p"] for row in ROWS for odd in (0, 1)}
    assert values(table) == expected
    if checkpoint:
        write_checkpoint(table.log().update())
    DeltaTable(table.uri).update({"id": "id + 1000"}, predicate="id % 2 = 1")
    expected = {id_ + 1000 * (id_ % 2): value for id_, value in expected.items()}
    assert values(table) == expected
    DeltaTable(table.uri).delete("id >= 1000 AND p <> 'é'")
    expected = {id_: value for id_, value in expected.items() if id_ < 1000 or value == "é"}
    assert values(table) == expected
    source = pa.table({"id": [row["id"] * 2 for row in ROWS], "p": PARTITION_VALUES})
    merging = DeltaTable(table.uri).merge(source, "s.p = t.p AND s.id = t.id", source_alias="s", target_alias="t")
    merging.when_matched_update({"id": "t.id + 5000"}).execute()
    expected = {id_ if id_ >= 1000 else id_ + 5000: value for id_, value in expected.items()}
    assert values(table) == expected
    if checkpoint:
        write_checkpoint(table.log().update())
    write(table, pa.table({"id": [7000 + row["id"] for row in ROWS], "p": PARTITION_VALUES}))
    expected |= {7000 + row["id"]: row["p"] for row in ROWS}
    for value in PARTITION_VALUES:
        if "~" not in value:  # delta-rs cannot compact such a partition, not even its own
            DeltaTable(table.uri).optimize.compact(partition_filters=[("p", "=", value)])
    assert values(table) == expected
    assert DeltaTable(table.uri).to_pyarrow_table().num_rows == len(expected)
    DeltaTable(table.uri).create_checkpoint()
    assert values(table) == expected


@pytest.mark.parametrize("checkpoint", [None, "ours before", "delta-rs after", "ours after"])
def test_delta_rs_changes_what_delta_spark_wrote(table: Table, checkpoint: str | None) -> None:
    """By its own rule and Delta Spark's the rows are there twice, because removes and adds are spelled in two ways."""
    rewrite_paths(table, as_delta_spark)
    assert not all(add["path"].isascii() for add in table.actions(0)["add"])
    if checkpoint == "ours before":
        write_checkpoint(table.log().update())
    DeltaTable(table.uri).update({"id": "id + 1000"}, predicate="id % 2 = 1")
    DeltaTable(table.uri).delete("id % 2 = 0 AND p <> '😀'")
    if checkpoint == "delta-rs after":
        DeltaTable(table.uri).create_checkpoint()
    if checkpoint == "ours after":
        write_checkpoint(table.log().update())
    expected = {2 * row["id"] + 1001: row["p"] for row in ROWS} | {2 * PARTITION_VALUES.index("😀"): "😀"}
    found = {row["id"]: row["p"] for row in read_table(table.log()).to_table().to_pylist()}
    assert found == expected
    snapshot = table.log().update()
    assert snapshot.files(columns=["path"]).num_rows == len(expected)
    if checkpoint == "ours after":  # nobody who reads it finds a file that was removed
        assert _comparable([{"id": key, "p": value} for key, value in expected.items()]) == _comparable(read(table))


@pytest.mark.parametrize("ours", ["as it is", "as Delta Spark"])
def test_a_concurrent_change_by_delta_rs_is_a_conflict(table: Table, ours: str) -> None:
    if ours == "as Delta Spark":
        rewrite_paths(table, as_delta_spark)
    txn = table.log().start_transaction()
    (file,) = (add for add in txn.snapshot.add_files("p = '日本'") if '"id":7}' in (add.stats or "") or "7" in (add.stats or ""))
    txn.track_files_read([file.path])
    DeltaTable(table.uri).delete("p = '日本'")
    with pytest.raises(DeltaConcurrentModificationException):
        txn.commit([file.remove(1)], Operation.delete([]))


def test_vacuum_keeps_and_deletes_by_either_spelling(table: Table) -> None:
    rewrite_paths(table, as_delta_spark)
    DeltaTable(table.uri).delete("p IN ('é', '😀')")
    before = sum(1 for _ in table.path.rglob("*.parquet"))
    table.log().update()
    vacuum(table.log(), retention_hours=0, retention_check=False)
    assert before - sum(1 for _ in table.path.rglob("*.parquet")) == 4
    assert len(read_table(table.log()).to_table()) == 2 * len(PARTITION_VALUES) - 4
