"""A MERGE that keeps every version of its rows (a slowly changing dimension of type 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import SourceScan, ViewScan
from airflow_delta.contract.scd2 import (
    ACTION,
    HISTORY_DELETE,
    HISTORY_INSERT,
    HISTORY_UPDATE,
    HistoryArguments,
    HistoryColumns,
)
from airflow_delta.contract.schema import find_field, type_name
from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, DeltaTableNotFoundException
from airflow_delta.log.expressions.sql_text import quote_name
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.stage.stage_view import SparkWork, StageView

_TIMES = ("date", "timestamp", "timestamp_ntz")


def history_columns(
    stage: StageView,
    *,
    keys: Sequence[str],
    tracked: Sequence[str] = (),
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    current: str | None = "is_current",
    confirmed: str | None = None,
) -> HistoryColumns:
    """Return the columns of a table, sorted by what they are for.

    :param tracked: default: all that are neither keys nor about the period, nor computed by the table.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises DeltaIllegalArgumentException: if there are no keys, or a column is named twice.
    :raises DeltaAnalysisException: if the table lacks a column, or one has a type that does not fit.
    """
    table = stage.target
    if not table.is_known:
        raise table.error(
            DeltaTableNotFoundException,
            f"There is no table at {table.table} to keep a history in. Create it first (DeltaCreateTableOperator), with the "
            f"keys, the tracked columns, {valid_from}, {valid_to}" + (f" and {current}." if current else "."),
        )
    if not keys:
        raise DeltaIllegalArgumentException(f"A history needs keys=, the columns that a row is about (table {table.table})")
    schema = table.struct
    period = [valid_from, valid_to, *(name for name in (current, confirmed) if name)]
    named = [_field(schema, name, table.table)["name"] for name in (*keys, *tracked, *period)]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise table.error(
            DeltaIllegalArgumentException,
            f"keys, tracked and the columns of the period name {', '.join(twice)} twice (table {table.table})",
        )
    rules = table_rules(table)
    computed = {*(n.lower() for n in rules.generated), *(identity.column.lower() for identity in rules.identities)}
    rest = [f["name"] for f in schema["fields"] if f["name"] not in named and f["name"].lower() not in computed]
    start, end, *flags = named[len(keys) + len(tracked) :]
    columns = HistoryColumns(
        keys=tuple(named[: len(keys)]),
        tracked=tuple(named[len(keys) : len(keys) + len(tracked)] or rest),
        others=tuple(rest if tracked else ()),
        valid_from=start,
        valid_to=end,
        current=flags[0] if current else None,
        confirmed=flags[-1] if confirmed else None,
        period_type=str(_field(schema, start, table.table)["type"]),
    )
    _check_types(schema, columns, table.table)
    return columns


def plan_history(
    stage: StageView,
    history: HistoryArguments,
    *,
    source: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    views: Sequence[ViewScan] = (),
    sources: Sequence[SourceScan] = (),
) -> SparkWork:
    """Plan the MERGE, whose source is what :mod:`airflow_delta.spark.scd2` makes of the source rows.

    What it depends on are the rows with the keys of the source, of whatever period: the history of a key is computed of all its
    versions. So its condition must not compare ``valid_from`` in a form that is taken for a key.

    Parameters as for :func:`~airflow_delta.table.operations.merge.plan.plan_merge`.
    """
    columns = history.columns
    same = [f"target.{quote_name(name)} <=> source.{quote_name(name)}" for name in columns.keys]
    start = quote_name(columns.valid_from)
    values = {quote_name(name): f"source.{quote_name(name)}" for name in columns.written}
    unchanged = {quote_name(name) for name in (*columns.keys, columns.valid_from)}
    action = f"source.{ACTION}"
    return plan_merge(
        stage,
        condition=" AND ".join([*same, f"(target.{start} = source.{start}) IS TRUE"]),
        clauses=[
            when_matched_delete(f"{action} = '{HISTORY_DELETE}'"),
            when_matched_update(
                {n: value for n, value in values.items() if n not in unchanged}, f"{action} = '{HISTORY_UPDATE}'"
            ),
            when_not_matched_insert(values, f"{action} = '{HISTORY_INSERT}'"),
        ],
        source=source,
        options=options,
        history=history,
        views=views,
        sources=sources,
    )


def _field(schema: Json, name: str, table: str) -> Json:
    found = find_field(schema, name)
    if found is None:
        known = ", ".join(field["name"] for field in schema["fields"])
        raise DeltaAnalysisException(f"Table {table} has no column {name!r} to keep a history with; it has {known}.", table=table)
    return found


def _check_types(schema: Json, columns: HistoryColumns, table: str) -> None:
    period = columns.period_type
    types: dict[str, Any] = {name: _field(schema, name, table)["type"] for name in columns.written}
    wanted = {columns.valid_from: period if period in _TIMES else " or ".join(_TIMES), columns.valid_to: period}
    if columns.current is not None:
        wanted[columns.current] = "boolean"
    if columns.confirmed is not None:
        wanted[columns.confirmed] = f"array<{period}>"
    spelled = {name: type_name(kind) for name, kind in types.items()}
    problems = [f"{name} is {spelled[name]}, expected {text}" for name, text in wanted.items() if spelled[name] != text]
    incomparable = [name for name in columns.given if any(word in spelled[name] for word in ("map<", "variant"))]
    problems += [f"{name} is {spelled[name]}, which cannot be compared" for name in incomparable]
    if problems:
        raise DeltaAnalysisException(f"The columns of table {table} cannot keep a history: {'; '.join(problems)}.", table=table)
