"""New rows of another table in a publication: refused before they are read, whatever reads them."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner
from deltalake import write_deltalake

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from support.running_tasks import context


def test_a_stage_of_a_publication_reads_no_new_rows(tmp_path, outside_of_the_task_runner):
    def rows(table):
        return table.new_rows(str(tmp_path / "events"), consumer="loader")

    write_deltalake(str(tmp_path / "events"), pa.table({"id": pa.array([1], pa.int64())}))
    write_deltalake(str(tmp_path / "facts"), pa.table({"id": pa.array([7], pa.int64())}))
    dag = DAG("a_dag", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
    with dag, delta_publication("both"):
        with delta_transaction("facts", table=str(tmp_path / "facts")):
            DeltaStageArrowOperator(task_id="stage", python_callable=rows)
        with delta_transaction("others", table=str(tmp_path / "others")):
            DeltaStageArrowOperator(task_id="stage", python_callable=rows)
    prefix = next(name for name in dag.task_dict if name.endswith("facts.stage")).removesuffix("stage")
    for name in ("start", "stage"):
        operator = dag.task_dict[f"{prefix}{name}"].prepare_for_execution()
        running = context(operator)
        for field in operator.template_fields:
            setattr(operator, field, operator.render_template(getattr(operator, field), running))
        if name == "start":
            handle = operator.execute(running)
            task_runner.SUPERVISOR_COMMS.xcoms["a_run", operator.task_id, -1, "return_value"] = handle
    with pytest.raises(DeltaUnsupportedOperationException, match="is part of the publication 'both'"):
        operator.execute(running)
    assert not list((tmp_path / "facts").rglob("new-rows-*.json"))
