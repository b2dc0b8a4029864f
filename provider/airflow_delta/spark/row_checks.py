"""Row checks of a write: ``replaceWhere``, CHECK constraints, generated columns, lengths of strings.

They are projections, not filters: the optimiser moves filters below joins, to rows that are never written.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.contract.char_lengths import length_problems
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import fields_by_name
from airflow_delta.contract.table_rules import broken_rule
from airflow_delta.contract.target import partition_fields
from airflow_delta.spark.row_errors import RowChecks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
from airflow_delta.spark.align import not_null, spark_name, spark_value

_VALUE_LENGTH = 2000


def checked(df: DataFrame, request: StageRequest, target: Json, computed: Collection[str], checks: RowChecks) -> DataFrame:
    """Return the rows; a row that violates a rule of the table or request raises.

    :param df: all columns of ``target`` in order.
    :param computed: columns computed by this write, in lower case.
    """
    violations = [
        *_outside_predicate(request, target, checks),
        *_constraints(request, target, checks),
        *_wrong_generated(request, target, computed, checks),
        *_too_long(target, checks),
    ]
    if violations:
        df = _empty_as_null(df, request, target)
    columns = []
    for field in target["fields"]:
        column = sf.col(spark_name(field["name"]))
        if field["name"].lower() in computed:
            column = not_null(column, field, field["name"], checks)
        columns.append(column)
    if violations:
        # The first column carries the checks of the row: every written column is evaluated.
        raising = sf.when(violations[0][0], violations[0][1])
        for wrong, error in violations[1:]:
            raising = raising.when(wrong, error)
        columns[0] = raising.otherwise(columns[0])
    if not violations and not any(f["name"].lower() in computed and not f.get("nullable", True) for f in target["fields"]):
        return df
    return df.select(*(column.alias(field["name"]) for column, field in zip(columns, target["fields"], strict=True)))


def _empty_as_null(df: DataFrame, request: StageRequest, target: Json) -> DataFrame:
    """Return the rows with the partition values that the log will have: an empty string is null (Delta's ``Empty2Null``)."""
    names = [field["name"] for field in partition_fields(target, request) if field["type"] in ("string", "binary")]
    if not names:  # Spark Connect takes no empty set of columns
        return df
    return df.withColumns({name: sf.when(sf.length(sf.col(spark_name(name))) > 0, sf.col(spark_name(name))) for name in names})


def _outside_predicate(request: StageRequest, target: Json, checks: RowChecks) -> list[tuple[Column, Column]]:
    if request.replace_where is None:
        return []

    expression = request.predicate or request.replace_where
    violated = checks.violated(*broken_rule("replace_where", request.replace_where), _values(expression, target))
    return [(_is_not_true(spark_value(expression)), violated)]


def _constraints(request: StageRequest, target: Json, checks: RowChecks) -> list[tuple[Column, Column]]:

    return [
        (
            _is_not_true(spark_value(expression)),
            checks.violated(*broken_rule("check", name, expression), _values(expression, target)),
        )
        for name, expression in request.rules.checks.items()
    ]


def _wrong_generated(
    request: StageRequest, target: Json, computed: Collection[str], checks: RowChecks
) -> list[tuple[Column, Column]]:
    found, there = [], fields_by_name(target)
    for name, expression in request.rules.generated.items():
        if name.lower() in computed or name.lower() not in there:
            continue
        violated = checks.violated(*broken_rule("generated", name, expression), _values(f"{name} {expression}", target))
        found.append((~sf.col(spark_name(name)).eqNullSafe(spark_value(expression)), violated))
    return found


def _too_long(target: Json, checks: RowChecks) -> list[tuple[Column, Column]]:
    found = []
    for field in target["fields"]:
        for path, wrong, limit in length_problems(field):
            violated = checks.violated(*broken_rule("length", path, limit))
            found.append((sf.coalesce(sf.expr(wrong), sf.lit(False)), violated))
    return found


def _is_not_true(expression: Column) -> Column:
    """Return whether a row violates a rule; a null does, as in Delta."""
    return ~sf.coalesce(expression, sf.lit(False))


def _values(expression: str, target: Json) -> Column:
    """Return the values of the columns of an expression, as JSON."""
    words = {word.lower() for word in re.findall(r"`[^`]+`|\w+", expression)}
    named = [f["name"] for f in target["fields"] if f["name"].lower() in words or spark_name(f["name"]).lower() in words]
    columns = [sf.col(spark_name(name)) for name in named or [f["name"] for f in target["fields"]]]
    return sf.substring(sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"}), 1, _VALUE_LENGTH)
