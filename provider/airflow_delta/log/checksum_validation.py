"""Comparing a version's checksum with the state in its log (Delta's ``validateChecksum``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec

from airflow_delta.exceptions import DeltaChecksumMismatchException, DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import CommitHead, read_commit_info
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.checksum.checksum import VersionChecksum, can_have_deletion_vectors, decode_checksum
from airflow_delta.log.checksum.histograms import FILE_SIZE_BINS
from airflow_delta.log.storage.file_names import checksum_file, commit_file

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, DomainMetadata, Metadata, SetTransaction
    from airflow_delta.log.actions.actions import Protocol as TableProtocol
    from airflow_delta.log.checksum.totals import Totals
    from airflow_delta.log.features.properties import TableProperties
    from airflow_delta.log.segment.commit_files import CommitFiles
    from airflow_delta.log.segment.segment import LogSegment

logger = logging.getLogger(__name__)

T = TypeVar("T")

Mismatches = dict[str, tuple[Any, Any]]


class Version(Protocol):
    """What is compared of a version; a :class:`~airflow_delta.log.snapshot.Snapshot` has it."""

    log: CommitFiles

    @property
    def version(self) -> int: ...
    @property
    def segment(self) -> LogSegment: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def protocol(self) -> TableProtocol: ...
    @property
    def properties(self) -> TableProperties: ...
    @property
    def in_commit_timestamp(self) -> int | None: ...
    @property
    def set_transactions(self) -> Mapping[str, SetTransaction]: ...
    @property
    def domain_metadata(self) -> Mapping[str, DomainMetadata]: ...
    def count_totals(self) -> Totals: ...
    def add_files(self) -> Iterable[AddFile]: ...


@dataclass(frozen=True, slots=True)
class ChecksumValidation:
    """When a starting transaction compares its snapshot with the checksum, which reads the whole state of the table.

    :param mode: ``when_due`` (by the two limits below), ``always`` or ``never``.
    :param interval: number of versions without a checkpoint after which it is due (Delta's
        ``versionChecksum.forcedValidationInterval``), provided that ``min_age`` is exceeded as well.
    :param min_age: minimum age in minutes of the last checkpoint, or of the first commit if there is none (Delta's
        ``versionChecksum.forcedValidationMinTimeIntevalMinutes``).
    :param fatal: raise if they differ; otherwise warn and use the state in the log (Delta's ``checksum.mismatch.fatal``).
    """

    mode: Literal["when_due", "always", "never"] = "when_due"
    interval: int = 400
    min_age: int = 720
    fatal: bool = True

    def __post_init__(self) -> None:
        if self.mode not in ("when_due", "always", "never"):
            raise DeltaIllegalArgumentException(f"mode must be 'when_due', 'always' or 'never', got {self.mode!r}")
        if self.interval < 1 or self.min_age < 0:
            raise DeltaIllegalArgumentException(
                f"interval must be at least 1 and min_age at least 0, got {self.interval} and {self.min_age}"
            )

    def is_due(self, snapshot: Version) -> bool:
        """Tell whether a transaction that reads this snapshot must validate it; costs at most one file status."""
        if self.mode != "when_due" or snapshot.version < 0:
            return self.mode == "always" and snapshot.version >= 0
        checkpoint = snapshot.segment.checkpoint
        if snapshot.version - (checkpoint.version if checkpoint is not None else -1) < self.interval:
            return False
        store = snapshot.log.store
        path = checkpoint.parts[0].path if checkpoint is not None else commit_file(snapshot.segment.first_commit)
        status = store.head(path)
        return status is not None and time.time() * 1000 - status.modification_time > self.min_age * 60_000


def find_mismatches(computed: Version) -> Mismatches:
    """Return the fields in which a version's checksum differs from the state in its checkpoint and commits.

    Nothing differs if there is no checksum or it is malformed, since it is then never used. Reads the whole state.

    :param computed: the version without its checksum.
    """
    log = computed.log
    try:
        data = log.store.read(checksum_file(computed.version))
    except FileNotFoundError:
        return {}
    checksum = decode_checksum(data)
    if isinstance(checksum, str):
        logger.warning("Table %s: ignoring the checksum file of version %s: %s", log.uri, computed.version, checksum)
        return {}
    found: Mismatches = {}
    _compare_state(checksum, computed, found)
    _compare_files(checksum, computed, found)
    return found


def mismatch_error(snapshot: Version, mismatches: Mapping[str, tuple[Any, Any]]) -> DeltaChecksumMismatchException:
    """Return the error, which names every field that differs."""
    fields = "; ".join(f"{name}: checksum {_short(said)}, log {_short(is_)}" for name, (said, is_) in mismatches.items())
    path = checksum_file(snapshot.version)
    return snapshot.log.error(
        DeltaChecksumMismatchException,
        f"The state of version {snapshot.version} of table {snapshot.log.uri} failed verification against {path}: {fields}. "
        "Either a file of the log was changed after it was written, or a writer wrote a wrong checksum. First compare the "
        f"commits with a backup or a replica. If they are intact, delete {path} (readers then use the commits) and start again.",
        mismatches=mismatches,
        version=snapshot.version,
    )


def _compare_state(checksum: VersionChecksum, computed: Version, found: Mismatches) -> None:
    committed = _txn_id(computed)
    if checksum.txn_id is not None and committed is not None:
        _compare(found, "txnId", checksum.txn_id, committed)
    _compare(found, "numMetadata", checksum.num_metadata, 1)
    _compare(found, "numProtocol", checksum.num_protocol, 1)
    _compare(found, "metadata", checksum.metadata, computed.metadata)
    _compare(found, "protocol", checksum.protocol, computed.protocol)
    if checksum.in_commit_timestamp_opt is not None and computed.properties.enable_in_commit_timestamps:
        _compare(found, "inCommitTimestampOpt", checksum.in_commit_timestamp_opt, computed.in_commit_timestamp)
    # Lists of transactions are comparable if none can have expired since. Our own list is compared in one direction only: it must
    # have every unexpired transaction.
    transactions = computed.set_transactions
    if checksum.set_transactions is not None and computed.properties.set_transaction_retention is None:
        _compare_actions(found, "setTransactions", {txn.app_id: txn for txn in checksum.set_transactions}, transactions)
        if len({txn.app_id for txn in checksum.set_transactions}) != len(checksum.set_transactions):
            found["setTransactions"] = ("an application listed twice", "each listed once")
    own = checksum.airflow_delta.set_transactions if checksum.airflow_delta is not None else None
    if own is not None:
        listed = {txn.app_id: txn for txn in own}
        _compare_actions(found, "airflowDelta.setTransactions", {name: listed.get(name) for name in transactions}, transactions)
    intents = checksum.airflow_delta.intents if checksum.airflow_delta is not None else None
    if intents is not None:
        listed = {txn.app_id: txn for txn in intents}
        still_open = {txn.app_id: txn for txn in open_intents(transactions.values()).values()}
        if computed.properties.set_transaction_retention is not None:
            listed = {name: listed[name] for name in listed.keys() & still_open.keys()}
        _compare_actions(found, "airflowDelta.intents", listed, still_open)
    if checksum.domain_metadata is not None:
        _compare_actions(
            found, "domainMetadata", {domain.domain: domain for domain in checksum.domain_metadata}, computed.domain_metadata
        )


def _compare_files(checksum: VersionChecksum, computed: Version, found: Mismatches) -> None:
    totals = computed.count_totals()
    _compare(found, "tableSizeBytes", checksum.table_size_bytes, totals.size_in_bytes)
    _compare(found, "numFiles", checksum.num_files, totals.num_files)
    _compare_histograms(checksum, totals, found)
    if can_have_deletion_vectors(computed.protocol) and totals.deletions is not None:
        if checksum.num_deleted_records_opt is not None:
            _compare(found, "numDeletedRecordsOpt", checksum.num_deleted_records_opt, totals.deletions.records)
        if checksum.num_deletion_vectors_opt is not None:
            _compare(found, "numDeletionVectorsOpt", checksum.num_deletion_vectors_opt, totals.deletions.vectors)
    listed = _part(found, "allFiles", checksum.files)
    if listed is not None:
        files = totals.files if totals.files is not None else {file_key(add): add for add in computed.add_files()}
        said = {file_key(add): _comparable(add) for add in listed}
        _compare_actions(found, "allFiles", said, {key: _comparable(add) for key, add in files.items()})
        if len(said) != len(listed):
            found["allFiles"] = (f"{len(listed)} files with duplicates", f"{len(files)} files")


def _compare_histograms(checksum: VersionChecksum, totals: Totals, found: Mismatches) -> None:
    histogram = _part(found, "fileSizeHistogram", checksum.histogram)
    if histogram is not None and totals.sizes is not None:
        _compare(found, "fileSizeHistogram.sortedBinBoundaries", tuple(histogram.sorted_bin_boundaries), FILE_SIZE_BINS)
        _compare(found, "fileSizeHistogram.fileCounts", tuple(histogram.file_counts), totals.sizes.files)
        _compare(found, "fileSizeHistogram.totalBytes", tuple(histogram.total_bytes), totals.sizes.size_in_bytes)
    field = "deletedRecordCountsHistogramOpt"
    deleted = _part(found, field, checksum.deleted_histogram)
    if deleted is not None and totals.deletions is not None and totals.deletions.files is not None:
        _compare(found, f"{field}.deletedRecordCounts", tuple(deleted.deleted_record_counts), totals.deletions.files)


def _part(found: Mismatches, field: str, decode: Callable[[], T]) -> T | None:
    """Decode a part of a checksum; record a malformed one as a difference."""
    try:
        return decode()
    except msgspec.MsgspecError as error:
        found[field] = (f"malformed ({error})", "well-formed")
        return None


def _txn_id(snapshot: Version) -> str | None:
    try:
        data = snapshot.log.read_commit(snapshot.version)
    except FileNotFoundError:  # cleaned up
        return None
    return CommitHead.of(read_commit_info(snapshot.version, data, table=snapshot.log.uri)).txn_id


def _comparable(add: AddFile) -> tuple[Any, ...]:
    """Return the fields that must be equal; a checkpoint may reformat statistics, and sets dataChange to false."""
    vector = add.deletion_vector.unique_id if add.deletion_vector is not None else None
    return (add.size, add.modification_time, add.partition_values, vector, add.base_row_id, add.default_row_commit_version)


def _compare(found: Mismatches, field: str, said: Any, is_: Any) -> None:
    if said != is_:
        found[field] = (said, is_)


def _compare_actions(found: Mismatches, field: str, said: Mapping[Any, Any], is_: Mapping[Any, Any]) -> None:
    """Compare by key, and report only the differences."""
    if said != is_:
        differing = [key for key in {**said, **is_} if said.get(key) != is_.get(key)]
        found[field] = ({key: said.get(key) for key in differing}, {key: is_.get(key) for key in differing})


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
