"""Dags whose stages need neither Spark nor Java."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaAutoCompactOperator, DeltaOptimizeOperator, DeltaReorgOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def arrow_stages():
    """Two stages of one transaction: an Arrow table, and a pandas frame for each part."""
    with delta_transaction("txn", table=f"{ROOT}/arrow_stages", partition_by=["part"]):

        @task.delta_stage(engine="arrow")
        def typed():
            import pyarrow as pa

            return pa.table({"id": pa.array([1, 2]), "part": pa.array(["a", "b"])})

        @task.delta_stage(engine="arrow", write_options={"compression": "zstd"})
        def parts(part: str):
            import pandas as pd

            return pd.DataFrame({"id": [10], "part": [part]})

        typed()
        parts.expand(part=["c", "d"])


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def arrow_reads():
    """A stage that replaces a partition by what it has read of it."""
    with delta_transaction("txn", table=f"{ROOT}/arrow_stages", create=False):

        @task.delta_stage(engine="arrow", mode="overwrite", replace_where="part = '{{ params.part }}'", params={"part": "a"})
        def doubled(table, transaction):
            import pyarrow.compute as pc

            rows = table.read("part = 'a'", columns=["id", "part"])
            assert (transaction.read_version, rows.num_rows, table.exists) == (0, 1, True)
            return rows.set_column(0, "id", pc.multiply(rows.column("id"), 2))

        doubled()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def arrow_changes():
    """Rows are merged, change and go, in a transaction and alone, and what is left is compacted."""
    table = f"{ROOT}/arrow_changes"
    with delta_transaction("txn", table=table) as txn:

        @task.delta_stage(engine="arrow")
        def rows(numbers: list[int]):
            import pyarrow as pa

            return pa.table({"id": pa.array(numbers), "part": pa.array(["a"] * len(numbers))})

        written = rows.expand(numbers=[[1, 2, 3], [4, 5], [6]])
        DeltaDeleteOperator(
            task_id="gone", predicate="id = :id AND part = 'a'", parameters={"id": 2}, after=[written], engine="arrow"
        )
    alone = DeltaDeleteOperator(task_id="alone", table=table, predicate="id IN (4, 6)", engine="arrow")
    changed = DeltaUpdateOperator(
        task_id="changed",
        table=table,
        set={"part": "concat(part, :more)"},
        parameters={"more": "!"},
        predicate="id > 3",
        engine="arrow",
    )

    @task.delta_merge(table=table, condition="target.id = source.id", engine="arrow")
    def merged(table, transaction):
        import pandas as pd

        assert (transaction.read_version, table.read("id = 3").num_rows) == (3, 1)
        return pd.DataFrame({"id": [3, 7], "part": ["b", "c"]})

    compact = DeltaOptimizeOperator(task_id="compact", table=table, engine="arrow")
    purge = DeltaReorgOperator(task_id="purge", table=table, engine="arrow")
    due = DeltaAutoCompactOperator(task_id="due", table=table, min_files=2, engine="arrow")
    txn >> alone >> changed >> due >> merged() >> compact >> purge


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def arrow_sources():
    """Rows of another table are merged, and every version of them is kept."""
    source = f"SELECT id, upper(part) AS part FROM delta.`{ROOT}/arrow_changes` WHERE id < 7"
    created = [
        DeltaCreateTableOperator(task_id="table", table=f"{ROOT}/arrow_sources", schema="id BIGINT, part STRING"),
        DeltaCreateTableOperator(
            task_id="versions",
            table=f"{ROOT}/arrow_versions",
            schema="id BIGINT, part STRING, valid_from DATE, valid_to DATE, is_current BOOLEAN",
        ),
    ]
    merged = DeltaMergeOperator(
        task_id="merged", table=f"{ROOT}/arrow_sources", source=source, condition="target.id = source.id", engine="arrow"
    )

    def changed(table):
        return table.read(columns=["id", "part"]).slice(0, 0) if table.exists else None

    history = [
        DeltaScd2MergeOperator(
            task_id=f"history_{number}",
            table=f"{ROOT}/arrow_versions",
            source=f"SELECT id, concat(part, '{number}') AS part FROM delta.`{ROOT}/arrow_sources`" if number < 3 else changed,
            keys="id",
            effective_at=f"DATE'2026-01-0{number}'",
            engine="arrow",
        )
        for number in (1, 2, 3)
    ]
    created >> merged >> history[0] >> history[1] >> history[2]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def arrow_wrong():
    """A stage whose rows do not fit is not tried again."""
    with delta_transaction("txn", table=f"{ROOT}/arrow_stages", create=False):

        @task.delta_stage(engine="arrow", retries=2)
        def wrong():
            import pyarrow as pa

            return pa.table({"id": pa.array(["x"]), "part": pa.array(["a"])})

        wrong()


arrow_stages()
arrow_reads()
arrow_changes()
arrow_sources()
arrow_wrong()
