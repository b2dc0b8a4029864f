"""What Spark 3.5 lacks: refused there by name, and done by Spark 4. Other tests of this folder hold for both.

A session of this package's own is Spark 4; a job of any service may be Spark 3.5 (``make test-versions CELLS=pyspark-3_5``).
"""

from __future__ import annotations

import re
from typing import Any

import pyspark
import pytest

from airflow_delta.contract.merge import when_matched_update
from airflow_delta.exceptions import SparkVersionException
from airflow_delta.spark.older_spark import IS_OLDER
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_create import plan_create
from support import actions
from support.table import Table

pytestmark = pytest.mark.spark

MERGE = {"condition": "target.id = source.id", "source": "SELECT 1L AS id, 'x' AS p", "clauses": [when_matched_update()]}


def refused(run: Any, said: str, table: Table, version: int) -> None:
    with pytest.raises(SparkVersionException, match=re.escape(f"Spark {pyspark.__version__} {said}")) as caught:
        run()
    assert (caught.value.table, caught.value.version) == (f"file://{table.uri}", version)


def rows(table: Table) -> list[tuple[Any, ...]]:
    """Return the rows as the worker reads them; delta-rs reads no table with widened types."""
    return sorted(tuple(row.values()) for row in read_table(table.log()).to_table().to_pylist())


def test_variants(table: Table) -> None:
    handle = table.begin()
    schema = "id BIGINT, p STRING, v VARIANT, s STRUCT<w: ARRAY<VARIANT>>"
    table.publish(handle, plan_create(table.view(handle), schema=schema))
    if not IS_OLDER:
        table.write("SELECT 1L AS id, 'a' AS p")
        table.run(plan_update, set={"p": "'b'"}, predicate="v IS NULL")
        assert table.read(table.begin()) == [(1, "b", None, None)]
        return
    said = f"has no variants, and table file://{table.uri} has them in the columns v, s. Run this stage on Spark 4."
    refused(lambda: table.write("SELECT 1L AS id, 'a' AS p"), said, table, 0)
    table.commit(actions.add("a.parquet", records=1))  # a file of another engine's
    for plan, arguments in (
        (plan_delete, {"predicate": "id = 1"}),
        (plan_update, {"set": {"p": "'b'"}, "predicate": "id = 1"}),
        (plan_merge, MERGE),
    ):
        refused(lambda plan=plan, arguments=arguments: table.run(plan, **arguments), said, table, 1)
    refused(lambda: table.read(table.begin()), said, table, 1)
    table.write("SELECT 1L AS id", mode="overwrite", overwrite_schema=True)
    assert table.rows() == [(1,)]


def test_columns_that_were_widened(table: Table) -> None:
    """Files of before have the narrower type, which the Parquet reader of Spark 3.5 does not take for the wider one."""
    table.write("SELECT 1 AS id, 'a' AS p", begin={"configuration": {"delta.enableTypeWidening": "true"}})
    table.write("SELECT 3000000000L AS id, 'b' AS p", merge_schema=True)
    steps: list[tuple[Any, dict[str, Any]]] = [
        (plan_update, {"set": {"p": "'c'"}, "predicate": "id = 1"}),
        (plan_merge, MERGE),
        (plan_optimize, {}),
        (plan_delete, {"predicate": "p = 'b'"}),
    ]
    if not IS_OLDER:
        for plan, arguments in steps:
            table.run(plan, **arguments)
        assert table.read(table.begin()) == rows(table) == [(1, "x")]
        return
    wider = f"and columns of table file://{table.uri} did: id from integer to long"
    said = f"cannot read files from before a column got a wider type, {wider}"
    for plan, arguments in steps:
        refused(lambda plan=plan, arguments=arguments: table.run(plan, **arguments), said, table, 1)
    refused(lambda: table.read(table.begin()), said, table, 1)
    table.write("SELECT 4000000000L AS id, 'd' AS p")  # reads nothing
    assert rows(table) == [(1, "a"), (3000000000, "b"), (4000000000, "d")]


def test_columns_that_were_widened_within_what_files_store_alike(table: Table) -> None:
    table.write("SELECT CAST(1 AS TINYINT) AS id", begin={"configuration": {"delta.enableTypeWidening": "true"}})
    table.write("SELECT 70000 AS id", merge_schema=True)
    table.run(plan_update, set={"id": "id + 1"})
    assert table.read(table.begin()) == rows(table) == [(2,), (70001,)]
