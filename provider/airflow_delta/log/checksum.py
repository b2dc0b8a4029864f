"""The version checksum file ``<version>.crc`` (protocol, "Version Checksum File"; Delta's Checksum).

It lets a start know protocol, metadata and transactions from one small read. Written once per version, never overwritten, and
derived from the previous state plus the commit, so its cost never grows with the table.

Delta leaves ``setTransactions`` out when a transaction retention is configured, since its verification would compare lists
pruned at different times. The complete list then goes under a key of our own, which other readers ignore.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from airflow_delta.log.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.file_names import checksum_file, commit_file
from airflow_delta.log.store import LogStore

logger = logging.getLogger(__name__)

MAX_SET_TRANSACTIONS = 100
"""Delta's limit for ``setTransactions``."""
MAX_OWN_SET_TRANSACTIONS = 1_000
"""Limit of our own list, which is rewritten with every commit."""
MAX_DOMAINS = 10
"""Delta's limit for ``domainMetadata``."""

_HEAD_BYTES = 16 * 1024


class OwnState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What we add to a checksum: the complete list of unexpired transactions, where Delta's field may not hold it."""

    set_transactions: list[SetTransaction] | None = None


class VersionChecksum(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """State of the table at one version, without its list of files."""

    txn_id: str | None = None
    table_size_bytes: int
    num_files: int
    num_metadata: int
    num_protocol: int
    in_commit_timestamp_opt: int | None = None
    set_transactions: list[SetTransaction] | None = None
    domain_metadata: list[DomainMetadata] | None = None
    metadata: Metadata
    protocol: Protocol
    airflow_delta: OwnState | None = None

    @property
    def all_transactions(self) -> list[SetTransaction] | None:
        """Return the complete list of unexpired transactions, or ``None`` when this file does not hold it."""
        if self.set_transactions is not None:
            return self.set_transactions
        return self.airflow_delta.set_transactions if self.airflow_delta is not None else None


_decoder = msgspec.json.Decoder(VersionChecksum)


def read_checksum(store: LogStore, version: int, *, verify: bool = True) -> VersionChecksum | None:
    """Return a version's checksum, or ``None`` when it is absent or must not be trusted (logged).

    :param verify: compare its transaction id with the start of the commit, where both have one.
    """
    path = checksum_file(version)
    try:
        data = store.read(path)
    except FileNotFoundError:
        return None
    try:
        checksum = _decoder.decode(data)
        problem = _contradiction(checksum)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        checksum, problem = None, str(error)
    if checksum is not None and problem is None and verify and checksum.txn_id is not None:
        problem = _foreign_commit(store, version, checksum.txn_id)
    if problem is not None:
        logger.warning("Table %s: the checksum file %s is ignored: %s", store.root, path, problem)
        return None
    return checksum


def write_checksum(store: LogStore, version: int, checksum: VersionChecksum) -> bool:
    """Write a version's checksum unless there is one; return whether it was written."""
    try:
        store.put_if_absent(checksum_file(version), msgspec.json.encode(checksum), durable=False)
    except FileExistsError:
        return False
    return True


def transaction_lists(transactions: list[SetTransaction], *, retention: bool) -> dict[str, Any]:
    """Return the fields of a checksum that hold the complete list of unexpired transactions, as far as the limits allow."""
    if not retention and len(transactions) <= MAX_SET_TRANSACTIONS:
        return {"set_transactions": transactions}
    if len(transactions) <= MAX_OWN_SET_TRANSACTIONS:
        return {"airflow_delta": OwnState(set_transactions=transactions)}
    return {}


def _contradiction(checksum: VersionChecksum) -> str | None:
    if checksum.num_metadata != 1 or checksum.num_protocol != 1:
        return f"it counts {checksum.num_metadata} metadata and {checksum.num_protocol} protocol actions"
    if checksum.num_files < 0 or checksum.table_size_bytes < 0:
        return f"it counts {checksum.num_files} files of {checksum.table_size_bytes} bytes"
    return None


def _foreign_commit(store: LogStore, version: int, txn_id: str) -> str | None:
    try:
        head = store.read_range(commit_file(version), 0, _HEAD_BYTES)
    except FileNotFoundError:  # cleaned up
        return None
    if b'"txnId"' in head and msgspec.json.encode(txn_id) not in head:
        return f"it was written for transaction {txn_id}, and commit {version} is of another"
    return None
