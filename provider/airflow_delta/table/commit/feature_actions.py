"""What the features of a table add to a commit of staged writes: change data files and tags of ``commitInfo``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddCDCFile
from airflow_delta.table.stage.data_change import is_rearranging
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.net_effect import NetEffect
from airflow_delta.table.start.rerun import KEEPS_ROWS

if TYPE_CHECKING:
    from airflow_delta.transaction import OptimisticTransaction

ROW_TRACKING_PRESERVED = "delta.rowTracking.preserved"


def changes_to_commit(handle: TransactionHandle, stages: Sequence[StageActions], replaced: NetEffect) -> list[AddCDCFile]:
    """Return the change data files of a commit.

    If a version has such files, readers of the change data feed take its changes from them alone (Delta protocol, "Add CDC
    File"), so they must cover everything that the commit changes.

    :raises StageConflictException: if other stages change rows without change data files.
    """
    changes = [change for stage in stages for change in stage.changes]
    if not changes:
        return []
    _refuse_changed_twice(handle, stages)
    told = {remove.path for stage in stages if stage.changes for remove in stage.removes}
    untold = [stage.write.stage for stage in stages if stage.adds and not stage.changes and not is_rearranging(stage.write)]
    whole = [remove.path for remove in replaced.removes if remove.data_change and remove.path not in told]
    if untold or whole:
        writer = next(stage.write.stage for stage in stages if stage.changes)
        other = f"stage {', '.join(untold)} adds rows" if untold else f"files are removed whole ({whole[0]}, ...)"
        raise handle.error(
            StageConflictException,
            f"Stage {writer} replaces rows of table {handle.table} by a predicate on data columns and writes change data, "
            f"while {other} in the same transaction: readers of the change data feed would miss that. Put them into separate "
            "transactions.",
        )
    return changes


def _refuse_changed_twice(handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Refuse change data of rows that another stage changed before: readers would get both changes, in no order."""
    staged = {add.path: stage for stage in stages for add in stage.adds}
    for stage in stages:
        if is_rearranging(stage.write):  # only moves rows
            continue
        for remove in stage.removes:
            first = staged.get(remove.path)
            if first is not None and first is not stage and (first.changes or stage.changes):
                raise handle.error(
                    StageConflictException,
                    f"Stage {stage.write.stage} changes rows of {remove.path}, which stage {first.write.stage} of the same "
                    f"transaction has staged for table {handle.table}. The change data feed of one version cannot show that a "
                    "row changed twice. Put the stages into separate transactions.",
                )


def feature_tags(txn: OptimisticTransaction, stages: Sequence[StageActions]) -> dict[str, str]:
    """Return tags that say what a commit does to a feature.

    Rewritten rows get new row ids: the files do not hold their old ones, so the commit must not claim to have kept them (Delta
    protocol, "Row Tracking"). Rows that stay in place keep theirs.
    """
    keeps = any(stage.write.num_copied_records or _writes_again(stage) for stage in stages)
    marked = any(add.deletion_vector is not None for stage in stages for add in stage.adds)
    tags = {KEEPS_ROWS: "true"} if keeps or marked else {}
    if txn.metadata.configuration.get("delta.enableRowTracking", "false").lower() != "true":
        return tags
    if keeps:
        return {**tags, ROW_TRACKING_PRESERVED: "false"}
    return {**tags, ROW_TRACKING_PRESERVED: "true"} if all(stage.write.mode == "rewrite" for stage in stages) else tags


def _writes_again(stage: StageActions) -> bool:
    """Return whether a stage rewrote rows of files that it removes; a new deletion vector does not count."""
    stay = {remove.path for remove in stage.removes}
    return stage.write.mode == "rewrite" and bool(stage.removes) and any(add.path not in stay for add in stage.adds)


def identity_marks(handle: TransactionHandle, stages: Sequence[StageActions]) -> dict[str, int]:
    """Return the last values that stages gave to identity columns.

    :raises StageConflictException: if two stages did, both starting at the same value.
    """
    filled = [stage.write for stage in stages if stage.write.identity_high_water_marks]
    if len(filled) > 1:
        raise handle.error(
            StageConflictException,
            f"Stages {', '.join(write.stage for write in filled)} of transaction {handle.transaction_id} all gave values to the "
            f"identity columns of table {handle.table}, so values would repeat. Write the rows in one stage, or in consecutive "
            "transactions.",
        )
    return dict(filled[0].identity_high_water_marks) if filled else {}
