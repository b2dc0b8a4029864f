"""### Change data feed: keep what was deleted

The table records its changes; each run appends the rows that were deleted since the last version to an archive of their own.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
TABLE, ARCHIVE = f"{ROOT}/recorded", f"{ROOT}/recorded_archive"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_changes():
    with delta_transaction("write", table=TABLE, properties={"delta.enableChangeDataFeed": "true"}) as written:

        @task.delta_stage(mode="overwrite")
        def rows(spark, dag_run=None):
            first = dag_run.logical_date.day
            return spark.range(first, first + 5)

        rows()

    with delta_transaction("archive", table=ARCHIVE) as archive:

        @task.delta_stage(mode="append")
        def deleted(spark, result):
            from airflow_delta.hooks.delta import DeltaHook
            from airflow_delta.spark.changes import read_change_plan
            from airflow_delta.table import plan_changes

            plan = plan_changes(DeltaHook().get_log(TABLE), starting_version=result["version"])
            return (
                read_change_plan(spark, plan)
                .where("_change_type = 'delete'")
                .select("id", "_commit_version", "_commit_timestamp")
            )

        deleted(written.result)

    written.result >> archive


delta_changes()
