"""Options of a write that must fit each other and the table: its mode, and those of CREATE TABLE AS SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.choices import WRITE_MODES, replace_where_problem
from airflow_delta.contract.operations import CreateArguments
from airflow_delta.exceptions import AppendOnlyException, DeltaIllegalArgumentException
from airflow_delta.table.stage.plan_create import check_create

if TYPE_CHECKING:
    from airflow_delta.log.table_definition import TableDefinition


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


def check_write_options(
    table: TableDefinition,
    *,
    append_only: bool,
    mode: str,
    replace_where: str | None,
    overwrite_schema: bool,
    partition_by: Sequence[str],
) -> tuple[str, ...]:
    """Check that the options of a write fit each other and the table; return its partition columns.

    :param table: as it is after earlier stages.
    :param append_only: its rows must stay.
    :raises DeltaIllegalArgumentException: if they do not fit.
    :raises AppendOnlyException: if the table only takes appends.
    """

    def refuse(message: str) -> DeltaIllegalArgumentException:
        return table.error(DeltaIllegalArgumentException, f"{message} (table {table.table})")

    if mode not in WRITE_MODES:
        raise refuse(f"mode must be one of {', '.join(WRITE_MODES)}, got {mode!r}")
    if replace_where is not None and (problem := replace_where_problem(mode, replace_where)) is not None:
        raise refuse(problem)
    if overwrite_schema and (mode != "overwrite" or replace_where is not None):
        raise refuse("overwrite_schema needs mode='overwrite' without replace_where: rows that stay have the old schema")
    if append_only and mode != "append":
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
