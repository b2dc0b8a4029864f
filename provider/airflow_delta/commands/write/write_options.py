"""Options of a write beyond its mode: tables made by rows, rows replaced by a condition, files of a size, rewrites."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_delta.commands.begin.read_snapshot import parse_predicate
from airflow_delta.commands.stage.plan_create import check_create
from airflow_delta.exceptions import AppendOnlyException, DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.log.expressions.text import tree_of
from airflow_delta.staging.contract import Json, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog

MODES = ("append", "overwrite", "dynamic")

TARGET_FILE_SIZE = 128 * 1024 * 1024
"""Bytes of a file that an optimised write aims at, where ``delta.targetFileSize`` does not say."""

SHUFFLE_FACTOR = 4
"""Bytes of shuffled rows for a byte of Parquet; Delta's own bins (``optimizeWrite.binSize``) are 512 MiB of such bytes."""

_UNITS = {"b": 0, "k": 1, "kb": 1, "m": 2, "mb": 2, "g": 3, "gb": 3, "t": 4, "tb": 4}


def create_arguments(
    handle: TransactionHandle,
    mode: str | None,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str] | None,
    description: str | None,
    *,
    refused: bool,
) -> Json:
    """Check what CREATE TABLE AS SELECT asks for, and return it as the arguments of a request carry it.

    :param mode: ``None`` for a write that creates no table, or one by the way.
    :param refused: options of a write into a table that is there were given as well.
    :raises DeltaIllegalArgumentException: they were, or the mode is none that takes rows.
    """
    if mode is None:
        if cluster_by or properties or description:
            raise DeltaIllegalArgumentException(
                f"cluster_by, properties and description go with create=, the table at {handle.table} has its own",
                table=handle.table,
            )
        return {}
    if refused:
        raise DeltaIllegalArgumentException(
            f"create={mode!r} makes table {handle.table} of the rows: leave out mode, replace_where, replace_on, replace_using, "
            "merge_schema, overwrite_schema, data_change and after",
            table=handle.table,
        )
    if mode == "create_if_not_exists":
        raise DeltaIllegalArgumentException(
            f"create='create_if_not_exists' would drop the rows where table {handle.table} exists. Leave create out: an append "
            "creates the table when there is none.",
            table=handle.table,
        )
    check_create(handle, mode)
    asked = {
        "mode": mode,
        "partitionBy": list(partition_by),
        "clusterBy": list(cluster_by),
        "properties": dict(properties or {}),
        "description": description,
    }
    return {"create": asked}


def replacement(handle: TransactionHandle, on: str | None, using: Sequence[str], *, fits: bool) -> Json:
    """Return, as arguments, the condition of ``replace_on`` or ``replace_using``, for Spark and as ``commitInfo`` records it.

    Nulls are equal to nothing, as in Delta.

    :param fits: the other options of the write go with it.
    :raises DeltaIllegalArgumentException: both were given, or a column is not in the table.
    """
    if on is None and not using:
        return {}
    if not fits:
        raise DeltaIllegalArgumentException(
            "replace_on and replace_using need mode='overwrite', without replace_where, overwrite_schema and data_change=False "
            f"(table {handle.table}, DELTA_INCOMPATIBLE_DATAFRAME_OPTIONS)",
            table=handle.table,
        )
    if on is not None and using:
        raise DeltaIllegalArgumentException(
            f"Give replace_on or replace_using, not both (table {handle.table}, DELTA_INCOMPATIBLE_DATAFRAME_OPTIONS)",
            table=handle.table,
        )
    if on is not None:
        _check_repeatable(handle, on)
        return {"replaceOn": _at_one_instant(handle, on), "parameters": {"replaceOnCond": on}}
    if handle.schema_string is not None:
        from airflow_delta.log.schema.types import parse_schema

        schema = parse_schema(handle.schema_string)
        for name in using:
            if schema.find(name) is None:
                raise DeltaIllegalArgumentException(
                    f"replace_using names the column {name}, table {handle.table} has {', '.join(schema.names)} "
                    "(UNRESOLVED_INSERT_REPLACE_USING_COLUMN)",
                    table=handle.table,
                    version=handle.read_version,
                )
    quoted = ["`" + name.replace("`", "``") + "`" for name in using]
    condition = " AND ".join(f"t.{name} = s.{name}" for name in quoted)
    return {"replaceOn": condition, "parameters": {"replaceUsingCols": list(using)}}


def _at_one_instant(handle: TransactionHandle, condition: str) -> str:
    from airflow_delta.commands.write.repeatable import at_one_instant
    from airflow_delta.log.schema.types import StructType, parse_schema

    schema = StructType(()) if handle.schema_string is None else parse_schema(handle.schema_string)
    return at_one_instant(condition, time.time_ns() // 1000, schema)


def _check_repeatable(handle: TransactionHandle, condition: str) -> None:
    from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC
    from airflow_delta.log.expressions.generated import functions

    # Asked twice, of the rows that go and of those that stay: another answer would lose a row, or double it.
    changing = sorted(name for name in functions(condition) if name in NOT_DETERMINISTIC)
    if changing:
        raise DeltaIllegalArgumentException(
            f"replace_on calls {', '.join(changing)}, which gives another result each time it is asked. Put the value into a "
            f"column of the rows (s), and compare with that (table {handle.table}).",
            table=handle.table,
            version=handle.read_version,
        )
    check_condition(handle, "replace_on", condition)


def check_condition(handle: TransactionHandle, option: str, condition: str) -> None:
    """Check the text of a condition that goes to Spark as it is.

    :raises DeltaIllegalArgumentException: it does not parse, holds a subquery, or calls a function that a condition may not.
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from airflow_delta.log.expressions.functions import oversized, refused_function

    problem = oversized(condition) or refused_function(condition)
    try:
        if problem is None and tree_of(condition).find(exp.Query) is not None:
            problem = "holds a subquery"
    except (SqlglotError, RecursionError):
        problem = "does not parse as Spark SQL"
    if problem is not None:
        raise DeltaIllegalArgumentException(
            f"{option} ({condition}) {problem} (table {handle.table})", table=handle.table, version=handle.read_version
        )


def data_change_arguments(
    log: DeltaLog,
    handle: TransactionHandle,
    replace_where: str | None,
    *,
    mode: str,
    data_change: bool,
    merge_schema: bool,
    overwrite_schema: bool,
) -> Json:
    """Check that a write that says it changes no rows cannot change the table either, and return it as arguments.

    :raises DeltaIllegalArgumentException: it could.
    """
    if data_change:
        return {}
    if handle.read_version < 0 or merge_schema or overwrite_schema:
        raise DeltaIllegalArgumentException(
            f"A write with data_change=False leaves the schema of table {handle.table} as it is, and cannot create the table "
            "(DELTA_DATA_CHANGE_FALSE). Leave out merge_schema and overwrite_schema.",
            table=handle.table,
            version=handle.read_version,
        )
    if mode == "append":
        raise DeltaIllegalArgumentException(
            f"An append with data_change=False would add rows to table {handle.table} that streams and the change data feed "
            "never show. Overwrite the files that the rows lie in now (mode='overwrite' or 'dynamic'), or leave out the option.",
            table=handle.table,
            version=handle.read_version,
        )
    if replace_where is not None and not parse_predicate(log, handle, replace_where).partition_only:
        raise DeltaIllegalArgumentException(
            f"replace_where ({replace_where}) with data_change=False may only name partition columns of table {handle.table} "
            "(DELTA_REPLACE_WHERE_WITH_FILTER_DATA_CHANGE_UNSET)",
            table=handle.table,
            version=handle.read_version,
        )
    return {"dataChange": False}


def optimize_arguments(handle: TransactionHandle, optimize_write: bool | None) -> Json:
    """Return, as arguments, the bytes of rows that go into one file of an optimised write; nothing for any other."""
    folded = {key.lower(): value for key, value in handle.configuration.items()}
    if optimize_write is None:
        optimize_write = folded.get("delta.autooptimize.optimizewrite", "false").strip().lower() == "true"
    if not optimize_write:
        return {}
    text = folded.get("delta.targetfilesize", "").strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = _UNITS.get(text[len(number) :].strip() or "b")
    size = int(number) * 1024**unit if number.isdecimal() and len(number) < 20 and unit is not None else TARGET_FILE_SIZE
    return {"optimizeWrite": max(size, 1) * SHUFFLE_FACTOR}


def check_write_options(
    handle: TransactionHandle, *, mode: str, replace_where: str | None, overwrite_schema: bool, partition_by: Sequence[str]
) -> tuple[str, ...]:
    """Check that the options of a write go together and with the table; return its partition columns.

    :raises DeltaIllegalArgumentException: they do not.
    :raises AppendOnlyException: the table only takes appends.
    """

    def refuse(message: str) -> DeltaIllegalArgumentException:
        return DeltaIllegalArgumentException(f"{message} (table {handle.table})", table=handle.table, version=handle.read_version)

    if handle.committed is not None:
        raise DeltaIllegalStateException(
            f"Transaction {handle.app_id!r} is committed in version {handle.committed.version} of table {handle.table}; "
            "there is "
            "nothing to stage. Clear the start task with another rerun_policy to write again.",
            table=handle.table,
            version=handle.committed.version,
        )
    if mode not in MODES:
        raise refuse(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if replace_where is not None and (mode != "overwrite" or not replace_where.strip()):
        raise refuse(f"replace_where needs mode='overwrite' and a predicate, got mode={mode!r} and {replace_where!r}")
    if overwrite_schema and (mode != "overwrite" or replace_where is not None):
        raise refuse("overwrite_schema needs mode='overwrite' without replace_where: rows that stay have the old schema")
    append_only = handle.read_version >= 0 and handle.configuration.get("delta.appendOnly", "false").lower() == "true"
    if append_only and mode != "append":
        raise AppendOnlyException(
            f"Table {handle.table} version {handle.read_version} only takes appends (delta.appendOnly=true), the stage has "
            f"mode={mode!r}.",
            table=handle.table,
            version=handle.read_version,
        )
    known = handle.partition_columns
    free = overwrite_schema or (handle.read_version < 0 and not known)
    if partition_by and not free and [c.lower() for c in partition_by] != [c.lower() for c in known]:
        raise refuse(
            f"partition_by is ({', '.join(partition_by)}), the table is partitioned by ({', '.join(known)}). Leave it out, or "
            "overwrite the table with overwrite_schema=True"
        )
    columns = tuple(partition_by) if partition_by and free else known
    if mode == "dynamic" and not columns:
        raise refuse("mode='dynamic' overwrites partitions, and the table has no partition columns; use mode='overwrite'")
    return columns
