"""What the logs say about publications: states, open intents, and the entries that brought them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.intents import INTENT_APP, STATE_APP
from airflow_delta.contract.staging_directory import PLAN_ENDED, transaction_directory
from airflow_delta.contract.tags import ANCHOR_TAG, PUBLICATION_TAG, TABLES_TAG
from airflow_delta.exceptions import VersionsNotContiguousException
from airflow_delta.log.actions.decode import CommitFile, DecodedCommit, decode_commit, read_commit_info
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.publication.ids import PublicationId, plan_path
from airflow_delta.publication.records import PUBLISHED, STANDS, UNDONE
from airflow_delta.publication.results import OpenPublication
from airflow_delta.table.state.find_commit import newest_first

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import CommitResult
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


def states_of(snapshot: Snapshot) -> dict[str, int]:
    """Return the state of each publication on a version of a table (without intents).

    Other writers may name their applications so, too: whoever takes one for a publication parses its id.
    """
    return snapshot.transaction_versions(STATE_APP)


def publication_states(log: DeltaLog) -> dict[str, int]:
    """Return the state of each publication on the latest version: 0 (an open intent) to 4."""
    snapshot = log.update()
    if snapshot.version < 0:
        return {}
    found = {**dict.fromkeys(open_intents(snapshot.intents), 0), **states_of(snapshot)}
    return {name: state for name, state in found.items() if PublicationId.is_one(name)}


def open_publications(log: DeltaLog) -> list[OpenPublication]:
    """Return the publications whose intent is open on the latest version."""
    snapshot = log.update()
    if snapshot.version < 0:
        return []
    found = []
    for publication, txn in open_intents(snapshot.intents).items():
        if not PublicationId.is_one(publication):
            continue
        tables = publication_tables(log, publication)
        found.append(
            OpenPublication(publication=publication, anchor=tables[0] if tables else "", tables=tables, since=txn.last_updated)
        )
    return found


def decided_by(log: DeltaLog, transaction_id: str, *, since: int) -> str | None:
    """Return the publication that was decided by a transaction on this table; ``None`` if there is none.

    Reads the commits since the transaction began: keys may have expired, and there are many of past publications.

    :param since: the oldest version that the decision may have.
    """
    log.update()
    prefix = f"{STATE_APP}{transaction_id}."
    needle, oldest = transaction_id.encode(), log.snapshot.version + 1
    for file in newest_first(log, since):
        oldest = file.version
        if needle not in file.data:
            continue
        for txn in decode_commit(file.version, file.data, table=log.uri).txns:
            publication = txn.app_id.removeprefix(STATE_APP)
            if txn.app_id.startswith(prefix) and _is_decision(publication, txn.version):
                return publication
    left = log.snapshot.transaction_versions(prefix) if oldest > since else {}
    return next((found for rest, state in left.items() if _is_decision(found := f"{transaction_id}.{rest}", state)), None)


def _is_decision(publication: str, state: int) -> bool:
    return state in (PUBLISHED, UNDONE, STANDS) and PublicationId.is_one(publication)


def publication_tables(log: DeltaLog, publication: str) -> tuple[str, ...]:
    """Return the URIs of a publication's tables, the anchor first, as a log entry of this table names them.

    Empty if the log holds no entry of the publication, or no longer does.
    """
    for _, info in entries_of(log, publication):
        tags = info.get("tags") or {}
        try:
            uris = json.loads(tags.get(TABLES_TAG) or "[]")
        except ValueError:
            uris = []
        if isinstance(uris, list) and uris and uris[0] == tags.get(ANCHOR_TAG):
            return tuple(str(uri) for uri in uris)
    return ()


def publication_of_commit(log: DeltaLog, commit: CommitResult) -> tuple[str, str] | None:
    """Return the publication that a commit published its table with, and the URI of its anchor.

    ``None`` if the commit belongs to no publication, or has left the log.
    """
    if commit.version < 0:
        return None
    try:
        (file,) = log.read_commit_range(range(commit.version, commit.version + 1))
        info = read_commit_info(file.version, file.data, table=log.uri) or {}
    except (ValueError, VersionsNotContiguousException):
        return None
    tags = info.get("tags") or {}
    publication, anchor = str(tags.get(PUBLICATION_TAG)), tags.get(ANCHOR_TAG)
    is_it = info.get("txnId") == commit.transaction_id and has_state(log, file, publication, PUBLISHED)
    return (publication, anchor) if is_it and isinstance(anchor, str) else None


def entries_of(log: DeltaLog, publication: str, *, since: int = 0) -> Iterator[tuple[CommitFile, Mapping[str, Any]]]:
    """Yield the entries of a publication in a log with their ``commitInfo``, newest first, as far back as the log goes."""
    needle = publication.encode()
    for file in newest_first(log, since):
        if needle in file.data:
            info = read_commit_info(file.version, file.data, table=log.uri) or {}
            if has_state(log, file, publication):
                yield file, info


def has_state(log: DeltaLog, file: CommitFile, publication: str, state: int | None = None) -> bool:
    """Tell whether a commit brings a state of a publication, or its intent."""
    names = (f"{STATE_APP}{publication}", f"{INTENT_APP}{publication}")
    return any(
        txn.app_id in names and state in (None, txn.version) for txn in decode_commit(file.version, file.data, table=log.uri).txns
    )


def state_entry(log: DeltaLog, publication: str, state: int, *, since: int = 0) -> DecodedCommit | None:
    """Return the commit that brought a state; ``None`` if the log does not hold it, or no longer does.

    :param since: the oldest version to look at.
    """
    needle = publication.encode()
    name = f"{STATE_APP}{publication}"
    for file in newest_first(log, since):
        if needle in file.data:
            commit = decode_commit(file.version, file.data, table=log.uri)
            if any(txn.app_id == name and txn.version == state for txn in commit.txns):
                return commit
    return None


def is_over(log: DeltaLog, publication: str, published: DecodedCommit) -> bool:
    """Tell whether a publication has ended on every table: a note below this one says so, or its plan is gone.

    VACUUM deletes a plan only after the note; without a plan, nobody can go on.

    :param published: the commit that brought it to this table.
    """
    transaction = (published.commit_info or {}).get("txnId")
    if not isinstance(transaction, str):
        return False
    plan = plan_path(transaction, PublicationId.parse(publication).digest)
    name = plan.rpartition("/")[2].removesuffix(".json")
    found = set()
    for status in log.store.list_from(transaction_directory(transaction), name, stat=False):
        if not status.name.startswith(name):
            break
        found.add(status.name)
    return f"{name}{PLAN_ENDED}" in found or f"{name}.json" not in found


def newest_state(snapshot: Snapshot, publication: str) -> int | None:
    """Return the state of a publication on a version, also if its key has expired there; ``None`` if it has none."""
    txn = snapshot.set_transaction(f"{STATE_APP}{publication}", expired=True)
    return None if txn is None else txn.version


def state_by_entries(log: DeltaLog, snapshot: Snapshot, publication: str, *, since: int, begun: int | None) -> int | None:
    """Return the state of a publication by the entries of a table that may have forgotten its key; ``None`` if there is none.

    The log keeps the entries for as long as the publication needs them. They are read only if keys of its age expire.

    :param since: the oldest version that one may have.
    :param begun: when the publication, or its transaction, began, in milliseconds since the epoch; ``None``: unknown.
    """
    retention = snapshot.properties.set_transaction_retention if snapshot.version >= 0 else None
    if retention is None or (begun is not None and begun > int(time.time() * 1000) - retention):
        return None
    for file, _ in entries_of(log, publication, since=since):
        states = [
            txn.version
            for txn in decode_commit(file.version, file.data, table=log.uri).txns
            if txn.app_id == f"{STATE_APP}{publication}"
        ]
        if states and file.version <= snapshot.version:
            return max(states)
    return None


def states_after(log: DeltaLog, version: int, *, until: int) -> dict[str, set[int]]:
    """Return the states of publications that commits after a version have brought, up to another version."""
    found: dict[str, set[int]] = {}
    for file in newest_first(log, version + 1):
        if file.version <= until and STATE_APP.encode() in file.data:
            for txn in decode_commit(file.version, file.data, table=log.uri).txns:
                if txn.app_id.startswith(STATE_APP):
                    found.setdefault(txn.app_id.removeprefix(STATE_APP), set()).add(txn.version)
    return found


def brought_after(log: DeltaLog, publication: str, version: int) -> bool | None:
    """Tell whether a commit after a version brings a state of a publication; ``None`` if the log no longer holds all of them."""
    oldest = log.snapshot.version + 1
    needle, name = publication.encode(), f"{STATE_APP}{publication}"
    for file in newest_first(log, version + 1):
        oldest = file.version
        if needle in file.data and any(t.app_id == name for t in decode_commit(file.version, file.data, table=log.uri).txns):
            return True
    return False if oldest == version + 1 else None
