"""What the worker has changed, other engines read: delta-rs, DuckDB and Polars find the rows of each version."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from support import readers
from support.mixed_histories import Change, Keys, MixedTable, counted
from support.slow import slow_except

SETTINGS = [
    {"vectors": vectors, "mapped": mapped, "tracked": tracked, "feed": feed}
    for vectors, mapped, tracked, feed in product((True, False), repeat=4)
]
KINDS = ("update", "merge", "delete", "append", "merge", "optimize", "delete", "reorg", "update")


def told(setting: dict[str, bool]) -> str:
    return ", ".join(name for name, on in setting.items() if on) or "plain"


def rows_elsewhere(table: MixedTable) -> list[Counter[Any]]:
    """Return the rows as each of the others finds them that can read such a table."""
    path = str(table.path)
    if not table.mapped:
        return [values(readers.rows(path))]  # on which all agree
    # delta-rs and Polars itself refuse column mapping, or find nulls if no feature names it; DuckDB does so in partitions.
    others = ["Polars", *(["DuckDB"] if readers.HAS_DUCKDB and not table.partitioned else [])]
    return [values(readers.READERS[name](path, None).to_pylist()) for name in others]


def values(rows: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    return counted((row["id"], row["v"], row["p"]) for row in rows)


@pytest.mark.parametrize("setting", slow_except(SETTINGS, *SETTINGS[::3]), ids=told)
def test_others_read_each_version(tmp_path: Path, setting: dict[str, bool]) -> None:
    draw = random.Random(told(setting))
    table = MixedTable(None, tmp_path / "table", partitioned=draw.random() < 0.5, **setting)
    table.create(
        *([(key, draw.choice([None, key]), draw.choice(["a", "b", "c", None])) for key in range(at, at + 8)] for at in (0, 8, 16))
    )
    keys = Keys(24)
    for kind in KINDS:
        change = Change.drawn(draw, kind, keys, 24)
        assert table.commit(table.open("worker", change))
        assert not table.wrong, table.wrong
        for found in rows_elsewhere(table):
            assert found == counted(table.rows[table.latest]), str(change)
    assert table.counts["committed"] == len(KINDS)
