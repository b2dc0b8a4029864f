"""Totals of a table's files, carried forward from commit to commit (Delta's incremental checksum).

While a table has few files, all of them are known and the totals are exact, even if a commit repeats or removes a file twice.
Beyond that the totals are sums over the commits, and some commits do not add up: the chain then ends, and starts again the next
time the files are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import CommitFile, CommitHead, FileChanges, decode_file_changes, has_file_actions
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.checksum.histograms import DELETED_RECORD_BINS, FILE_SIZE_BINS, deleted_bin, size_bin

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile
    from airflow_delta.log.actions.reconciliation import FileKey


MAX_FILES = 50
"""Maximum number of files listed in a checksum (Delta's ``allFilesInCrc.thresholdNumFiles``)."""

MANUAL_UPDATE = "Manual Update"
_ADDS_REPEAT_FILES = frozenset({"COMPUTE STATS", "ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL", "DROP FEATURE"})
_REMOVES_ARE_NOT_OF_FILES = frozenset({"Deletion Vector Tombstones"})


@dataclass(frozen=True, slots=True)
class SizeCounts:
    """Number and bytes of the files in each bin of :data:`~airflow_delta.log.checksum.histograms.FILE_SIZE_BINS`."""

    files: tuple[int, ...]
    size_in_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Deletions:
    """Deletion vectors of the table.

    :param files: number of files in each bin of :data:`~airflow_delta.log.checksum.histograms.DELETED_RECORD_BINS`, if known.
    """

    records: int
    vectors: int
    files: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Number and bytes of the table's files, and whatever else is known about them.

    :param sizes: ``None`` if unknown.
    :param deletions: ``None`` if unknown.
    :param files: all files by key if there are few, else ``None``.
    """

    num_files: int
    size_in_bytes: int
    sizes: SizeCounts | None = None
    deletions: Deletions | None = None
    files: Mapping[FileKey, AddFile] | None = None

    @classmethod
    def empty(cls) -> Totals:
        """Return the totals of a table without files."""
        return _Sums.zero({}).totals()

    @classmethod
    def of(cls, files: Mapping[FileKey, AddFile]) -> Totals:
        """Return the totals of a table with these files."""
        sums = _Sums.zero(dict(files))
        for add in files.values():
            sums.count(add.size, _deleted(add), 1)
        return sums.totals()

    @classmethod
    def counted(cls, files: Iterable[tuple[int, int | None]]) -> Totals:
        """Return the totals of files given by size and number of deleted rows (``None``: no deletion vector)."""
        sums = _Sums.zero(None)
        for size, deleted in files:
            sums.count(size, deleted, 1)
        return sums.totals()

    @property
    def is_complete(self) -> bool:
        """Tell whether they suffice for a checksum as complete as Delta's."""
        return self.sizes is not None and (self.files is not None or self.num_files > MAX_FILES)

    def without_deletions(self) -> Totals:
        """Return the same totals for a table that cannot have deletion vectors."""
        none = Deletions(0, 0, (self.num_files, *(0 for _ in DELETED_RECORD_BINS[1:])))
        return Totals(self.num_files, self.size_in_bytes, self.sizes, none, self.files)

    def after(self, commits: Sequence[CommitFile], *, table: str) -> tuple[Totals | None, CommitHead | None]:
        """Return the totals after some commits (``None`` if the commits do not say), and the head of the last commit.

        :param commits: oldest first.
        """
        sums, head = _Sums.of(self), None
        for commit in commits:
            head = None
            if not has_file_actions(commit.data):
                continue
            known = sums.files is not None
            changes = decode_file_changes(commit, table=table, whole_adds_up_to=MAX_FILES if known else 0)
            head = changes.head
            if not (sums.replay(changes) if known else sums.add_up(changes)):
                return None, head
        # A negative total means that a commit removed a file that was not there: nothing can build on that.
        return (sums.totals() if sums.num_files >= 0 and sums.size_in_bytes >= 0 else None), head


class _Sums:
    """Totals being summed up."""

    __slots__ = ("deleted_bins", "deleted_records", "files", "num_files", "size_bins", "size_bytes", "size_in_bytes", "vectors")

    def __init__(self) -> None:
        self.num_files = self.size_in_bytes = self.deleted_records = 0
        self.vectors: int | None = 0
        self.size_bins: list[int] | None = None
        self.size_bytes: list[int] = []
        self.deleted_bins: list[int] | None = None
        self.files: dict[FileKey, AddFile] | None = None

    @classmethod
    def zero(cls, files: dict[FileKey, AddFile] | None) -> _Sums:
        sums = cls()
        sums.size_bins, sums.size_bytes = [0] * len(FILE_SIZE_BINS), [0] * len(FILE_SIZE_BINS)
        sums.deleted_bins = [0] * len(DELETED_RECORD_BINS)
        sums.files = files
        return sums

    @classmethod
    def of(cls, totals: Totals) -> _Sums:
        sums = cls()
        sums.num_files, sums.size_in_bytes = totals.num_files, totals.size_in_bytes
        if totals.sizes is not None:
            sums.size_bins, sums.size_bytes = list(totals.sizes.files), list(totals.sizes.size_in_bytes)
        if totals.deletions is None:
            sums.vectors = None
        else:
            sums.deleted_records, sums.vectors = totals.deletions.records, totals.deletions.vectors
            sums.deleted_bins = list(totals.deletions.files) if totals.deletions.files is not None else None
        sums.files = dict(totals.files) if totals.files is not None else None
        return sums

    def totals(self) -> Totals:
        sizes = SizeCounts(tuple(self.size_bins), tuple(self.size_bytes)) if self.size_bins is not None else None
        deletions = None
        if self.vectors is not None:
            bins = tuple(self.deleted_bins) if self.deleted_bins is not None else None
            deletions = Deletions(self.deleted_records, self.vectors, bins)
        empty = self.num_files == self.size_in_bytes == 0
        return Totals(self.num_files, self.size_in_bytes, sizes, deletions, {} if empty else self.files)

    def count(self, size: int, deleted: int | None, sign: int) -> None:
        """Add a file to the totals, or with ``sign`` -1 subtract it.

        :param deleted: number of rows in its deletion vector; ``None`` if it has none.
        """
        self.num_files += sign
        self.size_in_bytes += sign * size
        if self.size_bins is not None:
            bin_ = size_bin(size)
            self.size_bins[bin_] += sign
            self.size_bytes[bin_] += sign * size
        if self.vectors is not None and deleted is not None:
            self.vectors += sign
            self.deleted_records += sign * deleted
        if self.deleted_bins is not None:
            self.deleted_bins[deleted_bin(deleted or 0)] += sign

    def replay(self, changes: FileChanges) -> bool:
        """Apply a commit while all files are known: each file counts once."""
        files = self.files if self.files is not None else {}
        for remove in changes.removes:
            gone = files.pop(file_key(remove), None)
            if gone is not None:
                self.count(gone.size, _deleted(gone), -1)
        for add in changes.adds:
            key = file_key(add)
            before = files.get(key)
            if before is not None:
                self.count(before.size, _deleted(before), -1)
            files[key] = add
            self.count(add.size, _deleted(add), 1)
        if len(files) > MAX_FILES or not changes.whole:
            self.files = None
        return True

    def add_up(self, changes: FileChanges) -> bool:
        """Apply a commit by its sizes; ``False`` if they do not say what it changes (Delta's Checksum)."""
        operation = changes.head.operation
        if operation == MANUAL_UPDATE:
            return False
        if operation not in _ADDS_REPEAT_FILES:
            # Rearranged rows come from removed files. If no file is removed, existing files get new metadata.
            if changes.adds and not changes.removes and not any(add.data_change for add in changes.adds):
                return False
            for add in changes.adds:
                self.count(add.size, _deleted(add), 1)
        if operation not in _REMOVES_ARE_NOT_OF_FILES:
            for remove in changes.removes:
                if remove.size is None or not remove.extended_file_metadata:
                    return False
                vector = remove.deletion_vector
                self.count(remove.size, None if vector is None else vector.cardinality, -1)
        return True


def _deleted(add: AddFile) -> int | None:
    return None if add.deletion_vector is None else add.deletion_vector.cardinality
