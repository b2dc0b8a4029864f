"""Publications of two tables that another writer changes: between the decision and its turn, or between audit and commit."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, dag, get_current_context, task

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.publication import DeltaAuditPublicationOperator
from airflow_delta.transaction import PostCommitHook

ROOT = os.environ["DELTA_EXAMPLES"]


class AnotherWriter(PostCommitHook):
    """Changes the table ``second``, once, after ``first`` has decided."""

    name = "another writer"

    def run(self, txn, version, actions) -> None:
        from deltalake import DeltaTable

        second = DeltaTable(f"{txn.log.uri.removesuffix('first').removeprefix('file://')}second")
        if txn.log.uri.endswith("/first") and not second.metadata().configuration:
            second.alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def kept_halves():
    commit = {"post_commit_hooks": [AnotherWriter()]}
    with delta_publication("p", anchor="first", on_late_conflict="keep", commit_kwargs=commit):
        for name in ("first", "second"):
            with delta_transaction(name, table=f"{ROOT}/{{{{ dag_run.conf['lake'] }}}}/{name}"):

                @task.delta_stage(engine="arrow")
                def rows():
                    import pyarrow as pa

                    return pa.table({"id": pa.array([int(get_current_context()["dag_run"].conf["id"])], pa.int64())})

                rows()


kept_halves()


def write_elsewhere(_: Any = None, *, dag_run: Any = None) -> None:
    """Another writer, between the audits and the commit."""
    import deltalake
    import pyarrow as pa

    table, others = f"{ROOT}/{dag_run.conf['lake']}/lines", dag_run.conf["others"]
    if others == "DELETE":
        deltalake.DeltaTable(table).delete("id < 108")
    else:
        deltalake.write_deltalake(table, pa.table({"id": pa.array(others, pa.int64())}), mode="append")


def new_rows(dag_run: Any = None) -> Any:
    import pyarrow as pa

    return pa.table({"id": pa.array(range(int(dag_run.conf["rows"])), pa.int64())})


SQL = {"holds_at": "{{ dag_run.conf['holds_at'] }}", "checks": {"sums agree": "{{ dag_run.conf['sql'] }}"}}

for kind in ("statistics", "sql"):
    held = DAG(f"publication_held_by_{kind}", schedule=None, start_date=datetime(2026, 1, 1))
    with held, delta_publication("p"):
        audit = None
        for name in ("orders", "lines"):
            with delta_transaction(name, table=f"{ROOT}/{{{{ dag_run.conf['lake'] }}}}/{name}"):
                staged = task.delta_stage(new_rows, engine="arrow", task_id="stage")()
                if kind == "statistics" and name == "lines":
                    ratio = {"max_ratio": "{{ dag_run.conf['most'] }}"}
                    audit = DeltaAuditOperator(task_id="audit", staged=staged, rows_change=ratio)
        if kind == "sql":
            audit = DeltaAuditPublicationOperator(task_id="totals", **SQL)
        task(write_elsewhere, task_id="others")(audit.output)
