"""Operations in the worker are small processes: they import neither pandas nor what brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.actions import column
from support.feature_tables import create
from support.table import WorkerTable

PROGRAM = """
import sys
from airflow_delta.contract.scd2 import HistoryArguments
from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from airflow_delta.log import DeltaLog
from airflow_delta.log.arrow.arrays import array
from airflow_delta.table.arrow.query_rows import named_rows
from airflow_delta.table.arrow.rewrite.run import run_in_worker
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.merge.scd2 import history_columns, plan_history
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.start.begin import begin
import pyarrow as pa

path, work = sys.argv[1:]
source = pa.table([array([1, 9], pa.int64()), array(["m", "n"], pa.string())], names=["id", "name"])
clauses = [
    when_matched_delete("source.id + 1 = 7"),
    when_matched_update({"name": "concat(upper(source.name), '!')"}),
    when_not_matched_insert(),
]
plans = {
    "delete": lambda stage: plan_delete(stage, predicate="id % 2 = 0"),
    "update": lambda stage: plan_update(stage, set={"name": "concat(name, '?')"}, predicate="length(name) = 1"),
    "merge": lambda stage: plan_merge(stage, condition="target.id = source.id", clauses=clauses),
    "optimize": plan_optimize,
    "zorder": lambda stage: plan_optimize(stage, z_order_by=["name", "id"], max_file_size=1000),
}
plans["files"] = plans["other"] = plans["merge"]
plans["history"] = lambda stage: plan_history(
    stage,
    HistoryArguments(columns=history_columns(stage, keys=["id"]), effective_at="date_add(DATE'2026-01-01', CAST(id AS INT))"),
)
log = DeltaLog.for_table(path)
handle = begin(log, transaction_key=work)
planned = plans[work](open_stage(log, handle, task_id="stage", attempt="1"))
if work in ("files", "other"):
    relation = f"parquet.`{path}-files`" if work == "files" else f"delta.`{path}-other`"
    named = {"sql": f"SELECT id + 7 AS id, upper(name) AS name FROM {relation} WHERE length(name) = 1"}
    source = named_rows(planned.request, named, {}, DeltaLog.for_table)
source = source if work in ("merge", "files", "other", "history") else None
staged = planned.collect(planned.request, run_in_worker(log, planned.request, source))
publish(log, handle, [staged], attempt="1")
print(log.update().version, *sorted({"pandas", "pyarrow.dataset", "pyspark"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("work", ["delete", "update", "merge", "files", "other", "history", "optimize", "zorder"])
def test_nothing_heavy_is_imported(tmp_path: Path, work: str) -> None:
    period = [column(name, "date") for name in ("valid_from", "valid_to")]
    more = [*period, column("is_current", "boolean")] if work == "history" else []
    days = pa.nulls(2, pa.date32())
    table = WorkerTable(tmp_path / "table")
    for each in (table, WorkerTable(tmp_path / "table-other")):
        create(each, column("id", "long"), column("name", "string"), *more, **{"delta.enableChangeDataFeed": "true"})
        for first in (0, 2):
            rows = pa.table({"id": [first, first + 1], "name": ["a", "b"]})
            if more:
                rows = rows.append_column("valid_from", pa.array([0, 1], pa.int32()).cast(pa.date32())).append_column(
                    "valid_to", days
                )
            each.write(rows)
    (tmp_path / "table-files").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "name": ["x", "yy"]}), tmp_path / "table-files/rows.parquet")
    command = [sys.executable, "-c", PROGRAM, table.uri, work]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.split() == ["3"], done.stdout + done.stderr


PLAIN = """
import sys
from airflow_delta.log import DeltaLog
from airflow_delta.table.arrow.rewrite.run import run_in_worker
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.start.begin import begin

log = DeltaLog.for_table(sys.argv[1])
for number, plan in enumerate([
    lambda stage: plan_delete(stage, predicate="id = 1"),
    lambda stage: plan_update(stage, set={"name": "'x'", "id": "id * 2 - 1"}, predicate="id > 1"),
]):
    handle = begin(log, transaction_key=str(number))
    planned = plan(open_stage(log, handle, task_id="stage", attempt="1"))
    publish(log, handle, [planned.collect(planned.request, run_in_worker(log, planned.request))], attempt="1")
print(log.update().version, "sqlglot" in sys.modules)
"""


def test_plain_conditions_and_values_need_no_parser_of_sql(tmp_path: Path) -> None:
    table = WorkerTable(tmp_path / "table")
    create(table, column("id", "long"), column("name", "string"))
    table.write(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
    done = subprocess.run([sys.executable, "-c", PLAIN, table.uri], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.split() == ["3", "False"], done.stdout + done.stderr
    assert table.rows() == [(3, "x"), (5, "x")]
