"""### Writes: rows replaced by key, files of a size

The rows of a day's corrections replace the rows with the same keys (REPLACE USING), in files that Spark sizes; afterwards the
table is written again in fewer files, which no reader of its changes sees as a change.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/prices"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_write():
    with delta_transaction("correct", table=TABLE) as corrected:

        @task.delta_stage(mode="overwrite", replace_using=["id"], optimize_write=True)
        def corrections(spark):
            return spark.range(10).selectExpr("id", "CAST(rand() * 100 AS INT) AS price")

        corrections()

    with delta_transaction("rewrite", table=TABLE, create=False) as rewritten:

        @task.delta_stage(mode="overwrite", data_change=False, write_options={"maxRecordsPerFile": 1_000_000})
        def same_rows(table):
            return table().coalesce(1)

        same_rows()

    corrected >> rewritten


delta_write()
