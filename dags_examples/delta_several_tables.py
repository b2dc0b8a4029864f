"""### Several tables, one publication

Orders, their lines and the totals of a month become visible together or not at all: an audit over all three holds them back until
the sums agree, and whatever dies between the first table and the last one, the next try goes on where it stopped. `wrong_by` puts
an amount into the totals that no line has; the audit then refuses all three tables.

A reader of one table sees each table change as a whole. Who reads several asks `DeltaHook.get_versions` for versions that belong
together, as the last task does.

Prerequisites: Java, for the audit.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Param, dag, task

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.operators.publication import DeltaAuditPublicationOperator

LAKE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/month_end"
TABLES = [f"{LAKE}/{name}" for name in ("orders", "lines", "totals")]
SCHEMAS = {
    "orders": {"order_id": "long", "customer": "string"},
    "lines": {"order_id": "long", "amount": "long"},
    "totals": {"customer": "string", "amount": "long"},
}


def schema(name):
    fields = [{"name": column, "type": kind, "nullable": True, "metadata": {}} for column, kind in SCHEMAS[name].items()]
    return {"type": "struct", "fields": fields}


@dag(
    schedule="@monthly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
    params={"wrong_by": Param(0, type="integer", description="What the totals are wrong by.")},
    default_args={"retries": 1},
)
def delta_several_tables():
    with delta_publication("month_end") as month_end:
        with delta_transaction("orders", table=TABLES[0], schema=schema("orders")):

            @task.delta_stage(engine="arrow")
            def load_orders():
                import pyarrow as pa

                return pa.table({"order_id": [1, 2, 3], "customer": ["ada", "bob", "ada"]})

            load_orders()

        with delta_transaction("lines", table=TABLES[1], schema=schema("lines")):

            @task.delta_stage(engine="arrow")
            def load_lines():
                import pyarrow as pa

                return pa.table({"order_id": [1, 1, 2, 3], "amount": [10, 20, 5, 7]})

            load_lines()

        with delta_transaction("totals", table=TABLES[2], schema=schema("totals")):

            @task.delta_stage(engine="arrow", mode="overwrite")
            def load_totals(params):
                import pyarrow as pa

                return pa.table({"customer": ["ada", "bob"], "amount": [37 + params["wrong_by"], 5]})

            load_totals()

        DeltaAuditPublicationOperator(
            task_id="sums",
            checks={
                "totals are the sum of the lines": """
                    SELECT (SELECT sum(amount) FROM totals) = (SELECT sum(amount) FROM lines_staged) AS passed
                """,
                "every line has its order": """
                    SELECT count(*) = 0 FROM lines LEFT ANTI JOIN orders ON lines.order_id = orders.order_id
                """,
            },
        )

    @task
    def report():
        from airflow_delta.hooks.delta import DeltaHook

        hook = DeltaHook()
        versions = hook.get_versions(TABLES)
        rows = {table: hook.get_df(table, version=version).num_rows for table, version in versions.items()}
        for table, version in versions.items():
            print(f"{table}: version {version}, {rows[table]} rows")
        return versions

    month_end >> report()


delta_several_tables()
