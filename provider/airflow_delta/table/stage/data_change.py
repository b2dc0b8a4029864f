"""``dataChange`` of a transaction with stages that change rows and stages that only rearrange them.

Streams and the change data feed rely on the flag of each file. A file of the commit therefore holds either rows that the version
read has too (``dataChange`` false), or rows that the transaction changes. A file that would need both is refused when it is
planned. Each function below is one case of this rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import transaction_directory
from airflow_delta.exceptions import DeltaIllegalArgumentException, StageConflictException
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.statistics.row_counts import live_records

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.table.stage.load import StageActions
    from airflow_delta.table.stage.view import TransactionView

REARRANGING = frozenset({"OPTIMIZE", "REORG"})


def is_rearranging(write: StagedWrite) -> bool:
    """Return whether a stage only moves rows to other files."""
    return not write.data_change or write.operation in REARRANGING


def to_rearrange(view: TransactionView, files: Sequence[AddFile]) -> tuple[list[AddFile], list[AddFile]]:
    """Return the files that OPTIMIZE and REORG may rewrite: those with rows of the version read, and those with changed rows.

    Files of the two kinds must not be merged. A file in which an earlier stage marked rows as deleted is in neither list: its
    two deletion vectors tell which rows the commit deletes.
    """
    changed = {file_key(add) for stage in view.stages for add in stage.adds if add.data_change}
    own = f"{transaction_directory(view.handle.transaction_id)}/"
    kept = [file for file in files if file_key(file) not in changed]
    return kept, [file for file in files if file_key(file) in changed and file.path.startswith(own)]


def changes_rows(view: TransactionView, file: AddFile) -> bool:
    """Return whether an earlier stage has staged a file as a change of rows."""
    return any(add.data_change and file_key(add) == file_key(file) for stage in view.stages for add in stage.adds)


def refuse_rearranged(view: TransactionView, operation: str, files: Iterable[AddFile]) -> None:
    """Refuse to change rows of files that an earlier stage only rearranged.

    Their source files leave the table with ``dataChange`` false: readers of changes would miss the deleted rows and read the
    others twice.

    :param files: those that the operation may rewrite or remove.
    :raises StageConflictException: if an earlier stage rearranged one of the files.
    """
    handle = view.handle
    rearranged = {file_key(add): stage.write for stage in view.stages for add in stage.adds if not add.data_change}
    by = next((rearranged[file_key(file)] for file in files if file_key(file) in rearranged), None)
    if by is not None:
        what = by.operation if by.data_change else f"{by.operation} with data_change=False"
        raise handle.error(
            StageConflictException,
            f"{operation} of table {handle.table} version {handle.read_version} would change rows in files that stage {by.stage} "
            f"({what}) of the same transaction only rearranged: streams and the change data feed could not tell which rows "
            f"changed. Run {by.stage} after it (after=), or in its own transaction.",
        )


def check_replacement(view: TransactionView, *, mode: str, predicate: Predicate | None = None, data_change: bool = True) -> None:
    """Check that a write may replace what earlier stages staged.

    :param predicate: of ``replaceWhere``.
    :param data_change: whether the write changes rows; if not, it may only replace rows of the version read.
    :raises StageConflictException: if it may not.
    """
    if mode == "append" or not view.stages:
        return
    handle, files = view.handle, view.live_files([])
    if predicate is not None:
        files = [file for file in files if predicate.matches_partition(file.partition_values)]
    if data_change:
        refuse_rearranged(view, "A write", files)
        return
    changed = next((file for file in files if changes_rows(view, file)), None)
    if changed is not None:
        raise handle.error(
            StageConflictException,
            f"A write with data_change=False to table {handle.table} version {handle.read_version} would replace {changed.path}, "
            "which an earlier stage of the same transaction staged as a change of rows: streams and the change data feed "
            "would miss that change. Leave out data_change=False, or rearrange the rows in another transaction.",
        )


def refuse_untold(view: TransactionView, operation: str, *, tells: bool) -> None:
    """Refuse a change that would hide an earlier stage's rows from the change data feed.

    If a version has change data files, readers take its changes from them alone.

    :param tells: whether the operation writes change data files.
    :raises StageConflictException: if both have such files, or one has and the other changes rows without them.
    """
    handle = view.handle
    changing = [stage for stage in view.stages if not is_rearranging(stage.write) and (stage.adds or stage.removes)]
    other = next((stage for stage in changing if tells or stage.changes), None)
    if other is not None:
        raise handle.error(
            StageConflictException,
            f"{operation} of table {handle.table} version {handle.read_version} cannot be planned on top of stage "
            f"{other.write.stage} ({other.write.operation}): the change data feed is on, and the change data files of "
            f"{operation if tells else other.write.stage} would hide the changes of the other from readers. Put the stages "
            "into separate transactions.",
        )


def check_dropped(handle: TransactionHandle, stage: StageActions, dropped: Sequence[AddFile]) -> None:
    """Check that a stage gives staged files that it replaces the same ``dataChange`` that they had.

    :param dropped: staged files that the commit leaves out because this stage rewrote or removed them.
    :raises StageConflictException: if it does not; only a plan of another release allows that.
    """
    if not dropped:
        return
    own = f"{transaction_directory(handle.transaction_id)}/"
    changed = [add for add in dropped if add.data_change]
    if not is_rearranging(stage.write):
        wrong = next((add for add in dropped if not add.data_change), None)
        what = "changes rows of a file that another stage only rearranged"
    else:
        again = [add for add in stage.adds if add.data_change]
        told = _rows(changed) == _rows(again) and bool(changed) == bool(again)
        wrong = next((add for add in changed if not told or not add.path.startswith(own)), None)
        what = "rearranges rows that another stage changed"
    if wrong is not None:
        raise handle.error(
            StageConflictException,
            f"Stage {stage.write.stage} ({stage.write.operation}) of transaction {handle.transaction_id} on table {handle.table} "
            f"{what} ({wrong.path}), so the dataChange flag of its files would be wrong. Nothing is committed. Rearrange in a "
            "separate transaction.",
        )


def _rows(files: Sequence[AddFile]) -> int | None:
    """Return the live rows of files, ``None`` if unknown for a file."""
    counts = [live_records(file) for file in files]
    return None if any(count is None for count in counts) else sum(count or 0 for count in counts)


def check_data_change(
    view: TransactionView, replace_where: str | None, *, mode: str, merge_schema: bool, overwrite_schema: bool
) -> None:
    """Check that a write with ``data_change=False`` cannot change the table either.

    :raises DeltaIllegalArgumentException: if it could.
    """
    table = view.target
    if table.version < 0 or merge_schema or overwrite_schema:
        raise table.error(
            DeltaIllegalArgumentException,
            f"A write with data_change=False cannot change the schema of table {table.table}, or create the table "
            "(DELTA_DATA_CHANGE_FALSE). Leave out merge_schema and overwrite_schema.",
        )
    if mode == "append":
        raise table.error(
            DeltaIllegalArgumentException,
            f"An append with data_change=False would add rows to table {table.table} that streams and the change data feed "
            "never show. Overwrite the files that hold the rows now (mode='overwrite' or 'dynamic'), or leave out the option.",
        )
    if replace_where is not None and not view.predicate(replace_where).partition_only:
        raise table.error(
            DeltaIllegalArgumentException,
            f"replace_where ({replace_where}) with data_change=False may only name partition columns of table {table.table} "
            "(DELTA_REPLACE_WHERE_WITH_FILTER_DATA_CHANGE_UNSET)",
        )
