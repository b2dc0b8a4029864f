"""A publication of two tables, whose second one is changed by another writer between the decision and its turn."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, get_current_context, task

from airflow_delta import delta_publication, delta_transaction
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
