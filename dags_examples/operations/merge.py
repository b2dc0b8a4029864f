"""### MERGE: changes of a day, from SQL and from a function

The first task takes changes as SQL finds them; the second, `@task.delta_merge`, merges a DataFrame. Each is a transaction of its
own.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta.operators.merge import DeltaMergeOperator, when_matched_delete, when_matched_update, when_not_matched_insert

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
TABLE = f"{ROOT}/customers"


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_merge():
    changed = DeltaMergeOperator(
        task_id="changed",
        table=TABLE,
        source=f"SELECT * FROM json.`{ROOT}/source/customers-{{{{ ds }}}}.json`",
        condition="target.id = source.id",
        clauses=[
            when_matched_delete("source.deleted"),
            when_matched_update({"name": "source.name", "changed": "DATE'{{ ds }}'"}),
            when_not_matched_insert(
                {"id": "source.id", "name": "source.name", "changed": "DATE'{{ ds }}'"}, "NOT source.deleted"
            ),
        ],
    )

    @task.delta_merge(table=TABLE, condition="target.id = source.id", clauses=[when_matched_update({"name": "source.name"})])
    def trimmed(table):
        return table("name LIKE ' %'").selectExpr("id", "trim(name) AS name")

    changed >> trimmed()


delta_merge()
