"""What a person who decides about an open transaction looks at: rows by partition, a sample, columns before and after.

From what the commit would publish, whether or not a preview is written. The number of data files, rows and statistics that are
looked at is bounded: counts of what is beyond come from the files' statistics, and are upper bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, AddFile, Metadata, RemoveFile
from airflow_delta.log.actions.decode import DecodedCommit
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.expressions.name_resolution import Columns, UnsupportedError
from airflow_delta.log.schema.partition_values import normalise
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.audit.bounds import ColumnStatistics, FileStatistics, StatisticsReader, plain
from airflow_delta.table.changes.find import ChangedFiles, add_rewritten
from airflow_delta.table.commit.planned_commit import planned_commit
from airflow_delta.table.effects.difference import difference
from airflow_delta.table.effects.read_limits import ReadLimits
from airflow_delta.table.effects.report import plain_value
from airflow_delta.table.effects.schema_changes import SchemaChange, schema_changes
from airflow_delta.table.effects.sides import Side, all_columns, sides

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.ast import ColumnReference
    from airflow_delta.log.schema.types import StructField
    from airflow_delta.log.snapshot import Snapshot

SAMPLE = 10
"""Rows of each kind."""

_CHECKPOINT_ROWS = 4
"""Rows of a checkpoint for each file of the table, at most: tombstones and transactions take some."""

Values = tuple[tuple[str, str | None], ...]
"""Partition values by physical name, in the spelling of :func:`~airflow_delta.log.schema.partition_values.normalise`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """What a review may read.

    :param data: of data files; ``None``: counts come from statistics alone, and there is no sample.
    :param rows: rows that are compared, of those that come and of those that go.
    :param columns: columns with statistics.
    :param statistics: statistics of single columns of single files.
    """

    data: ReadLimits | None
    rows: int
    columns: int
    statistics: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """Rows that come and go in a partition; ``None`` if statistics lack them.

    :param values: partition values by column.
    """

    values: Mapping[str, str | None]
    added: int | None
    removed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnState:
    """What the statistics of some files say of a column; ``None`` is unknown. Bounds may be wider than the values.

    :param distinct: of partition columns alone.
    """

    nulls: int | None
    low: Any
    high: Any
    distinct: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedColumn:
    """A column before and after; ``None`` where the table does not have it."""

    name: str
    type: str
    before: ColumnState | None
    after: ColumnState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a commit would do.

    :param exact: rows that are only copied to another file are not counted; if not, ``partitions`` may count them on both sides.
    :param whole: columns are those of the table before and after; if not, of the files that go and of those that come.
    :param num_columns: columns of the table; ``columns`` may be fewer.
    :param added_rows: a sample of them, as plain JSON; so is ``removed_rows``.
    """

    operation: str
    read_version: int
    num_added_files: int
    num_removed_files: int
    exact: bool
    partitions: list[PartitionRows]
    schema_changes: list[SchemaChange]
    whole: bool
    columns: list[ReviewedColumn]
    num_columns: int
    added_rows: list[dict[str, Any]] = field(default_factory=list)
    removed_rows: list[dict[str, Any]] = field(default_factory=list)


def review(
    log: DeltaLog,
    handle: TransactionHandle,
    staged: Sequence[StagedWrite | Mapping[str, Any]],
    *,
    limits: ReviewLimits,
    sample: int = SAMPLE,
) -> Review:
    """Return what the commit of some stages would do to the version that their transaction reads.

    :param sample: number of rows of each kind; they are read only if ``limits`` allow data.

    Also raises as :func:`~airflow_delta.table.commit.planned_commit.planned_commit` does.
    """
    commit = planned_commit(log, handle, staged, newest=False)  # to look at others may read more than the limits allow
    adds, removes = commit.adds, commit.removes
    before = commit.snapshot.metadata if handle.read_version >= 0 else None
    found = _Changes(log, handle.read_version, before, commit.metadata, _changed(log, handle, commit.actions, limits), limits)
    partitions, exact = found.partitions(sample)
    whole, states = _states(commit.snapshot, handle, adds, removes, limits)
    columns, num_columns = _columns(before, commit.metadata, states, limits)
    return Review(
        operation=commit.operation.name,
        read_version=handle.read_version,
        num_added_files=len(adds),
        num_removed_files=len(removes),
        exact=exact,
        partitions=partitions,
        schema_changes=schema_changes(before, commit.metadata),
        whole=whole,
        columns=columns,
        num_columns=num_columns,
        added_rows=[plain_value(row) for row in found.added_rows],
        removed_rows=[plain_value(row) for row in found.removed_rows],
    )


def _changed(log: DeltaLog, handle: TransactionHandle, actions: Sequence[Action], limits: ReviewLimits) -> ChangedFiles:
    """Return the files that come and go, none of which is outside the table's directory if data may be read."""
    adds = [msgspec.structs.replace(action, data_change=True) for action in actions if isinstance(action, AddFile)]
    removes = [msgspec.structs.replace(action, data_change=True) for action in actions if isinstance(action, RemoveFile)]
    files = ChangedFiles(handle.read_version, 0)
    if limits.data is not None:
        limits.data.check(log, DecodedCommit(handle.read_version + 1, adds=adds, removes=removes))
        add_rewritten(log, files, adds, (file.as_add() for file in removes))
    else:  # deletion vectors are data as well
        files.inserts, files.deletes = adds, [file.as_add() for file in removes]
    return files


class _Changes:
    """Rows that come and go, partition by partition: a row that is only copied stays in its partition."""

    def __init__(
        self,
        log: DeltaLog,
        version: int,
        before: Metadata | None,
        after: Metadata,
        files: ChangedFiles,
        limits: ReviewLimits,
    ) -> None:
        self._limits = limits
        self._before, self._after = sides(log, files, before, after, (version, version))
        was, now = _partition_columns(before), _partition_columns(after)
        self._columns = {**was, **now}
        self._values: dict[tuple[str, str | None], str | None] = {}
        self._same_partitioning = was.keys() == now.keys()
        self.added_rows: list[dict[str, Any]] = []
        self.removed_rows: list[dict[str, Any]] = []

    def partitions(self, sample: int) -> tuple[list[PartitionRows], bool]:
        """Return the rows by partition, and whether they are exact; take a sample on the way."""
        old, new = self._by_partition(self._before), self._by_partition(self._after)
        both = [values for values in new if values in old]
        counts: dict[Values, tuple[int | None, int | None]] = {
            values: (new[values].count if values in new else 0, old[values].count if values in old else 0)
            for values in {**new, **old}
        }
        # Rows of one partition may stay in any of another partitioning.
        exact = not both and (self._same_partitioning or self._before.is_empty or self._after.is_empty)
        data = self._limits.data
        if data is not None and both and data.hold([file for one in both for side in (old, new) for file in side[one].all_files]):
            exact = self._compare(both, old, new, counts, sample, data) and self._same_partitioning
        if data is not None and sample:
            alone = set(counts) - set(both)
            self.added_rows += self._of(self._after, alone).head(sample - len(self.added_rows), data)
            self.removed_rows += self._of(self._before, alone).head(sample - len(self.removed_rows), data)
        rows = [
            PartitionRows(values=self._named(new.get(key) or old[key]), added=added, removed=removed)
            for key, (added, removed) in counts.items()
            if added != 0 or removed != 0
        ]
        return sorted(rows, key=lambda one: [(value is None, value or "") for value in one.values.values()]), exact

    def _compare(
        self,
        both: Sequence[Values],
        old: Mapping[Values, Side],
        new: Mapping[Values, Side],
        counts: dict[Values, tuple[int | None, int | None]],
        sample: int,
        data: ReadLimits,
    ) -> bool:
        """Replace the counts of partitions in which rows come and go by exact ones, and return whether all of them are."""
        left = min(self._limits.rows, data.rows(len(all_columns(self._before, self._after))))
        for values in both:
            found = difference(old[values], new[values], sample=sample, limit=left, bounds=data)
            if not found.exact:
                return False
            left -= found.rows_read
            counts[values] = found.added, found.removed
            self.added_rows += found.added_rows[: sample - len(self.added_rows)]
            self.removed_rows += found.removed_rows[: sample - len(self.removed_rows)]
        return True

    def _partition(self, file: AddFile) -> Values:
        """Return the partition of a file, whatever the spelling of its writer; an empty text is null."""
        return tuple(sorted((name, self._spelled(name, value)) for name, value in file.partition_values.items()))

    def _spelled(self, name: str, value: str | None) -> str | None:
        if (name, value) not in self._values:
            column = self._columns.get(name)
            self._values[name, value] = normalise(value, column.data_type) if column is not None and value else value or None
        return self._values[name, value]

    def _by_partition(self, side: Side) -> dict[Values, Side]:
        groups: dict[Values, tuple[list[AddFile], list[AddFile]]] = {}
        for index, files in enumerate((side.files, side.marked)):
            for file in files:
                groups.setdefault(self._partition(file), ([], []))[index].append(file)
        return {values: replace(side, files=files, marked=marked) for values, (files, marked) in groups.items()}

    def _of(self, side: Side, partitions: set[Values]) -> Side:
        """Return the rows of some partitions."""
        files, marked = ([file for file in files if self._partition(file) in partitions] for files in (side.files, side.marked))
        return replace(side, files=files, marked=marked)

    def _named(self, side: Side) -> dict[str, str | None]:
        """Return the values of a partition by column, as its first file spells them."""
        values = sorted(side.all_files[0].partition_values.items())
        return {column.name if (column := self._columns.get(name)) else name: value or None for name, value in values}


def _partition_columns(metadata: Metadata | None) -> dict[str, StructField]:
    """Return the partition columns by physical name."""
    if metadata is None:
        return {}
    partitions = {name.lower() for name in metadata.partition_columns}
    return {field.physical_name: field for field in TableDefinition.of(metadata).schema if field.name.lower() in partitions}


def _states(
    snapshot: Snapshot,
    handle: TransactionHandle,
    adds: Sequence[AddFile],
    removes: Sequence[RemoveFile],
    limits: ReviewLimits,
) -> tuple[bool, tuple[list[AddFile], list[AddFile]]]:
    """Return the files before and after: those of the table if they are few, else those that go and those that come."""
    if handle.read_version < 0:
        return True, ([], list(adds))
    most = limits.statistics // max(min(len(snapshot.schema.fields), limits.columns), 1)
    files = _table_files(snapshot, most - len(adds))
    if files is None:
        return False, ([remove.as_add() for remove in removes], list(adds))
    gone = {file_key(remove) for remove in removes}
    return True, (files, [*(file for file in files if file_key(file) not in gone), *adds])


def _table_files(snapshot: Snapshot, most: int) -> list[AddFile] | None:
    """Return the files of a version; ``None`` if there are more than ``most``, which is found out without reading them."""
    totals = snapshot.derived_totals()
    if totals is not None and totals.num_files > most:
        return None
    if totals is None and (reader := snapshot.checkpoint_reader()) is not None:
        rows = sum(group.num_rows for part in reader.parts for group in part.row_groups)
        if rows > _CHECKPOINT_ROWS * most:
            return None
    files = snapshot.add_files()
    return files if len(files) <= most else None


def _columns(
    before: Metadata | None, after: Metadata, files: tuple[list[AddFile], list[AddFile]], limits: ReviewLimits
) -> tuple[list[ReviewedColumn], int]:
    old, new = {} if before is None else _references(before), _references(after)
    names = list(dict.fromkeys([*new, *old]))
    if sum(map(len, files)) * min(len(names), limits.columns) > 2 * limits.statistics:
        return [], len(names)
    decoded = {id(file): FileStatistics.of(file) for side in files for file in side}  # most are on both sides
    were, are = ([decoded[id(file)] for file in side] for side in files)
    columns = []
    for name in names[: limits.columns]:
        was = None if before is None or name not in old else _Column(old[name], before)
        now = _Column(new[name], after) if name in new else None
        if was is not None and now is not None:
            was.share_with(now)
        shown = ReviewedColumn(
            name=name,
            type=str((new.get(name) or old[name]).data_type),
            before=None if was is None else was.state(were),
            after=None if now is None else now.state(are),
        )
        columns.append(shown)
    return columns, len(names)


def _references(metadata: Metadata) -> dict[str, ColumnReference]:
    """Return the columns whose values have statistics, by name."""
    schema = TableDefinition.of(metadata).schema
    columns = Columns("", schema, metadata.partition_columns)
    found = {}
    for name in schema.names:
        try:
            found[name] = columns.resolve([name])
        except UnsupportedError:
            continue
    return found


class _Column:
    """A column of the table before or after, with what the statistics of its files say."""

    def __init__(self, column: ColumnReference, metadata: Metadata) -> None:
        self._column, self._configuration = column, metadata.configuration
        self._reader = StatisticsReader(column, metadata.configuration)
        self._told: dict[int, ColumnStatistics] = {}

    def share_with(self, other: _Column) -> None:
        """Look at each file once, unless its statistics mean something else to the other one."""
        if self._column == other._column and self._configuration == other._configuration:
            other._told = self._told

    def state(self, files: Sequence[FileStatistics]) -> ColumnState:
        """Return what all of some files say."""
        told = [self._told.get(id(file)) or self._tell(file) for file in files]
        nulls = [one.nulls for one in told]
        valued = [one for one in told if not one.empty]
        low, high = [one.low for one in valued], [one.high for one in valued]
        return ColumnState(
            nulls=None if None in nulls else sum(one or 0 for one in nulls),
            low=None if not low or None in low else plain(min(low)),
            high=None if not high or None in high else plain(max(high)),
            distinct=self._distinct(files),
        )

    def _tell(self, file: FileStatistics) -> ColumnStatistics:
        try:
            told = self._reader.of(file)
        except DeltaAnalysisException:  # a partition value in another writer's spelling
            told = ColumnStatistics(file.file.path)
        self._told[id(file)] = told
        return told

    def _distinct(self, files: Sequence[FileStatistics]) -> int | None:
        if not self._column.is_partition:
            return None
        physical = self._column.physical_path[0]
        return len({one.file.partition_values.get(physical) or None for one in files} - {None})
