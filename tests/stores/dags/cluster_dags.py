"""Dags of the cluster tests. Where they run is in the connections ``lake`` and ``cluster``.

``CLUSTER_SUBMIT`` is JSON, parameters of ``spark-submit``: with it, all Spark work is submitted; without, it is done in sessions.
``CLUSTER_PACKAGE`` is the URI of the package for the cluster.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.contract.changes import AddConstraint
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator, DeltaReorgOperator
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator

JOB = str(Path(__file__).with_name("job.py"))
SUBMIT = json.loads(os.environ.get("CLUSTER_SUBMIT", "null"))
TABLE = {"table": "t", "delta_conn_id": "lake"}
SPARK = {"spark_conn_id": "cluster", "retries": 0}
GATE = os.environ.get("CLUSTER_GATE", "")
PACKAGE = {"package_uri": os.environ["CLUSTER_PACKAGE"]} if "CLUSTER_PACKAGE" in os.environ else {}
OPERATION = SPARK if SUBMIT is None else {**SPARK, **PACKAGE, "spark_submit": SUBMIT}
PROPERTIES = {"delta.enableDeletionVectors": "true"}


def staged(what: str, *, read: str | None = None, **options):
    """Return a stage, by an application or in a session, of the same rows: ``job.py`` has its own copy of the queries."""
    if SUBMIT is not None:
        given = {**SPARK, **PACKAGE, **SUBMIT, **options}
        return DeltaStageSparkSubmitOperator(
            task_id=what, application=JOB, application_args=[what], read=read or False, **given
        ).output

    @task.delta_stage(task_id=what, **SPARK, **options)
    def rows(spark, table):
        if what == "rows":
            return spark.sql("SELECT id, id * 10 AS v, id % 4 AS part FROM range(40)")
        return table(read).selectExpr("id", "v + 1 AS v", "part")

    return rows()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def every_operation():
    with delta_transaction("load", **TABLE, partition_by=["part"], properties=PROPERTIES) as load:
        staged("rows")
    with delta_transaction("again", **TABLE) as again:
        staged("changed", read="part = 1", mode="overwrite", replace_where="part = 1")
        DeltaAuditOperator(task_id="audit", checks={"read": "SELECT count(*) = 10 FROM staged WHERE v % 10 = 1"}, **OPERATION)
    load >> again
    last = again
    for operation in (
        DeltaDeleteOperator(task_id="delete", predicate="id < 4", **TABLE, **OPERATION),
        DeltaUpdateOperator(task_id="update", predicate="id = 10", set={"v": "v + 1000"}, **TABLE, **OPERATION),
        DeltaMergeOperator(
            task_id="merge",
            source="SELECT * FROM VALUES (11L, 5L, 3L), (100L, 7L, 0L) AS t(id, v, part)",
            condition="target.id = source.id",
            clauses=[
                {"kind": "matched", "action": "update", "set": {"v": "source.v"}},
                {"kind": "notMatched", "action": "insert", "set": None},
            ],
            **TABLE,
            **OPERATION,
        ),
        DeltaAlterTableOperator(task_id="constraint", changes=[AddConstraint("positive", "v >= 0")], **TABLE, **OPERATION),
        DeltaReorgOperator(task_id="purge", **TABLE, **OPERATION),
        DeltaOptimizeOperator(task_id="optimize", z_order_by=["id"], **TABLE, **OPERATION),
        DeltaVacuumOperator(task_id="vacuum", **TABLE, retries=0),
    ):
        last >> operation
        last = operation


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def stage_and_merge():
    """What reads, writes and joins, for clusters that differ from the worker."""
    with delta_transaction("load", **TABLE, partition_by=["part"], properties=PROPERTIES) as load:
        staged("rows")
    with delta_transaction("again", **TABLE) as again:
        staged("changed", read="part = 1", mode="overwrite", replace_where="part = 1")
    delete = DeltaDeleteOperator(task_id="delete", predicate="id < 4", **TABLE, **OPERATION)
    load >> again >> delete


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def one_stage():
    """A stage whose application waits until the file ``CLUSTER_GATE`` exists, so that something can happen meanwhile."""
    with delta_transaction("load", **TABLE):
        DeltaStageSparkSubmitOperator(
            task_id="rows",
            application=JOB,
            application_args=["gated", GATE],
            **{**SPARK, **(SUBMIT or {}), "retries": int(os.environ.get("CLUSTER_RETRIES", "0"))},
        )


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def python_code():
    """A stage whose rows are computed by a function in Python."""
    with delta_transaction("load", **TABLE):

        @task.delta_stage(**SPARK)
        def rows(spark):
            from pyspark.sql.functions import udf

            return spark.range(40).select("id", udf(lambda number: number * 10, "long")("id").alias("v"))

        rows()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def one_operation():
    """A DELETE whose application waits for the same file."""
    submit = {**(SUBMIT or {}), "application_args": ["operation", GATE]}
    DeltaDeleteOperator(task_id="delete", predicate="id < 4", application=JOB, spark_submit=submit, **TABLE, **SPARK)


every_operation()
stage_and_merge()
one_stage()
python_code()
one_operation()
