"""A stage without Spark: the task writes its rows as Parquet under the staging path, then stages that directory.

Each row tells who wrote it, so that a reader of the table can say which run, task and try it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_delta.contract.staging_directory import new_attempt, stage_key
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.tasks.trust.received import parse_handle
from live.names import ROWS


class RowsStageOperator(DeltaStageFilesOperator):
    """Stage :data:`ROWS` rows of a month.

    :param month: partition that the rows go into. (templated)
    """

    template_fields: Sequence[str] = (*DeltaStageFilesOperator.template_fields, "month")

    def __init__(self, *, month: str = "2013-01", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.month = month

    def execute(self, context: Any) -> Any:
        handle = parse_handle(self.transaction, task_id=self.task_id)
        if handle.committed is None:
            ti = context["ti"]
            map_index = -1 if ti.map_index is None else ti.map_index
            self.path = f"{stage_key(ti.task_id, map_index)}/{new_attempt(ti.try_number)}"
            _write_rows(
                f"{handle.staging_path}/{self.path}", self.month, run=ti.run_id, map_index=map_index, attempt=ti.try_number
            )
        return super().execute(context)


def _write_rows(directory: str, month: str, *, run: str, map_index: int, attempt: int) -> None:
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    path = f"{directory.removeprefix('file://')}/month={month}"
    os.makedirs(path)
    columns = {"id": pa.array(range(ROWS), pa.int64()), "run": [run] * ROWS, "instance": pa.array([map_index] * ROWS, pa.int32())}
    pq.write_table(pa.table({**columns, "attempt": pa.array([attempt] * ROWS, pa.int32())}), f"{path}/part-0.parquet")
