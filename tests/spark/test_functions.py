"""The functions that expressions may call beside Spark's own registry, and what a driver must not be made to do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.merge import when_matched_update
from airflow_delta.exceptions import DeltaError
from airflow_delta.log.expressions.functions import DETERMINISTIC, NOT_DETERMINISTIC, OF_THE_SESSION, OTHERS, UNSAFE
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import PrimitiveType, StructField, StructType
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from support.actions import column
from support.feature_tables import create
from support.table import Table

pytestmark = pytest.mark.spark

SYNTAX = {"timestampadd", "timestampdiff", "timediff", "try_cast", "identifier"}
"""What Spark's grammar calls like a function, and the registry does not have."""

SINCE_4_3 = {
    "collect_union", "counter_diff", "from_base32", "hmac", "jaro_winkler_similarity", "localtime", "timestamp_nanos",
    "to_base32", "try_variant_array_append", "try_variant_insert", "try_variant_set", "unix_nanos", "variant_array_append",
    "variant_delete", "variant_insert", "variant_set", "variant_strip_nulls",
}  # fmt: skip


def test_every_function_of_spark_is_known(spark: Any) -> None:
    """A function of a new Spark must be looked at before an expression may call it."""
    registered = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    named = {name for name in registered if re.fullmatch(r"[a-z_][a-z0-9_]*", name)}
    known = DETERMINISTIC | UNSAFE | OTHERS | NOT_DETERMINISTIC | OF_THE_SESSION
    assert named - known == set()
    if spark.version >= "4.2":  # an older Spark refuses by itself what it lacks
        assert known - named - SYNTAX == (SINCE_4_3 if spark.version < "4.3" else set())
    dangerous = {"reflect", "java_method", "input_file_name", "rand", "uuid", "shuffle"}
    newer = {"try_reflect", "from_protobuf"}
    assert dangerous | (newer if spark.version >= "4" else set()) <= registered
    assert not (dangerous | newer) & DETERMINISTIC


def test_no_expression_sets_a_property_of_the_driver(spark: Any, tmp_path: Path) -> None:
    table = Table(tmp_path / "table", spark)
    create(table, column("id", "long"), column("s", "string"))
    table.write("SELECT id, 'a' s FROM range(2)")
    call = "reflect('java.lang.System', 'setProperty', 'airflow.delta.test', 'set')"
    source = spark.range(2)
    attempts: list[tuple[Any, dict[str, Any]]] = [
        (plan_delete, {"predicate": f"s = {call}"}),
        (plan_update, {"set": {"s": call}}),
        (plan_update, {"set": {"s": "upper(s)"}, "predicate": f"s = {call}"}),
        (plan_merge, {"condition": f"target.id = source.id AND target.s <> {call}", "clauses": [when_matched_update()]}),
        (plan_merge, {"condition": "target.id = source.id", "clauses": [when_matched_update({"s": call})]}),
        (plan_merge, {"condition": "target.id = source.id", "clauses": [when_matched_update(None, f"target.s <> {call}")]}),
    ]
    for plan, arguments in attempts:
        with pytest.raises(DeltaError, match=r"calls reflect\(\)"):
            table.operate(table.begin(), plan, source=source if plan is plan_merge else None, **arguments)
    for options in ({"replace_where": f"s = {call}"}, {"replace_on": f"t.s = {call}"}):
        with pytest.raises(DeltaError, match=r"calls reflect\(\)"):
            table.stage(table.begin(), "SELECT 1L id, 'a' s", mode="overwrite", **options)
    with pytest.raises(DeltaError, match=r"calls reflect\(\)"):
        Table(tmp_path / "new", spark).write("SELECT 1L id, 'a' s", mode="overwrite", replace_where=f"s = {call}")
    assert spark.sparkContext._jvm.java.lang.System.getProperty("airflow.delta.test") is None


def test_a_text_that_looks_like_a_variable_is_a_text(spark: Any) -> None:
    schema = StructType((StructField("s", PrimitiveType("string")),))
    rows = spark.createDataFrame([("${env:HOME}",), (os.environ["HOME"],)], "s string")
    for text in ("s = '${env:HOME}'", r"lower(s) = lower('$\{env:HOME}')"):
        assert [row.s for row in rows.where(Predicate.parse(text, schema).text).collect()] == ["${env:HOME}"]
