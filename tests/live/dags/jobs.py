"""A job on a service that waits in the triggerer until the scenario lets it go on: a file beside the table.

The driver needs no Spark: it writes by Arrow, and leaves a report as ``delta_stage(spark)`` does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.standard.triggers.file import FileTrigger
from airflow.sdk import BaseOperator, dag

from airflow_delta import delta_job, delta_transaction
from live.names import HOLDING_POOL, ROWS

TABLE = "{{ dag_run.conf['table'] }}"


class ServiceOperator(BaseOperator):
    """Waits for a job; of its first try, ``conf`` may say that the job fails."""

    template_fields = ("arguments", "table")

    def __init__(self, *, arguments: Any, table: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arguments, self.table = arguments, table

    def execute(self, context: Any) -> None:
        self.defer(trigger=FileTrigger(f"{self.table}.go", poke_interval=0.5), method_name="resume")

    def resume(self, context: Any, event: Any = None) -> None:
        ti = context["ti"]
        fails = ti.try_number == 1 and context["dag_run"].conf.get("fails", False)
        drive(self.arguments[1], self.table, run=ti.run_id, attempt=ti.try_number, fails=fails)
        if fails:
            raise RuntimeError("the job ended as FAILED: see the console")


def drive(request_uri: str, table: str, *, run: str, attempt: int, fails: bool) -> None:
    import pyarrow as pa

    from airflow_delta.contract.request import StageReport
    from airflow_delta.contract.sealed import sealed
    from airflow_delta.contract.staging_directory import REPORT_DIRECTORY
    from airflow_delta.hooks.delta import DeltaHook
    from airflow_delta.table.arrow.stage_rows import stage_arrow
    from airflow_delta.table.stage.write.job_runs import read_request

    log = DeltaHook().get_log(table)
    attempt_directory = Path(urlsplit(request_uri).path).parent
    request = read_request(log, attempt_directory.relative_to(table).as_posix())
    about = {"transaction_id": request.transaction_id, "stage": request.stage, "attempt": request.attempt}
    if fails:
        report = StageReport(**about, error_class="SchemaMismatchException", error_message="no column id\nand more")
    else:
        columns = {"id": pa.array(range(ROWS), pa.int64()), "run": [run] * ROWS, "instance": pa.array([-1] * ROWS, pa.int32())}
        report = stage_arrow(log, pa.table({**columns, "attempt": pa.array([attempt] * ROWS, pa.int32())}), request)
    log.store.put(f"{request.directory}/{REPORT_DIRECTORY}/{attempt}/part-00000.txt", sealed(report).encode())


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1),
    is_paused_upon_creation=False,
    default_args={"pool": HOLDING_POOL, "retries": 3, "retry_delay": timedelta(seconds=1)},
)
def job():
    with delta_transaction("txn", table=TABLE), delta_job("load") as load:
        ServiceOperator(task_id="run", retries=0, arguments=load.arguments, table=TABLE)


job()
