"""### ALTER TABLE: a new column and the rows that have it, in one version

The new column, its constraint and the first rows that fill it are published together: no reader sees the one without the other.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.contract.changes import AddColumns, AddConstraint, Column
from airflow_delta.operators.alter import DeltaAlterTableOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/events"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_alter():
    with delta_transaction("events", table=TABLE, create=False):
        altered = DeltaAlterTableOperator(
            task_id="altered",
            changes=[AddColumns([Column("country", "STRING")]), AddConstraint("id_known", "id IS NOT NULL")],
        )

        @task.delta_stage(after=[altered.output])
        def rows_with_country(spark):
            return spark.sql("SELECT 1000L AS id, DATE'2026-01-01' AS day, 'NZ' AS country")

        rows_with_country()


delta_alter()
