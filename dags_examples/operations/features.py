"""### Table features: switch row tracking on, drop deletion vectors

Each takes several commits, and continues where an earlier try stopped. Files with deletion vectors are rewritten first.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.drop_feature import DeltaDropFeatureOperator
from airflow_delta.operators.row_tracking import DeltaEnableRowTrackingOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/events"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_features():
    tracked = DeltaEnableRowTrackingOperator(task_id="row_tracking", table=TABLE)
    tracked >> DeltaDropFeatureOperator(task_id="without_vectors", table=TABLE, feature="deletionVectors")


delta_features()
