"""### Publish when somebody approves

The audit fills in what the reviewer reads, and a link leads to the rows and columns that the commit would change. The
commit waits for the answer, hours or days if need be; other transactions commit meanwhile, and the commit checks for
conflicts with all of them. *Reject*, or no answer in time, skips the commit, and the teardown deletes what was staged.
Answer under *Required Actions*, or in the task instance.

Prerequisites: Java; a running Airflow (`dag.test()` has nobody to answer).
"""

import os
import tempfile
from datetime import datetime, timedelta

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/price_list"

QUESTION = """
{{ ti.xcom_pull(task_ids="price_list.write")["numRecords"] }} prices are staged for {{ ds }}.
{% for check in ti.xcom_pull(task_ids="price_list.audit")["checks"] %}
- {{ "ok" if check["passed"] else "**look here**" }}: {{ check["name"] }}: {{ check["message"] }}
{%- endfor %}
"""


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_approval():
    with delta_transaction("price_list", table=TABLE) as txn:

        @task.delta_stage(mode="overwrite")
        def write(spark):
            return spark.range(100).selectExpr("id AS article", "CAST(100 + id AS DECIMAL(10, 2)) AS price")

        audit = DeltaAuditOperator(
            task_id="audit",
            staged=write(),
            min_rows=1,  # too few is final, the rest is for the reviewer to judge
            checks={
                "no price rises by more than half": {
                    "sql": """
                        SELECT count_if(result.price > 1.5 * before.price) = 0, max(result.price / before.price) AS steepest
                        FROM result JOIN before ON result.article = before.article
                    """,
                    "on_failure": "warn",
                },
            },
        )
        audit >> ApprovalOperator(
            task_id="approve",
            subject="Publish the price list of {{ ds }}?",
            body=f"{QUESTION}\n[What would be published]({txn.page})",
            defaults=ApprovalOperator.REJECT,
            response_timeout=timedelta(days=2),
        )


delta_approval()
