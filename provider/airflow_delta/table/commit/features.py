"""What the features of a table add to a commit of staged writes: change data files, tags of ``commitInfo``, identity values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import ENABLE_ROW_TRACKING, ROW_TRACKING_PRESERVED
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.contract.tags import KEEPS_ROWS_TAG
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddCDCFile
from airflow_delta.table.definition.evolve import deciding
from airflow_delta.table.definition.staged_definition import builds_on
from airflow_delta.table.stage.data_change import is_rearranging
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.net_effect import NetEffect

if TYPE_CHECKING:
    from airflow_delta.transaction import OptimisticTransaction


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

    Rows that were written again get new row ids unless the new files hold their old ones; then the commit must not claim to have
    kept them (Delta protocol, "Row Tracking"). Rows that stay in place keep theirs.
    """
    again = [stage.write for stage in stages if stage.write.num_copied_records or _writes_again(stage)]
    marked = any(add.deletion_vector is not None for stage in stages for add in stage.adds)
    tags = {KEEPS_ROWS_TAG: "true"} if again or marked else {}
    if txn.metadata.configuration.get(ENABLE_ROW_TRACKING, "false").lower() != "true":
        return tags
    if again:
        kept = all(write.keeps_row_ids for write in again)
        return {**tags, ROW_TRACKING_PRESERVED: "true" if kept else "false"}
    return {**tags, ROW_TRACKING_PRESERVED: "true"} if all(stage.write.mode == "rewrite" for stage in stages) else tags


def _writes_again(stage: StageActions) -> bool:
    """Return whether a stage rewrote rows of files that it removes; a new deletion vector does not count."""
    stay = {remove.path for remove in stage.removes}
    return stage.write.mode == "rewrite" and bool(stage.removes) and any(add.path not in stay for add in stage.adds)


def identity_marks(handle: TransactionHandle, stages: Sequence[StageActions]) -> list[dict[str, int]]:
    """Return the last values that stages gave to identity columns, each as the stage names them.

    :raises StageConflictException: if two stages did that were not planned on top of each other: both started at the same value.
    """
    filled = [write for write in deciding([stage.write for stage in stages]) if write.identity_high_water_marks]
    for at, write in enumerate(filled):
        if not builds_on(write, filled[:at]):
            raise handle.error(
                StageConflictException,
                f"Stages {', '.join(write.stage for write in filled)} of transaction {handle.transaction_id} all gave values to "
                f"the identity columns of table {handle.table}, so values would repeat. Plan each on top of the others (after=), "
                "or write the rows in one stage.",
            )
    return [write.identity_high_water_marks for write in filled]
