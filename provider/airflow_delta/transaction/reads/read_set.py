"""What a transaction has read: partition predicates, files, the whole table, application ids.

Files that were read stay Arrow columns, which are only searched for the few paths that a winning commit removed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log import heavy
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.schema.partition_index import NamedValues
from airflow_delta.transaction.reads.app_ids import AppIdConflict

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.transaction.reads.row_condition import RowCondition


PartitionValues = Mapping[str, str | None]

EVERYTHING = "true"
"""Text of the predicate that every file matches."""


class PartitionMatcher(Protocol):
    """The partition part of a predicate, as :class:`airflow_delta.log.expressions.predicate.Predicate` evaluates it."""

    @property
    def named_values(self) -> NamedValues:
        """Values of partition columns of which each matching partition has one."""

    def matches_partition(self, partition_values: PartitionValues) -> bool:
        """Tell whether a file of that partition may hold matching rows."""


@dataclass(slots=True)
class ReadPredicate:
    """One read of the table.

    :param text: the predicate as the caller gave it.
    :param matcher: tells whether a file of a partition belongs to what was read; ``None``: all do.
    :param rows: which rows were read; ``None``: all of these files.
    :param marked: the transaction marks every row that was read in a deletion vector, or removes its file.
    :param scanned: removing one of these rows conflicts, although the files are not recorded.
    """

    text: str
    matcher: PartitionMatcher | None
    rows: RowCondition | None = None
    marked: bool = False
    scanned: bool = False
    _known: dict[tuple[tuple[str, str | None], ...], bool] = field(default_factory=dict)

    def covers(self, partition_values: PartitionValues) -> bool:
        """Tell whether a file of that partition belongs to what was read; caches the answer for each partition."""
        if self.matcher is None:
            return True
        key = tuple(partition_values.items())
        known = self._known.get(key)
        if known is None:
            try:
                known = self.matcher.matches_partition(partition_values)
            except DeltaAnalysisException:  # a value that does not parse as its column's type cannot be ruled out
                known = True
            self._known[key] = known
        return known


@dataclass(slots=True)
class ReadSet:
    """All reads of one transaction.

    :param whole_table: the transaction relies on the whole table, whatever its predicates say.
    :param app_ids: application ids whose version it looked up, and what a conflict over each says.
    :param app_id_rules: say of versions that another commit sets why it conflicts; ``None`` if it does not.
    :param files_of_table: it relies on the files of the whole table, not only on their rows.
    :param all_rows: it relies on all rows of the table, not only on those that its predicates select.
    :param moved: files that a compaction among its stages put into others, for no other reason to read them.
    :param reordered: those of them that it did not only put together: ordered, or purged.
    """

    predicates: dict[Hashable, ReadPredicate] = field(default_factory=dict)
    whole_table: bool = False
    app_ids: dict[str, AppIdConflict] = field(default_factory=dict)
    app_id_rules: list[Callable[[Mapping[str, int]], str | None]] = field(default_factory=list)
    files_of_table: bool = False
    all_rows: bool = False
    moved: set[str] = field(default_factory=set)
    reordered: set[str] = field(default_factory=set)
    _columns: list[pa.ChunkedArray] = field(default_factory=list)
    _paths: set[str] = field(default_factory=set)
    _whole: set[str] = field(default_factory=set)

    def add_predicate(
        self,
        text: str,
        matcher: PartitionMatcher | None = None,
        key: Hashable = EVERYTHING,
        *,
        rows: RowCondition | None = None,
        marked: bool = False,
        scanned: bool = False,
    ) -> None:
        """Record a read; without a matcher it covers every partition.

        :param key: identifies what the matcher selects (``text`` may be abbreviated); a key is recorded once.
        :param rows: which rows of these partitions it selects, if not all. So does ``key``.
        :param marked: see :class:`ReadPredicate`. So is ``scanned``.
        """
        self.predicates.setdefault(key, ReadPredicate(text, matcher, rows, marked, scanned))

    def add_files(self, files: pa.Table) -> None:
        """Record the files of a scan by predicates that are recorded, a table with a column ``path``."""
        if files.num_rows:
            self._columns.append(files.column("path"))

    def add_paths(self, paths: Iterable[str], *, whole: bool = True) -> None:
        """Record files that were read, by path as the log has it.

        :param whole: all their rows count; otherwise, those that the recorded predicates select.
        """
        found = set(paths)
        self._paths |= found
        if whole:
            self._whole |= found

    def add_moved(self, paths: Iterable[str], *, reordered: bool) -> None:
        """Record files that were read to put their rows into others; which rows they are does not matter."""
        found = set(paths)
        self._paths |= found
        self.moved |= found
        if reordered:
            self.reordered |= found

    def read_whole_table(self, *, rows: bool = False, selected: bool = False) -> None:
        """Record that the transaction relies on the whole table.

        :param rows: on its rows, in whatever files they are.
        :param selected: only on rows that its predicates select, which not every level of conflict detection can tell.
        """
        self.whole_table = True
        self.files_of_table |= not rows
        if not selected:
            self.all_rows = True
            self.add_predicate(EVERYTHING)

    @property
    def has_files(self) -> bool:
        """Whether files were read."""
        return self.has_recorded_files or self.has_scans

    @property
    def has_recorded_files(self) -> bool:
        """Whether files are recorded that were read."""
        return bool(self._columns or self._paths)

    @property
    def has_scans(self) -> bool:
        """Whether there are reads whose files are not recorded."""
        return any(predicate.scanned for predicate in self.predicates.values())

    def scanned(self, partition_values: PartitionValues, *, are_known: bool = True) -> bool:
        """Tell whether a file of a partition may be among those of such a read.

        :param are_known: whether these are the values of the file.
        """
        return any(read.scanned and (not are_known or read.covers(partition_values)) for read in self.predicates.values())

    def read_whole(self, path: str) -> bool:
        """Tell whether all rows of a file count as read, whatever the predicates say."""
        return path in self._whole

    @property
    def depends_on_files(self) -> bool:
        """Whether an earlier commit of others could have changed what was read: then this is not a blind append."""
        return bool(self.predicates) or self.has_files

    def read_among(self, paths: Sequence[str]) -> set[str]:
        """Return those of ``paths`` that this transaction read."""
        found = self._paths.intersection(paths)
        if self._columns and paths:
            import pyarrow.compute as pc

            from airflow_delta.log.arrow.arrays import array

            for column in self._columns:
                wanted = array(paths, column.type)
                found.update(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())
        return found

    def spellings_of(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the files that were read, as they are spelled in the log that was read, by canonical path.

        :param paths: canonical paths (:func:`~airflow_delta.log.actions.reconciliation.canonical_path`) to look for.
        """
        wanted = set(paths)
        found = {key: path for path in self._paths if (key := canonical_path(path)) in wanted}
        if self._columns and wanted:
            import pyarrow as pa
            import pyarrow.compute as pc

            from airflow_delta.log.arrow.arrays import array

            values = array(list(wanted), pa.string())
            for chunk in (chunk for column in self._columns for chunk in column.chunks):
                canonical = heavy.canonical_paths(chunk)
                hit = pc.is_in(canonical, value_set=values)
                found.update(zip(canonical.filter(hit).to_pylist(), chunk.filter(hit).to_pylist(), strict=True))
        return found

    def paths(self) -> frozenset[str]:
        """Return the paths of all files that were read, an object for each."""
        found = set(self._paths)
        for column in self._columns:
            found.update(column.to_pylist())
        return frozenset(found)

    def split(self, paths: Iterable[str]) -> ReadSet:
        """Return what was read, but with these files only."""
        kept = set(paths)
        part = replace(self, predicates=dict(self.predicates), app_ids=dict(self.app_ids))
        part._columns, part._paths, part._whole = [], kept, self._whole & kept
        return part

    def describe(self) -> str:
        """Return what was read, for an error message."""
        if self.whole_table:
            return "the whole table"
        texts = list(dict.fromkeys(predicate.text for predicate in self.predicates.values()))
        if not texts:
            return "given files" if self.has_files else "nothing"
        shown = " and ".join(f"the rows where {text}" if text != EVERYTHING else "the whole table" for text in texts[:5])
        return f"{shown} and {len(texts) - 5} more reads" if len(texts) > 5 else shown
