"""FSCK REPAIR TABLE: remove the entries of data files that are gone, so that the rest of the table can be read again.

Missing is not empty: what a store does not have is only gone if it answers for the rest of the table. An answer other than "not
found" is an error, and nothing is removed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.contract.staging_directory import STAGING_DIRECTORY
from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaError,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    VersionsNotContiguousException,
)
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor
from airflow_delta.log.actions.decode import decode_commit
from airflow_delta.log.actions.deletion_vectors import vector_path
from airflow_delta.log.statistics.row_counts import num_records, total
from airflow_delta.log.storage.factory import sibling
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.storage.table_paths import locate, relative_key
from airflow_delta.table.operations.vacuum.listing import even_cuts
from airflow_delta.table.run import run_large
from airflow_delta.transaction import CommitPolicy, Operation

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Action, RemoveFile
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus, LogStore
    from airflow_delta.transaction import OptimisticTransaction

logger = logging.getLogger(__name__)

OPERATION = "FSCK"
MAX_MISSING_SHARE = 0.1
MAX_RESTARTS = 10

_THREADS = 16
_LISTING_PAYS = 200
"""Files from which a listing of a remote table costs less than to ask for each."""
_NAMED = 10
_PARTITION = lazy_pattern(r"/[^/=]+=[^/]*$")


# -- what is missing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LostVector:
    """A file that is there, whose deletion vector is gone: nobody knows which of its rows are deleted."""

    path: str
    vector: str


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """What a look at every file of a version has found.

    :param num_files: data files of the version.
    :param num_bytes: their bytes.
    :param files: those that are gone.
    :param lost_vectors: those that are there without their deletion vectors.
    :param empty_places: directories outside of the table that files are missing from, and that have nothing at all.
    """

    table: str
    version: int
    num_files: int
    num_bytes: int
    files: tuple[AddFile | RemoveFile, ...] = ()
    lost_vectors: tuple[LostVector, ...] = ()
    empty_places: tuple[str, ...] = ()
    append_only: bool = False

    @property
    def missing_bytes(self) -> int:
        """Bytes of the files that are gone."""
        return sum(file.size or 0 for file in self.files)

    @property
    def missing_records(self) -> int | None:
        """Rows of the files that are gone, deleted ones excepted; ``None`` if the statistics of one do not say."""
        return total(map(_rows, self.files))

    @property
    def missing_share(self) -> float:
        """Share of the table that is gone, by files or by bytes, whichever is more."""
        shares = [len(self.files) / self.num_files if self.num_files else 0.0]
        if self.num_bytes:
            shares.append(self.missing_bytes / self.num_bytes)
        return max(shares)

    def refusal(self, max_missing_share: float) -> DeltaError | None:
        """Return why a repair would not remove the entries; ``None`` if it would, or nothing is missing."""
        _check_share(max_missing_share, self.table)
        if self.lost_vectors:
            lost = [f"{lost.vector} of {lost.path}" for lost in self.lost_vectors]
            return self._error(
                f"{len(lost)} deletion vectors are gone, and their data files are there ({_some(lost)}). Which rows of these are "
                "deleted is lost with them: without the vectors they would all come back. Nothing is removed. Restore the "
                "vectors from a backup, RESTORE a version without them, or DELETE or overwrite the whole partitions."
            )
        if not self.files:
            return None
        names = _some([file.path for file in self.files])
        if len(self.files) == self.num_files:
            return self._error(
                f"None of its {self.num_files} files was found ({names}), which looks like a wrong location, mount or connection "
                "rather than lost files. Nothing is removed. If they are gone indeed, TRUNCATE the table or RESTORE an earlier "
                "version."
            )
        if self.empty_places:
            return self._error(
                f"files are missing from {_some(self.empty_places)}, where there is nothing at all: this may be a mount or a "
                "bucket that cannot be seen from here. Nothing is removed. If the source of a clone is gone indeed, DELETE the "
                "whole partitions, or RESTORE a version without its files."
            )
        if self.append_only:
            return self._error(
                f"{len(self.files)} of its files are gone ({names}), and rows of a table with delta.appendOnly = true must not "
                "be removed. Unset the property first.",
                AppendOnlyException,
            )
        if self.missing_share > max_missing_share:
            return self._error(
                f"{len(self.files)} of its {self.num_files} files are gone ({names}): {self.missing_share:.3g} of the table, "
                f"more than max_missing_share={max_missing_share:g}. Nothing is removed. Look for the files first, in a backup "
                "or in other versions; then allow a larger share."
            )
        return None

    def _error(self, why: str, kind: type[DeltaError] = DeltaFileNotFoundException) -> DeltaError:
        return kind(f"Table {self.table} version {self.version} is not repaired: {why}", table=self.table, version=self.version)

    def to_dict(self, *, max_paths: int | None = None) -> dict[str, Any]:
        """Return it as JSON for XCom, with paths as the log spells them.

        :param max_paths: how many of the paths to keep; ``None``: all.
        """
        return {
            "table": self.table,
            "version": self.version,
            "numMissingFiles": len(self.files),
            "numMissingBytes": self.missing_bytes,
            "numMissingRecords": self.missing_records,
            "missingShare": self.missing_share if self.num_files else None,
            "paths": [_text(file.path) for file in self.files[:max_paths]],
            "lostDeletionVectors": [
                {"path": _text(lost.path), "deletionVector": _text(lost.vector)} for lost in self.lost_vectors[:max_paths]
            ],
        }


def _rows(file: AddFile | RemoveFile) -> int | None:
    rows = num_records(file.stats)
    if rows is None or file.deletion_vector is None:
        return rows
    return rows - file.deletion_vector.cardinality


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(sorted(names)[:_NAMED])}{more}"


def _text(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()  # a name that is not UTF-8 cannot be stored as JSON everywhere


def find_missing_files(log: DeltaLog) -> MissingFiles:
    """Ask the store for every data file and deletion vector of the latest version. Nothing is changed.

    :raises DeltaTableNotFoundException: if there is no table.
    :raises PathOutsideTableException: if a file is in a place that the connection must not open.
    :raises OSError: if the store does not say whether a file is there.
    """
    snapshot = log.update()
    if snapshot.version < 0:
        raise log.error(DeltaTableNotFoundException, f"There is no Delta table at {log.uri}, so no files are missing.")
    return _look(snapshot)


def _look(snapshot: Snapshot, only: set[str] | None = None) -> MissingFiles:
    """Look for the files of a version.

    :param only: paths to look for; default: all.
    """
    store = snapshot.log.store
    live = snapshot.files(columns=("path", "size", "deletion_vector"))
    paths, sizes = live.column("path").to_pylist(), live.column("size").to_pylist()
    files = [path for path in paths if only is None or path in only]
    vectors: dict[str, str] = {}
    for path, vector in zip(paths, live.column("deletion_vector").to_pylist(), strict=True):
        if vector is not None and vector["storage_type"] != "i" and (only is None or path in only):
            vectors[path] = vector_path(store, DeletionVectorDescriptor(**vector))
    search = _Search(store)
    for path in files:
        search.want(path, *_spellings(store, path))
    for vector in set(vectors.values()):
        search.want(_VECTOR + vector, vector)
    gone = search.run(snapshot)
    missing = {path for path in files if path in gone}
    entries = snapshot.files_at(missing)
    return MissingFiles(
        table=snapshot.log.uri,
        version=snapshot.version,
        num_files=len(paths),
        num_bytes=sum(sizes),
        files=tuple(entries[path] for path in sorted(missing)),
        lost_vectors=tuple(
            LostVector(path, vector)
            for path, vector in sorted(vectors.items())
            if _VECTOR + vector in gone and path not in missing
        ),
        empty_places=tuple(search.empty_places(files, missing)),
        append_only=snapshot.properties.append_only,
    )


_VECTOR = "\0"
"""What names of deletion vectors begin with, and no path does."""


def _spellings(store: LogStore, path: str) -> Iterable[str]:
    """Yield what a path of the log may mean, the right one first: an entry must not go for its spelling."""
    yield unquote(path)
    if "%" in path:
        yield path  # of a writer that does not encode paths
        if store.local_root is not None:
            yield unquote(path, errors="surrogateescape")  # a name that is not UTF-8


@dataclass
class _Search:
    """Files to look for, by name, with the paths that each may have."""

    store: LogStore
    wanted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _opened: dict[str, LogStore] = field(default_factory=dict)

    def want(self, name: str, *paths: str) -> None:
        self.wanted[name] = paths

    def run(self, snapshot: Snapshot) -> set[str]:
        """Return the names of those that are gone. A listing may be behind: what it does not show is asked for."""
        asked = self._not_listed(snapshot)
        workers = 1 if self.store.local_root is not None else _THREADS
        with ThreadPoolExecutor(workers) as pool:
            what = f"Looking for files of {snapshot.log.uri}"
            answers = tracked(pool.map(self._is_gone, asked), what, len(asked))
            return {name for name, is_gone in zip(asked, answers, strict=True) if is_gone}

    def _not_listed(self, snapshot: Snapshot) -> list[str]:
        if self.store.local_root is not None or len(self.wanted) < _LISTING_PAYS:
            return list(self.wanted)
        names: dict[str, str] = {}
        for name, paths in self.wanted.items():
            for path in paths:
                if (key := relative_key(self.store, path)) is not None:
                    names[key] = name
        found = set()
        listing = self.store.list_recursive("", cuts=even_cuts(snapshot))
        for status in tracked(listing, f"Listing {snapshot.log.uri}"):
            if (listed := names.get(status.path)) is not None:
                found.add(listed)
        return [name for name in self.wanted if name not in found]

    def _is_gone(self, name: str) -> bool:
        return all(self._head(path) is None for path in self.wanted[name])

    def _head(self, path: str) -> FileStatus | None:
        holder, key = locate(self.store, path, self._opened)
        return holder.head(key)

    def empty_places(self, files: Iterable[str], missing: set[str]) -> list[str]:
        """Return the directories outside of the table that have nothing, of those that none of the files was found in."""
        found: set[str] = set()
        lost: set[str] = set()
        for name in files:
            path = self.wanted[name][0]
            if relative_key(self.store, path) is None:
                (lost if name in missing else found).add(_place(path))
        return sorted(place for place in lost - found if not any(sibling(self.store, place).list_children("")))


def _place(path: str) -> str:
    """Return the table that a file outside belongs to, if its path shows it."""
    directory = path.rpartition("/")[0].partition(f"/{STAGING_DIRECTORY}/")[0]
    while _PARTITION.search(directory):
        directory = directory.rpartition("/")[0]
    return directory


# -- repair --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair did.

    :param commit: its commit; with ``attempts=0`` and the version that was read if nothing was missing.
    :param missing: whose entries it removed; ``None`` for a commit of an earlier try that has left the log.
    """

    commit: CommitResult
    missing: MissingFiles | None


def repair_table(
    log: DeltaLog,
    *,
    max_missing_share: float = MAX_MISSING_SHARE,
    max_restarts: int = MAX_RESTARTS,
    policy: CommitPolicy | None = None,
    **options: Any,
) -> RepairResult:
    """Remove the entries of data files that are gone, in one commit of operation FSCK.

    The commit is the version right after the one that was looked at, or none: whatever others commit meanwhile, those files that
    were missing and are still in the table are looked for again.

    :param max_missing_share: share of the table, by files or bytes, up to which entries are removed.
    :param max_restarts: how often to look again after another commit.
    :param options: parameters of :func:`airflow_delta.table.run.run_large`, the identity among them.
    :raises DeltaIllegalArgumentException: if the share is not above 0 and at most 1.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises DeltaUnsupportedOperationException: if the table's catalog does not leave it to its clients.
    :raises DeltaFileNotFoundException: if more is missing, or nothing is found, or deletion vectors of files are gone that are
        there themselves; see :meth:`MissingFiles.refusal`.
    :raises AppendOnlyException: if rows of the table must not be removed.
    :raises PathOutsideTableException: if a file is in a place that the connection must not open.
    :raises ConcurrentWriteException: if others commit again and again.
    :raises OSError: if the store does not say whether a file is there.
    """
    _check_share(max_missing_share, log.uri)
    log.store.committer.check_allowed(OPERATION)
    looks: list[MissingFiles] = []

    def operate(_handle: TransactionHandle, txn: OptimisticTransaction) -> tuple[Sequence[Action], Operation] | None:
        missing = _look(txn.snapshot, _suspects(looks[-1]) if looks else None)
        looks.append(missing)
        refusal = missing.refusal(max_missing_share)
        if refusal is not None:
            raise refusal
        return _removal(txn.snapshot, missing)

    result = run_large(
        log,
        operate,
        large=False,
        max_restarts=max_restarts,
        policy=replace(policy if policy is not None else CommitPolicy(), next_version_only=True),
        **{"create": False, **options},
    )
    if result.committed_before:
        return RepairResult(result, _removed_before(log, result))
    return RepairResult(result, looks[-1] if looks else None)


def _check_share(share: float, table: str) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or math.isnan(share) or not 0 < share <= 1:
        raise DeltaIllegalArgumentException(
            f"max_missing_share must be a number above 0 and at most 1, got {share!r}.", table=table
        )


def _suspects(missing: MissingFiles) -> set[str]:
    return {file.path for file in missing.files}


def _removal(snapshot: Snapshot, missing: MissingFiles) -> tuple[Sequence[Action], Operation] | None:
    if not missing.files:
        return None
    if snapshot.properties.enable_change_data_feed:
        logger.warning(
            "Readers of the change data feed of %s cannot read the version of this repair: the deleted rows are in files that "
            "are gone.",
            snapshot.log.uri,
        )
    now = int(time.time() * 1000)
    metrics: Mapping[str, Any] = {
        "numRemovedFiles": len(missing.files),
        "numRemovedBytes": missing.missing_bytes,
        "numScannedFiles": missing.num_files,
        **({} if missing.missing_records is None else {"numDeletedRows": missing.missing_records}),
    }
    removes = [file.remove(now) for file in missing.files if isinstance(file, AddFile)]
    return removes, Operation(OPERATION, {}, metrics)


def _removed_before(log: DeltaLog, result: CommitResult) -> MissingFiles | None:
    """Return what the commit of an earlier try removed, by the log."""
    try:
        [file] = log.read_commit_range(range(result.version, result.version + 1))
    except VersionsNotContiguousException:
        return None
    commit = decode_commit(file.version, file.data, table=log.uri)
    return MissingFiles(log.uri, result.version, 0, 0, tuple(commit.removes))
