"""What Airflow makes of a Dag file."""

from __future__ import annotations

from pathlib import Path

HEAD = """
from datetime import datetime
from airflow.sdk import DAG, task
from airflow_delta import delta_transaction
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from airflow_delta.contract.merge import when_matched_update

with DAG("checked", schedule=None, start_date=datetime(2026, 1, 1)):
"""


def bag_of(folder: Path, body: str):
    """Return what Airflow makes of a Dag file."""
    from airflow.dag_processing.dagbag import DagBag

    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    path = folder / "checked.py"
    path.write_text(f"{HEAD}{lines}\n")
    return DagBag(dag_folder=str(path))
