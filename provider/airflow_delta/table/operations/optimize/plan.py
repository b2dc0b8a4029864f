"""Plan an OPTIMIZE: merge small files, drop deleted rows, and order rows by ZORDER BY or by the table's clustering columns.

The worker selects the files; which of them belong together goes to Spark (:mod:`airflow_delta.contract.operations`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import ENABLE_DELETION_VECTORS
from airflow_delta.contract.operations import OptimizeArguments
from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.contract.payloads import Json, StagedWrite
from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaTableNotFoundException
from airflow_delta.log.actions.actions import encode_action
from airflow_delta.log.features.clustering import quoted_path
from airflow_delta.log.schema.partition_directories import partition_directory
from airflow_delta.log.schema.walk import dotted
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.operations.optimize.bins import (
    MAX_DELETED_ROWS_RATIO,
    Bin,
    RewriteSelection,
    bins_of,
    file_size,
    needs_compaction,
    pack,
    values_in_new_files,
)
from airflow_delta.table.operations.optimize.collect import collect_optimize
from airflow_delta.table.operations.optimize.cubes import MIN_CUBE_SIZE, clustering_of, files_to_cluster
from airflow_delta.table.operations.optimize.options import (
    DEFAULT_FILE_SIZE,
    partition_predicate,
    target_file_size,
    z_order_columns,
)
from airflow_delta.table.stage.data_change import changes_rows, to_rearrange
from airflow_delta.table.stage.scan import candidate_files, row_ids_of, scan_of
from airflow_delta.table.stage.stage_view import SparkWork, StageView
from airflow_delta.table.stage.view import TransactionView

if TYPE_CHECKING:
    from airflow_delta.log import AddFile


PARALLEL = 4
"""Bins that Spark writes at a time (Delta's ``optimize.maxThreads`` is 15, but a bin is one task, so cores are the limit)."""

_LONGEST_NAME = 255
"""Bytes of the name of a directory on local disks and HDFS."""


def plan_optimize(
    stage: StageView,
    *,
    where: str | None = None,
    z_order_by: Sequence[str] = (),
    full: bool = False,
    min_file_size: int | None = None,
    max_file_size: int | None = None,
    max_deleted_rows_ratio: float = MAX_DELETED_ROWS_RATIO,
    parallel: int = PARALLEL,
) -> SparkWork | StagedWrite:
    """Plan an OPTIMIZE as a stage of a transaction; its parameters are those of :func:`select_for_optimize`.

    :param parallel: bins that Spark writes at a time.
    :return: what Spark is asked to do, or the staged write if there is nothing to rewrite.
    """
    rewrite = select_for_optimize(
        stage,
        where=where,
        z_order_by=z_order_by,
        full=full,
        min_file_size=min_file_size,
        max_file_size=max_file_size,
        max_deleted_rows_ratio=max_deleted_rows_ratio,
    )
    return stage_of(stage, rewrite, parallel=parallel)


def select_for_optimize(
    view: TransactionView,
    *,
    where: str | None = None,
    z_order_by: Sequence[str] = (),
    full: bool = False,
    min_file_size: int | None = None,
    max_file_size: int | None = None,
    max_deleted_rows_ratio: float = MAX_DELETED_ROWS_RATIO,
    min_cube_size: int = MIN_CUBE_SIZE,
    auto: bool = False,
    partitions: Sequence[Mapping[str, str | None]] | None = None,
) -> RewriteSelection:
    """Select what an OPTIMIZE rewrites.

    Without ``z_order_by``: files below ``min_file_size``, or with too many deleted rows, packed into bins of up to
    ``max_file_size``; each bin becomes one file, and a single file stays as it is. With it: all files, partition by partition.

    Of a clustered table: the files that are in no cube and those of small cubes (:mod:`.cubes`), packed into bins of one and a
    half times ``min_cube_size``, each of which becomes a cube.

    :param where: predicate on partition columns.
    :param z_order_by: columns to order by; a dot leads into a struct.
    :param full: also the files of a clustered table that were clustered by other columns (OPTIMIZE FULL).
    :param min_file_size: bytes; default: 1 GiB, or ``max_file_size`` if given.
    :param max_file_size: bytes; default: 1 GiB, or the property ``delta.targetFileSize``.
    :param max_deleted_rows_ratio: fraction of deleted rows above which a file of any size is rewritten.
    :param min_cube_size: bytes from which a cube of a clustered table is left alone.
    :param auto: run by auto compaction; recorded as ``auto``.
    :param partitions: only these, as serialised values by physical name.
    :raises DeltaAnalysisException: if the predicate names other columns, or a column cannot be ordered by.
    :raises DeltaUnsupportedOperationException: for what a clustered table does not take, or ``full`` for any other table.
    """
    view.log.store.committer.check_allowed("OPTIMIZE")
    check_exists(view)
    table = view.target
    max_size = max_file_size if max_file_size is not None else target_file_size(table) or DEFAULT_FILE_SIZE
    min_size = min_file_size if min_file_size is not None else min(max_size, DEFAULT_FILE_SIZE)
    if max_size < 1 or min_size < 0 or not 0 <= max_deleted_rows_ratio <= 1:
        raise table.error(
            DeltaIllegalArgumentException,
            f"OPTIMIZE of table {table.table} needs max_file_size >= 1, min_file_size >= 0 and a max_deleted_rows_ratio "
            f"from 0 to 1, got {max_size}, {min_size} and {max_deleted_rows_ratio}",
        )
    if not isinstance(full, bool):
        raise table.error(
            DeltaIllegalArgumentException, f"full of the OPTIMIZE of table {table.table} must be True or False, got {full!r}"
        )
    clustering = clustering_of(view, where=where, z_order_by=z_order_by, full=full)
    predicate = partition_predicate(view, where, "OPTIMIZE")
    paths = z_order_columns(view, z_order_by)
    files = candidate_files(view, predicate)
    if partitions is not None:
        wanted = [partition_texts_of(values) for values in partitions]
        files = [file for file in files if partition_texts_of(file.partition_values) in wanted]
    bins: tuple[Bin, ...] = ()
    considered = files_to_cluster(files, clustering, full=full, min_cube_size=min_cube_size) if clustering else files
    for group in to_rearrange(view, considered):
        if clustering:
            bins += tuple(pack(group, file_size, min_cube_size * 3 // 2))
        elif paths:
            bins += bins_of(group, None, single=True)
        else:
            bins += bins_of([file for file in group if needs_compaction(file, min_size, max_deleted_rows_ratio)], max_size)
    predicates = [] if where is None else [where]
    if partitions is not None:
        predicates = [_partitions_text(partitions)] if table.partition_columns else []
    return RewriteSelection(
        operation="OPTIMIZE",
        parameters={
            "predicate": predicates,
            "zOrderBy": [dotted(path) for path in paths],
            "clusterBy": [quoted_path(path) for path in clustering],
            "auto": auto,
            **({"isFull": full} if clustering else {}),
        },
        predicate=None if predicate is None else predicate.text,
        bins=bins,
        max_file_size=max_size,
        z_order_by=paths,
        cluster_by=clustering,
        num_considered=len(files),
    )


def stage_of(stage: StageView, rewrite: RewriteSelection, *, parallel: int = PARALLEL) -> SparkWork | StagedWrite:
    """Return what Spark is asked to rewrite, or an empty staged write if nothing is selected."""
    if not rewrite.bins:
        return stage.staged(operation=rewrite.operation, parameters=dict(rewrite.parameters), mode="rewrite")
    files = [file for members in rewrite.bins for file in members]
    staged = {add.path for earlier in stage.stages for add in earlier.adds}
    arguments = OptimizeArguments(
        bins=_positions(rewrite.bins),
        outputs=tuple(rewrite.num_outputs(members) for members in rewrite.bins),
        directories=tuple(_directory(stage, members[0]) for members in rewrite.bins),
        z_order_by=rewrite.z_order_by,
        cluster_by=rewrite.cluster_by,
        cubes=tuple(str(uuid.uuid4()) for _ in rewrite.bins) if rewrite.cluster_by else (),
        parallel=max(1, parallel),
        row_ids=row_ids_of(stage.definition, files),
        data_change=tuple(changes_rows(stage, members[0]) for members in rewrite.bins),
        removes=_removes([file for file in files if file.path in staged]),
        parameters=dict(rewrite.parameters),
        # Without vectors, rows of the new files cannot be marked, wherever they are.
        record_rows=rewrite.metadata is None
        and stage.definition.configuration.get(ENABLE_DELETION_VECTORS, "false").lower() == "true",
    )
    request = stage.request(
        arguments,
        operation="REORG" if rewrite.metadata is not None else rewrite.operation,  # the work is the same
        mode="rewrite",
        rewrite=scan_of(stage, files, target=stage.definition if rewrite.metadata is not None else None),
        rules=table_rules(stage.target),
    )
    return SparkWork(request, partial(collect_optimize, stage))


def check_exists(view: TransactionView) -> None:
    """Refuse to rewrite a table that does not exist.

    :raises DeltaTableNotFoundException: if there is no table.
    """
    if not view.exists:
        raise view.handle.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {view.handle.table}, so there is nothing to rewrite. Check the location.",
        )


def _directory(stage: StageView, file: AddFile) -> str:
    """Return the directory of a file's partition, as every other write names it: some readers take values from paths.

    It is empty if file systems cannot have a directory of that name.
    """
    mapped = stage.target.column_mapping != "none"
    fields = stage.schema.select(list(stage.target.partition_columns))
    values = values_in_new_files(stage, file.partition_values)
    directory = partition_directory(values, [field.physical_name if mapped else field.name for field in fields])
    too_long = any(len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME for name in directory.split("/"))
    return "" if too_long or "\0" in directory else directory


def _positions(bins: Sequence[Bin]) -> tuple[tuple[int, ...], ...]:
    numbers = count()
    return tuple(tuple(next(numbers) for _ in members) for members in bins)


def _removes(files: Sequence[AddFile]) -> tuple[Json, ...]:
    return tuple(json.loads(encode_action(file.remove(0, data_change=False))) for file in files)


def _partitions_text(partitions: Sequence[Mapping[str, str | None]]) -> str:
    def condition(name: str, value: str | None) -> str:
        quoted = name.replace("`", "``")
        escaped = "" if value is None else value.replace("\\", "\\\\").replace("'", "\\'")
        text = "NULL" if value is None else f"'{escaped}'"
        return f"(`{quoted}` <=> {text})"

    return " OR ".join("(" + " AND ".join(condition(*item) for item in values.items()) + ")" for values in partitions)
