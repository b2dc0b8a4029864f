"""Values of columns that the data lack: defaults and identity columns. Generated columns need Spark."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.table_rules import refused_rows
from airflow_delta.exceptions import DeltaUnsupportedOperationException, IdentityInsertException, PredicateException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.arrow.arrays import array
from airflow_delta.log.expressions import ast, sql_text
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import StructType, arrow_type, as_nullable

if TYPE_CHECKING:
    from airflow_delta.contract.table_rules import IdentityRule

_NOW = lazy_pattern(r"(?:current_timestamp|now)\s*\(\s*\)|current_timestamp", re.IGNORECASE)


def default_value(name: str, expression: str, schema: StructType, request: StageRequest) -> pa.Scalar:
    """Return the default value of a column.

    :raises DeltaUnsupportedOperationException: if it is not a literal of the column's type, or the present time.
    """
    field = schema.find(name)
    if field is None:
        raise _refusal(name, expression, request)
    out = arrow_type(as_nullable(field.data_type))
    text = expression.strip()
    if text.lower() == "null":
        return pa.nulls(1, out)[0]
    if field.data_type.name == "timestamp" and _NOW.fullmatch(text):
        return array([dt.datetime.now(dt.UTC)], out)[0]
    try:
        return array([_literal(field.name, text, schema)], out)[0]
    except (PredicateException, TypeError, ValueError, OverflowError) as error:
        raise _refusal(name, expression, request) from error


def _literal(name: str, text: str, schema: StructType) -> Any:
    """Return the value of a literal as a value of a column: what the column would be compared with."""
    expression = Predicate.parse(f"{sql_text.quote_name(name)} <=> ({text})", schema).expression
    if not isinstance(expression, ast.Compare) or expression.operator != "<=>" or expression.column.path != (name,):
        raise ValueError(f"{text} is not a literal")
    if expression.column.data_type.name == "timestamp":
        raise ValueError("its time zone is that of a Spark session")
    return expression.literal.value


def _refusal(name: str, expression: str, request: StageRequest) -> DeltaUnsupportedOperationException:
    return request.error(
        DeltaUnsupportedOperationException,
        f"Column {name} of table {request.table} version {request.read_version} has the default {expression}, which only Spark "
        f'computes. Add the column to the rows, or use engine="spark".',
    )


class Counter:
    """Values of an identity column: whole steps from the first, without gaps."""

    def __init__(self, rule: IdentityRule, request: StageRequest) -> None:
        self._rule = rule
        self._request = request
        self._next = rule.first

    def take(self, rows: int) -> pa.Array:
        """Return the next values.

        :raises IdentityInsertException: if they exceed 64 bits.
        """
        values = [self._next + position * self._rule.step for position in range(rows)]
        self._next += rows * self._rule.step
        try:
            return array(values, pa.int64())
        except OverflowError as error:
            raise self._request.error(
                IdentityInsertException,
                f"The identity column {self._rule.column} has run out of 64-bit values"
                f"{refused_rows(self._request.table, self._request.read_version)}",
            ) from error
