"""One table twice: for an operation of ours, and for Delta Spark's."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.log import DeltaLog
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.table.operations.optimize.run import OptimizeResult, run_rewrite
from delta_spark.support import delta_history, delta_rows, our_rows, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "spark.databricks.delta."


SIZES = {"numAddedBytes", "minFileSize", "p25FileSize", "p50FileSize", "p75FileSize", "maxFileSize"}
"""Bytes of what was written: two writers of the same rows agree on them only nearly."""


class Pair:
    """One table twice: ours to work on, and a copy for Delta Spark."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.ours, self.theirs = path / "ours", path / "theirs"

    def sql(self, text: str) -> None:
        """Prepare the table with Delta Spark."""
        self.spark.sql(text.replace("{t}", sql_name(self.ours)))

    def copy(self) -> None:
        shutil.copytree(self.ours, self.theirs)

    def delta(self, statement: str, **confs: int) -> None:
        for key, value in confs.items():
            self.spark.conf.set(PREFIX + key.replace("_", "."), value)
        try:
            self.spark.sql(statement.replace("{t}", sql_name(self.theirs)))
        finally:
            for key in confs:
                self.spark.conf.unset(PREFIX + key.replace("_", "."))

    def run(self, select: Any, *, before: Any = None, batch_size: int | None = None, **options: Any) -> OptimizeResult:
        def work(request: StageRequest) -> StageReport:
            if before is not None:
                before()
            sent = StageRequest.from_dict(json.loads(json.dumps(request.to_dict())))
            return run_operation(self.spark, sent)

        identity = {"task_id": "optimize", "map_index": -1, "attempt": "1-a"}
        log = DeltaLog.for_table(str(self.ours))
        return run_rewrite(log, lambda view: select(view, **options), work, identity=identity, batch_size=batch_size)

    def last(self, path: Path) -> dict[str, Any]:
        history = delta_history(self.spark, path, 1)
        return history[max(history)]

    def actions(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        """Return the actions of the latest commit."""
        table = Table(path)
        return table.actions(table.versions()[-1])

    def assert_same(self) -> None:
        """Check that both rewrote the same files into as many, recorded the same, and kept the rows."""
        ours, theirs = self.actions(self.ours), self.actions(self.theirs)
        assert {r["path"] for r in ours["remove"]} == {r["path"] for r in theirs["remove"]}

        def partitions(entry: dict[str, list[dict[str, Any]]]) -> Counter[str]:
            return Counter(json.dumps(add["partitionValues"], sort_keys=True) for add in entry["add"])

        assert partitions(ours) == partitions(theirs)
        assert {(a["dataChange"], a.get("deletionVector")) for kind in ("add",) for a in ours[kind]} == {(False, None)}
        mine, other = self.last(self.ours), self.last(self.theirs)
        for name in ("version", "operation", "readVersion", "isolationLevel", "isBlindAppend", "operationParameters"):
            assert mine[name] == other[name], name
        assert mine["operationMetrics"].keys() == other["operationMetrics"].keys()
        for name in mine["operationMetrics"].keys() - SIZES:
            assert mine["operationMetrics"][name] == other["operationMetrics"][name], name
        assert our_rows(self.spark, DeltaLog.for_table(str(self.ours))) == delta_rows(self.spark, self.theirs)
        assert delta_rows(self.spark, self.ours) == delta_rows(self.spark, self.theirs)
        assert statistics(ours) == statistics(theirs)


def statistics(entry: dict[str, list[dict[str, Any]]]) -> list[Any]:
    return sorted((json.loads(add["stats"]) for add in entry["add"]), key=repr)
