"""What the Dags of these tests share."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

MANUAL = {"start_date": datetime(2026, 1, 1), "catchup": False}


def write_parquet(handle: dict, directory: str, rows: int) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(handle["stagingPath"].removeprefix("file://"), directory)
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64())}), f"{path}/part-0.parquet")
    return directory


async def missed(**_: Any) -> None:
    """What a missed deadline calls."""
