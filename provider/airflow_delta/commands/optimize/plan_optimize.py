"""Plan an OPTIMIZE: small files become few, rows that deletion vectors mark go, and ZORDER BY brings near rows together.

The worker selects the files; which of them belong together goes to Spark in ``StageRequest.arguments``:

* ``bins``: positions of files in ``StageRequest.rewrite``, a list for each bin, and ``outputs``: how many files each becomes;
* ``zOrderBy``: paths of the columns, and ``parallel``: bins that are written at a time;
* ``rowIds``: where row ids are kept, with those that each file of the plan starts from;
* ``dataChange``: for each bin, whether its rows are changes that earlier stages of the transaction have staged;
* ``removes`` for files that an earlier stage of the transaction has staged, and ``after``: the names of such stages;
* ``parameters``: of the operation, for ``commitInfo``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.files.rules import table_rules
from airflow_delta.commands.optimize.bins import (
    DEFAULT_FILE_SIZE,
    MAX_DELETED_ROWS_RATIO,
    Bin,
    Rewrite,
    bins_of,
    needs_compaction,
)
from airflow_delta.commands.optimize.optimize_options import (
    partition_predicate,
    refuse_clustered,
    target_file_size,
    z_order_columns,
)
from airflow_delta.commands.stage.after import handle_after, load_earlier, stage_id
from airflow_delta.commands.stage.data_change import changes_rows, to_rearrange
from airflow_delta.commands.stage.scan import candidate_files, scan_of, spark_table
from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaTableNotFoundException
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.paths import attempt_directory, stage_key
from airflow_delta.staging.report import StageRequest

if TYPE_CHECKING:
    from airflow_delta.commands.stage.load import StageActions
    from airflow_delta.log import AddFile, DeltaLog

PARALLEL = 4
"""Bins that Spark writes at a time (Delta's ``optimize.maxThreads`` is 15; a bin is one task, so cores are the bound)."""


def plan_optimize(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    where: str | None = None,
    z_order_by: Sequence[str] = (),
    min_file_size: int | None = None,
    max_file_size: int | None = None,
    max_deleted_rows_ratio: float = MAX_DELETED_ROWS_RATIO,
    parallel: int = PARALLEL,
    spark_table_uri: str | None = None,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StageRequest | StagedWrite:
    """Plan an OPTIMIZE as a stage of a transaction; its parameters are those of :func:`select_for_optimize`.

    :param parallel: bins that Spark writes at a time.
    :return: what Spark is asked to do, or the staged write when there is nothing to rewrite.
    """
    earlier = load_earlier(log, handle, after) if after else []
    rewrite = select_for_optimize(
        log,
        handle,
        where=where,
        z_order_by=z_order_by,
        min_file_size=min_file_size,
        max_file_size=max_file_size,
        max_deleted_rows_ratio=max_deleted_rows_ratio,
        earlier=earlier,
    )
    identity = {"task_id": task_id, "map_index": map_index, "attempt": attempt}
    return stage_of(log, handle, rewrite, identity, parallel=parallel, spark_table_uri=spark_table_uri, earlier=earlier)


def select_for_optimize(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    where: str | None = None,
    z_order_by: Sequence[str] = (),
    min_file_size: int | None = None,
    max_file_size: int | None = None,
    max_deleted_rows_ratio: float = MAX_DELETED_ROWS_RATIO,
    auto: bool = False,
    partitions: Sequence[Mapping[str, str | None]] | None = None,
    earlier: Sequence[StageActions] = (),
) -> Rewrite:
    """Select what an OPTIMIZE rewrites.

    Without ``z_order_by``: files below ``min_file_size``, or with too many deleted rows, packed into bins of up to
    ``max_file_size``; a bin becomes one file, and a bin of one file stays as it is. With it: all files, partition by partition.

    :param where: predicate on partition columns.
    :param z_order_by: columns to order by; a dot leads into a struct.
    :param min_file_size: bytes, default 1 GiB, or ``max_file_size`` where that is given.
    :param max_file_size: bytes, default 1 GiB, or the property ``delta.targetFileSize``.
    :param max_deleted_rows_ratio: share of deleted rows above which a file is rewritten whatever its size.
    :param auto: recorded as ``auto``: run by auto compaction.
    :param partitions: only these, as serialised values by physical name.
    :raises DeltaAnalysisException: the predicate names other columns, or a column cannot be ordered by.
    :raises DeltaUnsupportedOperationException: the table is clustered.
    """
    snapshot_handle = target_of(handle, earlier)
    max_size = max_file_size if max_file_size is not None else target_file_size(handle) or DEFAULT_FILE_SIZE
    min_size = min_file_size if min_file_size is not None else min(max_size, DEFAULT_FILE_SIZE)
    if max_size < 1 or min_size < 0 or not 0 <= max_deleted_rows_ratio <= 1:
        raise DeltaIllegalArgumentException(
            f"OPTIMIZE of table {handle.table} needs max_file_size >= 1, min_file_size >= 0 and a max_deleted_rows_ratio "
            f"from 0 to 1, got {max_size}, {min_size} and {max_deleted_rows_ratio}",
            table=handle.table,
        )
    refuse_clustered(log, handle, what="ZORDER BY" if z_order_by else "a predicate" if where is not None else None)
    predicate = partition_predicate(log, snapshot_handle, where, "OPTIMIZE")
    paths = z_order_columns(snapshot_handle, z_order_by)
    files = candidate_files(log, handle, predicate, earlier)
    if partitions is not None:
        wanted = [dict(values) for values in partitions]
        files = [file for file in files if file.partition_values in wanted]
    bins: tuple[Bin, ...] = ()
    for group in to_rearrange(handle, files, earlier):
        if paths:
            bins += bins_of(group, None, single=True)
        else:
            bins += bins_of([file for file in group if needs_compaction(file, min_size, max_deleted_rows_ratio)], max_size)
    from airflow_delta.log.schema.walk import dotted

    predicates = [] if where is None else [where]
    if partitions is not None:
        predicates = [_partitions_text(partitions)] if handle.partition_columns else []
    return Rewrite(
        operation="OPTIMIZE",
        parameters={"predicate": predicates, "zOrderBy": [dotted(path) for path in paths], "clusterBy": [], "auto": auto},
        predicate=None if predicate is None else predicate.text,
        bins=bins,
        max_file_size=max_size,
        z_order_by=paths,
        num_considered=len(files),
    )


def stage_of(
    log: DeltaLog,
    handle: TransactionHandle,
    rewrite: Rewrite,
    identity: Mapping[str, Any],
    *,
    parallel: int = PARALLEL,
    spark_table_uri: str | None = None,
    earlier: Sequence[StageActions] = (),
) -> StageRequest | StagedWrite:
    """Return the stage that rewrites the selected files, or an empty staged write when there are none.

    :param identity: ``task_id``, ``map_index`` and ``attempt``.
    """
    if not rewrite.bins:
        from airflow_delta.commands.optimize.collect_optimize import nothing_to_rewrite

        return nothing_to_rewrite(log, handle, rewrite, identity, [stage_id(stage.write) for stage in earlier])
    target = target_of(handle, earlier)
    stage = stage_key(identity["task_id"], identity.get("map_index", -1))
    files = [file for members in rewrite.bins for file in members]
    staged = {add.path for stage_actions in earlier for add in stage_actions.adds}
    return StageRequest(
        transaction_id=handle.transaction_id,
        table=spark_table(log, spark_table_uri),
        read_version=handle.read_version,
        stage=stage,
        task_id=identity["task_id"],
        map_index=identity.get("map_index", -1),
        attempt=identity["attempt"],
        directory=attempt_directory(handle.transaction_id, stage, identity["attempt"]),
        operation=rewrite.operation,
        mode="rewrite",
        schema_string=target.schema_string,
        partition_columns=target.partition_columns,
        rewrite=scan_of(log, target, files, spark_table_uri=spark_table_uri),
        rules=table_rules(target),
        arguments={
            "bins": _positions(rewrite.bins),
            "outputs": [rewrite.num_outputs(members) for members in rewrite.bins],
            "zOrderBy": [list(path) for path in rewrite.z_order_by],
            "parallel": max(1, parallel),
            "rowIds": _row_ids(handle, files),
            "dataChange": [changes_rows(members[0], earlier) for members in rewrite.bins],
            "removes": _removes([file for file in files if file.path in staged]),
            "after": [stage_id(stage_actions.write) for stage_actions in earlier],
            "parameters": dict(rewrite.parameters),
        },
    )


def target_of(handle: TransactionHandle, earlier: Sequence[StageActions]) -> TransactionHandle:
    """Return the handle with the table as earlier stages leave it.

    :raises DeltaTableNotFoundException: there is no table.
    """
    if handle.read_version < 0 and not earlier:
        raise DeltaTableNotFoundException(
            f"There is no Delta table at {handle.table}, so there is nothing to rewrite. Check the location.", table=handle.table
        )
    return handle_after(handle, earlier)


def _positions(bins: Sequence[Bin]) -> list[list[int]]:
    positions = []
    start = 0
    for members in bins:
        positions.append(list(range(start, start + len(members))))
        start += len(members)
    return positions


def _row_ids(handle: TransactionHandle, files: Sequence[AddFile]) -> dict[str, Any] | None:
    """Return what rows need to keep their row ids (Delta protocol, "Row Tracking"): ``None`` when the table has none to keep."""
    configuration = handle.configuration
    names = [configuration.get(f"delta.rowTracking.materialized{kind}ColumnName", "") for kind in ("RowId", "RowCommitVersion")]
    if configuration.get("delta.enableRowTracking", "false").lower() != "true" or not all(names):
        return None
    if any(file.base_row_id is None or file.default_row_commit_version is None for file in files):
        return None
    return {
        "columns": names,
        "base": [file.base_row_id for file in files],
        "version": [file.default_row_commit_version for file in files],
    }


def _removes(files: Sequence[AddFile]) -> list[Any]:
    import json

    from airflow_delta.log.actions.actions import encode_action

    return [json.loads(encode_action(file.remove(0, data_change=False))) for file in files]


def _partitions_text(partitions: Sequence[Mapping[str, str | None]]) -> str:
    def condition(name: str, value: str | None) -> str:
        quoted = name.replace("`", "``")
        escaped = "" if value is None else value.replace("\\", "\\\\").replace("'", "\\'")
        text = "NULL" if value is None else f"'{escaped}'"
        return f"(`{quoted}` <=> {text})"

    return " OR ".join("(" + " AND ".join(condition(*item) for item in values.items()) + ")" for values in partitions)
