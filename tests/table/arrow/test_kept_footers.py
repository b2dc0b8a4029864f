"""The process that wrote files knows their footers: the actions are those of a report that went through JSON."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import pickle
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import StagedFileException
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.files.written_here import WrittenHere
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from support.table import Table

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
NAN = float("nan")


def rows(count: int, seed: int = 1) -> pa.Table:
    """Rows of every kind of column in about as many partitions as half of them."""
    draw = random.Random(seed)

    def some(*values: Any) -> list[Any]:
        return [draw.choice([*values, None]) for _ in range(count)]

    return pa.table(
        {
            "p": pa.array([draw.randrange(count // 2) for _ in range(count)], pa.int32()),
            "l": pa.array(some(1, -(2**63), 2**63 - 1), pa.int64()),
            "d": pa.array(some(1.5, -0.0, 0.0, NAN, float("-inf")), pa.float64()),
            "f": pa.array(some(1.5, 2.5), pa.float32()),
            "dec": pa.array(some(Decimal("1.50"), Decimal("-99999999.99")), pa.decimal128(10, 2)),
            "big": pa.array(some(Decimal(10) ** 37, Decimal(-1)), pa.decimal128(38, 0)),
            "t": pa.array(some("", "ü", "a" * 40, chr(0x10FFFF) * 33)),
            "x": pa.array(some(b"\xff", b""), pa.binary()),
            "day": pa.array(some(dt.date(1500, 1, 1), dt.date(2024, 2, 29)), pa.date32()),
            "ts": pa.array(some(NOON, dt.datetime(1960, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)), pa.timestamp("us", "UTC")),
            "li": pa.array(some([1, None], []), pa.list_(pa.int32())),
            "st": pa.array(some({"x": 1, "y": NAN}, {"x": None, "y": 0.5}), pa.struct([("x", pa.int64()), ("y", pa.float64())])),
            "none": pa.nulls(count, pa.int64()),
        }
    )


class Stage:
    def __init__(self, table: Table, data: pa.Table, *, begin: dict[str, Any] | None = None, **options: Any) -> None:
        handle = table.begin(partition_by=["p"], **(begin or {}))
        self.view = table.view(handle, task_id="stage")
        self.request: StageRequest = plan_stage(self.view, **options)
        self.report = stage_arrow(table.log(), data, self.request)
        self.files = sorted((table.path / self.request.directory).rglob("*.parquet"))

    def collect(self, report: StageReport | None = None) -> StagedWrite:
        return collect_stage(self.view, self.request, self.report if report is None else report)

    def read_again(self) -> StageReport:
        return StageReport.from_dict(json.loads(json.dumps(self.report.to_dict())))


@pytest.mark.parametrize("count", [6, 200], ids=["few", "many"])
@pytest.mark.parametrize("options", [{}, {"maxRecordsPerFile": 1}], ids=["whole", "a file each row"])
@pytest.mark.parametrize("configuration", [None, {"delta.columnMapping.mode": "name"}], ids=["plain", "mapped"])
def test_actions_are_those_of_the_footers_in_the_files(
    tmp_path: Path, count: int, options: dict[str, str], configuration: dict[str, str] | None
) -> None:
    stage = Stage(Table(tmp_path / "t"), rows(count), begin={"configuration": configuration}, options=options)
    assert isinstance(stage.report, WrittenHere)
    assert len(stage.report.footers) == len(stage.files)
    kept, read = stage.collect().to_dict(), stage.collect(stage.read_again()).to_dict()
    assert kept == read


def test_the_content_of_the_files_is_not_read_again(tmp_path: Path) -> None:
    stage = Stage(Table(tmp_path / "t"), rows(20))
    for file in stage.files:
        file.write_bytes(b"x" * file.stat().st_size)
    assert stage.collect().num_records == 20
    with pytest.raises(StagedFileException, match="cannot be read as Parquet"):
        stage.collect(stage.read_again())


def test_files_that_are_gone_or_have_another_size_are_refused(tmp_path: Path) -> None:
    stage = Stage(Table(tmp_path / "t"), rows(20))
    one, other, *_ = stage.files
    content = one.read_bytes()
    one.write_bytes(content[:-1])
    other.write_bytes(other.read_bytes() + b"x")  # as many bytes in all
    with pytest.raises(StagedFileException, match="cannot be read as Parquet"):
        stage.collect()
    other.unlink()
    with pytest.raises(StagedFileException, match=r"the worker finds \d+ files"):
        stage.collect()


def test_a_copy_of_a_report_has_none(tmp_path: Path) -> None:
    stage = Stage(Table(tmp_path / "table"), rows(6))
    for copied in (dataclasses.replace(stage.report), copy.copy(stage.report), pickle.loads(pickle.dumps(stage.report))):
        assert stage.collect(copied) == stage.collect(stage.read_again())
