"""``rerun_policy='replace'``: which files earlier commits of the key added, and whether they can still be replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import OWN_APPS, TransactionHandle
from airflow_delta.contract.tags import KEEPS_ROWS_TAG
from airflow_delta.exceptions import TransactionAlreadyCommittedException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.state.find_commit import commits_of, standing_version

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.decode import DecodedCommit
    from airflow_delta.log.delta_log import DeltaLog


_REWRITES = {"DELETE", "UPDATE", "MERGE", "OPTIMIZE", "REORG"}


def files_to_replace(log: DeltaLog, snapshot: Snapshot, handle: TransactionHandle) -> list[AddFile]:
    """Return the live files that the key of this transaction added before.

    :param snapshot: the version that the transaction reads.
    :raises TransactionAlreadyCommittedException: if another writer has since rewritten or removed some of them, if their rows
        would not come again, or if the log no longer says which they are.
    """
    if snapshot.version < 0 or handle.rerun_policy != "replace" or not is_known_before(snapshot, handle):
        return []
    added: dict[str, tuple[int, AddFile]] = {}
    removed: set[str] = set()
    complete = False
    last = snapshot.transaction_version(handle.app_id)
    standing = standing_version(snapshot, handle.app_id, last)
    if last is not None and standing is None and not handle.monotonic:  # all of it was taken back
        return []
    for commit in commits_of(log, handle.app_id):
        version = next(txn.version for txn in commit.txns if txn.app_id == handle.app_id)
        if commit.version > snapshot.version or _is_taken_back(handle, version, standing):
            continue
        if handle.monotonic and version != handle.txn_version:
            complete = version < handle.txn_version
            if complete:
                break
            continue
        _refuse_kept_rows(handle, snapshot, commit)
        _refuse_read_rows(handle, snapshot, commit)
        for add in commit.adds:
            if add.path not in removed:
                added.setdefault(add.path, (commit.version, add))
        removed.update(remove.path for remove in commit.removes)
        complete = complete or (version == 0 if not handle.monotonic else True)
        if complete and not handle.monotonic:
            break
    if not complete:
        raise _refused(handle, snapshot, "the log no longer holds the commit that added them (it was cleaned up)")
    live = {f.path: f for f in _live(snapshot, list(added))}
    # A deletion vector of another writer counts as rewritten: rows that it marks may have moved to other files.
    gone = [
        (path, version)
        for path, (version, add) in added.items()
        if path not in live or live[path].deletion_vector != add.deletion_vector
    ]
    if gone:
        path, version = gone[0]
        raise _refused(
            handle,
            snapshot,
            f"another commit has since rewritten or removed {len(gone)} of its {len(added)} files (such as {path}, added "
            f"in version {version}), so its rows can no longer be distinguished from others'",
        )
    return list(live.values())


def _is_taken_back(handle: TransactionHandle, version: int, standing: int | None) -> bool:
    return not handle.monotonic and standing is not None and version > standing


def is_known_before(snapshot: Snapshot, handle: TransactionHandle) -> bool:
    """Return whether start found the key in the log; it may know an expired one, and then counts on from there."""
    if not handle.monotonic:
        return handle.txn_version > 0
    last = snapshot.transaction_version(handle.app_id)
    return last is not None and last >= handle.txn_version


def _refuse_kept_rows(handle: TransactionHandle, snapshot: Snapshot, commit: DecodedCommit) -> None:
    """Refuse files that may hold rows that their commit did not bring: copies, or what a deletion vector leaves."""
    info = commit.commit_info or {}
    keeps = (info.get("tags") or {}).get(KEEPS_ROWS_TAG) == "true" or not all(add.data_change for add in commit.adds)
    if commit.removes and not keeps:
        copied = (info.get("operationMetrics") or {}).get("numCopiedRows", "0")
        keeps = info.get("operation") in _REWRITES or str(copied) != "0"
    if keeps and commit.adds:
        raise _refused(handle, snapshot, f"the files that version {commit.version} added also hold rows that were there before")


def _refuse_read_rows(handle: TransactionHandle, snapshot: Snapshot, commit: DecodedCommit) -> None:
    """Refuse rows of sources that count as read, whether or not this transaction reads them: they would be lost."""
    if commit.adds and any(txn.app_id.startswith(OWN_APPS) for txn in commit.txns):
        why = f"rows that version {commit.version} added came from files or another table, count as read and would not come again"
        raise _refused(handle, snapshot, why)


def _live(snapshot: Snapshot, paths: list[str]) -> list[AddFile]:
    return list(snapshot.files_at(paths).values())


def _refused(handle: TransactionHandle, snapshot: Snapshot, why: str) -> TransactionAlreadyCommittedException:
    return handle.error(
        TransactionAlreadyCommittedException,
        f"The files that transaction {handle.app_id!r} added to table {handle.table} cannot be replaced: {why}. Nothing "
        "is committed. Overwrite the rows with mode='overwrite' and replace_where, and rerun_policy='append'.",
        version=snapshot.version,
    )
