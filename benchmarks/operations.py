"""Table operations beside Delta Spark: one Spark session, the same tables and statements, taking turns. Called by run.py.

python benchmarks/operations.py FOLDER [ROWS] [REPEATS] [CASE ...]

After each pair of runs the rows of both results are compared; a difference ends the benchmark.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
ROWS = 10_000_000
REPEATS = 3
FILES = 20
SMALL_FILES = 200
DAYS = 20


def session(options: Mapping[str, str] | None = None) -> Any:
    """Return a session of Delta Spark.

    :param options: further options of Spark; they override those here.
    """
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
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config(map=dict(options or {}))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def rows(spark: Any, count: int, files: int, *, start: int = 0) -> Any:
    """Return sales of several days: ids in order, days in order, customers and amounts all over the place."""
    from pyspark.sql import functions as sf

    return spark.range(start, start + count, 1, files).select(
        "id",
        sf.date_add(sf.lit("2026-01-01").cast("date"), (sf.col("id") * DAYS / ROWS_OF_TABLE).cast("int")).alias("day"),
        sf.pmod(sf.hash("id"), sf.lit(100_000)).alias("customer"),
        (sf.pmod(sf.xxhash64("id"), sf.lit(1_000_000)) / 100).alias("amount"),
        (sf.col("id") % 7).cast("int").alias("quantity"),
        sf.concat(sf.lit("item-"), sf.pmod(sf.xxhash64("id", sf.lit(1)), sf.lit(50_000)).cast("string")).alias("item"),
        sf.timestamp_seconds(sf.lit(1767225600) + sf.col("id")).alias("at"),
    )


ROWS_OF_TABLE = ROWS


class Bench:
    def __init__(self, folder: Path, spark: Any) -> None:
        self.folder, self.spark = folder, spark

    # -- tables ---------------------------------------------------------------------------------------------------------------

    def make(
        self, name: str, frame: Any, *, partition_by: tuple[str, ...] = (), properties: Mapping[str, str] | None = None
    ) -> Path:
        path = self.folder / name
        writer = frame.write.format("delta").partitionBy(*partition_by)
        for key, value in (properties or {}).items():
            writer = writer.option(key, value)
        writer.save(str(path))
        return path

    def copy(self, table: Path) -> Path:
        """Return a copy; data files never change, so that links to them do."""
        target = self.folder / f"run-{uuid.uuid4().hex[:8]}"
        shutil.copytree(table, target, copy_function=os.link, ignore=shutil.ignore_patterns("_delta_log"))
        shutil.copytree(table / "_delta_log", target / "_delta_log")
        return target

    # -- ours -----------------------------------------------------------------------------------------------------------------

    def operation(self, table: Path, plan: Callable[..., Any], source: Any = None, *, policy: Any = None) -> Any:
        """Run an operation as its own transaction, and return its commit."""
        from airflow_delta.contract.payloads import StagedWrite
        from airflow_delta.log import DeltaLog
        from airflow_delta.spark.run_operation import run_operation
        from airflow_delta.table.run import run_transaction
        from airflow_delta.table.stage.stage_view import open_stage

        log = DeltaLog.for_table(str(table))

        def stage(handle: Any) -> list[StagedWrite]:
            planned = plan(open_stage(log, handle, task_id="task", attempt=uuid.uuid4().hex[:8]))
            if isinstance(planned, StagedWrite):
                return [planned]
            return [planned.collect(planned.request, run_operation(self.spark, planned.request, source))]

        return run_transaction(log, stage, attempt="1", transaction_key=f"benchmark-{uuid.uuid4()}", policy=policy)

    def write(self, table: Path, frame: Any, *, policy: Any = None, **options: Any) -> Any:
        """Write rows as a transaction, and return its commit."""
        from airflow_delta.log import DeltaLog
        from airflow_delta.spark.stage import stage_dataframe
        from airflow_delta.table.run import run_transaction
        from airflow_delta.table.stage.stage_view import open_stage
        from airflow_delta.table.stage.write.collect import collect_stage
        from airflow_delta.table.stage.write.plan import plan_stage

        log = DeltaLog.for_table(str(table))

        def stage(handle: Any) -> list[Any]:
            view = open_stage(log, handle, task_id="task", attempt=uuid.uuid4().hex[:8])
            request = plan_stage(view, **options)
            return [collect_stage(view, request, stage_dataframe(self.spark, frame, request))]

        return run_transaction(log, stage, attempt="1", transaction_key=f"benchmark-{uuid.uuid4()}", policy=policy)

    # -- measuring ------------------------------------------------------------------------------------------------------------

    def compare(self, name: str, table: Path, theirs: Callable[[Path], Any], ours: Callable[[Path], Any], repeats: int) -> None:
        seconds: dict[str, list[float]] = {"theirs": [], "ours": []}
        written: dict[str, int] = {}
        for lap in range(repeats + 1):  # the first warms the JVM up
            results: dict[str, Path] = {}
            engines = [("theirs", theirs), ("ours", ours)]
            for label, work in engines if lap % 2 else engines[::-1]:
                target = results[label] = self.copy(table)
                before = {path for path in target.rglob("*") if path.is_file()}
                os.sync()
                start = time.perf_counter()
                work(target)
                took = time.perf_counter() - start
                written[label] = sum(p.stat().st_size for p in target.rglob("*") if p.is_file() and p not in before)
                if lap:
                    seconds[label].append(took)
            if lap == 0:
                assert self.digest(results["theirs"]) == self.digest(results["ours"]), f"{name}: the rows differ"
            for path in results.values():
                shutil.rmtree(path)
        a, b = (statistics.median(seconds[label]) for label in ("theirs", "ours"))
        size = f"{written['ours'] / written['theirs']:.2f}" if written["theirs"] else "-"
        print(
            f"| {name} | {a:.2f} | {b:.2f} | {a / b:.2f} | {written['theirs'] / 1e6:,.1f} | {written['ours'] / 1e6:,.1f} | {size} |",
            flush=True,
        )

    def digest(self, table: Path) -> Any:
        """Return what tells the rows of two tables apart, whatever their order."""
        from pyspark.sql import functions as sf

        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        df = self.spark.read.format("delta").load(str(table))
        return df.select(sf.count("*"), sf.sum(sf.xxhash64(*df.columns).cast("decimal(38,0)"))).first()


def cases(bench: Bench, count: int, repeats: int) -> dict[str, Callable[[], None]]:
    """Return what to measure, by name; tables are made when the first case wants them."""
    from pyspark.sql import functions as sf

    spark = bench.spark
    tables: dict[str, Path] = {}

    def table(kind: str) -> Path:
        if kind not in tables:
            files, partition_by, properties = FILES, (), {"delta.enableDeletionVectors": "false"}
            if kind == "by day":
                partition_by = ("day",)
            if kind == "vectors":
                properties = {"delta.enableDeletionVectors": "true"}
            if kind == "small files":
                files = SMALL_FILES
            tables[kind] = bench.make(
                kind.replace(" ", "-"), rows(spark, count, files), partition_by=partition_by, properties=properties
            )
        return tables[kind]

    def sql(text: str) -> Callable[[Path], Any]:
        return lambda target: spark.sql(text.format(table=f"delta.`{target}`"))

    def compare(name: str, kind: str, theirs: Callable[[Path], Any], ours: Callable[[Path], Any]) -> Callable[[], None]:
        return lambda: bench.compare(name, table(kind), theirs, ours, repeats)

    def append() -> None:
        new = rows(spark, count, FILES, start=count)
        compare(
            "append",
            "plain",
            lambda target: new.write.format("delta").mode("append").save(str(target)),
            lambda target: bench.write(target, new),
        )()

    def overwrite() -> None:
        new = rows(spark, count, FILES, start=count)
        compare(
            "overwrite",
            "plain",
            lambda target: new.write.format("delta").mode("overwrite").save(str(target)),
            lambda target: bench.write(target, new, mode="overwrite"),
        )()

    def delete(name: str, kind: str, predicate: str | None) -> Callable[[], None]:
        from airflow_delta.table.operations.rewrite.delete import plan_delete

        where = f" WHERE {predicate}" if predicate else ""
        return compare(
            name,
            kind,
            sql("DELETE FROM {table}" + where),
            lambda target: bench.operation(target, lambda stage: plan_delete(stage, predicate=predicate)),
        )

    def update(name: str, kind: str, predicate: str) -> Callable[[], None]:
        from airflow_delta.table.operations.rewrite.update import plan_update

        values = {"amount": "amount * 1.1", "quantity": "quantity + 1"}
        text = ", ".join(f"{column} = {value}" for column, value in values.items())
        return compare(
            name,
            kind,
            sql("UPDATE {table} SET " + text + f" WHERE {predicate}"),
            lambda target: bench.operation(target, lambda stage: plan_update(stage, predicate=predicate, set=values)),
        )

    def merge(name: str, kind: str, share: int, *, clustered: bool = False) -> Callable[[], None]:
        """An upsert of ``share`` percent of the ids, a tenth of them new.

        :param clustered: the ids follow each other; else every file holds some of them.
        """
        from airflow_delta.table.operations.merge.plan import plan_merge

        def run() -> None:
            number = count * share // 100
            old, new = number - number // 10, number // 10
            ids = sf.col("id") if clustered else (sf.col("id") * (count // old if old < count else 1))
            kept = spark.range(0, old, 1, 4).select(ids.alias("id"))
            added = spark.range(count, count + new, 1, 4)
            source = bench.folder / f"source-{share}-{clustered}"
            if not source.exists():
                changed = kept.unionAll(added).withColumn("amount", sf.lit(1.5)).withColumn("quantity", sf.lit(9))
                full = changed.select(
                    "id",
                    sf.lit("2026-01-01").cast("date").alias("day"),
                    sf.lit(1).alias("customer"),
                    "amount",
                    "quantity",
                    sf.lit("merged").alias("item"),
                    sf.lit("2026-01-01").cast("timestamp").alias("at"),
                )
                full.write.parquet(str(source))
            read = spark.read.parquet(str(source))
            read.createOrReplaceTempView("benchmark_source")
            statement = (
                "MERGE INTO {table} target USING benchmark_source source ON target.id = source.id "
                "WHEN MATCHED THEN UPDATE SET target.amount = source.amount, target.quantity = source.quantity "
                "WHEN NOT MATCHED THEN INSERT *"
            )
            clauses = [
                {"kind": "matched", "action": "update", "set": {"amount": "source.amount", "quantity": "source.quantity"}},
                {"kind": "notMatched", "action": "insert", "set": None},
            ]
            compare(
                name,
                kind,
                sql(statement),
                lambda target: bench.operation(
                    target,
                    lambda stage: plan_merge(stage, condition="target.id = source.id", clauses=clauses),
                    read,
                ),
            )()

        return run

    def optimize(name: str, columns: tuple[str, ...]) -> Callable[[], None]:
        from airflow_delta.table.operations.optimize.plan import plan_optimize

        z_order = f" ZORDER BY ({', '.join(columns)})" if columns else ""
        return compare(
            name,
            "small files",
            sql("OPTIMIZE {table}" + z_order),
            lambda target: bench.operation(target, lambda stage: plan_optimize(stage, z_order_by=columns)),
        )

    scattered, range_of_ids = "customer % 100 = 7", f"id < {count // 100}"
    return {
        "append": append,
        "overwrite": overwrite,
        "delete-partitions": delete("delete partitions (no data read)", "by day", "day < '2026-01-06'"),
        "delete-scattered": delete("delete 1 %, in every file", "plain", scattered),
        "delete-vectors": delete("delete 1 %, in every file, deletion vectors", "vectors", scattered),
        "delete-range": delete("delete 1 %, in one file", "plain", range_of_ids),
        "update-range": update("update 1 %, in one file", "plain", range_of_ids),
        "update-scattered": update("update 1 %, in every file", "plain", scattered),
        "update-vectors": update("update 1 %, in every file, deletion vectors", "vectors", scattered),
        "merge-1": merge("merge 1 %, in every file", "plain", 1),
        "merge-1-range": merge("merge 1 %, ids that follow each other", "plain", 1, clustered=True),
        "merge-1-vectors": merge("merge 1 %, in every file, deletion vectors", "vectors", 1),
        "merge-10": merge("merge 10 %, in every file", "plain", 10),
        "merge-10-vectors": merge("merge 10 %, in every file, deletion vectors", "vectors", 10),
        "merge-100": merge("merge 100 %", "plain", 100),
        "optimize": optimize("optimize", ()),
        "zorder": optimize("zorder by two columns", ("customer", "amount")),
    }


def main() -> None:
    global ROWS_OF_TABLE
    folder = Path(sys.argv[1])
    ROWS_OF_TABLE = int(sys.argv[2]) if len(sys.argv) > 2 else ROWS
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else REPEATS
    folder.mkdir(parents=True, exist_ok=True)
    spark = session()
    bench = Bench(folder, spark)
    known = cases(bench, ROWS_OF_TABLE, repeats)
    print(f"\n### Table operations beside Delta Spark, {ROWS_OF_TABLE:,} rows\n")
    print(
        "| operation | Delta Spark s | ours s | ratio | written by Delta Spark MB | by ours MB | ours / theirs |\n|---|---|---|---|---|---|---|"
    )
    for name in sys.argv[4:] or known:
        known[name]()
    spark.stop()


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(sys.argv[1], ignore_errors=True)
