"""Delta Spark on one table, in one warm JVM: prints JSON with seconds and the JVM's peak memory. Called by run.py.

python benchmarks/delta_spark.py TABLE REPEATS CASE ...

Its first answer of every kind is thrown away: it is the JVM that warms up. Before every measurement the cache of Delta logs is emptied.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
DATE = "2024-01-05"


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", PACKAGE)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


class DeltaSpark:
    def __init__(self, table: str) -> None:
        self.spark = session()
        self.table = table
        self.Log = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog

    def fresh(self) -> Any:
        self.Log.clearCache()
        return self.Log.forTable(self.spark._jsparkSession, self.table)

    def start(self) -> int:
        nothing = self.spark._jvm.scala.Option.empty()
        transaction = self.fresh().startTransaction(nothing, nothing)
        transaction.txnVersion("some-application")
        transaction.metadata()
        return transaction.readVersion()

    def load(self) -> int:
        return self.fresh().unsafeVolatileSnapshot().numOfFiles()

    def _listed(self, predicate: str | None) -> int:
        rows = self.spark.read.format("delta").load(self.table)
        rows = rows.where(predicate) if predicate else rows
        return len(rows.inputFiles())

    def count(self) -> int:
        self.fresh()
        return self._listed(None)

    def partition(self) -> int:
        self.fresh()
        return self._listed(f"date = '{DATE}'")

    def statistics(self) -> int:
        self.fresh()
        return self._listed("id >= 100000 AND id < 199999")

    def checkpoint(self) -> None:
        log = self.fresh()
        log.checkpoint(log.unsafeVolatileSnapshot(), self.spark._jvm.scala.Option.empty())

    def peak_mb(self) -> float:
        pid = self.spark._jvm.java.lang.ProcessHandle.current().pid()
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        return 0.0


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    value = work()
    return time.perf_counter() - begin, value


def main() -> None:
    table, repeats, *cases = sys.argv[1:]
    engine = DeltaSpark(table)
    results = {}
    for case in cases:
        work = getattr(engine, case)
        work()
        seconds, value = [], None
        for _ in range(int(repeats)):
            took, value = timed(work)
            seconds.append(took)
        results[case] = {"seconds": seconds, "value": value}
    print(json.dumps({"cases": results, "peak_mb": round(engine.peak_mb(), 1)}), flush=True)


if __name__ == "__main__":
    main()
