"""### Streaming: what has arrived, exactly once

Files land in a directory at any time. Each run takes those that are new in one or more micro-batches; a run that is killed and
tried again commits no batch twice.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
LANDING = f"{ROOT}/landing"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_streaming():
    @task
    def land(dag_run=None):
        import json

        os.makedirs(LANDING, exist_ok=True)
        day = f"{dag_run.logical_date:%Y-%m-%d}"
        with open(f"{LANDING}/{day}.json", "w") as file:
            file.writelines(json.dumps({"id": number, "day": day}) + "\n" for number in range(5))

    @task.delta_stream(table=f"{ROOT}/landed", checkpoint_location=f"{ROOT}/landed_checkpoint", partition_by="day")
    def landed(spark):
        return spark.readStream.schema("id LONG, day DATE").json(LANDING)

    land() >> landed()


delta_streaming()
