"""What a task of a crash scenario works with: the table through a watched store, XComs, and a Spark that has written already."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.factory import store_for
from faults.crash.points import Points, Watched, watch_directories, watch_hooks
from faults.shared.layers import Remote

KINDS = {"handle": TransactionHandle, "staged": StagedWrite}


class Run:
    """One try of one task.

    :param work: directory of the scenario: the folder ``table`` and what tasks tell each other.
    :param spark: a session that does the work, which is recorded; default: what was recorded is written again.
    """

    def __init__(self, work: Path, points: Points, *, try_number: int = 1, spark: Any = None) -> None:
        self.work, self.points, self.try_number, self.spark = work, points, try_number, spark
        self._works = 0

    @property
    def table(self) -> Path:
        return self.work / "table"

    def log(self, name: str = "table") -> DeltaLog:
        return DeltaLog.for_table(str(self.work / name))

    @property
    def attempt(self) -> str:
        return new_attempt(self.try_number)

    # -- XCom -------------------------------------------------------------------------------------------------------------------

    def push(self, name: str, value: Any) -> None:
        """Return a value from the task, as XCom: all of it or nothing."""

        def write() -> None:
            (self.work / f"{name}.tmp").write_text(json.dumps(value.to_dict() if hasattr(value, "to_dict") else value))
            os.replace(self.work / f"{name}.tmp", self.work / f"{name}.json")

        self.points.effect(f"XCom {name}", write)

    def pulled(self, name: str) -> Any:
        value = json.loads((self.work / f"{name}.json").read_text())
        kind = KINDS.get(name.rstrip("0123456789"))
        return value if kind is None else kind.from_dict(value)

    # -- data -------------------------------------------------------------------------------------------------------------------

    def write(self, directory: str, *tables: Mapping[str, list[Any]]) -> dict[str, dict[str, int]]:
        """Write Parquet files below a directory of the table, as Spark does; a point after each. Returns what a job reports."""
        place, sizes, rows = self.table / directory, 0, 0
        for number, columns in enumerate(tables):
            target = place / f"part-{number}-{os.urandom(4).hex()}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            data = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
            self.points.effect(f"Spark writes {target.name}", lambda data=data, target=target: pq.write_table(data, target))  # type: ignore[misc]
            sizes, rows = sizes + target.stat().st_size, rows + data.num_rows
        return {directory.rpartition("/")[2]: {"numFiles": len(tables), "numRows": rows, "numBytes": sizes}}

    def on_spark(self, request: StageRequest, source: str | None = None) -> StageReport:
        """Have Spark do a request: really, or by writing what it wrote when this was recorded."""
        recorded = self.work / "recorded" / str(self._works)
        self._works += 1
        if self.spark is not None:
            from airflow_delta.spark import stage_dataframe
            from airflow_delta.spark.run_operation import run_operation

            df = None if source is None else self.spark.sql(source)
            write = request.operation == "WRITE"
            report = stage_dataframe(self.spark, df, request) if write else run_operation(self.spark, request, df)
            recorded.mkdir(parents=True)
            shutil.copytree(self.table / request.directory, recorded / "files")
            (recorded / "report.json").write_text(json.dumps({"request": request.to_dict(), "report": report.to_dict()}))
            return report
        self.points.reach("Spark begins")
        saved = json.loads((recorded / "report.json").read_text())
        then, text = saved["request"], json.dumps(saved["report"])
        for old, new in ((then["transactionId"], request.transaction_id), (then["attempt"], request.attempt)):
            text = text.replace(old, new)
        for file in sorted(path for path in (recorded / "files").rglob("*") if path.is_file()):
            target = self.table / request.directory / file.relative_to(recorded / "files")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.points.effect("Spark writes a file", lambda file=file, target=target: shutil.copyfile(file, target))  # type: ignore[misc]
        self.points.reach("Spark has ended")
        return StageReport.from_dict(json.loads(text))


def watch(points: Points, *, remote: bool = False) -> None:
    """Watch everything that this process does from here on.

    :param remote: its stores look like object stores.
    """
    from airflow_delta.log import delta_log
    from airflow_delta.transaction import PostCommitHook
    from airflow_delta.transaction.commit import hooks as auto_compact  # noqa: F401 - so that all are known

    def opened(uri: str, *args: Any, **kwargs: Any) -> Watched:
        store = store_for(uri, *args, **kwargs)
        return Watched(Remote(store) if remote else store, points)

    delta_log.store_for = opened  # type: ignore[assignment]
    watch_directories(points)
    watch_hooks(points, PostCommitHook.__subclasses__())


def manifests(on: bool = True) -> Any:
    """Have actions go through a manifest, however few they are."""
    return mock.patch("airflow_delta.table.stage.stage_view.INLINE_LIMIT", 10 if on else 1 << 20)
