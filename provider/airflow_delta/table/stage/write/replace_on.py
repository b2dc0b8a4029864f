"""Rows that an overwrite with ``replace_on`` or ``replace_using`` replaces: those that match a row of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.contract.payloads import Json
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log import heavy
from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC
from airflow_delta.log.expressions.refused import oversized, refused_function
from airflow_delta.log.expressions.sql_text import quote_name
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.table.stage.compared_columns import Sides, conjunct_texts
from airflow_delta.table.stage.repeatable import at_one_instant

if TYPE_CHECKING:
    from airflow_delta.log.table_definition import TableDefinition


@dataclass(frozen=True, slots=True)
class Replacement:
    """Which rows of the table an overwrite with ``replace_on`` or ``replace_using`` replaces.

    :param condition: for Spark; ``None``: the write has no such option.
    :param keys: columns that are equal in rows for which it is true.
    :param parameters: as ``operationParameters`` record it.
    """

    condition: str | None = None
    parameters: Json | None = None
    keys: tuple[ComparedColumns, ...] = ()


def replacement(table: TableDefinition, on: str | None, using: Sequence[str], *, fits: bool) -> Replacement:
    """Check ``replace_on`` and ``replace_using``, and return their condition.

    Nulls are equal to nothing, as in Delta.

    :param fits: the other options of the write go with it.
    :raises DeltaIllegalArgumentException: if both were given, or a column is not in the table.
    """
    if on is None and not using:
        return Replacement()
    if not fits:
        raise table.error(
            DeltaIllegalArgumentException,
            "replace_on and replace_using need mode='overwrite', without replace_where, overwrite_schema and data_change=False "
            f"(table {table.table}, DELTA_INCOMPATIBLE_DATAFRAME_OPTIONS)",
        )
    if on is not None and using:
        raise table.error(
            DeltaIllegalArgumentException,
            f"Give replace_on or replace_using, not both (table {table.table}, DELTA_INCOMPATIBLE_DATAFRAME_OPTIONS)",
        )
    if on is not None:
        _check_repeatable(table, on)
        if table.is_known and (name := Sides(table.schema, "t", "s").unknown(conjunct_texts(on))) is not None:
            raise table.error(
                DeltaIllegalArgumentException,
                f"replace_on ({on}) names the column {name!r}, which table {table.table} does not have. "
                f"{known_names(name, table.schema.names)}.",
            )
        condition = at_one_instant(on, time.time_ns() // 1000, table.schema)
        keys = tuple(Sides(table.schema, "t", "s").compared(conjunct_texts(on)))
        return Replacement(condition, {"replaceOnCond": on}, keys)
    unknown = [name for name in using if table.schema.find(name) is None] if table.is_known else []
    if unknown:
        raise table.error(
            DeltaIllegalArgumentException,
            f"replace_using names the column {unknown[0]!r}, which table {table.table} does not have "
            f"(UNRESOLVED_INSERT_REPLACE_USING_COLUMN). {known_names(unknown[0], table.schema.names)}.",
        )
    condition = " AND ".join(f"t.{name} = s.{name}" for name in map(quote_name, using))
    found = [field for name in using if (field := table.schema.find(name)) is not None]
    keys = tuple(ComparedColumns(column=field.name, source=quote_name(field.name), null_safe=False) for field in found)
    return Replacement(condition, {"replaceUsingCols": list(using)}, keys)


def _check_repeatable(table: TableDefinition, condition: str) -> None:
    from airflow_delta.log.expressions.generated_expressions import functions

    # Evaluated twice, for the rows that go and those that stay: a different result would lose or double a row.
    changing = sorted(name for name in functions(condition) if name in NOT_DETERMINISTIC)
    if changing:
        raise table.error(
            DeltaIllegalArgumentException,
            f"replace_on calls {', '.join(changing)}, which changes with every evaluation. Put the value into a "
            f"column of the rows (s) and compare with that (table {table.table}).",
        )
    check_condition(table, "replace_on", condition)


def check_condition(table: TableDefinition, option: str, condition: str) -> None:
    """Check a condition that Spark gets as it is.

    :raises DeltaIllegalArgumentException: if it is not valid Spark SQL, or holds a subquery or a function that is not allowed.
    """
    problem = oversized(condition) or refused_function(condition)
    try:
        if problem is None and heavy.has_subquery(tree_of(condition)):
            problem = "holds a subquery"
    except (SqlSyntaxError, RecursionError):
        problem = "is not valid Spark SQL"
    if problem is not None:
        raise table.error(DeltaIllegalArgumentException, f"{option} ({condition}) {problem} (table {table.table})")
