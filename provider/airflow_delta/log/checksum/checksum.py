"""The version checksum file ``<version>.crc``: one small read to start from (protocol, "Version Checksum File").

It is derived from the previous state and the commit, written once per version and never overwritten. It counts only if it is of
the entry that is there now: an entry may have been deleted by hand and its version committed again, so the transaction id of both
is compared, or the digest of the entry that our own checksums note. Delta leaves ``setTransactions`` out if a transaction
retention is configured, since its verification would compare lists pruned at different times; the complete list is then under a
key of our own, which other readers ignore.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any, TypeVar

import msgspec

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions import decode, lenient
from airflow_delta.log.actions.actions import AddFile, DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.checksum.histograms import FILE_SIZE_BINS, DeletedRecordCountsHistogram, FileSizeHistogram
from airflow_delta.log.checksum.totals import MAX_FILES, Deletions, SizeCounts, Totals
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.file_names import checksum_file, commit_file

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SET_TRANSACTIONS = 100
"""Delta's limit for ``setTransactions``."""
MAX_OWN_SET_TRANSACTIONS = 1_000
"""Limit for our own list, which every commit rewrites."""
MAX_DOMAINS = 10
"""Delta's limit for ``domainMetadata``."""

MAX_FILES_BYTES = 128 * 1024
"""Limit in bytes for the list of files: every commit rewrites it, and every start reads it."""

_HEAD_BYTES = 16 * 1024
_ABSENT = msgspec.Raw()


class OwnState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Our addition to a checksum.

    :param set_transactions: the complete list of unexpired transactions, where Delta's field may not have it.
    :param intents: those of them that are open intents, where no list has all transactions.
    :param entry: :func:`digest_of` the commit, if that has no transaction id.
    """

    set_transactions: list[SetTransaction] | None = None
    intents: list[SetTransaction] | None = None
    entry: str | None = None


class VersionChecksum(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """State of the table at one version. Fields that a start does not need are decoded on demand.

    :param histogram_opt: the file size histogram, under the key of Delta Spark before 4.4.
    """

    txn_id: str | None = None
    table_size_bytes: int
    num_files: int
    num_deleted_records_opt: int | None = None
    num_deletion_vectors_opt: int | None = None
    num_metadata: int
    num_protocol: int
    in_commit_timestamp_opt: int | None = None
    set_transactions: list[SetTransaction] | None = None
    domain_metadata: list[DomainMetadata] | None = None
    metadata: Metadata
    protocol: Protocol
    file_size_histogram: msgspec.Raw = _ABSENT
    histogram_opt: msgspec.Raw = _ABSENT
    deleted_record_counts_histogram_opt: msgspec.Raw = _ABSENT
    all_files: msgspec.Raw = _ABSENT
    airflow_delta: OwnState | None = None

    @property
    def all_transactions(self) -> list[SetTransaction] | None:
        """Return the complete list of unexpired transactions, or ``None`` if the checksum does not have it."""
        if self.set_transactions is not None:
            return self.set_transactions
        return self.airflow_delta.set_transactions if self.airflow_delta is not None else None

    @property
    def open_intents(self) -> list[SetTransaction] | None:
        """Return the open intents, or ``None`` if the checksum does not have them."""
        if (known := self.all_transactions) is not None:
            return list(open_intents(known).values())
        return self.airflow_delta.intents if self.airflow_delta is not None else None

    def histogram(self) -> FileSizeHistogram | None:
        """Return the file size histogram, or ``None`` if there is none.

        :raises msgspec.ValidationError: if it is malformed.
        """
        found = _part(FileSizeHistogram, self.file_size_histogram)
        return found if found is not None else _part(FileSizeHistogram, self.histogram_opt)

    def deleted_histogram(self) -> DeletedRecordCountsHistogram | None:
        """Return the histogram of deleted rows, as :meth:`histogram` does."""
        return _part(DeletedRecordCountsHistogram, self.deleted_record_counts_histogram_opt)

    def files(self) -> list[AddFile] | None:
        """Return all files, or ``None`` if they are not listed; raises as :meth:`histogram` does."""
        return _part(list[AddFile], self.all_files)

    def totals(self) -> Totals:
        """Return its totals of files. Parts that are malformed or inconsistent count as absent."""
        try:
            listed = self.files()
            if listed is not None and (files := _keyed(listed)) is not None:
                totals = Totals.of(files)
                if (totals.num_files, totals.size_in_bytes) == (self.num_files, self.table_size_bytes):
                    return totals
        except msgspec.MsgspecError as error:
            logger.warning("Ignoring a malformed list of files in a checksum: %s", error)
        return Totals(self.num_files, self.table_size_bytes, self._size_counts(), self._deletions())

    def _size_counts(self) -> SizeCounts | None:
        try:
            histogram = self.histogram()
        except msgspec.MsgspecError:
            return None
        if histogram is None or not histogram.is_usable:
            return None
        counts = SizeCounts(tuple(histogram.file_counts), tuple(histogram.total_bytes))
        fits = (sum(counts.files), sum(counts.size_in_bytes)) == (self.num_files, self.table_size_bytes)
        return counts if fits else None

    def _deletions(self) -> Deletions | None:
        if not can_have_deletion_vectors(self.protocol):
            return Totals(self.num_files, 0).without_deletions().deletions
        if self.num_deleted_records_opt is None or self.num_deletion_vectors_opt is None:
            return None
        try:
            histogram = self.deleted_histogram()
        except msgspec.MsgspecError:
            histogram = None
        fits = histogram is not None and histogram.is_usable and sum(histogram.deleted_record_counts) == self.num_files
        bins = tuple(histogram.deleted_record_counts) if histogram is not None and fits else None
        return Deletions(self.num_deleted_records_opt, self.num_deletion_vectors_opt, bins)


def read_checksum(store: LogStore, version: int) -> VersionChecksum | None:
    """Return a version's checksum, or ``None`` if it is absent or cannot be trusted (logged).

    It is believed only if it is of the entry that the version has now.
    """
    path = checksum_file(version)
    try:
        data = store.read(path)
    except FileNotFoundError:
        return None
    except DeltaLogCorruptedException as error:
        logger.warning("Table %s: ignoring the checksum file %s: %s", store.root, path, error.message)
        return None
    decoded = decode_checksum(data)
    checksum = decoded if isinstance(decoded, VersionChecksum) else None
    problem = decoded if isinstance(decoded, str) else _contradiction(decoded)
    if checksum is not None and problem is None:
        problem = _foreign_entry(store, version, checksum)
    if problem is not None:
        logger.warning("Table %s: ignoring the checksum file %s: %s", store.root, path, problem)
        return None
    return checksum


def decode_checksum(data: bytes) -> VersionChecksum | str:
    """Return the checksum in a file, or why it cannot be decoded."""
    try:
        checksum: VersionChecksum = lenient.decode(VersionChecksum, data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return str(error)
    return checksum


def write_checksum(store: LogStore, version: int, checksum: VersionChecksum) -> bool:
    """Write a version's checksum unless it exists; return whether it was written."""
    try:
        store.put_if_absent(checksum_file(version), msgspec.json.encode(checksum), durable=False)
    except FileExistsError:
        return False
    return True


def transaction_lists(transactions: list[SetTransaction], *, retention: bool) -> dict[str, Any]:
    """Return the checksum fields for the complete list of unexpired transactions, as far as the limits allow."""
    if not retention and len(transactions) <= MAX_SET_TRANSACTIONS:
        return {"set_transactions": transactions}
    if len(transactions) <= MAX_OWN_SET_TRANSACTIONS:
        return {"airflow_delta": OwnState(set_transactions=transactions)}
    return intent_list(transactions)


def intent_list(transactions: list[SetTransaction] | None) -> dict[str, Any]:
    """Return the checksum field for the open intents among transactions.

    :param transactions: at least the intents and their ends; ``None``: not known.
    """
    return {} if transactions is None else {"airflow_delta": OwnState(intents=list(open_intents(transactions).values()))}


def file_fields(totals: Totals, protocol: Protocol) -> dict[str, Any]:
    """Return the checksum fields about files."""
    fields: dict[str, Any] = {"table_size_bytes": totals.size_in_bytes, "num_files": totals.num_files}
    if totals.sizes is not None:
        histogram = FileSizeHistogram(
            sorted_bin_boundaries=FILE_SIZE_BINS, file_counts=totals.sizes.files, total_bytes=totals.sizes.size_in_bytes
        )
        fields["file_size_histogram"] = _raw(histogram)
    if totals.deletions is not None and can_have_deletion_vectors(protocol):
        fields["num_deleted_records_opt"] = totals.deletions.records
        fields["num_deletion_vectors_opt"] = totals.deletions.vectors
        if totals.deletions.files is not None:
            deleted = DeletedRecordCountsHistogram(deleted_record_counts=totals.deletions.files)
            fields["deleted_record_counts_histogram_opt"] = _raw(deleted)
    if totals.files is not None and len(totals.files) <= MAX_FILES:
        # As after replaying the log: dataChange is false for all files.
        settled = [msgspec.structs.replace(add, data_change=False) if add.data_change else add for add in totals.files.values()]
        listed = _raw(settled)
        if len(memoryview(listed)) <= MAX_FILES_BYTES:
            fields["all_files"] = listed
    return fields


def can_have_deletion_vectors(protocol: Protocol) -> bool:
    """Tell whether the protocol supports deletion vectors (Delta's deletionVectorsReadable)."""
    return "deletionVectors" in (protocol.reader_features or ())


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _part(kind: type[T], raw: msgspec.Raw) -> T | None:
    data = memoryview(raw)
    wanted: Any = kind | None
    try:
        found: T | None = lenient.decoder_of(wanted).decode(data) if len(data) else None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error
    return found


def _keyed(files: list[AddFile]) -> dict[Any, AddFile] | None:
    """Return the files by key, or ``None`` if one is listed twice."""
    keyed = {file_key(add): add for add in files}
    return keyed if len(keyed) == len(files) else None


def _contradiction(checksum: VersionChecksum) -> str | None:
    if checksum.num_metadata != 1 or checksum.num_protocol != 1:
        return f"it counts {checksum.num_metadata} metadata and {checksum.num_protocol} protocol actions"
    if checksum.num_files < 0 or checksum.table_size_bytes < 0:
        return f"it counts {checksum.num_files} files of {checksum.table_size_bytes} bytes"
    return None


def digest_of(entry: bytes) -> str:
    """Return what distinguishes a log entry from any other of the same version."""
    return hashlib.sha256(entry).hexdigest()


def _foreign_entry(store: LogStore, version: int, checksum: VersionChecksum) -> str | None:
    """Return why nothing shows that a checksum is of the entry that the version has now."""
    noted = checksum.airflow_delta.entry if checksum.airflow_delta is not None else None
    try:
        head = b"" if noted is not None else store.read_range(commit_file(version), 0, _HEAD_BYTES)
        info = decode.info_of_first_line(head)
        entry = b"" if info is not None else store.read(commit_file(version))
        if info is None:
            info = decode.read_commit_info(version, entry, table=store.root) or {}
    except FileNotFoundError:
        return f"commit {version} is gone, so nothing shows that it is of that commit"
    except DeltaLogCorruptedException as error:
        return error.message
    if noted is not None and noted != digest_of(entry):
        return f"it was written for another commit {version} than is there now"
    txn_id = decode.CommitHead.of(info).txn_id
    if checksum.txn_id is not None and txn_id != checksum.txn_id:
        other = "names none" if txn_id is None else "is of another one"
        return f"it was written for transaction {checksum.txn_id}, but commit {version} {other}"
    if checksum.txn_id is None and txn_id is not None:
        return f"commit {version} is of transaction {txn_id}, and nothing shows that it was written for that"
    if txn_id is None and noted is None:
        return f"neither it nor commit {version} has a transaction id, so nothing shows that it is of that commit"
    return None
