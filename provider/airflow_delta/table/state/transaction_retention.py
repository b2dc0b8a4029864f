"""How far back a table remembers transactions, and whether an unknown one may have been committed.

Keys expire (``delta.setTransactionRetentionDuration``), and so do commits (``delta.logRetentionDuration``). A transaction
that may be older than the keys is looked up in the commits; if these do not go back far enough either, it cannot be known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.clocks import CLOCKS_DIFFER_BY
from airflow_delta.contract.payloads import OWN_APPS
from airflow_delta.contract.tags import APP_ID_TAG
from airflow_delta.exceptions import TransactionExpiredException
from airflow_delta.log.actions.decode import CommitFile, read_commit_info
from airflow_delta.table.state.commit_times import CommitTimes

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
from airflow_delta.table.state.find_commit import holds_app_id, newest_first

PossibleSince = Callable[[], int | None]
"""Returns when an identity may have been committed for the first time, in milliseconds; ``None``: recently."""


def last_txn_version(log: DeltaLog, snapshot: Snapshot, app_id: str, possible_since: PossibleSince | None) -> int | None:
    """Return the last ``txnVersion`` that an application committed, ``None`` if there is none.

    :param possible_since: asked if keys expire and the table does not know this one; without it, an unknown key is new.
    :raises TransactionExpiredException: neither keys nor commits go back as far as that.
    """
    txn = snapshot.set_transaction(app_id)
    if txn is not None:
        return txn.version
    retention = snapshot.properties.set_transaction_retention
    if retention is None or possible_since is None:
        return None
    since = possible_since()
    expired_before = int(time.time() * 1000) - retention
    if since is None or since > expired_before:
        return None
    txn = snapshot.set_transaction(app_id, expired=True)
    if txn is not None:
        return txn.version
    oldest: CommitFile | None = None
    for oldest in newest_first(log):
        commit = holds_app_id(log, oldest, app_id)
        if commit is not None:
            return next(txn.version for txn in commit.txns if txn.app_id == app_id)
    begins = oldest is not None and oldest.version == 0 and not (app_id.startswith(OWN_APPS) and _is_clone(_info(log, oldest)))
    times = CommitTimes(log)
    if oldest is not None and (begins or times.all_before(oldest, since - CLOCKS_DIFFER_BY)):
        return None
    reaches = None if oldest is None else times.stored(oldest)
    raise snapshot.error(
        TransactionExpiredException,
        f"It can no longer be known whether transaction {app_id!r} is in table {log.uri}: it may have been committed since "
        f"{_text(since)}, keys from before {_text(expired_before)} have expired (delta.setTransactionRetentionDuration), and the "
        f"log goes back to {'nowhere' if oldest is None else f'version {oldest.version}'}"
        f"{'' if reaches is None else f' of {_text(reaches)}'} only. Nothing is committed. Look at the table: if it has the "
        "rows, mark the task as success; if not, run it once with rerun_policy='append'.",
    )


def is_clone_of_others(log: DeltaLog) -> bool:
    """Return whether a table began as a clone that another engine made: it has rows, but not the positions of its source."""
    try:
        first = CommitFile(0, log.read_commit(0))
    except FileNotFoundError:
        return False
    return _is_clone(info := _info(log, first)) and APP_ID_TAG not in (info.get("tags") or {})


def _is_clone(info: Mapping[str, Any]) -> bool:
    return info.get("operation") == "CLONE"


def _info(log: DeltaLog, commit: CommitFile) -> Mapping[str, Any]:
    return read_commit_info(commit.version, commit.data, table=log.uri) or {}


def _text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).isoformat(timespec="seconds")
