"""A MERGE after Spark: staged actions, and what Delta counts of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_delta.contract.merge import INSERTED, NOT_MATCHED, NOT_MATCHED_BY_SOURCE, SCRATCH, ComparedColumns, MergeArguments
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.operations.rewrite.collect import Rewritten, collect_rewrite
from airflow_delta.table.stage.source_reads import with_views
from airflow_delta.table.stage.stage_view import StageView

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)


def collect_merge(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Turn what one attempt of a MERGE has written into staged actions."""
    inserted_into = tuple(f"{request.directory}/{name}/" for name in report.directories if name.endswith(INSERTED))
    staged = collect_rewrite(
        stage, request, report, metrics=partial(merge_metrics, inserted_into), compared=_compared(MergeArguments.of(request))
    )
    _clean_up(stage.log, request)
    copied = staged.metrics["numTargetRowsCopied"]
    rows = staged.metrics["numOutputRows"] - copied
    reads = replace(staged.reads, scanned=staged.reads.predicates[:1]) if _inserts(request) else staged.reads
    history = MergeArguments.of(request).history
    reads = with_views(request, reads, whole_table=history is not None and history.full_snapshot)
    sources = tuple(source.position for source in request.sources)
    return replace(staged, num_records=rows, num_copied_records=copied, reads=reads, sources=sources)


def merge_metrics(inserted_into: tuple[str, ...], rewritten: Rewritten, report: StageReport) -> Mapping[str, int]:
    """Return the metrics of a MERGE; those of rows that change are in the report.

    :param inserted_into: directories, relative to the table, that hold only inserted rows.
    """
    inserted = sum(live_records(add) or 0 for add in rewritten.new.adds if add.path.startswith(inserted_into))
    updated = report.metrics.get("numTargetRowsUpdated", 0)
    copied = rewritten.new.rows + rewritten.copied.rows - inserted - updated
    return {
        "numTargetRowsInserted": inserted,
        "numTargetRowsCopied": copied,
        "numOutputRows": inserted + updated + copied,
        "numTargetFilesAdded": len(rewritten.written),
        "numTargetFilesRemoved": len(rewritten.gone),
        "numTargetBytesAdded": sum(add.size for add in rewritten.written),
        "numTargetBytesRemoved": sum(remove.size or 0 for remove in rewritten.gone),
        "numTargetChangeFilesAdded": len(rewritten.changes),
        "numTargetDeletionVectorsAdded": rewritten.marked.added,
        "numTargetDeletionVectorsRemoved": rewritten.marked.removed,
        "numTargetDeletionVectorsUpdated": rewritten.marked.updated,
    }


def _inserts(request: StageRequest) -> bool:
    """Return whether a MERGE adds source rows because no row of the table matches: every row that does has been read."""
    return any(clause.kind == NOT_MATCHED for clause in MergeArguments.of(request).clauses)


def _compared(arguments: MergeArguments) -> tuple[ComparedColumns, ...]:
    """Return the columns in which the rows that a MERGE reads equal a row of its source."""
    whole = any(clause.kind == NOT_MATCHED_BY_SOURCE for clause in arguments.clauses)
    return () if whole else arguments.keys


def _clean_up(log: DeltaLog, request: StageRequest) -> None:
    try:
        log.store.delete_tree(f"{request.directory}/{SCRATCH}")
    except Exception as error:  # noqa: BLE001 - the rows are staged; maintenance deletes leftovers
        logger.warning("Could not delete %s/%s of table %s: %s", request.directory, SCRATCH, log.uri, error)
