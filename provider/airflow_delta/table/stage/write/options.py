"""Options of a write beyond its mode: tables made by rows, rows replaced by a condition, files of a size, rewrites."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_delta.contract.choices import WRITE_MODES, replace_where_problem
from airflow_delta.contract.operations import ComparedColumns, CreateArguments
from airflow_delta.contract.payloads import Json
from airflow_delta.exceptions import AppendOnlyException, DeltaIllegalArgumentException
from airflow_delta.log import heavy
from airflow_delta.log.expressions.ast import quote_name
from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC, oversized, refused_function
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.schema.types import known_names
from airflow_delta.table.stage.compared_columns import Sides, at_one_instant, conjunct_texts
from airflow_delta.table.stage.plan_table import check_create

if TYPE_CHECKING:
    from airflow_delta.log.table_definition import TableDefinition
    from airflow_delta.table.stage.view import TransactionView

TARGET_FILE_SIZE = 128 * 1024 * 1024
"""Bytes of a file that an optimised write aims at, where ``delta.targetFileSize`` does not say."""

SHUFFLE_FACTOR = 4
"""Bytes of shuffled rows for a byte of Parquet; Delta's own bins (``optimizeWrite.binSize``) are 512 MiB of such bytes."""

_UNITS = {"b": 0, "k": 1, "kb": 1, "m": 2, "mb": 2, "g": 3, "gb": 3, "t": 4, "tb": 4}


def create_arguments(
    table: TableDefinition,
    mode: str | None,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str] | None,
    description: str | None,
    *,
    refused: bool,
) -> CreateArguments | None:
    """Check what CREATE TABLE AS SELECT asks for, and return it; ``None`` for a plain write.

    :param refused: options for writes into an existing table were given too.
    :raises DeltaIllegalArgumentException: if they were, or the mode takes no rows.
    """
    if mode is None:
        if cluster_by or properties or description:
            raise table.error(
                DeltaIllegalArgumentException,
                f"cluster_by, properties and description go with create=, the table at {table.table} has its own",
            )
        return None
    if refused:
        raise table.error(
            DeltaIllegalArgumentException,
            f"create={mode!r} makes table {table.table} of the rows: leave out mode, replace_where, replace_on, replace_using, "
            "merge_schema, overwrite_schema, data_change and after",
        )
    if mode == "create_if_not_exists":
        raise table.error(
            DeltaIllegalArgumentException,
            f"create='create_if_not_exists' would drop the rows where table {table.table} exists. Leave create out: an append "
            "creates a missing table.",
        )
    check_create(table, mode)
    return CreateArguments(
        mode=mode,
        partition_by=tuple(partition_by),
        cluster_by=tuple(cluster_by),
        properties=dict(properties or {}),
        description=description,
    )


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


def replacement(view: TransactionView, on: str | None, using: Sequence[str], *, fits: bool) -> Replacement:
    """Check ``replace_on`` and ``replace_using``, and return their condition.

    Nulls are equal to nothing, as in Delta.

    :param fits: the other options of the write go with it.
    :raises DeltaIllegalArgumentException: if both were given, or a column is not in the table.
    """
    if on is None and not using:
        return Replacement()
    table = view.target
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
        if table.is_known and (name := Sides(view.schema, "t", "s").unknown(conjunct_texts(on))) is not None:
            raise table.error(
                DeltaIllegalArgumentException,
                f"replace_on ({on}) names the column {name!r}, which table {table.table} does not have. "
                f"{known_names(name, view.schema.names)}.",
            )
        condition = at_one_instant(on, time.time_ns() // 1000, view.schema)
        keys = tuple(Sides(view.schema, "t", "s").compared(conjunct_texts(on)))
        return Replacement(condition, {"replaceOnCond": on}, keys)
    unknown = [name for name in using if view.schema.find(name) is None] if table.is_known else []
    if unknown:
        raise table.error(
            DeltaIllegalArgumentException,
            f"replace_using names the column {unknown[0]!r}, which table {table.table} does not have "
            f"(UNRESOLVED_INSERT_REPLACE_USING_COLUMN). {known_names(unknown[0], view.schema.names)}.",
        )
    condition = " AND ".join(f"t.{name} = s.{name}" for name in map(quote_name, using))
    found = [field for name in using if (field := view.schema.find(name)) is not None]
    keys = tuple(ComparedColumns(column=field.name, source=quote_name(field.name), null_safe=False) for field in found)
    return Replacement(condition, {"replaceUsingCols": list(using)}, keys)


def _check_repeatable(table: TableDefinition, condition: str) -> None:
    from airflow_delta.log.expressions.generated import functions

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


def check_data_change(
    view: TransactionView, replace_where: str | None, *, mode: str, merge_schema: bool, overwrite_schema: bool
) -> None:
    """Check that a write with ``data_change=False`` cannot change the table either.

    :raises DeltaIllegalArgumentException: if it could.
    """
    table = view.target
    if table.version < 0 or merge_schema or overwrite_schema:
        raise table.error(
            DeltaIllegalArgumentException,
            f"A write with data_change=False cannot change the schema of table {table.table}, or create the table "
            "(DELTA_DATA_CHANGE_FALSE). Leave out merge_schema and overwrite_schema.",
        )
    if mode == "append":
        raise table.error(
            DeltaIllegalArgumentException,
            f"An append with data_change=False would add rows to table {table.table} that streams and the change data feed "
            "never show. Overwrite the files that hold the rows now (mode='overwrite' or 'dynamic'), or leave out the option.",
        )
    if replace_where is not None and not view.predicate(replace_where).partition_only:
        raise table.error(
            DeltaIllegalArgumentException,
            f"replace_where ({replace_where}) with data_change=False may only name partition columns of table {table.table} "
            "(DELTA_REPLACE_WHERE_WITH_FILTER_DATA_CHANGE_UNSET)",
        )


def optimized_file_size(table: TableDefinition, optimize_write: bool | None) -> int | None:
    """Return the bytes of rows that go into one file of an optimised write; ``None`` for any other."""
    folded = {key.lower(): value for key, value in table.configuration.items()}
    if optimize_write is None:
        optimize_write = folded.get("delta.autooptimize.optimizewrite", "false").strip().lower() == "true"
    if not optimize_write:
        return None
    text = folded.get("delta.targetfilesize", "").strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = _UNITS.get(text[len(number) :].strip() or "b")
    size = int(number) * 1024**unit if number.isdecimal() and len(number) < 20 and unit is not None else TARGET_FILE_SIZE
    return max(size, 1) * SHUFFLE_FACTOR


def check_write_options(
    stage: TransactionView, *, mode: str, replace_where: str | None, overwrite_schema: bool, partition_by: Sequence[str]
) -> tuple[str, ...]:
    """Check that the options of a write fit each other and the table; return its partition columns.

    :raises DeltaIllegalArgumentException: if they do not fit.
    :raises AppendOnlyException: if the table only takes appends.
    """
    table = stage.target

    def refuse(message: str) -> DeltaIllegalArgumentException:
        return table.error(DeltaIllegalArgumentException, f"{message} (table {table.table})")

    if mode not in WRITE_MODES:
        raise refuse(f"mode must be one of {', '.join(WRITE_MODES)}, got {mode!r}")
    if replace_where is not None and (problem := replace_where_problem(mode, replace_where)) is not None:
        raise refuse(problem)
    if overwrite_schema and (mode != "overwrite" or replace_where is not None):
        raise refuse("overwrite_schema needs mode='overwrite' without replace_where: rows that stay have the old schema")
    if stage.is_append_only and mode != "append":
        raise table.error(
            AppendOnlyException,
            f"Table {table.table} version {table.version} only takes appends (delta.appendOnly=true), the stage has "
            f"mode={mode!r}. If rows may be replaced, unset the property first, in a commit of its own.",
        )
    known = table.partition_columns
    free = overwrite_schema or (table.version < 0 and not known)
    if partition_by and not free and [c.lower() for c in partition_by] != [c.lower() for c in known]:
        raise refuse(
            f"partition_by is ({', '.join(partition_by)}), the table is partitioned by ({', '.join(known)}). Leave it out, or "
            "overwrite the table with overwrite_schema=True"
        )
    columns = tuple(partition_by) if partition_by and free else known
    if mode == "dynamic" and not columns:
        raise refuse("mode='dynamic' overwrites partitions, and the table has no partition columns; use mode='overwrite'")
    return columns
