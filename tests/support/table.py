"""A table under test: its log as JSON, commits of actions, and transactions step by step as the tasks of a Dag run take them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, Metadata
from airflow_delta.table.abort import abort
from airflow_delta.table.arrow.rewrite.run import run_in_worker
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.stage.scan import plan_scan
from airflow_delta.table.stage.stage_view import SparkWork, StageView, open_stage
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.stage.write.collect import collect_files, collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.start.begin import begin
from airflow_delta.transaction import Operation
from support import actions
from support.actions import column

FAST = {"durable": "false"}


def metadata(partition_by: Iterable[str] = (), **given: Any) -> Metadata:
    """Metadata of a table of integers: ``value``, and the columns to partition by."""
    parts = list(partition_by)
    return actions.metadata(column("value"), *map(column, parts), partition_by=parts, **given)


def put_rows(handle: TransactionHandle, rows: Any, path: str = "rows", *, part: str = "") -> Path:
    """Write a Parquet file below the staging path, as any job may.

    :param rows: an Arrow table, or ids.
    :param part: directory of a partition, like ``p=a``.
    """
    directory = Path(handle.staging_path) / path / part
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"part-{len(list(directory.iterdir()))}.parquet"
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.table({"id": pa.array(rows, pa.int64())}), file)
    return file


class Table:
    """A table on local disk; every step opens its log anew, as every task does.

    :param spark: the session of stages that need one.
    """

    def __init__(self, path: Path | str, spark: Any = None) -> None:
        self.path = Path(path)
        self.spark = spark
        self.keys = 0

    @property
    def uri(self) -> str:
        return str(self.path)

    def log(self) -> DeltaLog:
        return DeltaLog.for_table(self.uri, FAST)

    def copy_from(self, original: Table) -> None:
        """Become a copy of a table that several tests begin with."""
        shutil.copytree(original.path, self.path)
        self.keys = original.keys

    # -- what other engines see ------------------------------------------------------------------------------------------------

    def log_file(self, name: str | int) -> Path:
        """Return the path of a file of the log: by name, or of a commit by version."""
        return self.path / "_delta_log" / (name if isinstance(name, str) else f"{name:020d}.json")

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.path / "_delta_log").glob("0*.json") if path.stem.isdigit())

    def lines(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a commit, in their order."""
        return [json.loads(line) for line in self.log_file(version).read_bytes().splitlines()]

    def actions(self, version: int) -> dict[str, list[dict[str, Any]]]:
        """Return the actions of a commit by kind."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self.lines(version):
            for kind, action in line.items():
                found.setdefault(kind, []).append(action)
        return found

    def info(self, version: int) -> dict[str, Any]:
        """Return a commit's ``commitInfo``."""
        return self.actions(version)["commitInfo"][0]

    def live(self) -> set[str]:
        """Replay the JSON log without the code under test."""
        files: set[str] = set()
        for version in self.versions():
            for line in self.lines(version):
                if "remove" in line:
                    files.discard(line["remove"]["path"])
                if "add" in line:
                    files.add(line["add"]["path"])
        return files

    def rows(self, version: int | None = None) -> list[Any]:
        """Return the rows as all independent readers see them."""
        from support import readers

        return sorted((tuple(row.values()) for row in readers.rows(self.path, version)), key=repr)

    def put_foreign(self, version: int, *lines: Mapping[str, Any]) -> None:
        """Write a commit as another engine would."""
        file = self.log_file(version)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x") as opened:
            opened.write("".join(json.dumps(line) + "\n" for line in lines))

    # -- commits of actions ----------------------------------------------------------------------------------------------------

    def create(self, partition_by: Iterable[str] = (), **options: Any) -> DeltaLog:
        """Commit version 0, as :func:`metadata` has it."""
        log = self.log()
        transaction = log.start_transaction()
        transaction.update_metadata_for_new_table(metadata(partition_by, **options))
        transaction.commit([], Operation.manual_update())
        return log

    def commit(self, *given: Action, operation: Operation | None = None, **options: Any) -> int:
        return self.log().start_transaction().commit(list(given), operation or Operation.manual_update(), **options)

    # -- tasks -----------------------------------------------------------------------------------------------------------------

    def begin(self, **options: Any) -> TransactionHandle:
        if not {"transaction_key", "app_id", "txn_version"} & options.keys():
            self.keys += 1
            options["transaction_key"] = f"key-{self.keys}"
        return TransactionHandle.from_dict(_travelled(begin(self.log(), **options)))

    def view(self, handle: TransactionHandle, *, task_id: str = "stage", **options: Any) -> StageView:
        """Return what the plans of a stage work with."""
        return open_stage(self.log(), handle, task_id=task_id, attempt=new_attempt(), **options)

    def stage(self, handle: TransactionHandle, rows: Any, *, task_id: str = "stage", **options: Any) -> StagedWrite:
        """Stage rows: an Arrow table, SQL text, or a DataFrame."""
        view = self.view(handle, task_id=task_id, **_of_view(options))
        request = plan_stage(view, **options)
        report = stage_arrow(self.log(), rows, request) if isinstance(rows, pa.Table) else self.write_rows(request, rows)
        return StagedWrite.from_dict(_travelled(collect_stage(view, request, report)))

    def stage_files(self, handle: TransactionHandle, *, task_id: str = "files", **options: Any) -> StagedWrite:
        return collect_files(self.view(handle, task_id=task_id, **_of_view(options)), **options)

    def stage_rows(
        self,
        handle: TransactionHandle,
        rows: Any,
        path: str | None = None,
        *,
        part: str = "",
        task_id: str = "rows",
        **options: Any,
    ) -> StagedWrite:
        """Stage a file of :func:`put_rows`; its directory is by default named like the task."""
        put_rows(handle, rows, path or task_id, part=part)
        return self.stage_files(handle, task_id=task_id, path=path or task_id, **options)

    def operate(
        self, handle: TransactionHandle, plan: Callable[..., Any], *, task_id: str = "task", source: Any = None, **arguments: Any
    ) -> StagedWrite:
        """Stage an operation.

        :param plan: ``plan_delete``, ``plan_merge``, ...
        :param source: SQL text, or a DataFrame.
        """
        staged = plan(self.view(handle, task_id=task_id, **_of_view(arguments)), **arguments)
        if isinstance(staged, SparkWork):
            request = StageRequest.from_dict(_travelled(staged.request))
            staged = staged.collect(request, self.run_work(request, source))
        return StagedWrite.from_dict(_travelled(staged))

    def write_rows(self, request: StageRequest, rows: Any) -> StageReport:
        """Do the Spark work of a stage of rows: SQL text, or a DataFrame."""
        from airflow_delta.spark import stage_dataframe

        return stage_dataframe(self.spark, self.spark.sql(rows) if isinstance(rows, str) else rows, request)

    def run_work(self, request: StageRequest, source: Any) -> StageReport:
        """Do the Spark work of an operation."""
        from airflow_delta.spark.run_operation import run_operation

        return run_operation(self.spark, request, self.spark.sql(source) if isinstance(source, str) else source)

    def publish(self, handle: TransactionHandle, *staged: StagedWrite | Mapping[str, Any], **options: Any) -> CommitResult:
        return publish(self.log(), handle, list(staged), attempt=new_attempt(), **options)

    def abort(self, handle: TransactionHandle) -> Any:
        return abort(self.log(), handle)

    def write(self, rows: Any, *, begin: Mapping[str, Any] | None = None, **options: Any) -> CommitResult:
        """Run a whole transaction with one stage."""
        handle = self.begin(**(begin or {}))
        return self.publish(handle, self.stage(handle, rows, **options))

    def run(self, plan: Callable[..., Any], *, begin: Mapping[str, Any] | None = None, **arguments: Any) -> CommitResult:
        """Run an operation as a transaction of its own."""
        handle = self.begin(**(begin or {}))
        return self.publish(handle, self.operate(handle, plan, **arguments))

    def read(self, handle: TransactionHandle, predicate: str | None = None) -> list[tuple[Any, ...]]:
        """Return the rows as a stage of the transaction reads them."""
        from airflow_delta.spark import read_scan_plan

        df = read_scan_plan(self.spark, plan_scan(view_of(self.log(), handle), predicate))
        return sorted(map(tuple, df.collect()), key=repr)


def _travelled(payload: Any) -> dict[str, Any]:
    """Return what a task finds of another's payload: it went through JSON."""
    return dict(json.loads(json.dumps(payload.to_dict())))


def _of_view(options: dict[str, Any]) -> dict[str, Any]:
    """Take out of the options of a stage what its view is opened with."""
    return {name: options.pop(name) for name in ("map_index", "after", "spark_table_uri") if name in options}


class WorkerTable(Table):
    """A table whose operations are done without Spark.

    :ivar max_memory: bytes that they may take; ``None`` for the default.
    """

    max_memory: int | None = None

    def run_work(self, request: StageRequest, source: Any) -> StageReport:
        """Do the work of an operation in this process; the source of a MERGE is an Arrow table."""
        return run_in_worker(self.log(), request, source, max_memory=self.max_memory)
