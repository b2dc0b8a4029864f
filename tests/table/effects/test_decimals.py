"""Rows that differ only in the last of many digits."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.effects.diff import published_diff, staged_diff
from support.table import Table

NUMBERS = {
    (38, 10): ("1234567890123456789012345678.0000000001", "1234567890123456789012345678.0000000002"),
    (38, 38): ("-0.12345678901234567890123456789012345678", "-0.12345678901234567890123456789012345679"),
    (38, 0): ("9" * 38, "9" * 37 + "8"),
}


def rows(text: str, digits: tuple[int, int]) -> pa.Table:
    return pa.table({"id": [1], "x": pa.array([Decimal(text)], pa.decimal128(*digits))})


@pytest.mark.parametrize(("digits", "texts"), NUMBERS.items(), ids=str)
def test_the_last_digit_counts(tmp_path: Path, digits: tuple[int, int], texts: tuple[str, str]) -> None:
    before, after = texts
    table = Table(tmp_path / "t")
    table.write(rows(before, digits))
    handle = table.begin()
    staged = table.stage(handle, rows(after, digits), mode="overwrite")
    planned = staged_diff(AuditedTable(table.log(), handle, [staged]), keys=["id"])
    table.publish(handle, staged)
    for found in (planned, published_diff(table.log(), keys=["id"])):
        [(old, new)] = found.changed_rows
        assert (found.changed, str(old["x"]), str(new["x"])) == (1, before, after)
