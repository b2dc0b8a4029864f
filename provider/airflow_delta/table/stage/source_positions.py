"""How far a table has the rows of other tables, as ``txn`` actions in its own log.

The position of a consumer in a source is the version of an application id (``SourcePosition.app_id``): the last version of the
source whose rows the table has. It moves in the commit that adds these rows, never alone, and is looked up at the version that
the transaction reads. So a concurrent commit of the same consumer is a conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import SourcePosition
from airflow_delta.exceptions import DeltaIllegalStateException, TransactionExpiredException
from airflow_delta.table.start.rerun import is_known_before
from airflow_delta.table.state.transaction_retention import is_clone_of_others, last_txn_version
from airflow_delta.transaction.reads.app_ids import START_OVER, AppIdConflict

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.table.stage.view import TransactionView

MOVED_BY_OTHERS = AppIdConflict(
    "A concurrent update has added new rows of the same source and consumer ({app_ids}), which this transaction has read, too",
    f"{START_OVER} reads what is new then. To have no such conflicts, set max_active_runs=1.",
)


def check_no_replacement(view: TransactionView, sources: str) -> None:
    """Refuse a stage whose sources count as read, if ``rerun_policy="replace"`` would take back the rows of an earlier run.

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


def position_before(view: TransactionView, source: SourcePosition, source_created: int | None, *, assume_new: bool) -> int:
    """Return the last version of the source whose rows the table has; -1 if it has none.

    :param source: the source and its consumer.
    :param source_created: when the source was created, in milliseconds: no position is older. ``None``: unknown.
    :param assume_new: the author says that a consumer without a position has read nothing.
    :raises TransactionExpiredException: if a position may have expired from the table.
    :raises DeltaIllegalStateException: if the consumer has read another table at this location, or this table elsewhere.
    """
    if view.handle.read_version < 0:
        return -1
    snapshot = view.snapshot
    try:
        found = last_txn_version(view.log, snapshot, source.app_id, lambda: source_created or 0)
    except TransactionExpiredException as error:
        if assume_new:
            return -1
        raise view.handle.error(
            TransactionExpiredException,
            f"It can no longer be known whether {source.consumer!r} has read new rows of {source.table} into table "
            f"{view.log.uri}: the table has no position of it, but positions expire there "
            "(delta.setTransactionRetentionDuration), and its log no longer reaches back far enough to tell. Nothing was staged. "
            "If the table has no such row yet, run once with assume_new=True. If it has some, run once with assume_new=True and "
            "starting_version=<the first version that it lacks>. Unset delta.setTransactionRetentionDuration, or let runs be "
            "closer together.",
        ) from error
    if found is not None:
        return found
    if not assume_new:
        _check_no_other(view, snapshot, source)
        what = f"{source.consumer!r} has read new rows of {source.table}"
        check_not_cloned(view, what, "starting_version=<the first version that it lacks>")
    return -1


def check_not_cloned(view: TransactionView, what: str, beginning: str) -> None:
    """Refuse to begin in a clone that another engine made: the rows may have come with it.

    :param what: what cannot be known.
    :param beginning: the argument that says where to begin.
    :raises DeltaIllegalStateException: if the table is one.
    """
    if is_clone_of_others(view.log):
        raise view.handle.error(
            DeltaIllegalStateException,
            f"Table {view.log.uri} began as a clone that another engine made, which does not say whether {what} into its source. "
            "Nothing was staged. Look at the table, then run once with assume_new=True, and with "
            f"{beginning} if it has some of the rows. Clones by DeltaCloneOperator say it.",
        )


def _check_no_other(view: TransactionView, snapshot: Snapshot, source: SourcePosition) -> None:
    """Refuse to begin again because the source became another table, or has moved: its rows may be here already."""
    prefix = source.prefix(source.consumer)
    way_out = (
        "Nothing was staged. If none of its rows are in the table, run once with assume_new=True, or read it as another consumer."
    )
    for app_id, version in snapshot.transactions.items():
        if version < 0 or not app_id.startswith(prefix):  # reset when the clone was replaced
            continue
        location, _, table_id = app_id[len(prefix) :].partition("/")
        if location == source.location(source.table) and table_id != source.table_id:
            raise view.handle.error(
                DeltaIllegalStateException,
                f"The table at {source.table} is another one than {source.consumer!r} has read so far into {view.log.uri}: its "
                "id "
                f"is {source.table_id}, not {table_id}, read up to version {version} "
                f"(DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE). {way_out}",
            )
        if table_id == source.table_id:
            raise view.handle.error(
                DeltaIllegalStateException,
                f"{source.consumer!r} has read the table with the id {table_id} into {view.log.uri} up to version {version}, but "
                f"at another location than {source.table}: the source has moved, or one of the two is a copy. {way_out}",
            )
