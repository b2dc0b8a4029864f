"""### Many mapped stages, one commit

Every store's sales are staged by a task instance of their own, side by side; all of them become visible in one version, and none
does when one fails. The commit knows how many instances there are, and refuses to publish a part of them.

Prerequisites: Java.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/sales"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_mapped_fan_in():
    @task
    def stores() -> list[dict]:
        return [{"store": "north", "rows": 10}, {"store": "south", "rows": 20}, {"store": "west", "rows": 30}]

    with delta_transaction("sales", table=TABLE, partition_by=["store"]):

        @task.delta_stage(mode="append", map_index_template="{{ task.op_kwargs['store'] }}")
        def sales(spark, store, rows):
            amount = "CAST(id * 1.5 AS DECIMAL(10, 2)) AS amount"
            return spark.range(rows).selectExpr("id AS receipt", amount, f"'{store}' AS store")

        sales.expand_kwargs(stores())


delta_mapped_fan_in()
