"""What one task of a Dag run does, in a process of its own: python one_task.py STEP DIRECTORY. Prints the modules that it loaded.

Steps find what earlier ones left as JSON in the directory, as tasks do by XCom; the table is its folder ``table``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STEP, WORK = sys.argv[1], Path(sys.argv[2])
DAY = "2024-01-02"
REPLACED = f"day >= DATE '{DAY}'"


def log() -> Any:
    from airflow_delta.log import DeltaLog

    return DeltaLog.for_table(str(WORK / "table"))


def saved(name: str, value: Any) -> None:
    (WORK / f"{name}.json").write_text(json.dumps(value.to_dict()))


def known(name: str) -> Any:
    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
    from airflow_delta.contract.request import StageReport, StageRequest

    kind = {"handle": TransactionHandle, "request": StageRequest, "report": StageReport, "staged": StagedWrite}[name]
    return kind.from_dict(json.loads((WORK / f"{name}.json").read_text()))


def stage(task_id: str) -> Any:
    from airflow_delta.table.stage.stage_view import open_stage

    return open_stage(log(), known("handle"), task_id=task_id, attempt="attempt-1")


def start() -> None:
    from airflow_delta.table.start.begin import begin

    saved("handle", begin(log(), transaction_key=f"run-{log().snapshot.version}"))


def plan() -> None:
    from airflow_delta.table.stage.write.plan import plan_stage

    saved("request", plan_stage(stage("stage"), mode="overwrite", replace_where=REPLACED))


def collect() -> None:
    from airflow_delta.table.stage.write.collect import collect_stage

    saved("staged", collect_stage(stage("stage"), known("request"), known("report")))


def commit() -> None:
    from airflow_delta.table.commit.publish import publish

    publish(log(), known("handle"), [known("staged")], attempt="commit-1")


def list_a_partition() -> None:
    assert log().snapshot.files(f"day = '{DAY}'", columns=["path", "size"]).num_rows


def list_by_statistics() -> None:
    files = log().snapshot.files(f"day <= '{DAY}' AND id = 2 AND at >= TIMESTAMP '2024-01-01 00:00:00 UTC'")
    assert files.num_rows == 1, files.num_rows


def list_all_files() -> None:
    files = log().snapshot.files()
    assert files.num_rows
    assert files.column("partition_values").to_pylist()


def check_for_conflicts() -> None:
    from airflow_delta.log import AddFile
    from airflow_delta.log.checkpoint.file_columns import to_add_files
    from airflow_delta.transaction import Operation

    def add(day: str) -> AddFile:
        stats = json.dumps({"numRecords": 1, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}})
        return AddFile(
            path=f"{day}-{log().snapshot.version}", partition_values={"day": day}, size=1, modification_time=1, data_change=True,
            stats=stats,
        )  # fmt: skip

    reading = log().start_transaction()
    removes = [file.remove(0) for file in to_add_files(reading.filter_files(f"day = '{DAY}' AND id > 2"))]
    log().start_transaction().commit([add("2024-01-09")], Operation.write("Append"))
    reading.commit([*removes, add(DAY)], Operation.write("Append"))


def write_a_checkpoint() -> None:
    log().checkpoint()


def delete_a_partition() -> None:
    from airflow_delta.table.operations.rewrite.delete import plan_delete

    plan_delete(stage("delete"), predicate=f"day = '{DAY}'")


if __name__ == "__main__":
    globals()[STEP]()
    print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
