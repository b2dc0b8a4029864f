"""Columns whose values the table computes: defaults, identity columns, generated columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import fields_by_name
from airflow_delta.contract.table_rules import IdentityRule, TableRules
from airflow_delta.exceptions import IdentityInsertException
from airflow_delta.spark.row_errors import RowChecks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
from airflow_delta.spark.align import spark_name, spark_type, spark_value

_BLOCK = 13  # bits: rows of one task that get consecutive values

_TASKS = 16  # bits: tasks of one write

_ROW = 33  # bits that monotonically_increasing_id() keeps for the position in a task

_MIN_LONG, _MAX_LONG = -(2**63), 2**63 - 1

_UNIQUE = "__airflow_delta_unique"


def default_values(target: Json, rules: TableRules) -> dict[str, Column]:
    """Return values for columns that the data lack, by name in lower case."""
    found, there = {}, fields_by_name(target)
    for name, expression in rules.defaults.items():
        field = there.get(name.lower())
        if field is not None:
            found[name.lower()] = spark_value(expression).cast(spark_type(field["type"]))
    return found


def with_identities(df: DataFrame, identities: Collection[IdentityRule], checks: RowChecks) -> DataFrame:
    """Return the rows with values of identity columns: unique, and whole steps from the first."""
    if not identities:
        return df
    # In its own column: the function counts its own calls.
    numbered = df.select("*", sf.monotonically_increasing_id().alias(_UNIQUE))
    return numbered.select("*", *(_counted(identity, checks).alias(identity.column) for identity in identities)).drop(_UNIQUE)


def with_generated(df: DataFrame, target: Json, rules: TableRules, absent: Collection[str]) -> DataFrame:
    """Return the rows with generated columns, and the columns in the order of ``target``.

    :param absent: columns that the data lack, in lower case.
    """
    if not absent:
        return df
    expressions = {name.lower(): text for name, text in rules.generated.items()}
    columns = []
    for field in target["fields"]:
        folded = field["name"].lower()
        if folded in absent and folded in expressions:
            columns.append(spark_value(expressions[folded]).cast(spark_type(field["type"])).alias(field["name"]))
        else:
            columns.append(sf.col(spark_name(field["name"])))
    return df.select(*columns)


def _counted(identity: IdentityRule, checks: RowChecks) -> Column:
    """Return the value of a row: tasks count independently, in interleaved blocks.

    Values are dense up to the size of a block for each task, with gaps after that and between tasks.
    """
    unique = sf.col(_UNIQUE)
    row = unique.bitwiseAND(sf.lit((1 << _ROW) - 1))
    task = sf.shiftright(unique, _ROW)
    block = sf.shiftleft(sf.shiftright(row, _BLOCK), _TASKS) + task
    index = sf.shiftleft(block, _BLOCK) + row.bitwiseAND(sf.lit((1 << _BLOCK) - 1))
    left = _MAX_LONG - identity.first if identity.step > 0 else identity.first - _MIN_LONG
    room = min(left // abs(identity.step), _MAX_LONG)
    spent = checks.violated(
        IdentityInsertException,
        f"The identity column {identity.column} has run out of 64-bit values, or more than {1 << _TASKS} Spark tasks write it. "
        "Write with fewer partitions",
    )
    if room < 0:  # the first value itself exceeds 64 bits
        return spent.cast("long")
    fits = (task < sf.lit(1 << _TASKS)) & (index <= sf.lit(room))
    value = sf.lit(identity.first) + index * sf.lit(identity.step)
    return sf.when(fits, value).otherwise(spent).cast("long")
