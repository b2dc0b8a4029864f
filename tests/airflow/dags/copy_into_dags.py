"""Dags that load the files of a directory."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_delta import delta_transaction
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator

TABLES = os.environ["DELTA_EXAMPLES"]
SOURCE = f"{TABLES}/copy_into_source"
BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("id", "long"), ("name", "string"))
    ],
}
CSV = {"format": "csv", "format_options": {"header": True}}

with DAG("copy_into_arrow", schedule=None, start_date=BEGINS):
    DeltaCopyIntoOperator(
        task_id="load", table=f"{TABLES}/copy_into_arrow", source=SOURCE, pattern="*.csv", engine="arrow", **CSV
    )

with (
    DAG("copy_into_stage", schedule=None, start_date=BEGINS),
    delta_transaction("load", table=f"{TABLES}/copy_into_stage", schema=SCHEMA),
):
    DeltaCopyIntoOperator(
        task_id="files",
        source=f"{SOURCE}/*.csv",
        engine="arrow",
        skip_if_none=True,
        force="{{ dag_run.conf.get('force', False) }}",
        **CSV,
    )

with DAG("copy_into_spark", schedule=None, start_date=BEGINS):
    for kind in ("csv", "json", "parquet"):
        DeltaCopyIntoOperator(
            task_id=f"load_{kind}",
            table=f"{TABLES}/copy_into_spark_{kind}",
            source=f"{SOURCE}/{kind}",
            format=kind,
            format_options={"header": True} if kind == "csv" else None,
            merge_schema=True,
        )
