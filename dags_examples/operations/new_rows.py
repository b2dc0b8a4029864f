"""### New rows of another table, each exactly once

Rows that are new in `clicks` since the last run are added to the counts in `clicks_by_page`, whose log says how far `clicks` has
been read: a rerun counts nothing twice, and after a run that was left out nothing is missing.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.merge import DeltaMergeOperator, when_matched_update, when_not_matched_insert

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_new_rows():
    DeltaMergeOperator(
        task_id="count",
        table=f"{ROOT}/clicks_by_page",
        source="SELECT page, count(*) AS clicks FROM clicks GROUP BY page",
        condition="target.page = source.page",
        clauses=[
            when_matched_update({"clicks": "target.clicks + source.clicks"}),
            when_not_matched_insert({"page": "source.page", "clicks": "source.clicks"}),
        ],
        new_rows=[f"{ROOT}/clicks"],
    )


delta_new_rows()
