"""What the core asks about intents of publications (:class:`~airflow_delta.log.intent_rules.IntentRules`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_delta.contract.intents import STATE_APP
from airflow_delta.contract.staging_directory import PLAN_ENDED, PLAN_PREFIX, transaction_directory
from airflow_delta.exceptions import DeltaIllegalStateException, PublicationUndoneException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.decode import decode_commit

if TYPE_CHECKING:
    from airflow_delta.log.segment.commit_files import CommitFiles
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.storage.base import FileStatus, LogStore

_PUBLISHED = 1
"""The state of a publication on a table that has its commit; those above are its ends."""

_DAY = 24 * 60 * 60 * 1000
_DIGEST = lazy_pattern(r"\.([0-9a-f]{16})(?:\.[0-9a-f]{8})+$")


def first_needed(snapshot: Snapshot, commits: Mapping[int, FileStatus], *, now: int) -> tuple[int, str] | None:
    """Return the version before the first one that is published, until a note beside its plan says that it has ended everywhere.

    Other tables may lack it, so readers are shown that version, and the commit may have to be taken back.

    Reads commits only if the table has states of publications, or may have had some, and keeps no keys that old.

    :param commits: the commits that might be deleted, by version, in order.
    :param now: milliseconds since the epoch.
    """
    states = snapshot.transaction_versions(STATE_APP)
    retention = snapshot.properties.set_transaction_retention
    forgotten = 0 if retention is None else now - retention + _DAY
    for version, commit_file in commits.items():
        if not (_PUBLISHED in states.values() or commit_file.modification_time < forgotten):
            continue
        data = snapshot.log.read_commit(version)
        if STATE_APP.encode() not in data:
            continue
        commit = decode_commit(version, data, table=snapshot.log.uri)
        transaction = str((commit.commit_info or {}).get("txnId"))
        for txn in commit.txns:
            publication = txn.app_id.removeprefix(STATE_APP)
            is_published = txn.app_id != publication and txn.version == states.get(publication, _PUBLISHED) == _PUBLISHED
            if is_published and _has_plan(snapshot.log.store, transaction, txn.app_id):
                return version - 1, publication
    return None


def _has_plan(store: LogStore, transaction: str, app_id: str) -> bool:
    """Tell whether the plan of a publication is there, below a transaction, without a note that it has ended on every table."""
    digest = _DIGEST.search(app_id)
    name = f"{PLAN_PREFIX}{digest[1]}" if digest is not None else PLAN_PREFIX
    found = {status.name for status in store.list_from(transaction_directory(transaction), name, stat=False)}
    return f"{name}.json" in found and f"{name}{PLAN_ENDED}" not in found


def check_abort(log: CommitFiles, snapshot: Snapshot, transaction_id: str) -> None:
    """Refuse to abort a transaction with a plan that is not at its end here: another table may have decided it.

    :raises DeltaIllegalStateException: if there is such a plan.
    """
    if (plan := _open_plan(log, snapshot, transaction_id)) is not None:
        raise log.error(
            DeltaIllegalStateException,
            f"Transaction {transaction_id} on table {log.uri} is part of a publication of several tables ({plan}), which may be "
            "decided on another one already. Nothing was deleted. Run `airflow delta settle` with all of its tables, or the "
            "abort task of its Dag run: both end it on every table alike.",
        )


def _open_plan(log: CommitFiles, snapshot: Snapshot, transaction_id: str) -> str | None:
    """Return the path of a publication's plan below a transaction, unless this table's log says that it was refused."""
    states = snapshot.transaction_versions(STATE_APP)
    ended = [publication for publication, state in states.items() if state > _PUBLISHED]
    for status in log.store.list_from(transaction_directory(transaction_id), PLAN_PREFIX, stat=False):
        if not status.name.startswith(PLAN_PREFIX):
            break
        digest = status.name.removeprefix(PLAN_PREFIX).removesuffix(".json")
        if status.name.endswith(".json") and not any(f".{digest}." in publication for publication in ended):
            return status.path
    return None


def taken_back(table: str, transaction_id: str, version: int) -> PublicationUndoneException:
    """Return the error of a transaction whose commit a publication has taken back.

    :param version: that of the commit.
    """
    return PublicationUndoneException(
        f"Transaction {transaction_id} was committed to table {table} in version {version}, and taken back since: the "
        "publication of several tables that it was part of could not be completed. Nothing of it is there. Clear its start task "
        "with everything downstream to publish again.",
        table=table,
    )
