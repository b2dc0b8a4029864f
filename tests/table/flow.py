"""One transaction, step by step, as the tasks of a Dag run would take them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_delta.contract.files import new_attempt
from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageRequest
from airflow_delta.log import DeltaLog
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.stage.scan import plan_scan
from airflow_delta.table.stage.stage_view import SparkWork, StageView, open_stage
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.stage.write.collect import collect_files, collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.start.begin import begin


def column(name: str, data_type: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": nullable, "metadata": {}}


def schema(*columns: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": list(columns)})


@dataclass
class Table:
    """A table under test; every step opens the log anew, as every task does."""

    path: Path
    spark: Any = None
    keys: int = field(default=0)

    @property
    def uri(self) -> str:
        return str(self.path)

    def log(self) -> DeltaLog:
        return DeltaLog.for_table(self.uri)

    def copy_from(self, original: Table) -> None:
        """Become a copy of a table that several tests begin with."""
        shutil.copytree(original.path, self.path)
        self.keys = original.keys

    def begin(self, **options: Any) -> TransactionHandle:
        if not {"transaction_key", "app_id", "txn_version"} & options.keys():
            self.keys += 1
            options["transaction_key"] = f"key-{self.keys}"
        # Through JSON, as XCom does it.
        return TransactionHandle.from_dict(json.loads(json.dumps(begin(self.log(), **options).to_dict())))

    def view(self, handle: TransactionHandle, *, task_id: str = "stage", **options: Any) -> StageView:
        """Return what the plans of a stage work with."""
        return open_stage(self.log(), handle, task_id=task_id, attempt=new_attempt(), **options)

    def stage(self, handle: TransactionHandle, rows: Any, *, task_id: str = "stage", **options: Any) -> StagedWrite:
        """Stage rows: SQL text, or a DataFrame."""
        from airflow_delta.spark import stage_dataframe

        df = self.spark.sql(rows) if isinstance(rows, str) else rows
        view = self.view(handle, task_id=task_id, **_of_view(options))
        request = plan_stage(view, **options)
        staged = collect_stage(view, request, stage_dataframe(self.spark, df, request))
        return StagedWrite.from_dict(json.loads(json.dumps(staged.to_dict())))

    def stage_files(self, handle: TransactionHandle, *, task_id: str = "files", **options: Any) -> StagedWrite:
        return collect_files(self.view(handle, task_id=task_id, **_of_view(options)), **options)

    def operate(
        self, handle: TransactionHandle, plan: Callable[..., Any], *, task_id: str = "task", source: Any = None, **arguments: Any
    ) -> StagedWrite:
        """Stage an operation; what travels between the tasks goes through JSON.

        :param plan: ``plan_delete``, ``plan_merge``, ...
        :param source: SQL text, or a DataFrame.
        """
        from airflow_delta.spark.job import run_operation

        staged = plan(self.view(handle, task_id=task_id, **_of_view(arguments)), **arguments)
        if isinstance(staged, SparkWork):
            request = StageRequest.from_dict(json.loads(json.dumps(staged.request.to_dict())))
            df = self.spark.sql(source) if isinstance(source, str) else source
            staged = staged.collect(request, run_operation(self.spark, request, df))
        return StagedWrite.from_dict(json.loads(json.dumps(staged.to_dict())))

    def run(self, plan: Callable[..., Any], *, begin: Mapping[str, Any] | None = None, **arguments: Any) -> CommitResult:
        """Run an operation as a transaction of its own."""
        handle = self.begin(**(begin or {}))
        return self.publish(handle, self.operate(handle, plan, **arguments))

    def publish(self, handle: TransactionHandle, *staged: StagedWrite | Mapping[str, Any], **options: Any) -> CommitResult:
        return publish(self.log(), handle, list(staged), attempt=new_attempt(), **options)

    def abort(self, handle: TransactionHandle) -> Any:
        return abort(self.log(), handle)

    def write(self, rows: Any, *, begin: Mapping[str, Any] | None = None, **options: Any) -> CommitResult:
        """Run a whole transaction with one stage."""
        handle = self.begin(**(begin or {}))
        return self.publish(handle, self.stage(handle, rows, **options))

    def read(self, handle: TransactionHandle, predicate: str | None = None) -> list[tuple[Any, ...]]:
        """Return the rows as a stage of the transaction reads them."""
        from airflow_delta.spark import read_scan_plan

        df = read_scan_plan(self.spark, plan_scan(view_of(self.log(), handle), predicate))
        return sorted(map(tuple, df.collect()), key=repr)

    def rows(self, version: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows as all independent readers see them."""
        from support import readers

        return sorted((tuple(row.values()) for row in readers.rows(self.path, version)), key=repr)

    def commit(self, version: int) -> dict[str, list[dict[str, Any]]]:
        """Return the actions of a commit by kind."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in (self.path / "_delta_log" / f"{version:020}.json").read_bytes().splitlines():
            for kind, action in json.loads(line).items():
                found.setdefault(kind, []).append(action)
        return found

    def versions(self) -> int:
        return len(list((self.path / "_delta_log").glob("0*.json")))


def _of_view(options: dict[str, Any]) -> dict[str, Any]:
    """Take out of the options of a stage what its view is opened with."""
    return {name: options.pop(name) for name in ("map_index", "after", "spark_table_uri") if name in options}
