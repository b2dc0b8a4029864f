"""A table at one version (Delta's Snapshot)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from airflow_delta.contract.delta_names import ROW_TRACKING_DOMAIN
from airflow_delta.exceptions import DeltaLogCorruptedException, DeltaTableNotFoundException, Subject
from airflow_delta.log import heavy
from airflow_delta.log.actions.actions import AddFile, DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.actions.decode import CommitFile, CommitHead, SmallState, read_small_state, required_timestamp
from airflow_delta.log.actions.intents import PREFIXES, open_intents, unexpired
from airflow_delta.log.actions.tail_cache import TailCache
from airflow_delta.log.checksum.totals import MAX_FILES, Totals
from airflow_delta.log.features.protocol import check_can_read
from airflow_delta.log.features.row_tracking import high_water_mark
from airflow_delta.log.schema.types import StructType
from airflow_delta.log.segment.log_compaction import read_tail
from airflow_delta.log.segment.segment import LogSegment, load_segment
from airflow_delta.log.snapshot_state import (
    ReadCommits,
    ReadOnce,
    SnapshotState,
    earlier_intents,
    missing_actions,
    no_text,
    resolve_state,
    with_prefix,
)
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.log.table_definition import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.actions.reconciliation import TailFiles
    from airflow_delta.log.checkpoint.reader import CheckpointReader
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.features.properties import TableProperties
    from airflow_delta.log.replay.filter import FileFilter
    from airflow_delta.log.segment.commit_files import CommitFiles

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Snapshot(Subject):
    """A table at one version; everything is read on first use.

    Version, protocol, metadata and transactions come from small files; the list of files is read only by :meth:`files` and
    methods that build on it.

    :param log: the table's log, of which a version needs the commit files and the storage.
    :param segment: the files that make up the version; ``None`` if there is no table.
    :param state: the state, if it is known from an earlier version and the commits since.
    """

    def __init__(
        self,
        log: CommitFiles,
        segment: LogSegment | None,
        state: SnapshotState | None = None,
        *,
        corrupt_checkpoints: frozenset[int] = frozenset(),
        tail: TailCache | None = None,
    ) -> None:
        self.log = log
        self.corrupt_checkpoints = corrupt_checkpoints
        self._segment = segment
        self._state = state
        self._tail = tail
        self._lock = threading.RLock()

    def advanced(self, commits: Sequence[CommitFile], segment: LogSegment) -> Snapshot:
        """Return the snapshot of a later version, reusing what this one has read.

        :param commits: all commits after this version, oldest first.
        """
        with self._lock:
            same_tail = self._segment is not None and segment.first_commit == self._segment.first_commit
            return Snapshot(
                self.log,
                segment,
                self._state.advanced(commits, table=self.log.uri) if self._state is not None else None,
                corrupt_checkpoints=self.corrupt_checkpoints,
                tail=self._tail.advanced(commits) if self._tail is not None and same_tail else None,
            )

    def __repr__(self) -> str:
        return f"Snapshot(table={self.log.uri!r}, version={self.version})"

    # -- identity -------------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Return the version; -1 if there is no table."""
        return self._segment.version if self._segment is not None else -1

    def _about(self) -> tuple[str, int | None]:
        return self.log.uri, self.version

    @property
    def segment(self) -> LogSegment:
        """Return the files that make up this version.

        :raises DeltaTableNotFoundException: if there is no table.
        """
        if self._segment is None:
            raise self.error(
                DeltaTableNotFoundException,
                f"{self.log.uri} is not a Delta table: it has no _delta_log with a commit or a checkpoint. Check the location; "
                "the first commit creates the table.",
            )
        return self._segment

    @cached_property
    def timestamp(self) -> int:
        """Return the time of the commit in milliseconds: the in-commit timestamp, else the time of the commit file.

        Raises as :attr:`in_commit_timestamp` does.
        """
        if self._segment is None:
            return -1
        recorded = self.in_commit_timestamp
        if recorded is not None:
            return recorded
        status = self.segment.statuses.get(self.version) or self.log.store.head(commit_file(self.version))
        if status is not None:
            return status.modification_time
        checkpoint = self.segment.checkpoint
        return max((part.modification_time for part in checkpoint.parts), default=0) if checkpoint is not None else 0

    @cached_property
    def in_commit_timestamp(self) -> int | None:
        """Return the in-commit timestamp, or ``None`` if the table does not have them.

        It is read from the version's checksum, else from its commit. Also ``None`` if only a checkpoint is left of the version.

        :raises MissingCommitInfoException: if the table has them, but the commit has no ``commitInfo``.
        :raises MissingCommitTimestampException: if the table has them, but the ``commitInfo`` has none.
        """
        if self._segment is None or not self.properties.enable_in_commit_timestamps:
            return None
        state = self._small_state()
        if state.checksum is not None and state.base_version == self.version:
            recorded = state.checksum.in_commit_timestamp_opt
            if recorded is not None:
                return recorded
        try:
            data = self.log.read_commit(self.version)
        except FileNotFoundError:
            return None
        return required_timestamp(self.version, data, table=self.log.uri)

    # -- protocol and metadata ------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Metadata:
        """Return the table's metadata.

        :raises DeltaTableNotFoundException: if there is no table.
        :raises DeltaLogCorruptedException: if the log has no metadata.
        """
        state = self._complete_state()
        if state.metadata is None:
            raise missing_actions(self.version, table=self.log.uri, protocol=state.protocol, metadata=None)
        return state.metadata

    @property
    def protocol(self) -> Protocol:
        """Return the table's protocol; raises as :attr:`metadata` does."""
        state = self._complete_state()
        if state.protocol is None:
            raise missing_actions(self.version, table=self.log.uri, protocol=None, metadata=state.metadata)
        return state.protocol

    @cached_property
    def definition(self) -> TableDefinition:
        """Return what the table is at this version."""
        return TableDefinition.of(self.metadata, self.protocol, table=self.log.uri, version=self.version)

    @cached_property
    def properties(self) -> TableProperties:
        """Return typed access to the table properties."""
        return self.definition.properties

    @cached_property
    def schema(self) -> StructType:
        """Return the table's schema."""
        return self.definition.schema

    @cached_property
    def partition_schema(self) -> StructType:
        """Return the partition columns, in partition order."""
        # By their exact names, as Delta does: Delta Spark finds no other, and other readers would read nulls.
        fields = {column.name: column for column in self.schema.fields}
        try:
            return StructType(tuple(fields[name] for name in self.metadata.partition_columns))
        except KeyError as error:
            raise self.error(
                DeltaLogCorruptedException,
                f"Version {self.version} of table {self.log.uri} is partitioned by column {error}, which is not in its "
                "schema. Another writer wrote invalid metadata; restore the table to an earlier version with that writer.",
            ) from error

    def check_readable(self) -> None:
        """Refuse a version whose files must not be listed, because this provider might misread its log.

        Everything that lists files calls this first; protocol, metadata and history stay readable, to see why. Nothing more is
        read once protocol and metadata are known.

        :raises DeltaTableNotFoundException: if there is no table.
        :raises DeltaLogCorruptedException: if the log has no protocol or no metadata, or a partition column is not in the schema.
        :raises InvalidProtocolVersionException: if it needs a newer reader version.
        :raises DeltaUnsupportedTableFeatureException: if it lists a reader feature that is not supported.
        """
        _ = self.metadata
        check_can_read(self.protocol, self.log.uri, self.version, provided=self.log.provided)
        if self.metadata.partition_columns:
            _ = self.partition_schema

    def _small_state(self, read_commits: ReadCommits | None = None) -> SnapshotState:
        with self._lock:
            if self._state is None:
                self._state = resolve_state(self.log.store, self.segment, read_commits or self.log.read_commit_range)
            return self._state

    def _complete_state(self) -> SnapshotState:
        with self._lock:
            state = self._small_state()
            if (state.protocol is None or state.metadata is None) and self.segment.checkpoint is not None:
                protocol, metadata = self._from_checkpoint(lambda reader: reader.protocol_and_metadata()) or (None, None)
                state = self._small_state()  # falling back to an older checkpoint reads more commits
                self._state = state = replace(state, protocol=state.protocol or protocol, metadata=state.metadata or metadata)
            return state

    @property
    def known_state(self) -> SnapshotState | None:
        """Return the state as far as it has been read, for the snapshot of the next version."""
        return self._state

    # -- transactions and domains ---------------------------------------------------------------------------------------------

    @property
    def set_transactions(self) -> dict[str, SetTransaction]:
        """Return the last transaction of every application, except expired ones (``delta.setTransactionRetentionDuration``).

        Open intents do not expire.
        """
        if self._segment is None:
            return {}
        with self._lock:
            everything = self._small_state().transactions()
            if everything is None:
                # Read the checkpoint first: if it is corrupt, the commits after an older one are read again.
                base = self._from_checkpoint(lambda reader: reader.set_transactions()) or {}
                state = self._small_state()
                if state.base_transactions is None:
                    state = self._state = replace(state, base_transactions={**base, **self._early_state().transactions})
                everything = state.transactions() or {}
        return {txn.app_id: txn for txn in self._unexpired(everything.values())}

    @property
    def intents(self) -> list[SetTransaction]:
        """Return the intents and what has ended them, the latest last; some that have ended may be left out.

        Our checksums have them. After a checksum or checkpoint of another engine, the ``txn`` rows of the checkpoint are read.
        """
        if self._segment is None:
            return []
        with self._lock:
            if (found := self._small_state().intents()) is not None:
                return found
            base = self._small_state().base_version
            before = earlier_intents(self.log.store, self.segment, base, self.log.read_commit_range)
            if before is None:
                before = self._from_checkpoint(lambda reader: reader.transactions_of(PREFIXES)) or []
                before += [txn for app_id, txn in self._early_state().transactions.items() if app_id.startswith(PREFIXES)]
            self._state = replace(self._small_state(), base_intents=tuple(open_intents(before).values()))
            return self._state.intents() or []

    @property
    def transactions(self) -> Mapping[str, int]:
        """Return the last version of every application (Delta's ``transactions``)."""
        return {app_id: txn.version for app_id, txn in self.set_transactions.items()}

    def transaction_versions(self, prefix: str) -> dict[str, int]:
        """Return the last version of every application in :attr:`set_transactions` whose id begins so, by what follows in it.

        There may be many, of intents of the past: no object is made of each row of a checkpoint.
        """
        with self._lock:
            none_expires = self._segment is not None and self.properties.set_transaction_retention is None
            if not none_expires or self._small_state().base_transactions is not None:
                return with_prefix(self.set_transactions, prefix)
            base = self._from_checkpoint(lambda reader: reader.transactions(prefix)) or {}
            later = self._early_state().apply(self._small_state().overlay)
        return base | with_prefix(later.transactions, prefix)

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last version that an application committed, or ``None``, as :meth:`set_transaction` has it."""
        return None if (txn := self.set_transaction(app_id)) is None else txn.version

    def set_transaction(self, app_id: str, *, expired: bool = False) -> SetTransaction | None:
        """Return the last transaction of an application, or ``None`` if there is none or it has expired.

        Looks into the commits first, then into the checksum, then into the ``txn`` rows of the checkpoint, once for each id.

        :param expired: return an expired one too, if it is still in the log.
        """
        if self._segment is None:
            return None
        with self._lock:
            state = self._small_state()
            txn = state.overlay.transactions.get(app_id)
            if txn is None and state.knows(app_id):
                txn = (state.base_transactions or state.asked).get(app_id)
            elif txn is None:
                txn = self._early_state().transactions.get(app_id)
                if txn is None:
                    txn = self._from_checkpoint(lambda reader: reader.set_transaction(app_id))
                    if self._small_state() is not state:  # fell back to an older checkpoint: look again
                        return self.set_transaction(app_id, expired=expired)
                state.asked[app_id] = txn
        return txn if txn is None or expired else next(iter(self._unexpired([txn])), None)

    def _early_state(self) -> SmallState:
        """Return the state from the commits between the checkpoint and the checksum that the state was read from."""
        early = range(self.segment.first_commit, self._small_state().base_version + 1)
        return read_small_state(self.log.read_commit_range(early), table=self.log.uri)

    def _unexpired(self, transactions: Collection[SetTransaction]) -> Collection[SetTransaction]:
        retention = self.properties.set_transaction_retention
        if retention is None:
            return transactions
        return unexpired(transactions, time.time() * 1000 - retention)

    @property
    def domain_metadata(self) -> dict[str, DomainMetadata]:
        """Return the domains by name, without removed ones."""
        if self._segment is None:
            return {}
        with self._lock:
            domains = self._small_state().domains()
            if domains is None:
                base = self._from_checkpoint(lambda reader: reader.domain_metadata()) or {}
                state = self._small_state()
                if state.base_domains is None:
                    state = self._state = replace(state, base_domains={**base, **self._early_state().domains})
                domains = state.domains() or {}
        return domains

    def domain(self, name: str) -> DomainMetadata | None:
        """Return a domain, or ``None`` if the table does not have it.

        Looks into the commits first, then into the checksum, and opens the checkpoint only if neither has it.
        """
        if self._segment is None:
            return None
        latest = self._small_state().overlay.domains.get(name)
        if latest is not None:
            return None if latest.removed else latest
        return self.domain_metadata.get(name)

    @property
    def row_id_high_water_mark(self) -> int | None:
        """Return the highest row id in use, or ``None`` if there is none (Delta's RowId.extractHighWatermark).

        :raises DeltaLogCorruptedException: if the domain ``delta.rowTracking`` is malformed.
        """
        domain = self.domain(ROW_TRACKING_DOMAIN)
        if domain is None:
            return None
        return high_water_mark(domain, table=self.log.uri, version=self.version)

    # -- files ----------------------------------------------------------------------------------------------------------------

    def files(self, predicate: str | Predicate | FileFilter | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the table's files as an Arrow table.

        The cost is that of the columns: for 10^6 files, paths take 100 MB, each partition value 20 MB, and statistics (text of
        half a kilobyte each) 400 MB and most of the time, so they are read only if asked for. ``num_files`` and
        ``size_in_bytes`` need no list at all.

        :param predicate: SQL text, a parsed predicate or a filter. Files that cannot have matching rows, by partition values and
            statistics, are left out; the files returned need not have any.
        :param columns: columns to return, of ``path``, ``partition_values``, ``size``, ``modification_time``, ``data_change``,
            ``stats``, ``tags``, ``deletion_vector``, ``base_row_id``, ``default_row_commit_version``, ``clustering_provider``;
            ``None`` for all but ``stats``.
        :raises PredicateException: if the predicate does not parse or names an unknown column.

        Also raises as :meth:`check_readable` does.
        """
        chosen = self._file_filter(predicate) if predicate is not None else None
        return self.read_with_checkpoint(lambda reader, tail: heavy.live_files(reader, tail, file_filter=chosen, columns=columns))

    def add_files(self, predicate: str | Predicate | None = None) -> list[AddFile]:
        """Return the table's files as actions, for results known to be small."""
        chosen = self._file_filter(predicate) if predicate is not None else None
        return self.read_with_checkpoint(lambda reader, tail: heavy.live_adds(reader, tail, file_filter=chosen))

    def files_at(self, paths: Collection[str]) -> dict[str, AddFile]:
        """Return the live files with these paths, as spelled in the log; looks up only these."""
        found = {add.path: add for add in self.tail_files().adds.values() if add.path in paths}
        missing = {path for path in paths if path not in found}
        if missing and self.segment.checkpoint is not None:
            wanted = heavy.PathFilter(missing)
            files = self.read_with_checkpoint(
                lambda reader, tail: heavy.live_files(reader, tail, file_filter=wanted, columns=heavy.FILE_COLUMNS)
            )
            found.update((file.path, file) for file in heavy.to_add_files(files))
        return found

    def tombstones(self) -> pa.Table:
        """Return the removes that have not expired (``delta.deletedFileRetentionDuration``) as an Arrow table."""
        cutoff = int(time.time() * 1000) - self.properties.deleted_file_retention
        return self.read_with_checkpoint(lambda reader, tail: heavy.tombstones(reader, tail, retained_after=cutoff))

    def _file_filter(self, predicate: str | Predicate | FileFilter) -> FileFilter:
        if isinstance(predicate, str):
            predicate = heavy.Predicate.parse(
                predicate, self.schema, self.metadata.partition_columns, table=self.log.uri, version=self.version
            )
        return heavy.FileFilter(predicate) if isinstance(predicate, heavy.Predicate) else predicate

    def tail_files(self) -> TailFiles:
        """Return the file actions of the commits after the checkpoint, reconciled; raises as :meth:`check_readable` does."""
        with self._lock:
            read_commits = ReadOnce(self.log.read_commit_range)
            self._small_state(read_commits)
            self.check_readable()
            if self._tail is None:
                self._tail = TailCache(read_tail(self.log.store, self.segment, read_commits))
            return self._tail.files(table=self.log.uri)

    def read_with_checkpoint(self, read: Callable[[CheckpointReader | None, TailFiles], T]) -> T:
        """Call ``read`` with the checkpoint (or ``None``) and the reconciled commits after it.

        If the checkpoint is corrupt, ``read`` is called again with an older one, or with only the commits.

        :raises DeltaLogCorruptedException: if the version cannot be rebuilt from other files.
        """
        while True:
            tail = self.tail_files()
            reader = self.checkpoint_reader()
            if reader is None:
                return read(None, tail)
            try:
                return read(reader, tail)
            except (DeltaLogCorruptedException, UnicodeDecodeError) as error:
                self._drop_checkpoint(error)

    def _from_checkpoint(self, read: Callable[[CheckpointReader], T]) -> T | None:
        while (reader := self.checkpoint_reader()) is not None:
            try:
                return read(reader)
            except (DeltaLogCorruptedException, UnicodeDecodeError) as error:
                self._drop_checkpoint(error)
        return None

    def checkpoint_reader(self) -> CheckpointReader | None:
        """Return a reader of the segment's checkpoint, or ``None`` if it has none.

        It is a new one each time: if another writer replaced the file, an old footer would not fit it.
        """
        checkpoint = self.segment.checkpoint
        if checkpoint is None:
            return None
        return heavy.CheckpointReader(self.log.store, checkpoint.parts, version=checkpoint.version, table=self.log.uri)

    def _drop_checkpoint(self, error: DeltaLogCorruptedException | UnicodeDecodeError) -> None:
        """Replace the segment by one without its checkpoint, or raise the error if there is none."""
        checkpoint = self.segment.checkpoint
        if isinstance(error, UnicodeDecodeError):
            error = no_text(self.version if checkpoint is None else checkpoint.version, table=self.log.uri, error=error)
        if checkpoint is None:
            raise error
        excluded = self.corrupt_checkpoints | {checkpoint.version}
        try:
            segment = load_segment(self.log.store, self.version, exclude=excluded)
        except (DeltaLogCorruptedException, LookupError) as other:
            raise self.error(
                DeltaLogCorruptedException,
                f"{error.message} It cannot be replaced by an older checkpoint or by all commits either: {other}",
                version=checkpoint.version,
            ) from error
        if segment is None:
            raise error
        logger.warning(
            "Table %s: ignoring the corrupt checkpoint of version %s (%s); reading %s instead",
            self.log.uri,
            checkpoint.version,
            error.message,
            f"the checkpoint of version {segment.checkpoint.version}" if segment.checkpoint is not None else "all commits",
        )
        with self._lock:
            self._segment, self._state, self._tail, self.corrupt_checkpoints = segment, None, None, excluded

    # -- totals ---------------------------------------------------------------------------------------------------------------

    def derived_totals(self) -> Totals | None:
        """Return number and bytes of the files if they can be derived from small files; never reads the list of files."""
        return self.derive_totals()[0]

    def derive_totals(self) -> tuple[Totals | None, CommitHead | None]:
        """Return the derived totals, and the head of the version's commit if it was decoded for them."""
        if self._segment is None:
            return Totals.empty(), None
        with self._lock:
            state = self._small_state()
            totals, head = state.totals_at(self.version, self.log.read_commit_range, table=self.log.uri)
            if totals is not None and totals is not state.totals:
                self._state = replace(state, totals=totals, totals_version=self.version)
            return totals, head

    def _totals(self) -> Totals:
        if self._segment is not None:
            self.check_readable()
        totals = self.derived_totals()
        if totals is None:
            count, size = self.read_with_checkpoint(heavy.count_files)
            # Histograms of many files cost more than counting them, and only a complete checksum needs them.
            totals = self.count_totals() if count <= MAX_FILES else Totals(count, size)
            self.set_totals(totals)
        return totals

    def count_totals(self) -> Totals:
        """Count the files regardless of the checksum: reads their paths and sizes, and if they are few, everything."""
        return self.read_with_checkpoint(heavy.count_totals)

    def set_totals(self, totals: Totals) -> None:
        """Remember totals that were counted, for the checksum of this version and for later versions."""
        with self._lock:
            self._state = replace(self._small_state(), totals=totals, totals_version=self.version)

    def complete_state(self) -> None:
        """Read or count everything that a checksum needs, whatever it costs."""
        totals = self.derived_totals()
        if totals is None or not totals.is_complete:
            self.set_totals(self.count_totals())
        _ = self.set_transactions, self.domain_metadata

    # -- verification ---------------------------------------------------------------------------------------------------------

    def without_checksum(self) -> Snapshot:
        """Return this version from its checkpoint and commits alone."""
        segment = replace(self.segment, checksum_versions=())
        return Snapshot(self.log, segment, corrupt_checkpoints=self.corrupt_checkpoints)

    def validate_checksum(self, *, fatal: bool = True) -> bool:
        """Compare this version's checksum with the state in its checkpoint and commits (Delta's ``validateChecksum``).

        Reads the whole state of the table. Without a checksum there is nothing to compare.

        :param fatal: raise if they differ; otherwise warn, use the state in the log, and return ``False``.
        :raises DeltaChecksumMismatchException: if they differ and ``fatal`` is set.
        """
        computed = self.without_checksum()
        mismatches = heavy.find_mismatches(computed)
        if not mismatches:
            return True
        error = heavy.mismatch_error(self, mismatches)
        if fatal:
            raise error
        logger.warning("%s", error.message)
        with self._lock:
            self._segment, self._state, self._tail = computed.segment, None, None
            for name in ("timestamp", "in_commit_timestamp", "definition", "properties", "schema", "partition_schema"):
                self.__dict__.pop(name, None)
        return False

    @property
    def num_files(self) -> int:
        """Return the number of files; raises as :meth:`check_readable` does."""
        return self._totals().num_files

    @property
    def size_in_bytes(self) -> int:
        """Return the bytes of all files; raises as :meth:`check_readable` does."""
        return self._totals().size_in_bytes
