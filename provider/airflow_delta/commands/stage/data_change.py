"""``dataChange`` of a transaction with stages that change rows and stages that only rearrange them.

Streams and the change data feed go by the flag of each file. A file of the commit therefore holds either rows that the version
read has as well (``dataChange`` false), or rows that the transaction changes; what would have to be both is refused when it is
planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_delta.commands.files.row_counts import live_records
from airflow_delta.commands.stage.after import file_key, files_after
from airflow_delta.exceptions import StageConflictException
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.paths import transaction_directory

if TYPE_CHECKING:
    from airflow_delta.commands.stage.load import StageActions
    from airflow_delta.log.actions.actions import AddFile
    from airflow_delta.log.expressions.predicate import Predicate

REARRANGING = frozenset({"OPTIMIZE", "REORG"})


def is_rearranging(write: StagedWrite) -> bool:
    """Return whether a stage leaves the rows as they are and only puts them into other files."""
    return not write.data_change or write.operation in REARRANGING


# -- before a stage works -----------------------------------------------------------------------------------------------------


def to_rearrange(
    handle: TransactionHandle, files: Sequence[AddFile], earlier: Sequence[StageActions]
) -> tuple[list[AddFile], list[AddFile]]:
    """Return the files that OPTIMIZE and REORG may rewrite: those with rows of the version read, and those with changed rows.

    Files of the one kind must not get together with files of the other. A file of the table in which an earlier stage has marked
    rows as deleted is in neither: the commit says which rows went by its two deletion vectors.
    """
    changed = {file_key(add) for stage in earlier for add in stage.adds if add.data_change}
    own = f"{transaction_directory(handle.transaction_id)}/"
    kept = [file for file in files if file_key(file) not in changed]
    return kept, [file for file in files if file_key(file) in changed and file.path.startswith(own)]


def changes_rows(file: AddFile, earlier: Sequence[StageActions]) -> bool:
    """Return whether an earlier stage has staged a file as a change of rows."""
    return any(add.data_change and file_key(add) == file_key(file) for stage in earlier for add in stage.adds)


def refuse_rearranged(
    handle: TransactionHandle, operation: str, files: Iterable[AddFile], earlier: Sequence[StageActions]
) -> None:
    """Refuse to change rows of files that an earlier stage has only rearranged.

    The files that they come from leave the table with ``dataChange`` false: readers of changes would never learn that rows went,
    and would read the others twice.

    :param files: those that the operation may rewrite or remove.
    :raises StageConflictException: there is one.
    """
    rearranged = {file_key(add): stage.write for stage in earlier for add in stage.adds if not add.data_change}
    by = next((rearranged[file_key(file)] for file in files if file_key(file) in rearranged), None)
    if by is not None:
        what = by.operation if by.data_change else f"{by.operation} with data_change=False"
        raise StageConflictException(
            f"{operation} of table {handle.table} version {handle.read_version} would change rows in files that stage {by.stage} "
            f"({what}) of the same transaction has only rearranged: streams and the change data feed could not tell which rows "
            f"changed. Run {by.stage} after it (after=), or in a transaction of its own.",
            table=handle.table,
            version=handle.read_version,
        )


def check_replacement(
    handle: TransactionHandle,
    earlier: Sequence[StageActions],
    *,
    mode: str,
    predicate: Predicate | None = None,
    data_change: bool = True,
) -> None:
    """Check that a write may replace what earlier stages have staged.

    :param predicate: of ``replaceWhere``.
    :param data_change: whether the write changes rows; else those that it replaces must be those of the version read.
    :raises StageConflictException: it may not.
    """
    if mode == "append" or not earlier:
        return
    files = files_after(handle, [], earlier)
    if predicate is not None:
        files = [file for file in files if predicate.matches_partition(file.partition_values)]
    if data_change:
        refuse_rearranged(handle, "A write", files, earlier)
        return
    changed = next((file for file in files if changes_rows(file, earlier)), None)
    if changed is not None:
        raise StageConflictException(
            f"A write with data_change=False to table {handle.table} version {handle.read_version} would replace {changed.path}, "
            "which an earlier stage of the same transaction has staged as a change of rows: streams and the change data feed "
            "would miss that change. Leave out data_change=False, or rearrange the rows in a transaction of its own.",
            table=handle.table,
            version=handle.read_version,
        )


def refuse_untold(handle: TransactionHandle, operation: str, earlier: Sequence[StageActions], *, tells: bool) -> None:
    """Refuse changes that the change data feed could not tell beside those of earlier stages.

    Readers take the changes of a version from its change data files alone as soon as it has one.

    :param tells: whether the operation writes change data files.
    :raises StageConflictException: one of the two has such files, and the other changes rows without, or both have.
    """
    changing = [stage for stage in earlier if not is_rearranging(stage.write) and (stage.adds or stage.removes)]
    other = next((stage for stage in changing if tells or stage.changes), None)
    if other is not None:
        raise StageConflictException(
            f"{operation} of table {handle.table} version {handle.read_version} cannot be planned on top of stage "
            f"{other.write.stage} ({other.write.operation}): the change data feed is on, and the change data files of "
            f"{operation if tells else other.write.stage} would hide what the other one changes from its readers. Put the stages "
            "into transactions of their own.",
            table=handle.table,
            version=handle.read_version,
        )


# -- before the commit --------------------------------------------------------------------------------------------------------


def check_dropped(handle: TransactionHandle, stage: StageActions, dropped: Sequence[AddFile]) -> None:
    """Check that a stage says of the files that earlier ones have staged, and that it replaces, what they said.

    :param dropped: staged files that the commit leaves out since this stage has rewritten or removed them.
    :raises StageConflictException: it does not; the plan of the stage refuses that, so another release has made it.
    """
    if not dropped:
        return
    own = f"{transaction_directory(handle.transaction_id)}/"
    changed = [add for add in dropped if add.data_change]
    if not is_rearranging(stage.write):
        wrong = next((add for add in dropped if not add.data_change), None)
        what = "changes rows of a file that another stage has only rearranged"
    else:
        again = [add for add in stage.adds if add.data_change]
        told = _rows(changed) == _rows(again) and bool(changed) == bool(again)
        wrong = next((add for add in changed if not told or not add.path.startswith(own)), None)
        what = "rearranges rows that another stage has changed"
    if wrong is not None:
        raise StageConflictException(
            f"Stage {stage.write.stage} ({stage.write.operation}) of transaction {handle.transaction_id} on table {handle.table} "
            f"{what} ({wrong.path}), so that dataChange of its files would not be true. Nothing is committed. Rearrange in a "
            "transaction of its own.",
            table=handle.table,
            version=handle.read_version,
        )


def _rows(files: Sequence[AddFile]) -> int | None:
    """Return the live rows of files, ``None`` where one does not know."""
    counts = [live_records(file) for file in files]
    return None if any(count is None for count in counts) else sum(count or 0 for count in counts)
