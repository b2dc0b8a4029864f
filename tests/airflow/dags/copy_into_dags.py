"""Dags that load the files of a directory."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.sdk import DAG, task

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

with DAG("copy_into_arrow", schedule=None, start_date=BEGINS):
    DeltaCopyIntoOperator(
        task_id="load",
        table=f"{TABLES}/copy_into_arrow",
        source=SOURCE,
        pattern="*.parquet",
        engine="arrow",
        format="parquet",
    )

with (
    DAG("copy_into_stage", schedule=None, start_date=BEGINS),
    delta_transaction("load", table=f"{TABLES}/copy_into_stage", schema=SCHEMA),
):
    DeltaCopyIntoOperator(
        task_id="files",
        source=f"{SOURCE}/*.parquet",
        engine="arrow",
        format="parquet",
        skip_if_none=True,
        force="{{ dag_run.conf.get('force', False) }}",
    )

with (
    DAG("copy_into_function", schedule=None, start_date=BEGINS),
    delta_transaction("load", table=f"{TABLES}/copy_into_function", schema=SCHEMA),
):

    @task.delta_stage(
        engine="arrow", new_files={f"{SOURCE}/*.csv": {"force": "{{ dag_run.conf.get('force', False) }}", "skip_if_none": True}}
    )
    def files(new_files, transaction):
        import polars as pl

        if touched := os.environ.get("COPY_INTO_TOUCH"):
            with open(touched, "a") as late:
                late.write("9,late\n")
        rows = pl.concat([pl.read_csv(file.open()) for file in new_files], how="diagonal")
        return rows.select("id", "name")

    files()

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
