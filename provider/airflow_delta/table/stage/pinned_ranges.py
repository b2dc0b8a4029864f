"""The range of a source that a transaction reads, and the position that its commit moves.

The first attempt of any stage pins the range in a file of the transaction. Later attempts, and other stages, read the same one.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import SourcePosition
from airflow_delta.contract.sealed import sealed, unsealed
from airflow_delta.contract.staging_directory import SCAN_DIRECTORY, transaction_directory
from airflow_delta.exceptions import ConcurrentTransactionException, StageConflictException, StagingException
from airflow_delta.log.storage.puts import creates, read_until_found

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.view import TransactionView


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
