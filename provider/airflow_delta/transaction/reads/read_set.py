"""What a transaction has read: partition predicates, files, the whole table, application ids.

Files that were read stay Arrow columns, which are only searched for the few paths that a winning commit removed.

Sets of partitions, as replaced by a dynamic partition overwrite.

Values are compared by meaning, not by spelling (``1`` and ``01`` are the same integer); a value that does not parse as its
column's type is compared as text. The instant of a timestamp without a zone depends on the reader's time zone: it matches every
possible instant when looking for conflicts, where too many matches are harmless, and is refused when files would be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log import heavy
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.schema.partition_index import NamedValues, parsed_values
from airflow_delta.log.schema.partition_values import Instants, is_zoneless, normalise, parse_partition_value, possible_instants
from airflow_delta.transaction.reads.app_ids import AppIdConflict

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.schema.types import DataType, StructType
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


_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Some partitions of a table, usable in place of a predicate on partitions.

    :param schema: the partition columns, in partition order.
    :param zoneless: the members with a timestamp without a zone.
    """

    schema: StructType
    members: frozenset[tuple[str | None, ...]]
    text: str
    zoneless: frozenset[tuple[str | None, ...]] = frozenset()

    @classmethod
    def of(cls, partitions: Iterable[Mapping[str, str | None]], schema: StructType) -> PartitionSet:
        """Return the set of the given partitions.

        :param partitions: serialised values by physical column name.
        """
        names = [field.name for field in schema.fields]
        physical = [field.physical_name for field in schema.fields]
        spelled = {tuple(values.get(name) for name in physical) for values in partitions}
        members = frozenset(_normalised(row, schema) for row in spelled)
        shown = sorted(", ".join(f"{n}={v}" for n, v in zip(names, row, strict=True)) for row in spelled)
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        listed = "; ".join(f"[{partition}]" for partition in (shown if len(shown) <= _SHOWN else shown[:_SHOWN]))
        zoneless = frozenset(member for member in members if _has_zoneless(member, schema))
        return cls(schema, members, f"the partition is one of {listed}{more}" if names else "true", zoneless)

    def matches_partition(self, partition_values: Mapping[str, str | None]) -> bool:
        """Tell whether the partition is, or may be, in the set."""
        row = _normalised(tuple(partition_values.get(f.physical_name) for f in self.schema.fields), self.schema)
        return row in self.members or self._may_be(row) is not None

    @property
    def named_values(self) -> NamedValues:
        """Values of partition columns of which each partition that matches has one."""
        found = {}
        for position, column in enumerate(self.schema.fields):
            values = parsed_values({member[position] for member in self.members}, column.data_type)
            if values is not None:
                found[column.physical_name, column.data_type] = values
        return found

    def union(self, others: Iterable[PartitionSet]) -> PartitionSet:
        """Return the partitions that are in this set or in others with the same columns."""
        sets = [self, *others]
        members = frozenset().union(*(each.members for each in sets))
        return replace(self, members=members, zoneless=frozenset().union(*(each.zoneless for each in sets)))

    def replaces(self, partition_values: Mapping[str, str | None]) -> bool:
        """Tell whether the files of a partition are replaced with this set."""
        return self._has([partition_values.get(column.physical_name) for column in self.schema.fields], replace=True)

    def _may_be(self, row: tuple[str | None, ...]) -> tuple[str | None, ...] | None:
        """Return a member that a partition equals in some time zone."""
        candidates = self.members if _has_zoneless(row, self.schema) else self.zoneless
        if not candidates:
            return None
        types = [f.data_type for f in self.schema.fields]

        def same(one: str | None, other: str | None, data_type: DataType) -> bool:
            if one == other:
                return True
            ranges = [_instants(text, data_type) for text in (one, other)]
            if ranges[0] is None or ranges[1] is None or all(low == high for low, high in ranges):  # type: ignore[misc]
                return False
            return max(r.earliest for r in ranges if r) <= min(r.latest for r in ranges if r)

        return next((member for member in candidates if all(map(same, row, member, types))), None)

    def select(self, files: pa.Table, *, replace: bool = False) -> pa.Table:
        """Return the files in the partitions; each distinct partition is checked once.

        :param replace: the files will be replaced.
        """
        if not self.schema.fields or not files.num_rows:
            return files if self.members else files.slice(0, 0)
        import pyarrow as pa

        column = files.column("partition_values")
        return files.filter(pa.chunked_array([self._mask(chunk, replace) for chunk in column.chunks], pa.bool_()))

    def _mask(self, values: pa.MapArray, replace: bool) -> pa.BooleanArray:
        """Return which of some files are in the set; each distinct partition among them is checked once."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from airflow_delta.log.arrow.arrays import array, repeated, scalar

        columns = [heavy.partition_texts(values, field.physical_name).dictionary_encode("encode") for field in self.schema.fields]
        codes = repeated(0, len(values))
        for column in columns:
            codes = pc.add(pc.multiply(codes, scalar(len(column.dictionary))), column.indices.cast(pa.int64()))
        wanted = [code for code in pc.unique(codes).to_pylist() if self._has(_texts_of(code, columns), replace=replace)]
        return pc.is_in(codes, value_set=array(wanted, pa.int64()))

    def _has(self, row: Sequence[str | None], *, replace: bool) -> bool:
        known = _normalised(tuple(row), self.schema)
        if known in self.members:
            return True
        if replace and (other := self._may_be(known)) is not None:
            raise DeltaAnalysisException(
                f"Whether the partition {list(known)} is replaced by {list(other)} depends on the time zone of the reader: one "
                "of the two timestamps has none. Replace it with replace_where, which lets Spark compare the rows, or rewrite it "
                "first (UPDATE its timestamp) so that the log has a zone."
            )
        return False


def _texts_of(code: int, columns: Sequence[pa.DictionaryArray]) -> list[str | None]:
    row: list[str | None] = []
    for column in reversed(columns):
        code, position = divmod(code, len(column.dictionary))
        row.append(column.dictionary[position].as_py())
    return row[::-1]


def _normalised(row: tuple[str | None, ...], schema: StructType) -> tuple[str | None, ...]:
    return tuple(
        text if field.data_type.name == "timestamp" and text and is_zoneless(text) else normalise(text, field.data_type)
        for text, field in zip(row, schema.fields, strict=True)
    )


def _has_zoneless(row: tuple[str | None, ...], schema: StructType) -> bool:
    return any(
        field.data_type.name == "timestamp" and is_zoneless(text) for text, field in zip(row, schema.fields, strict=True) if text
    )


def _instants(text: str | None, data_type: DataType) -> Instants | None:
    """Return the instants that a text may mean; ``None`` for nulls and for texts that are not timestamps."""
    if data_type.name != "timestamp" or text is None:
        return None
    try:
        known = possible_instants(text, data_type)
        moment = parse_partition_value(text, data_type)
    except DeltaAnalysisException:
        return None
    return known or Instants(moment, moment)
