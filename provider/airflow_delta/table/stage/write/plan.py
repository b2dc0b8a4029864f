"""A ``WRITE`` stage before Spark: what to write and what to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.choices import ENFORCE
from airflow_delta.contract.operations import FileArguments, QueryArguments, WriteArguments
from airflow_delta.contract.request import SourceScan, StageRequest, ViewScan
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.stage.data_change import check_data_change, check_replacement, refuse_untold
from airflow_delta.table.stage.plan_create import definition_from_rows
from airflow_delta.table.stage.scan import candidate_files, plan_scan, row_ids_of, scan_of, undecided_files, zone_needed
from airflow_delta.table.stage.stage_view import StageView
from airflow_delta.table.stage.write.expected_schema import expected_schema_of
from airflow_delta.table.stage.write.optimized_write import optimized_file_size
from airflow_delta.table.stage.write.options import check_write_options, create_arguments
from airflow_delta.table.stage.write.replace_on import check_condition, replacement

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile
    from airflow_delta.log.expressions.predicate import Predicate


def plan_stage(
    stage: StageView,
    *,
    mode: str = "append",
    replace_where: str | None = None,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    partition_by: Sequence[str] = (),
    read: bool | str = False,
    options: Mapping[str, str] | None = None,
    sources: Sequence[SourceScan] = (),
    optimize_write: bool | None = None,
    data_change: bool = True,
    replace_on: str | None = None,
    replace_using: Sequence[str] = (),
    create: str | None = None,
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    schema_policy: str = ENFORCE,
    expected_schema: str | Mapping[str, Any] | None = None,
    query: QueryArguments | None = None,
    files: FileArguments | None = None,
    views: Sequence[ViewScan] = (),
) -> StageRequest:
    """Plan one attempt of a stage, in the worker, before Spark.

    :param mode: ``append``, ``overwrite`` or ``dynamic`` (dynamic partition overwrite).
    :param replace_where: Spark SQL predicate of an ``overwrite``: only rows that satisfy it are replaced.
    :param merge_schema: add columns that the table does not have.
    :param overwrite_schema: an ``overwrite`` replaces the table's schema and partitioning.
    :param partition_by: partition columns; must be the table's own unless ``overwrite_schema``; default: the handle's.
    :param read: plan a scan of the table for jobs that cannot ask for one later (``True``: the whole table, a string: files that
        the predicate may match).
    :param options: options of Spark's Parquet writer (``maxRecordsPerFile``, ``compression``, ...).
    :param sources: new rows of other tables, for jobs that cannot ask for them later.
    :param optimize_write: shuffle the rows before they are written, into files near the target size; default: the property
        ``delta.autoOptimize.optimizeWrite``.
    :param data_change: false: the rows are those that the table has, moved to other files.
    :param replace_on: condition between rows ``t`` of the table and rows ``s`` of the DataFrame: an ``overwrite`` removes the
        rows of the table that match any of the DataFrame's.
    :param replace_using: columns: the same, for rows that are equal in all of them.
    :param create: the rows make the table: ``create`` (CREATE TABLE AS SELECT), ``create_or_replace`` or ``replace``; with
        ``partition_by``, ``cluster_by``, ``properties`` and ``description`` of the new table.
    :param schema_policy: ``enforce`` or ``strict``.
    :param expected_schema: under ``strict``: the schema that the rows must have; default: the table's.
    :param query: the rows to write, with ``views`` and ``sources`` of its SQL.
    :param files: the rows to write.
    """
    stage.check_open()
    begun, exists = stage, stage.exists
    given = (replace_where, merge_schema, overwrite_schema, replace_on, replace_using, stage.stages, not data_change)
    created = create_arguments(
        stage.definition, create, partition_by, cluster_by, properties, description, refused=any(given) or mode != "append"
    )
    if created is not None:
        stage = replace(stage, given_target=definition_from_rows(stage.definition, created))
        mode, partition_columns = "overwrite" if stage.handle.read_version >= 0 else "append", stage.target.partition_columns
    else:
        partition_columns = check_write_options(
            stage.target,
            append_only=stage.is_append_only,
            mode=mode,
            replace_where=replace_where,
            overwrite_schema=overwrite_schema,
            partition_by=partition_by,
        )
    fits = mode == "overwrite" and replace_where is None and data_change and not overwrite_schema
    replaced = replacement(stage.target, replace_on, replace_using, fits=fits)
    if not data_change:
        check_data_change(stage, replace_where, mode=mode, merge_schema=merge_schema, overwrite_schema=overwrite_schema)
    keeps_names = (overwrite_schema or created is not None) and _keeps_names(stage.definition, stage.target)
    arguments = WriteArguments(
        create=created,
        replace_on=replaced.condition,
        keys=replaced.keys,
        parameters=replaced.parameters,
        optimize_write=optimized_file_size(stage.target, optimize_write),
        data_change=data_change,
        replaced_schema=begun.target.schema_string if keeps_names else None,
        expected_schema=expected_schema_of(
            begun.target, schema_policy, expected_schema, changes=merge_schema or overwrite_schema or created is not None
        ),
        query=query,
        files=files,
    )

    replaceable = predicate_text = predicate = None
    if replaced.condition is not None and exists:
        replaceable = candidate_files(begun, None)
    if replace_where is not None and exists:
        predicate = stage.predicate(replace_where)
        replaceable = _files_to_rewrite(stage, predicate, data_change=data_change)
        # Its own text, whose timestamps do not depend on the time zone of a Spark session.
        predicate_text = predicate.text
    elif replace_where is not None:  # of a new table: Spark gets it as it is
        check_condition(stage.target, "replace_where", replace_where)
    check_replacement(stage, mode=mode, predicate=predicate, data_change=data_change)
    rules = table_rules(stage.target, overwrite_schema=overwrite_schema)
    if rules.change_data and data_change:
        refuse_untold(stage, "A write", tells=replaceable is not None)
    return stage.request(
        arguments if replaceable is None else replace(arguments, row_ids=row_ids_of(begun.definition, replaceable)),
        mode=mode,
        replace_where=replace_where,
        predicate=predicate_text,
        schema_string=None if overwrite_schema else stage.target.schema_string,
        partition_columns=partition_columns,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        options=options,
        scan=plan_scan(begun, None if read is True else read) if read else None,
        sources=tuple(sources),
        views=tuple(views),
        rewrite=None if replaceable is None else scan_of(begun, replaceable, predicate),
        rules=rules,
    )


def _files_to_rewrite(stage: StageView, predicate: Predicate, *, data_change: bool) -> list[AddFile] | None:
    """Return the files whose remaining rows Spark must rewrite in an overwrite; ``None`` if partitions go whole."""
    if not predicate.partition_only:
        return candidate_files(stage, predicate)
    undecided = undecided_files(stage, predicate)
    if not undecided:
        return None
    if not data_change:
        raise zone_needed(stage.target, predicate, "With data_change=False")
    if table_rules(stage.target).change_data:  # change data files must cover all changes of a version
        return candidate_files(stage, predicate)
    return undecided


def _keeps_names(before: TableDefinition, after: TableDefinition) -> bool:
    """Return whether columns keep their ids and physical names although the schema is replaced."""
    return before.version >= 0 and before.column_mapping != "none" and after.column_mapping != "none"
