"""Deriving a version's checksum from its snapshot (Delta's ChecksumHook and incremental checksum)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from airflow_delta.log.actions.decode import CommitHead, read_commit_info
from airflow_delta.log.checksum.checksum import (
    MAX_DOMAINS,
    OwnState,
    VersionChecksum,
    digest_of,
    file_fields,
    intent_list,
    transaction_lists,
    write_checksum,
)

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot

logger = logging.getLogger(__name__)


def write_snapshot_checksum(snapshot: Snapshot) -> bool:
    """Write the checksum of a snapshot; return ``False`` if it exists or cannot be derived cheaply."""
    log = snapshot.log
    snapshot.check_readable()
    totals, head = snapshot.derive_totals()
    if totals is None:
        logger.debug("Table %s: no checksum for version %s, since its totals are unknown", log.uri, snapshot.version)
        return False
    state = snapshot.known_state
    complete = state is not None and state.base_transactions is not None
    due = snapshot.version > 0 and snapshot.version % snapshot.properties.checkpoint_interval == 0
    if due and not (complete and totals.is_complete):
        # A checkpoint of this version is due. It reads all transactions and files and writes the checksum with them, so that a
        # chain of incomplete checksums becomes complete again.
        return False
    entry = log.read_commit(snapshot.version) if head is None or head.txn_id is None else b""
    if head is None:
        head = CommitHead.of(read_commit_info(snapshot.version, entry, table=log.uri))
    retention = snapshot.properties.set_transaction_retention is not None
    if complete:
        transactions = transaction_lists(list(snapshot.set_transactions.values()), retention=retention)
    else:
        transactions = intent_list(state.intents() if state is not None else None)
    if head.txn_id is None:
        own = transactions.get("airflow_delta") or OwnState()
        transactions["airflow_delta"] = replace(own, entry=digest_of(entry))
    domains = state.domains() if state is not None else None
    return write_checksum(
        log.store,
        snapshot.version,
        VersionChecksum(
            txn_id=head.txn_id,
            num_metadata=1,
            num_protocol=1,
            in_commit_timestamp_opt=head.in_commit_timestamp,
            metadata=snapshot.metadata,
            protocol=snapshot.protocol,
            domain_metadata=list(domains.values()) if domains is not None and len(domains) <= MAX_DOMAINS else None,
            **file_fields(totals, snapshot.protocol),
            **transactions,
        ),
    )
