"""Tasks that need no Spark: Parquet files become a table, get statistics, and are cloned."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.convert import DeltaConvertOperator
from airflow_delta.operators.statistics import DeltaComputeStatisticsOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, params={"p": "x"})
def convert_and_clone():
    table = f"{ROOT}/converted"
    convert = DeltaConvertOperator(
        task_id="convert", table=table, partition_schema={"p": "{{ 'STRING' }}"}, collect_stats=False, properties={"a": "b"}
    )
    statistics = DeltaComputeStatisticsOperator(task_id="statistics", table=table, predicate="p = '{{ params.p }}'")
    clone = DeltaCloneOperator(
        task_id="clone", table=f"{ROOT}/cloned", source=table, version="{{ 0 }}", properties={"a": "c"}, user_metadata="of a test"
    )
    convert >> statistics >> clone


convert_and_clone()
