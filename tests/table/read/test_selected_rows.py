"""The columns that decide are decoded first; of the others no more than is needed, and no row is lost or made up."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.log.data_files import group_rows, page_sizes
from airflow_delta.table.read.read_table import read_table
from support.actions import add, metadata, protocol
from support.tables import write_commit

ROWS, GROUP = 3_000, 1_000

TYPES = {"n": "long", "s": "string", "few": "string", "d": "double", "at": "timestamp", "p": "integer"}


def values() -> pa.Table:
    draw = random.Random(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "n": pa.array(range(ROWS), pa.int64()),
            "s": [None if draw.random() < 0.1 else f"{draw.randrange(ROWS):06}" * 4 for _ in range(ROWS)],
            "few": [draw.choice(["a", "b", None, "long" * 30]) for _ in range(ROWS)],
            "d": [draw.choice([None, float("nan"), -0.0, draw.uniform(0, 100)]) for _ in range(ROWS)],
            "at": pa.array([start + timedelta(minutes=n) for n in range(ROWS)], pa.timestamp("us", "UTC")),
        }
    )


def put(table: Path, rows: pa.Table, **changes: Any) -> Path:
    """Write a table of one file in three row groups, without statistics in the log."""
    fields = [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in TYPES.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    features = ["deletionVectors"]
    first = [
        protocol(3, 7, reader_features=features, writer_features=features),
        metadata(schema_string=schema, partition_columns=["p"]),
    ]
    write_commit(table, 0, *first)
    file = table / "1.parquet"
    pq.write_table(rows, file, row_group_size=GROUP, data_page_size=1_000, write_batch_size=100, store_schema=False)
    write_commit(table, 1, add("1.parquet", size=file.stat().st_size, stats=None, partition_values={"p": "5"}, **changes))
    return file


def read(table: Path, where: str | None = None, columns: list[str] | None = None) -> list[dict[str, Any]]:
    found = read_table(DeltaLog.for_table(str(table)), where=where, columns=columns, limit=None).to_table()
    return [{name: repr(value) for name, value in row.items()} for row in found.to_pylist()]


WHERE: dict[str, Callable[[dict[str, Any]], bool]] = {
    "n >= 1200 AND n < 1207": lambda row: 1200 <= row["n"] < 1207,
    "n = 2999": lambda row: row["n"] == 2999,
    "n < 0": lambda row: False,
    "n >= 0": lambda row: True,
    "s > '002900'": lambda row: row["s"] is not None and row["s"] > "002900",
    "few = 'b' OR n = 17": lambda row: row["few"] == "b" or row["n"] == 17,
    "few IS NULL": lambda row: row["few"] is None,
    "d > 99": lambda row: row["d"] is not None and not row["d"] <= 99,
    "d = 0": lambda row: row["d"] == 0,
    "at >= '2026-01-02 00:00:00' AND at < '2026-01-02 00:03:00'": lambda row: (
        row["at"].day == 2 and row["at"].hour == 0 and row["at"].minute < 3
    ),
    "p = 5 AND n IN (1, 1000, 1999)": lambda row: row["n"] in (1, 1000, 1999),
    "p = 4 OR n = 3": lambda row: row["n"] == 3,
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "marked", [None, range(0, ROWS, 7), range(1_000, 2_000), range(1, ROWS)], ids=["none", "7th", "group", "most"]
)
@pytest.mark.parametrize("memory", ["enough", "of some batches", "for nothing else"])
def test_the_rows_are_those_of_everything(tmp_path, monkeypatch, where, marked, memory):
    vector = {} if marked is None else {"deletion_vector": inline_deletion_vector(BitMap64(marked))}
    rows = values()
    put(tmp_path, rows, **vector)
    gone = set(marked or ())
    live = [row | {"p": 5} for number, row in enumerate(rows.to_pylist()) if number not in gone]
    if memory != "enough":
        monkeypatch.setattr(group_rows, "batch_rows", partial(page_sizes.batch_rows, limit=1, least=170))
    if memory == "for nothing else":
        monkeypatch.setattr(group_rows, "JOINED_BYTES", 1)
    wanted = [{name: repr(value) for name, value in row.items()} for row in live if WHERE[where](row)]
    assert read(tmp_path, where) == wanted
    for columns in (["d", "few"], ["p"], ["n"], ["p", "s"]):
        assert read(tmp_path, where, columns) == [{name: row[name] for name in columns} for row in wanted]


def destroy(file: Path, columns: list[str], groups: list[int]) -> None:
    """Overwrite the pages of some columns in some row groups."""
    footer, content = pq.read_metadata(file), bytearray(file.read_bytes())
    for group in groups:
        for at in range(footer.num_columns):
            chunk = footer.row_group(group).column(at)
            if chunk.path_in_schema in columns:
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(content)


@pytest.mark.parametrize("where", ["n >= 1990 AND n < 2000", "at = '2026-01-02 09:19:00'"])
def test_row_groups_without_such_rows_are_not_read(tmp_path, where):
    rows = values()
    file = put(tmp_path, rows)
    wanted = read(tmp_path, where)
    assert wanted
    destroy(file, list(TYPES), [0, 2])
    assert read(tmp_path, where) == wanted
    with pytest.raises(DeltaLogCorruptedException):
        read(tmp_path)


def test_other_columns_are_read_where_there_are_such_rows(tmp_path):
    """Text has statistics, too, but here every row group has all values."""
    rows = values()
    at = rows.column_names.index("few")
    few = ["only" if n == 1_500 else ("a", "z")[n % 2] for n in range(ROWS)]
    file = put(tmp_path, rows.set_column(at, "few", pa.array(few)))
    wanted = read(tmp_path, "few = 'only'")
    assert len(wanted) == 1
    destroy(file, ["n", "s", "d", "at"], [0, 2])
    assert read(tmp_path, "few = 'only'") == wanted
    assert read(tmp_path, "few = 'none'") == []


def test_pages_after_the_last_such_row_are_not_read(tmp_path):
    file = put(tmp_path, values())
    wanted = read(tmp_path, "n >= 1200 AND n < 1207")
    assert len(wanted) == 7
    content = bytearray(file.read_bytes())
    group = pq.read_metadata(file).row_group(1)
    for chunk in (group.column(at) for at in range(group.num_columns)):
        if chunk.path_in_schema in ("d", "at"):
            at = chunk.dictionary_page_offset or chunk.data_page_offset
            end, rows = at + chunk.total_compressed_size, 0
            while at < end:
                header = page_sizes.parse_header(bytes(content[at : at + 512]))
                at += header.length
                if rows > 300:
                    content[at : at + header.size] = b"\xff" * header.size
                at += header.size
                rows += 0 if header.is_dictionary else header.num_values
            assert rows == GROUP
    file.write_bytes(content)
    assert read(tmp_path, "n >= 1200 AND n < 1207") == wanted
    with pytest.raises(DeltaLogCorruptedException):
        read(tmp_path, "n >= 1900 AND n < 1907")


def test_a_legacy_calendar_is_not_looked_up_in_the_footer(tmp_path):
    """Spark 2 wrote dates of before 1582 in the Julian calendar: the footer's days are not what is asked for."""
    field = {"name": "day", "type": "date", "nullable": True, "metadata": {}}
    write_commit(tmp_path, 0, protocol(), metadata(schema_string=json.dumps({"type": "struct", "fields": [field]})))
    rows = pa.table({"day": pa.array([-150_000, 20_000], pa.int32()).cast(pa.date32())})
    file = tmp_path / "1.parquet"
    with pq.ParquetWriter(file, rows.schema, store_schema=False) as writer:
        writer.write_table(rows, row_group_size=1)
        writer.add_key_value_metadata({"org.apache.spark.version": "2.4.8"})
    write_commit(tmp_path, 1, add("1.parquet", size=file.stat().st_size, stats=None))
    with pytest.raises(DeltaLogCorruptedException, match="Julian"):
        read(tmp_path, "day = '2024-10-04'")
