"""Parameters that a run gives another type than their own."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.assets.delta import delta_asset
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.create import DeltaCreateTableOperator

TABLES = os.environ["DELTA_EXAMPLES"]
START = datetime(2026, 1, 1)


@task.delta_stage(engine="arrow")
def rows():
    import pyarrow as pa

    return pa.table({"id": [1, 2]})


@task
def note():
    return {"ticket": 4711}


with (
    DAG("note_of_a_task", schedule=None, start_date=START),
    delta_transaction("txn", table=f"{TABLES}/note_of_a_task", commit_kwargs={"user_metadata": note()}),
):
    rows()

with (
    DAG("note_rendered", schedule=None, start_date=START, render_template_as_native_obj=True),
    delta_transaction("txn", table=f"{TABLES}/note_rendered", commit_kwargs={"user_metadata": '{"ticket": {{ 4711 }}}'}),
):
    rows()

with (
    DAG("note_of_a_publication", schedule=None, start_date=START),
    delta_publication("both", commit_kwargs={"user_metadata": note()}),
):
    for name in ("one", "two"):
        with delta_transaction(name, table=f"{TABLES}/note_of_a_publication_{name}"):
            rows()


@task
def options():
    return {"header": True, "delimiter": ";"}


with DAG("options_of_a_run", schedule=None, start_date=START, params={"options": {"header": True, "delimiter": ";"}}) as dag:
    for way, given in (("task", options()), ("text", "{{ params.options | tojson }}"), ("param", dag.param("options"))):
        DeltaCopyIntoOperator(
            task_id=way,
            table=f"{TABLES}/options_of_a_{way}",
            source=f"{TABLES}/options_of_a_run",
            format="csv",
            format_options=given,
        )


for month in ("1", "10"):
    with (
        DAG(f"kinds_of_a_run_{month}", schedule=None, start_date=START, render_template_as_native_obj=True, params={"new": True}),
        delta_transaction(
            "txn",
            table=Path(TABLES) / "kinds_of_a_run",
            transaction_key="2026.{{ " + month + " }}",
            key_check="fail",
            description="2026",
            outlets=delta_asset(f"{TABLES}/kinds_of_a_run"),
            commit_kwargs={"commit_timeout": timedelta(minutes=5), "max_commit_attempts": "{{ 10 }}"},
        ),
    ):
        rows.override(merge_schema="{{ params.new }}", overwrite_schema="{{ not params.new }}")()

with DAG("schema_of_a_table", schedule=None, start_date=START):
    DeltaCreateTableOperator(
        task_id="made",
        table=f"{TABLES}/schema_of_a_table",
        schema={"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]},
    )
