"""A ``WRITE`` stage before Spark: what it is asked to write, what it may read, and how a job elsewhere gets to know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import exceptions
from airflow_delta.commands.begin.read_snapshot import parse_predicate
from airflow_delta.commands.files.rules import table_rules
from airflow_delta.commands.stage.after import after_arguments, handle_after, load_earlier
from airflow_delta.commands.stage.data_change import check_replacement, refuse_untold
from airflow_delta.commands.stage.plan_create import handle_of_new
from airflow_delta.commands.stage.scan import plan_scan, plan_scan_after, scan_of, spark_table, undecided_files, zone_needed
from airflow_delta.commands.write.collect_write import collect_files, collect_stage
from airflow_delta.commands.write.write_options import (
    MODES,
    check_condition,
    check_write_options,
    create_arguments,
    data_change_arguments,
    optimize_arguments,
    replacement,
)
from airflow_delta.exceptions import (
    DeltaError,
    StagingException,
)
from airflow_delta.staging.contract import ScanPlan, StagedWrite, TransactionHandle
from airflow_delta.staging.mapping import REPLACED_SCHEMA
from airflow_delta.staging.paths import REPORT_DIRECTORY, REQUEST_NAME, attempt_directory, stage_key
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.commands.stage.load import StageActions
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate

__all__ = ["MODES", "collect_files", "collect_stage", "plan_scan", "plan_stage", "put_request", "read_report", "skip_stage"]


def plan_stage(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    mode: str = "append",
    replace_where: str | None = None,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    partition_by: Sequence[str] = (),
    read: bool | str = False,
    options: Mapping[str, str] | None = None,
    optimize_write: bool | None = None,
    data_change: bool = True,
    replace_on: str | None = None,
    replace_using: Sequence[str] = (),
    create: str | None = None,
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    spark_table_uri: str | None = None,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StageRequest:
    """Plan one attempt of a stage, in the worker, before Spark.

    :param attempt: unique name of this execution (:func:`airflow_delta.staging.paths.new_attempt`).
    :param mode: ``append``, ``overwrite`` or ``dynamic`` (dynamic partition overwrite).
    :param replace_where: Spark SQL predicate of an ``overwrite``: only rows that satisfy it are replaced.
    :param merge_schema: columns that the table does not have are added to it.
    :param overwrite_schema: an ``overwrite`` replaces the table's schema and partitioning.
    :param partition_by: partition columns; must be the table's own unless ``overwrite_schema``; default: the handle's.
    :param read: plan a scan of the table at the version that the transaction reads, for jobs that cannot ask later
        (``True``: the whole table, a text: the files that the predicate may match).
    :param options: options of Spark's Parquet writer (``maxRecordsPerFile``, ``compression``, ...).
    :param optimize_write: shuffle the rows before they are written, into files near the target size; default: the property
        ``delta.autoOptimize.optimizeWrite``.
    :param data_change: false: the rows that are written are those that are there, which only get other files.
    :param replace_on: condition between rows ``t`` of the table and rows ``s`` of the DataFrame: an ``overwrite`` removes the
        rows of the table that match any of the DataFrame's.
    :param replace_using: columns: the same, for rows that are equal in all of them.
    :param create: the rows make the table: ``create`` (CREATE TABLE AS SELECT), ``create_or_replace`` or ``replace``; with
        ``partition_by``, ``cluster_by``, ``properties`` and ``description`` of the new table.
    :param after: staged writes of earlier stages, on top of which this one is planned.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :raises DeltaIllegalArgumentException: the options contradict each other.
    :raises PredicateException: the predicate does not parse or names an unknown column.
    """
    given = (replace_where, merge_schema, overwrite_schema, replace_on, replace_using, after, not data_change)
    arguments = create_arguments(
        handle, create, partition_by, cluster_by, properties, description, refused=any(given) or mode != "append"
    )
    before = handle
    if create is not None:
        handle = handle_of_new(handle, arguments["create"])
        mode, partition_columns = "overwrite" if handle.read_version >= 0 else "append", handle.partition_columns
    earlier = load_earlier(log, handle, after) if after else []
    if earlier:
        handle = handle_after(handle, earlier)
        arguments |= after_arguments(earlier)
    if create is None:
        partition_columns = check_write_options(
            handle, mode=mode, replace_where=replace_where, overwrite_schema=overwrite_schema, partition_by=partition_by
        )
    fits = mode == "overwrite" and replace_where is None and data_change and not overwrite_schema
    arguments |= replacement(handle, replace_on, replace_using, fits=fits)
    arguments |= optimize_arguments(handle, optimize_write)
    arguments |= data_change_arguments(
        log,
        handle,
        replace_where,
        mode=mode,
        data_change=data_change,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
    )
    if (overwrite_schema or create is not None) and _keeps_names(before, handle):
        arguments[REPLACED_SCHEMA] = (handle_after(before, earlier) if earlier else before).schema_string
    exists = handle.read_version >= 0 or bool(earlier)

    def plan(where: str | None) -> ScanPlan:
        return plan_scan_after(log, before, where, earlier, spark_table_uri=spark_table_uri)

    rewrite = predicate_text = predicate = None
    if "replaceOn" in arguments and exists:
        rewrite = plan(None)
    if replace_where is not None and exists:
        predicate, rewrite = _plan_replace_where(
            log, handle, before, replace_where, earlier, data_change=data_change, spark_table_uri=spark_table_uri
        )
        # Its own text: what it says of timestamps does not depend on the time zone of a Spark session.
        predicate_text = predicate.text
    elif replace_where is not None:  # of a table that the commit makes: Spark gets it as it is
        check_condition(handle, "replace_where", replace_where)
    check_replacement(before, earlier, mode=mode, predicate=predicate, data_change=data_change)
    rules = table_rules(handle, overwrite_schema=overwrite_schema)
    if rules.change_data and data_change:
        refuse_untold(before, "A write", earlier, tells=rewrite is not None)
    scan = plan(None if read is True else read) if read else None
    stage = stage_key(task_id, map_index)
    return StageRequest(
        transaction_id=handle.transaction_id,
        table=spark_table(log, spark_table_uri),
        read_version=handle.read_version,
        stage=stage,
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        directory=attempt_directory(handle.transaction_id, stage, attempt),
        mode=mode,
        replace_where=replace_where,
        predicate=predicate_text,
        schema_string=None if overwrite_schema else handle.schema_string,
        arguments=arguments,
        partition_columns=partition_columns,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        options={key: str(value) for key, value in (options or {}).items()},
        scan=scan,
        rewrite=rewrite,
        rules=rules,
    )


def _plan_replace_where(
    log: DeltaLog,
    handle: TransactionHandle,
    begun: TransactionHandle,
    replace_where: str,
    earlier: Sequence[StageActions],
    *,
    data_change: bool,
    spark_table_uri: str | None,
) -> tuple[Predicate, ScanPlan | None]:
    """Return the predicate of an overwrite, and the files of which Spark must write the rows that stay.

    :param begun: the handle without what the earlier stages did.
    """
    predicate = parse_predicate(log, handle, replace_where)
    if not predicate.partition_only:
        return predicate, plan_scan_after(log, begun, replace_where, earlier, spark_table_uri=spark_table_uri)
    undecided = undecided_files(log, begun, predicate, earlier)
    if not undecided:
        return predicate, None
    if not data_change:
        raise zone_needed(handle, predicate, "With data_change=False")
    if table_rules(handle).change_data:  # a version that has change data files tells of all its changes in them
        return predicate, plan_scan_after(log, begun, replace_where, earlier, spark_table_uri=spark_table_uri)
    return predicate, scan_of(log, handle, undecided, predicate, spark_table_uri=spark_table_uri)


def _keeps_names(before: TransactionHandle, after: TransactionHandle) -> bool:
    """Return whether columns that stay keep their ids and physical names, although the schema is replaced."""
    from airflow_delta.log.features.column_mapping import mode

    return before.read_version >= 0 and mode(before.configuration) != "none" and mode(after.configuration) != "none"


def put_request(log: DeltaLog, request: StageRequest) -> str:
    """Write the request beside the attempt's files, for a job that runs elsewhere, and return its URI as Spark reaches it."""
    data = json.dumps(request.to_dict(), ensure_ascii=False).encode()
    log.store.put(f"{request.directory}/{REQUEST_NAME}", data)
    return f"{request.path}/{REQUEST_NAME}"


def read_request(log: DeltaLog, directory: str) -> StageRequest:
    """Read back the request that an earlier try of a stage put.

    :param directory: ``directory`` of that request.
    :raises StagingException: it is gone, or damaged.
    """
    path = f"{directory}/{REQUEST_NAME}"
    try:
        return StageRequest.from_dict(json.loads(log.store.read(path)))
    except (FileNotFoundError, ValueError) as error:
        raise StagingException(
            f"The request of an earlier try of this stage cannot be read ({path} of table {log.uri}: {error}). Clear the task.",
            table=log.uri,
        ) from error


def read_report(log: DeltaLog, request: StageRequest) -> StageReport:
    """Read the report that a job elsewhere left in the attempt's directory.

    :raises StagingException: there is none: the job ended without staging.
    :raises DeltaError: the typed error that the stage itself reported.
    """
    directory = f"{request.directory}/{REPORT_DIRECTORY}"
    parts = sorted(s.path for s in log.store.list_recursive(directory) if s.name.startswith("part-") and s.size)
    if not parts:
        raise StagingException(
            f"The job of stage {request.stage} ended without staging anything for table {log.uri} (no report in "
            f"{directory}). Does it "
            "call delta_stage(spark).write(df)?",
            table=log.uri,
            version=request.read_version,
        )
    try:
        report = StageReport.from_dict(json.loads(b"".join(log.store.read_many(parts))))
    except ValueError as error:
        raise StagingException(
            f"The report of stage {request.stage} in {directory} is no JSON: {error}", table=log.uri
        ) from error
    if report.error_class is not None:
        kind = getattr(exceptions, report.error_class, None)
        typed = kind if isinstance(kind, type) and issubclass(kind, DeltaError) else StagingException
        raise typed(
            f"Stage {request.stage} failed on the cluster: {report.error_message or report.error_class}",
            table=log.uri,
            version=request.read_version,
        )
    return report


def reported_error(log: DeltaLog, request: StageRequest) -> DeltaError | None:
    """Return the error that a stage left on storage; it says more than that the application failed."""
    try:
        read_report(log, request)
    except StagingException:
        return None
    except DeltaError as reported:
        return reported
    return None


def skip_stage(
    handle: TransactionHandle, *, task_id: str, map_index: int = -1, attempt: str, mode: str = "append"
) -> StagedWrite:
    """Return the staged write of a stage that does nothing because the handle is committed already.

    It carries the totals of that commit, so that a check between stage and commit judges the rows that are there.
    """
    committed = handle.committed
    return StagedWrite(
        transaction_id=handle.transaction_id,
        stage=stage_key(task_id, map_index),
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        mode=mode,
        schema_string=handle.schema_string or "",
        partition_columns=handle.partition_columns,
        num_files=committed.num_files if committed else 0,
        num_removed_files=committed.num_removed_files if committed else 0,
        num_records=committed.num_records if committed else 0,
        num_bytes=committed.num_bytes if committed else 0,
        already_committed=True,
    )
