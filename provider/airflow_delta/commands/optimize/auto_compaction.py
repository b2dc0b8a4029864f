"""Auto compaction: the OPTIMIZE that a commit has asked for, run by whoever has Spark, or right after the commit as a hook."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.optimize.plan_optimize import select_for_optimize
from airflow_delta.commands.optimize.run_optimize import run_rewrite
from airflow_delta.commands.publish.compaction_request import OptimizeResult, request_as_json
from airflow_delta.staging.contract import CommitResult, TransactionHandle
from airflow_delta.staging.paths import new_attempt
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.commands.optimize.bins import Rewrite
    from airflow_delta.log import DeltaLog
    from airflow_delta.transaction.policy.policy import AutoCompactionRequest

logger = logging.getLogger(__name__)

MIN_FILES = 50
"""Small files of a partition from which on it is compacted (``autoCompact.minNumFiles``)."""

MAX_FILE_SIZE = 128 << 20
"""Bytes that are written; files below half of it are small (``autoCompact.maxFileSize``)."""


def find_request(
    log: DeltaLog, committed: CommitResult | None = None, *, min_files: int = MIN_FILES, max_file_size: int = MAX_FILE_SIZE
) -> dict[str, Any] | None:
    """Return what is to be compacted: what a commit has asked for, or what the table asks for now.

    :param committed: the commit; ``None`` looks at all partitions, whatever the table's properties say.
    :return: ``None`` when nothing is.
    """
    if committed is not None:
        return committed.auto_compaction
    snapshot = log.update()
    if snapshot.version < 0:
        return None
    from airflow_delta.transaction.commit.auto_compact import small_files

    small = small_files(snapshot.files(columns=["partition_values", "size"]), max_file_size // 2)
    # From two on: a file alone has nothing to be compacted with.
    due = sorted((key for key in small if small[key][0] >= max(min_files, 2)), key=lambda key: (-small[key][0], str(key)))
    if not due:
        return None
    return {
        "version": snapshot.version,
        "partitions": [dict(key) for key in due],
        "numSmallFiles": sum(small[key][0] for key in due),
        "smallFileBytes": sum(small[key][1] for key in due),
        "minFileSize": max_file_size // 2,
        "maxFileSize": max_file_size,
    }


def run_auto_compaction(
    log: DeltaLog,
    request: Mapping[str, Any],
    work: Callable[[StageRequest], StageReport],
    *,
    identity: Mapping[str, Any],
    **options: Any,
) -> OptimizeResult | None:
    """Compact the small files of the partitions that a request names (``auto=true``).

    :param request: JSON form of :class:`~airflow_delta.transaction.policy.policy.AutoCompactionRequest` (:func:`find_request`).
    :param work: does the Spark part.
    :param options: as :func:`airflow_delta.commands.optimize.run_optimize.run_rewrite` takes them.
    :return: ``None`` for a clustered table, which only Delta Spark may rearrange.
    """
    from airflow_delta.log.features.clustering import clustering_columns

    if clustering_columns(log.update().domain_metadata):
        logger.warning("%s is a clustered table: it is left as it is. Run OPTIMIZE with Delta Spark.", log.uri)
        return None

    def select(opened: DeltaLog, handle: TransactionHandle) -> Rewrite:
        return select_for_optimize(
            opened,
            handle,
            min_file_size=int(request["minFileSize"]),
            max_file_size=int(request["maxFileSize"]),
            auto=True,
            partitions=request["partitions"],
        )

    return run_rewrite(log, select, work, identity=identity, **options)


def compact_on_request(
    log: DeltaLog, work: Callable[[StageRequest], StageReport], *, task_id: str = "auto_compaction", **options: Any
) -> Callable[[AutoCompactionRequest], None]:
    """Return a receiver of requests for ``CommitPolicy.on_auto_compact``: it compacts right after the commit, where Spark is.

    An error reaches the commit as one of a post-commit hook: the commit stands, and ``fail_on_hook_error`` decides.

    :param log: of the table that commits; a log of its own is opened, as the commit's is in use.
    :param work: does the Spark part, such as ``functools.partial(run_operation, spark)``.
    """

    def compact(request: AutoCompactionRequest) -> None:
        from airflow_delta.log import DeltaLog

        identity: dict[str, Any] = {"task_id": task_id, "map_index": -1, "attempt": new_attempt()}
        run_auto_compaction(DeltaLog(log.store), request_as_json(request), work, identity=identity, **options)

    return compact
