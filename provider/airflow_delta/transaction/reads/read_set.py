"""What a transaction has read: partition predicates, files, the whole table, application ids.

Files that were read stay Arrow columns, which are only searched for the few paths that a winning commit removed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_delta.exceptions import DeltaAnalysisException

if TYPE_CHECKING:
    import pyarrow as pa

PartitionValues = Mapping[str, str | None]

EVERYTHING = "true"
"""Text of the predicate that every file matches."""


class PartitionMatcher(Protocol):
    """The partition part of a predicate, as :class:`airflow_delta.log.expressions.predicate.Predicate` evaluates it."""

    def matches_partition(self, partition_values: PartitionValues) -> bool:
        """Tell whether a file of that partition may hold matching rows."""


@dataclass(slots=True)
class ReadPredicate:
    """One read of the table.

    :param text: the predicate as the caller gave it.
    :param matches: tells whether a file of a partition belongs to what was read.
    """

    text: str
    matches: Callable[[PartitionValues], bool] | None
    _known: dict[tuple[tuple[str, str | None], ...], bool] = field(default_factory=dict)

    def covers(self, partition_values: PartitionValues) -> bool:
        """Tell whether a file of that partition belongs to what was read; caches the answer for each partition."""
        if self.matches is None:
            return True
        key = tuple(partition_values.items())
        known = self._known.get(key)
        if known is None:
            try:
                known = self.matches(partition_values)
            except DeltaAnalysisException:  # a value that does not parse as its column's type cannot be ruled out
                known = True
            self._known[key] = known
        return known


@dataclass(slots=True)
class ReadSet:
    """All reads of one transaction.

    :param whole_table: the transaction relies on the whole table, whatever its predicates say.
    :param app_ids: application ids whose version it looked up.
    """

    predicates: dict[Hashable, ReadPredicate] = field(default_factory=dict)
    whole_table: bool = False
    app_ids: set[str] = field(default_factory=set)
    _columns: list[pa.ChunkedArray] = field(default_factory=list)
    _paths: set[str] = field(default_factory=set)

    def add_predicate(self, text: str, matcher: PartitionMatcher | None = None, key: Hashable = EVERYTHING) -> None:
        """Record a read; without a matcher it covers every partition.

        :param key: identifies what the matcher selects (``text`` may be abbreviated); a key is recorded once.
        """
        matches = None if matcher is None else matcher.matches_partition
        self.predicates.setdefault(key, ReadPredicate(text, matches))

    def add_files(self, files: pa.Table) -> None:
        """Record the files of a scan, a table with a column ``path``."""
        if files.num_rows:
            self._columns.append(files.column("path"))

    def add_paths(self, paths: Iterable[str]) -> None:
        """Record files that were read, by path as the log has it."""
        self._paths.update(paths)

    def read_whole_table(self) -> None:
        """Record that the transaction relies on the whole table."""
        self.whole_table = True
        self.add_predicate(EVERYTHING)

    @property
    def has_files(self) -> bool:
        """Whether files were read."""
        return bool(self._columns or self._paths)

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

    def paths(self) -> frozenset[str]:
        """Return the paths of all files that were read, an object for each."""
        found = set(self._paths)
        for column in self._columns:
            found.update(column.to_pylist())
        return frozenset(found)

    def split(self, paths: Iterable[str]) -> ReadSet:
        """Return what was read, but with these files only."""
        return ReadSet(dict(self.predicates), self.whole_table, set(self.app_ids), [], set(paths))

    def describe(self) -> str:
        """Return what was read, for an error message."""
        if self.whole_table:
            return "the whole table"
        texts = list(dict.fromkeys(predicate.text for predicate in self.predicates.values()))
        if not texts:
            return "given files" if self.has_files else "nothing"
        shown = " and ".join(f"the rows where {text}" if text != EVERYTHING else "the whole table" for text in texts[:5])
        return f"{shown} and {len(texts) - 5} more reads" if len(texts) > 5 else shown
