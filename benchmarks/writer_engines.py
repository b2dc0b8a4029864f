"""The engines of writers.py: each makes a table, applies a change to it in its own way, and says what is in the table."""

from __future__ import annotations

import fcntl
import multiprocessing
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import operations

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import CommitResult

ROOT = Path(__file__).parents[1]
PYICEBERG = "pyiceberg[sql-sqlite]==0.12.0"
PLACE = ROOT / ".cache" / "pyiceberg"
FILES = 4
SMALL_FILE = 100_000
"""Bytes; OPTIMIZE takes smaller files: those that the writers add, not the ones that the table begins with."""
VECTORS = {"delta.enableDeletionVectors": "true"}
TRACKED = {**VECTORS, "delta.enableRowTracking": "true"}


@dataclass(frozen=True)
class Change:
    """One thing to do to a table of rows (id, value, payload).

    :param ids: a MERGE changes these rows and adds those that are missing, an UPDATE changes the one row, a DELETE removes the
        range, an append adds them.
    """

    kind: Literal["merge", "update", "delete", "append"]
    ids: Sequence[int]
    value: int = 0

    @property
    def where(self) -> str:
        """The rows of an UPDATE or a DELETE, in SQL."""
        return f"id = {self.ids[0]}" if self.kind == "update" else f"id >= {self.ids[0]} AND id <= {self.ids[-1]}"

    def apply_to(self, rows: dict[int, int]) -> None:
        """Change what the table should hold."""
        if self.kind == "delete":
            for number in self.ids:
                rows.pop(number, None)
        else:
            rows.update(dict.fromkeys(self.ids, self.value))


class Conflict(Exception):
    """Another commit stands against the change; the message is the engine's name for it."""


def arrow_rows(ids: Sequence[int], value: int) -> Any:
    import pyarrow as pa

    columns = {"id": pa.array(ids, pa.int64()), "value": pa.array([value] * len(ids), pa.int64())}
    return pa.table({**columns, "payload": pa.array([f"payload of row {number}" for number in ids])})


class OnSpark:
    """What works in a Spark session: one for each thread, on one JVM."""

    def __init__(self, folder: Path, spark: Any, rows: int, properties: dict[str, str]) -> None:
        self.folder, self.spark, self.row_count, self.properties = folder, spark, rows, properties
        self._threads = threading.local()

    def takes_part(self, *, compacted: bool) -> bool:
        """Tell whether it is measured while the table is compacted, or while it is not."""
        return compacted or self.properties is not TRACKED

    def pool(self, size: int) -> Executor:
        return ThreadPoolExecutor(size)

    @property
    def bench(self) -> operations.Bench:
        if not hasattr(self._threads, "bench"):
            self._threads.bench = operations.Bench(self.folder, self.spark.newSession())
        return self._threads.bench

    def make(self) -> Path:
        """Return a table with the even ids."""
        return self.bench.copy(self._base)

    @cached_property
    def _base(self) -> Path:
        frame = self.spark.range(0, 2 * self.row_count, 2, FILES).selectExpr(
            "id", "0L AS value", "concat('payload of row ', id) AS payload"
        )
        return self.bench.make(f"base-{uuid.uuid4().hex[:8]}", frame, properties=self.properties)

    def source(self, change: Change) -> str:
        ids = ", ".join(f"{number}L" for number in change.ids)
        return f"SELECT id, {change.value}L AS value, concat('payload of row ', id) AS payload FROM (SELECT explode(array({ids})) AS id)"

    def rows(self, table: Path) -> Any:
        """Return the ids and values in a table, as Delta Spark reads it."""
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return self.spark.read.format("delta").load(str(table)).select("id", "value").toArrow()


class Ours(OnSpark):
    def __init__(self, folder: Path, spark: Any, rows: int, level: str, properties: dict[str, str] = VECTORS) -> None:
        from airflow_delta.transaction import CommitPolicy

        super().__init__(folder, spark, rows, properties)
        self._policy = CommitPolicy(conflict_detection=level)
        self.name = f"ours, {level}" + (", row tracking" if properties is TRACKED else "")

    def apply(self, table: Path, change: Change) -> Sequence[str]:
        """Commit a change, and return how other commits turned out not to conflict."""
        return tuple(self._apply(table, change).resolved)

    def _apply(self, table: Path, change: Change) -> CommitResult:
        from airflow_delta.table.operations.merge.plan import plan_merge
        from airflow_delta.table.operations.rewrite.delete import plan_delete
        from airflow_delta.table.operations.rewrite.update import plan_update

        if change.kind == "append":
            frame = self.bench.spark.sql(self.source(change)).coalesce(1)
            return self._committed(lambda: self.bench.write(table, frame, policy=self._policy))
        if change.kind == "merge":
            source = self.bench.spark.sql(self.source(change))
            clauses = [
                {"kind": "matched", "action": "update", "set": {"value": "source.value"}},
                {"kind": "notMatched", "action": "insert", "set": None},
            ]
            return self._run(table, lambda stage: plan_merge(stage, condition="target.id = source.id", clauses=clauses), source)
        if change.kind == "update":
            return self._run(table, lambda stage: plan_update(stage, predicate=change.where, set={"value": f"{change.value}L"}))
        return self._run(table, lambda stage: plan_delete(stage, predicate=change.where))

    def optimize(self, table: Path) -> int:
        """Compact small files, and return how many."""
        from airflow_delta.table.operations.optimize.plan import plan_optimize

        return self._run(table, lambda stage: plan_optimize(stage, min_file_size=SMALL_FILE)).num_removed_files

    def _run(self, table: Path, plan: Any, source: Any = None) -> CommitResult:
        return self._committed(lambda: self.bench.operation(table, plan, source, policy=self._policy))

    def _committed(self, run: Callable[[], CommitResult]) -> CommitResult:
        from airflow_delta.exceptions import DeltaConcurrentModificationException

        try:
            return run()
        except DeltaConcurrentModificationException as error:
            raise Conflict(type(error).__name__) from error


class DeltaSpark(OnSpark):
    name = "Delta Spark"

    def __init__(self, folder: Path, spark: Any, rows: int) -> None:
        super().__init__(folder, spark, rows, VECTORS)

    def apply(self, table: Path, change: Change) -> Sequence[str]:
        name = f"delta.`{table}`"
        statements = {
            "merge": f"MERGE INTO {name} target USING ({self.source(change)}) source ON target.id = source.id "
            "WHEN MATCHED THEN UPDATE SET target.value = source.value WHEN NOT MATCHED THEN INSERT *",
            "update": f"UPDATE {name} SET value = {change.value}L WHERE {change.where}",
            "delete": f"DELETE FROM {name} WHERE {change.where}",
            "append": f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ * FROM ({self.source(change)})",
        }
        self._run(statements[change.kind])
        return ()

    def optimize(self, table: Path) -> int:
        return int(self._run(f"OPTIMIZE delta.`{table}`").first()["metrics"]["numFilesRemoved"])

    def _run(self, statement: str) -> Any:
        try:
            return self.bench.spark.sql(statement)
        except Exception as error:
            if found := re.search(r"\b(?:Concurrent\w+|MetadataChanged|ProtocolChanged)Exception\b", str(error)):
                raise Conflict(found[0]) from error
            raise


class DeltaRs:
    """It writes no deletion vectors: changed files are written anew."""

    name = "delta-rs"

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.row_count = folder, rows

    def takes_part(self, *, compacted: bool) -> bool:
        return True

    def pool(self, size: int) -> Executor:
        return ThreadPoolExecutor(size)  # it works without the interpreter's lock

    def make(self) -> Path:
        from deltalake import write_deltalake

        table = self.folder / f"delta-rs-{uuid.uuid4().hex[:8]}"
        step = 2 * self.row_count // FILES
        for start in range(0, 2 * self.row_count, step):
            write_deltalake(str(table), arrow_rows(range(start, start + step, 2), 0), mode="append")
        return table

    def apply(self, table: Path, change: Change) -> Sequence[str]:
        from deltalake import DeltaTable, write_deltalake

        def run() -> None:
            if change.kind == "append":
                write_deltalake(str(table), arrow_rows(change.ids, change.value), mode="append")
                return
            opened = DeltaTable(str(table))
            if change.kind == "merge":
                source = arrow_rows(change.ids, change.value)
                merger = opened.merge(source, "target.id = source.id", source_alias="source", target_alias="target")
                merger.when_matched_update({"value": "source.value"}).when_not_matched_insert_all().execute()
            elif change.kind == "update":
                opened.update(predicate=change.where, updates={"value": str(change.value)})
            else:
                opened.delete(change.where)

        self._committed(run)
        return ()

    def optimize(self, table: Path) -> int:
        from deltalake import DeltaTable

        metrics = self._committed(lambda: DeltaTable(str(table)).optimize.compact(target_size=SMALL_FILE))
        return int(metrics["numFilesRemoved"])

    def _committed(self, run: Callable[[], Any]) -> Any:
        from deltalake.exceptions import CommitFailedError

        try:
            return run()
        except CommitFailedError as error:
            raise Conflict(str(error).splitlines()[0][:80]) from error

    def rows(self, table: Path) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(table)).to_pyarrow_table(columns=["id", "value"])


class PyIceberg:
    """It has no compaction. Deletes write files anew; the catalog is a database of SQLite."""

    name = "PyIceberg"

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.row_count = folder / "iceberg", rows

    def takes_part(self, *, compacted: bool) -> bool:
        return not compacted

    def pool(self, size: int) -> Executor:
        """Processes, since it is written in Python."""
        return ProcessPoolExecutor(size, multiprocessing.get_context("spawn"))

    @property
    def catalog(self) -> Any:
        if str(PLACE) not in sys.path:
            sys.path.append(str(PLACE))
        from pyiceberg.catalog.sql import SqlCatalog

        self.folder.mkdir(exist_ok=True)
        return SqlCatalog("bench", uri=f"sqlite:///{self.folder}/catalog.db?timeout=60", warehouse=f"file://{self.folder}")

    def make(self) -> str:
        catalog = self.catalog
        catalog.create_namespace_if_not_exists("bench")
        name = f"bench.t{uuid.uuid4().hex[:8]}"
        table = catalog.create_table(name, arrow_rows([0], 0).schema)
        step = 2 * self.row_count // FILES
        for start in range(0, 2 * self.row_count, step):
            table.append(arrow_rows(range(start, start + step, 2), 0))
        return name

    def apply(self, table: str, change: Change) -> Sequence[str]:
        opened = self.catalog.load_table(table)
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        try:
            if change.kind == "append":
                opened.append(arrow_rows(change.ids, change.value))
            elif change.kind == "merge":
                opened.upsert(arrow_rows(change.ids, change.value), join_cols=["id"])
            elif change.kind == "update":
                opened.overwrite(arrow_rows(change.ids, change.value), overwrite_filter=change.where)
            else:
                opened.delete(change.where)
        except (CommitFailedException, ValidationException) as error:
            raise Conflict(type(error).__name__) from error
        return ()

    def rows(self, table: str) -> Any:
        return self.catalog.load_table(table).scan(selected_fields=("id", "value")).to_arrow()


def install_pyiceberg() -> None:
    """Install PyIceberg beside the environment, whose own packages come first."""
    stamp = PLACE / "installed"
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE.parent / "pyiceberg.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == PYICEBERG:
            return
        shutil.rmtree(PLACE)
        print(f"Installing {PYICEBERG} into {PLACE}", file=sys.stderr, flush=True)
        command = ["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--target", str(PLACE)]
        subprocess.run(
            [sys.executable, *command, "--constraint", str(ROOT / "requirements.lock"), PYICEBERG],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        stamp.write_text(PYICEBERG)  # last: an interrupted installation is done again
