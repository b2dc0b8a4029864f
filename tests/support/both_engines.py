"""The same statements on the same table, carried out on Spark and by the worker: what differs afterwards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from airflow_delta.exceptions import DeltaAnalysisException, DeltaError, DeltaUnsupportedOperationException
from airflow_delta.table.arrow.data_schema import data_schema
from airflow_delta.table.changes.read import read_changes
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.random_rows import row_ids, statistics
from support.random_statements import Statement, statement
from support.random_tables import KEY, RandomTable
from support.table import Table, WorkerTable

FAILED = "a row fails"
LEFT = ('engine="spark"', "Use Spark")
"""In the message of all that the worker leaves to Spark, one of them."""


def frame(spark: Any, rows: pa.Table, directory: Path) -> Any:
    """Return rows as a DataFrame of Parquet files: so times of all kinds come to Spark as they are."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"source-{len(list(directory.iterdir()))}.parquet"
    pq.write_table(rows, path)
    schema = StructType.fromJson(data_schema(rows.schema, whose="the source"))
    return spark.read.schema(schema).parquet(str(path))


class BothEngines:
    """A table twice, and what has been found.

    :ivar counts: statements by what became of them.
    """

    def __init__(self, spark: Any, directory: Path, drawn: RandomTable) -> None:
        self.drawn = drawn
        self.worker, self.spark = WorkerTable(directory / "worker"), Table(directory / "spark", spark)
        self._sources = directory / "sources"
        self.counts = Counter[str]()
        drawn.fill(self.worker)
        self.spark.copy_from(self.worker)
        self._first = self._rows(self.worker).num_rows
        self._begins = self.worker.versions()[-1] + 1

    def run(self, given: Statement) -> list[str]:
        """Run a statement on both; return how they differ then."""
        worker = self._outcome(self.worker, given)
        if worker is None:
            self.counts["left to Spark"] += 1
            return []
        other = self._outcome(self.spark, given)
        self.counts["failed on both" if isinstance(worker, str) else "done"] += 1
        if worker != other and not (isinstance(worker, str) and isinstance(other, str)):  # rows and columns have no order
            return [f"the worker says {worker}, Spark {other}"]
        return [] if isinstance(worker, str) else self.differences()

    def differences(self) -> list[str]:
        """Return how the tables differ."""
        found: list[str] = []
        tables = (self.worker, self.spark)
        snapshots = [table.log().update() for table in tables]
        if snapshots[0].metadata.schema_string != snapshots[1].metadata.schema_string and self.drawn.mode == "none":
            found.append(f"schemas: {snapshots[0].metadata.schema_string} {snapshots[1].metadata.schema_string}")
        found += self._compared("rows", *(comparable(self._rows(table)) for table in tables))
        if not any(file.deletion_vector for snapshot in snapshots for file in snapshot.add_files()):  # else of other files
            one, other = map(self._statistics, snapshots)
            found += [] if one == other else [f"statistics: {one} {other}"]
        if self.drawn.has("enableChangeDataFeed") and snapshots[0].version >= self._begins:
            found += self._compared("changes", *(comparable(self._changes(table)) for table in tables))
        if self.drawn.has("enableRowTracking"):
            ids = [row_ids(table, KEY) for table in tables]
            if len(ids[0]) != self._rows(self.worker).num_rows:
                found.append("row ids are not unique")
            kept = [{row: at for row, at in found.items() if row < self._first} for found in ids]
            found += [] if kept[0] == kept[1] else [f"row ids: {kept[0]} {kept[1]}"]  # new rows get theirs in the order of files
        return found

    def read_back(self) -> list[str]:
        """Return how the worker's table differs for Spark from what it is here."""
        from airflow_delta.spark import read_scan_plan
        from airflow_delta.table.stage.scan import plan_scan
        from airflow_delta.table.stage.view import view_of

        plan = plan_scan(view_of(self.worker.log(), self.worker.begin()), None)
        theirs = read_scan_plan(self.spark.spark, plan).toArrow()
        return self._compared(
            "rows of the worker, to Spark", comparable(self._rows(self.worker)), comparable(self._shown(theirs))
        )

    def _outcome(self, table: Table, given: Statement) -> Any:
        """Return what a statement says it has done, or its error; ``None`` if the worker leaves it to Spark."""
        arguments = dict(given.arguments)
        try:
            if given.plan is None:
                result = table.write(arguments["rows"])
            else:
                if table is self.spark and "source" in arguments:
                    arguments["source"] = frame(table.spark, arguments["source"], self._sources)
                result = table.run(given.plan, **arguments)
        except DeltaAnalysisException:
            return FAILED
        except DeltaError as error:
            left = table is self.worker and isinstance(error, DeltaUnsupportedOperationException)
            return None if left and any(words in str(error) for words in LEFT) else type(error).__name__
        except PySparkException:
            return FAILED
        if result.version is None:
            return {}
        metrics = table.info(result.version)["operationMetrics"]
        others = ("File", "Bytes", "Vector", "TimeMs", "Copied", "Output")  # Spark makes more files of a partition
        return {name: number for name, number in metrics.items() if not any(word in name for word in others)}

    def _rows(self, table: Table) -> pa.Table:
        return self._shown(read_table(table.log()).to_table())

    def _changes(self, table: Table) -> pa.Table:
        found = read_changes(table.log(), starting_version=self._begins).to_table()
        return self._shown(found.drop_columns(["_commit_timestamp"]))

    def _shown(self, rows: pa.Table) -> pa.Table:
        return rows.drop_columns([name for name in self.drawn.uncompared if name in rows.column_names])

    def _statistics(self, snapshot: Any) -> tuple[Any, ...]:
        """Return the statistics of all files together, of columns of which every file says the same kinds of things."""
        files = snapshot.add_files()
        names = {field.physical_name: field.name for field in snapshot.schema}
        left = set(names) - {name for name, own in names.items() if own in self.drawn.uncompared}
        for file in files:
            stats = json.loads(file.stats) if file.stats else {}
            if "nullCount" not in stats or not stats.get("tightBounds", True):
                return ()  # a file of another writer is still there
            for name in list(left):
                nothing = stats["nullCount"].get(name) == stats["numRecords"]
                if name not in stats["minValues"] and not nothing:
                    left.discard(name)
                if isinstance(stats["nullCount"].get(name), dict):
                    left.discard(name)
        logical = {names[name] for name in left}
        rows, low, high, nulls = statistics(snapshot)
        return rows, *({name: found[name] for name in sorted(found) if name in logical} for found in (low, high, nulls))

    def _compared(self, what: str, one: list[str], other: list[str]) -> list[str]:
        if one == other:
            return []
        only = [list((Counter(a) - Counter(b)).elements()) for a, b in ((one, other), (other, one))]
        return [f"{what}: {len(only[0])} only of the worker: {only[0][:2]}; {len(only[1])} only of Spark: {only[1][:2]}"]


def comparable(rows: pa.Table) -> list[str]:
    return readers._comparable(rows.to_pylist())


def search(spark: Any, directory: Path, seed: int | str, statements: int = 3) -> tuple[list[str], Counter[str]]:
    """Return what differs after random statements on a random table, and how many statements were done."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # in which the worker evaluates expressions
    try:
        return _searched(spark, directory, seed, statements)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def _searched(spark: Any, directory: Path, seed: int | str, statements: int) -> tuple[list[str], Counter[str]]:
    drawn = RandomTable.drawn(seed)
    both = BothEngines(spark, directory, drawn)
    for _ in range(statements):
        given = statement(drawn)
        found = both.run(given)
        if found:
            return [f"seed {seed}: {given} on {drawn.described()}: {'; '.join(found)}"], both.counts
    found = both.read_back() if both.counts["done"] and drawn.draw.random() < 0.3 else []
    return [f"seed {seed}: {problem}" for problem in found], both.counts
