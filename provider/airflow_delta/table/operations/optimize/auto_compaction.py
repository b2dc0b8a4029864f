"""Auto compaction: the OPTIMIZE that a commit asked for, run later where Spark is, or as a hook right after the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import CommitResult
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.log.delta_log import DeltaLog
from airflow_delta.table.operations.optimize.bins import RewriteSelection
from airflow_delta.table.operations.optimize.plan import select_for_optimize
from airflow_delta.table.stage.view import TransactionView
from airflow_delta.table.state.commit_result import request_as_json
from airflow_delta.table.state.optimize_result import OptimizeResult
from airflow_delta.transaction.commit.auto_compact import small_files
from airflow_delta.transaction.policy import AUTO_COMPACT_MAX_FILE_SIZE, AUTO_COMPACT_MIN_FILES

if TYPE_CHECKING:
    from airflow_delta.transaction.policy import AutoCompactionRequest
from airflow_delta.table.operations.optimize.run import run_rewrite


def find_request(
    log: DeltaLog,
    committed: CommitResult | None = None,
    *,
    min_files: int = AUTO_COMPACT_MIN_FILES,
    max_file_size: int = AUTO_COMPACT_MAX_FILE_SIZE,
) -> dict[str, Any] | None:
    """Return what to compact: what a commit asked for, or what the table needs now.

    :param committed: the commit; ``None``: look at all partitions, whatever the table's properties say.
    :return: ``None`` if there is nothing to compact.
    """
    if committed is not None:
        return committed.auto_compaction
    snapshot = log.update()
    if snapshot.version < 0:
        return None
    small = small_files(snapshot.files(columns=["partition_values", "size"]), max_file_size // 2)
    # At least two: a single file cannot be compacted.
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
) -> OptimizeResult:
    """Compact the small files of the partitions that a request names (``auto=true``).

    :param request: JSON form of :class:`~airflow_delta.transaction.policy.AutoCompactionRequest` (:func:`find_request`).
    :param work: does the Spark part.
    :param options: as :func:`airflow_delta.table.operations.optimize.run.run_rewrite` takes them.
    """

    def select(view: TransactionView) -> RewriteSelection:
        return select_for_optimize(
            view,
            min_file_size=int(request["minFileSize"]),
            max_file_size=int(request["maxFileSize"]),
            auto=True,
            partitions=request["partitions"],
        )

    return run_rewrite(log, select, work, identity=identity, **options)


def compact_on_request(
    log: DeltaLog, work: Callable[[StageRequest], StageReport], *, task_id: str = "auto_compaction", **options: Any
) -> Callable[[AutoCompactionRequest], None]:
    """Return a function for ``CommitPolicy.on_auto_compact`` that compacts right after the commit.

    Its errors are those of a post-commit hook: the commit stands, and ``fail_on_hook_error`` decides.

    :param log: log of the table; another one is opened, since the commit is using it.
    :param work: does the Spark part, such as ``functools.partial(run_operation, spark)``.
    """

    def compact(request: AutoCompactionRequest) -> None:
        identity: dict[str, Any] = {"task_id": task_id, "map_index": -1, "attempt": new_attempt()}
        run_auto_compaction(DeltaLog(log.store), request_as_json(request), work, identity=identity, **options)

    return compact
