"""How far a table has the rows of other tables, as ``txn`` actions in its own log.

The position of a consumer in a source is the version of an application id (``SourcePosition.app_id``): the last version of the
source whose rows the table has. It moves in the commit that adds these rows, never alone, and is looked up at the version that
the transaction reads. So a concurrent commit of the same consumer is a conflict.

The first attempt of any stage pins the range that its transaction reads, in a file of the transaction. Later attempts, and other
stages, read the same one.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from airflow_delta.contract.files import SCAN_DIRECTORY, sealed, transaction_directory, unsealed
from airflow_delta.contract.payloads import SourcePosition
from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaIllegalStateException,
    StageConflictException,
    StagingException,
    TransactionExpiredException,
)
from airflow_delta.log.storage.puts import creates, read_until_found
from airflow_delta.table.start.rerun import is_known_before
from airflow_delta.table.state.find_commit import is_clone_of_others, last_txn_version
from airflow_delta.transaction.reads.app_ids import START_OVER, AppIdConflict

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
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


def pinned(view: TransactionView, source: SourcePosition) -> SourcePosition:
    """Pin a range for all stages of the transaction, unless one is pinned already; return the pinned one.

    :raises StagingException: if there is a pin that cannot be read.
    """
    path = pin_path(view.handle, source)
    if creates(view.log.store, path, sealed(source).encode()):
        return source
    found = read_until_found(lambda: _read_pin(view.log, path))
    if found is None or found.app_id != source.app_id:
        raise view.handle.error(
            StagingException,
            f"The range of {source.table} that transaction {view.handle.transaction_id} reads cannot be read back ({path} of "
            f"table {view.log.uri}). Nothing was staged. Clear the start task with everything downstream.",
        )
    return found


def pin_path(handle: TransactionHandle, source: SourcePosition) -> str:
    """Return the path of the file that pins the range of a source."""
    name = hashlib.sha256(source.app_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{transaction_directory(handle.transaction_id)}/{SCAN_DIRECTORY}/new-rows-{name}.json"


def _read_pin(log: DeltaLog, path: str) -> SourcePosition | None:
    try:
        return SourcePosition.from_dict(unsealed(log.store.read(path).decode(), f"The file {path} of table {log.uri}"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def positions_to_commit(view: TransactionView) -> list[SourcePosition]:
    """Return the positions that the commit of the stages moves, one for each source and consumer.

    What the stages report comes as XCom, so it must be what the transaction has pinned.

    :raises StageConflictException: if two stages have read different ranges of one source.
    :raises StagingException: if a range is not the pinned one.
    :raises ConcurrentTransactionException: if the position is no longer the one that the range began at.
    """
    found: dict[str, SourcePosition] = {}
    for stage in view.stages:
        for source in stage.write.sources:
            known = found.setdefault(source.app_id, source)
            if known != source:
                raise view.handle.error(
                    StageConflictException,
                    f"Stages of transaction {view.handle.transaction_id} on table {view.log.uri} have read different versions of "
                    f"{source.table} as {source.consumer!r}. Nothing is committed. Clear the start task with everything "
                    "downstream.",
                )
    for source in found.values():
        path = pin_path(view.handle, source)
        if _read_pin(view.log, path) != source:
            raise view.handle.error(
                StagingException,
                f"A stage of transaction {view.handle.transaction_id} on table {view.log.uri} says that it has read "
                f"{source.table} "
                f"up to version {source.version}, which is not what the transaction has pinned ({path}). Nothing is committed. "
                "Clear the start task with everything downstream.",
            )
        txn = view.snapshot.set_transaction(source.app_id, expired=True) if view.snapshot.version >= 0 else None
        if txn is not None and txn.version != source.before:
            raise ConcurrentTransactionException(
                f"Another commit has moved the position of {source.consumer!r} in {source.table} to version {txn.version}: this "
                f"transaction on table {view.log.uri} has read on from version {source.before}. Nothing is committed. Clear the "
                "start task: the next transaction reads what is new then.",
                table=view.log.uri,
                winning_version=view.snapshot.version,
            )
    return list(found.values())
