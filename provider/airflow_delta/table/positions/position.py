"""A position: the version of an application id, which says how far the table has taken a source.

It moves in the commit of what was taken, never alone, and is looked up at the version that the transaction reads. So a concurrent
commit of the same consumer is a conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaIllegalStateException,
    TransactionExpiredException,
)
from airflow_delta.table.start.replaced_files import is_known_before
from airflow_delta.table.state.transaction_retention import is_clone_of_others, last_txn_version
from airflow_delta.transaction.reads.app_ids import START_OVER, AppIdConflict

if TYPE_CHECKING:
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.table.state.transaction_retention import PossibleSince


class Position(Protocol):
    """What a stage has taken from a source, as it reports it."""

    @property
    def consumer(self) -> str:
        """Who takes."""

    @property
    def app_id(self) -> str:
        """The application id of the position."""

    @property
    def before(self) -> int:
        """Where the position was."""

    @property
    def versions(self) -> dict[str, int]:
        """What the commit sets, by application id."""


def moved_by_others(what: str, takes: str) -> AppIdConflict:
    """Return what a conflict over a position says.

    :param what: what the winner has done, with ``{app_ids}`` in it.
    :param takes: the verb.
    """
    return AppIdConflict(
        f"A concurrent update has {what}",
        f"{START_OVER} {takes} what is new then. To have no such conflicts, set max_active_runs=1.",
    )


def check_no_replacement(view: TransactionView, sources: str) -> None:
    """Refuse a stage whose sources count as taken, if ``rerun_policy="replace"`` would take back the rows of an earlier run.

    :param sources: where these rows came from, in the words of the error.
    :raises DeltaIllegalStateException: if it would.
    """
    handle = view.handle
    if handle.rerun_policy != "replace" or handle.read_version < 0 or not is_known_before(view.snapshot, handle):
        return
    raise handle.error(
        DeltaIllegalStateException,
        f"Transaction {handle.app_id!r} is in table {handle.table} already, and rerun_policy='replace' would take back the rows "
        f"that it added: they came from {sources} that count as read, and would not be read again. Nothing was staged. Use "
        "rerun_policy='skip', or 'append' to add what is new since.",
    )


def last_position(
    view: TransactionView, app_id: str, since: PossibleSince, *, what: str, beginning: str, assume_new: bool
) -> int | None:
    """Return a position at the version that the transaction reads, ``None`` if there is none.

    :param since: returns what no position is older than.
    :param what: what the position says, in the words of the error.
    :param beginning: the argument that says where to begin.
    :param assume_new: the author says that a consumer without a position has taken nothing.
    :raises TransactionExpiredException: if the position may have expired from the table.
    """
    if view.handle.read_version < 0:
        return None
    try:
        return last_txn_version(view.log, view.snapshot, app_id, since)
    except TransactionExpiredException as error:
        if assume_new:
            return None
        raise view.handle.error(
            TransactionExpiredException,
            f"It can no longer be known whether {what} into table {view.log.uri}: its position may have expired there "
            "(delta.setTransactionRetentionDuration), and the log no longer reaches back far enough to tell. Nothing was staged. "
            f"Look at the table, then run once with assume_new=True, and with {beginning} if it has some of the rows. Unset "
            "delta.setTransactionRetentionDuration, or let runs be closer together.",
        ) from error


def check_not_cloned(view: TransactionView, *, what: str, beginning: str) -> None:
    """Refuse to begin in a clone that another engine made: the rows may have come with it.

    :param what: as of :func:`last_position`.
    :raises DeltaIllegalStateException: if the table is one.
    """
    if is_clone_of_others(view.log):
        raise view.handle.error(
            DeltaIllegalStateException,
            f"Table {view.log.uri} began as a clone that another engine made, which does not say whether {what} into its source. "
            "Nothing was staged. Look at the table, then run once with assume_new=True, and with "
            f"{beginning} if it has some of the rows. Clones by DeltaCloneOperator say it.",
        )


def check_not_moved(view: TransactionView, position: Position) -> None:
    """Refuse to commit what was read from a position that the table has left since.

    :raises ConcurrentTransactionException: if it has moved.
    """
    txn = view.snapshot.set_transaction(position.app_id, expired=True)
    if txn is not None and txn.version != position.before:
        raise ConcurrentTransactionException(
            f"Another commit has moved the position of {position.consumer!r} ({position.app_id}) from {position.before}, from "
            f"where this transaction on table {view.log.uri} has gone on, to {txn.version}. Nothing is committed. Clear the "
            "start task: the next transaction takes what is new then.",
            table=view.log.uri,
            winning_version=view.snapshot.version,
        )
