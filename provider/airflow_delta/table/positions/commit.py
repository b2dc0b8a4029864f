"""The positions that the commit of a transaction moves, of whatever its stages have taken.

These are its rules (:class:`~airflow_delta.table.commit.rules.CommitRule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_delta.exceptions import ConcurrentTransactionException
from airflow_delta.table.commit.rules import AppIdRule, ToCommit
from airflow_delta.table.positions.files.load import LOADED_BY_OTHERS, ReportedLoads, load_path, reported_loads
from airflow_delta.table.positions.position import check_not_moved
from airflow_delta.table.positions.rows import READ_BY_OTHERS, range_path, read_elsewhere, reported_ranges
from airflow_delta.transaction.conflicts.errors import creator_of

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.table.positions.position import Position
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction.reads.app_ids import AppIdConflict


def to_commit(view: TransactionView, *, created: bool) -> ToCommit:
    """Return the positions that the commit of the stages moves.

    What the stages report comes as XCom, so it must be what the transaction has pinned.

    :param created: another transaction created the table since this one began.
    :raises StageConflictException: if two stages have taken what does not go together.
    :raises StagingException: if a stage reports what is not pinned.
    :raises ConcurrentTransactionException: if a position has moved since the transaction began, or the table was created with
        what the stages have taken.
    """
    ranges = reported_ranges(view) if any(stage.write.sources for stage in view.stages) else []
    loads = reported_loads(view) if any(stage.write.loads for stage in view.stages) else ReportedLoads(view.log)
    versions: dict[str, int] = {}
    conflicts: dict[str, AppIdConflict] = {}
    kinds: tuple[tuple[Sequence[Position], AppIdConflict], ...] = ((ranges, READ_BY_OTHERS), (loads.loads, LOADED_BY_OTHERS))
    for positions, conflict in kinds:
        for position in positions:
            check_not_moved(view, position)
            versions |= position.versions
            conflicts |= dict.fromkeys(position.versions, conflict)
    rules: list[AppIdRule] = [partial(read_elsewhere, source) for source in ranges]
    if loads.unshared:
        rules.append(loads.loaded_by_another)
    why = next(filter(None, (rule(view.snapshot.transactions) for rule in rules)), None) if created else None
    if why is not None:
        who, info = creator_of(view.log)
        raise ConcurrentTransactionException(
            f"{why}. The table {view.log.uri} was created since this transaction began ({who}). Nothing is committed. Clear the "
            "start task: the new transaction sees what the table has by then.",
            table=view.log.uri,
            winning_version=0,
            winning_commit=info,
        )
    return ToCommit(versions, conflicts, tuple(rules), loads.keep)


def leftovers(write: StagedWrite) -> list[str]:
    """Return the paths of the pins of what a stage has taken."""
    return [
        *(range_path(write.transaction_id, source) for source in write.sources),
        *(load_path(write.transaction_id, load.consumer) for load in write.loads),
    ]
