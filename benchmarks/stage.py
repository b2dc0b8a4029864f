"""What staging costs over a plain `df.write.parquet` of the same DataFrame: one Spark session, taking turns."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROWS_WRITTEN = 5_000_000
REPEATS = 10
WARM_UP = 4  # laps until the JVM has compiled what runs often


def main(work: Path) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from airflow_delta.log import DeltaLog
    from airflow_delta.spark.stage import stage_dataframe
    from airflow_delta.table.commit.publish import publish
    from airflow_delta.table.stage.stage_view import open_stage
    from airflow_delta.table.stage.write.collect import collect_stage
    from airflow_delta.table.stage.write.plan import plan_stage
    from airflow_delta.table.start.begin import begin

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.range(0, ROWS_WRITTEN, 1, 4).select(
        "id",
        (F.col("id") % 12 + 1).cast("int").alias("month"),
        (F.rand(1) * 1000).alias("delay"),
        F.concat(F.lit("N"), (F.col("id") % 4000).cast("string")).alias("tail"),
        F.timestamp_seconds(F.lit(1356998400) + F.col("id")).alias("at"),
    )
    data = frame.coalesce(2)
    print("\n### Staging a DataFrame against a plain df.write.parquet\n")
    print("| data | plain write s | plan + stage + collect s | overhead | commit ms |\n|---|---|---|---|---|")
    for label, partitions in (("unpartitioned", []), ("partitioned by month", ["month"])):
        plain, staged, commits = [], [], []
        for i in range(WARM_UP + REPEATS):
            target = work / f"plain-{len(partitions)}-{i}"
            table = work / f"stage-{len(partitions)}-{i}"
            log = DeltaLog.for_table(str(table))
            handle = begin(log, app_id=f"benchmark-{i}", txn_version=0, partition_by=partitions)

            def write_plain(target: Path = target, partitions: list[str] = partitions) -> float:
                start = time.perf_counter()
                data.write.partitionBy(*partitions).parquet(str(target))
                return time.perf_counter() - start

            # Who comes second in a lap waits for the other's dirty pages: they take turns.
            a = write_plain() if i % 2 else 0.0
            start = time.perf_counter()
            view = open_stage(log, handle, task_id="stage", attempt="1")
            request = plan_stage(view, mode="append", partition_by=partitions)
            write = collect_stage(view, request, stage_dataframe(spark, data, request))
            b = time.perf_counter() - start
            a = a or write_plain()
            start = time.perf_counter()
            publish(log, handle, [write], attempt="1")
            c = time.perf_counter() - start
            shutil.rmtree(target)
            shutil.rmtree(table)
            if i >= WARM_UP:
                plain.append(a)
                staged.append(b)
                commits.append(c)
        a, b = statistics.median(plain), statistics.median(staged)
        print(
            f"| {ROWS_WRITTEN:,} rows, {label} | {a:.2f} | {b:.2f} | {(b / a - 1) * 100:+.1f} % | {statistics.median(commits) * 1000:.1f} |",
            flush=True,
        )
    spark.stop()


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="delta-stage-"))
    try:
        main(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
