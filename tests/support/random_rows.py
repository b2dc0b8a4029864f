"""Rows of all kinds of values, drawn by a seed, and what the statistics of a table say of them."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.contract.delta_names import MATERIALIZED_ROW_COMMIT_VERSION, MATERIALIZED_ROW_ID
from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors
from support.table import Table

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def random_rows(draw: random.Random) -> pa.Table:
    count = draw.randint(1, 60)

    def some(*values: Any) -> list[Any]:
        return [draw.choice([None, *values]) for _ in range(count)]

    return pa.table(
        {
            "id": pa.array(range(count)),
            "p": pa.array(some("a b", "ü/%=", "x:y", ""), pa.string()),
            "q": pa.array(some(dt.date(2024, 2, 29), dt.date(1970, 1, 1)), pa.date32()),
            "f": pa.array(some(1.5, -0.1), pa.float32()),
            "d": pa.array(some(1e300, 0.1), pa.float64()),
            "dec": pa.array(some(Decimal("1.25"), Decimal("-999.99")), pa.decimal128(5, 2)),
            "t": pa.array(some(START, START + dt.timedelta(microseconds=1)), pa.timestamp("us", "UTC")),
            "n": pa.array(some(dt.datetime(2024, 1, 1, 1)), pa.timestamp("us")),
            "s": pa.array(some({"x": 1, "y": "a"}, {"x": None, "y": None}), pa.struct([("x", pa.int32()), ("y", pa.string())])),
            "li": pa.array(some([], [1, None]), pa.list_(pa.int64())),
            "m": pa.array(some([], [("k", 1)]), pa.map_(pa.string(), pa.int32())),
            "b": pa.array(some(b"\xff", b""), pa.binary()),
        }
    )


def frame_of(spark: Any, rows: pa.Table) -> Any:
    """Return the rows as a DataFrame; ``createDataFrame`` gives times without a zone that of the session, UTC."""
    df = spark.createDataFrame(rows)
    naive = [field.name for field in rows.schema if pa.types.is_timestamp(field.type) and field.type.tz is None]
    return df.withColumns({name: df[name].cast("timestamp_ntz") for name in naive}) if naive else df


def statistics(snapshot: Any) -> tuple[Any, ...]:
    """Return rows, bounds and nulls of all files together, by logical name."""
    names = {field.physical_name: field.name for field in snapshot.schema}
    rows, low, high, nulls = 0, dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for file in snapshot.add_files():
        stats = json.loads(file.stats)
        rows += stats["numRecords"]
        for name, value in stats.get("minValues", {}).items():
            low[names[name]] = value if isinstance(value, dict) else min(low.get(names[name], value), value)
        for name, value in stats.get("maxValues", {}).items():
            high[names[name]] = value if isinstance(value, dict) else max(high.get(names[name], value), value)
        for name, value in stats.get("nullCount", {}).items():
            if not isinstance(value, dict) and names[name] not in ("li", "m"):  # footers count what is in them
                nulls[names[name]] = nulls.get(names[name], 0) + value
    return (
        rows,
        {name: low[name] for name in low if name != "s"},
        {name: high[name] for name in high if name != "s"},
        nulls,
    )


def row_ids(table: Table, key: str) -> dict[int, tuple[Any, int]]:
    """Return the key and the row commit version of each row by its row id (Delta protocol, "Row Tracking")."""
    log = table.log()
    snapshot = log.update()
    configuration = snapshot.metadata.configuration
    own = [configuration[name] for name in (MATERIALIZED_ROW_ID, MATERIALIZED_ROW_COMMIT_VERSION)]
    (stored,) = (field.physical_name for field in snapshot.schema if field.name == key)
    found: dict[int, tuple[Any, int]] = {}
    for file in snapshot.add_files():
        rows = pq.ParquetFile(table.path / unquote(file.path)).read()
        vectors = [] if file.deletion_vector is None else [file.deletion_vector]
        marked = {at for bitmap in read_deletion_vectors(log.store, vectors, [rows.num_rows] * len(vectors)) for at in bitmap}
        nothing = [None] * rows.num_rows
        ids, versions = (rows.column(name).to_pylist() if name in rows.column_names else nothing for name in own)
        for at, value in enumerate(rows.column(stored).to_pylist()):
            if at not in marked:
                row_id = file.base_row_id + at if ids[at] is None else ids[at]
                found[row_id] = value, file.default_row_commit_version if versions[at] is None else versions[at]
    return found
