"""The reads of a transaction: every look at the table is answered at its version, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaAssertionError, DeltaIllegalArgumentException
from airflow_delta.log import heavy
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.transaction.reads.app_ids import LOOKED_UP, AppIdConflict
from airflow_delta.transaction.reads.partition_set import PartitionSet
from airflow_delta.transaction.reads.read_set import EVERYTHING, ReadSet

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction.reads.key_set import KeySet


class TableReads:
    """Reads of one table at one version.

    :param snapshot: the version.
    :ivar recorded: what has been read so far.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.recorded = ReadSet()

    def filter_files(
        self,
        *predicates: str | Predicate,
        keep_num_records: bool = False,
        new_files: Iterable[AddFile] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the files that may hold rows matching all predicates, and record them as read.

        Files that others add to the selected partitions are then a conflict. A predicate without a conjunct on partition columns
        alone selects every partition; no predicate reads the whole table.

        :param keep_num_records: add a column ``num_records``: the file's rows minus those its deletion vector marks; null if its
            statistics do not say.
        :param new_files: instead of predicates: see :meth:`filter_files_for_partitions`.
        :param columns: as for :meth:`airflow_delta.log.Snapshot.files`; ``path`` must be among them.
        :returns: a table like that of :meth:`airflow_delta.log.Snapshot.files`.
        :raises DeltaIllegalArgumentException: if both predicates and new files are given.
        """
        if new_files is not None:
            if predicates:
                raise DeltaIllegalArgumentException("filter_files takes predicates or new files, not both", table=self._table)
            read: Callable[..., pa.Table] = partial(self.filter_files_for_partitions, new_files)
        else:
            read = partial(self._filter_files, predicates)
        return _read_counted(read, columns) if keep_num_records else read(columns=columns)

    def files_for_scan(self, *predicates: str | Predicate, limit: int | None = None) -> pa.Table:
        """Return the files that a scan must open, and record them as read; see :meth:`filter_files`.

        :param limit: rows that the scan needs: no more files are returned and recorded than it takes to hold them. Only with
            predicates on partition columns, since every row of a file must count.
        """
        if limit is None:
            return self.filter_files(*predicates)
        self._assert_partition_only(predicates)
        if self.snapshot.version < 0:
            return self._filter_files(predicates)
        predicate = self._conjunction(predicates)
        files = _read_counted(partial(self.snapshot.files, predicate), None)
        if predicate is not None and not predicate.selects_partitions(map(dict, files.column("partition_values").to_pylist())):
            return self._filter_files(predicates)  # for some files, the reader's time zone decides whether their rows count
        files = files.slice(0, _files_for_limit(files.column("num_records").to_pylist(), limit)).drop_columns(["num_records"])
        self._record(predicate)
        self.recorded.add_files(files)
        return files

    def files_with_stats_for_scan(self, *partition_predicates: str | Predicate) -> pa.Table:
        """Return the files of some partitions with their statistics, and record them as read."""
        self._assert_partition_only(partition_predicates)
        return self._filter_files(partition_predicates, columns=heavy.FILE_COLUMNS)

    def filter_files_for_partitions(self, new_files: Iterable[AddFile], *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the files in the partitions of ``new_files``, as a dynamic partition overwrite replaces them.

        Records the partitions as read, not the files: another overwrite of the same files fails on removing them twice.

        :param columns: as for :meth:`airflow_delta.log.Snapshot.files`; ``partition_values`` must be among them.
        """
        if self.snapshot.version < 0:
            self.recorded.add_predicate("the partitions of the new files")
            return self._no_files(columns)
        return self.filter_files_for_partition_sets([self.partitions_of(new_files)], columns=columns)

    def partitions_of(self, files: Iterable[AddFile]) -> PartitionSet:
        """Return the partitions of files, as the table is partitioned at its version."""
        return PartitionSet.of((file.partition_values for file in files), self.snapshot.partition_schema)

    def filter_files_for_partition_sets(self, sets: Sequence[PartitionSet], *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the files that are in any of some partitions, listed once; see :meth:`filter_files_for_partitions`.

        :param sets: see :meth:`partitions_of`; each is recorded.
        """
        for partitions in sets:
            self.recorded.add_predicate(partitions.text, partitions, partitions.members)
        return sets[0].union(sets[1:]).select(self.snapshot.files(columns=columns), replace=True)

    def filter_files_for_any(self, predicates: Sequence[Predicate], *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the files of :meth:`filter_files` for any of several predicates, listed once; each is recorded.

        :param predicates: bound to the table, which exists, without conditions on statistics (:attr:`Predicate.data_part`).
        """
        if len(predicates) == 1:
            return self._filter_files(predicates, columns=columns)
        for predicate in predicates:
            self._record(predicate)
        files = self.snapshot.files(heavy.PartitionsFilter(predicates), columns)
        self.recorded.add_files(files)
        return files

    def track_files_read(self, paths: Iterable[str], *, whole: bool = True) -> None:
        """Record files as read, by path as the log has it.

        :param whole: all their rows count; otherwise, those that the recorded predicates select.
        """
        self.recorded.add_paths(paths, whole=whole)

    def track_files_moved(self, paths: Iterable[str], *, reordered: bool = False) -> None:
        """Record files whose rows the transaction puts into other files, unchanged, besides what else it does.

        :param paths: as the log has them.
        :param reordered: it orders the rows, or purges the files: that is of use even if others have compacted them.
        """
        self.recorded.add_moved(paths, reordered=reordered)

    def track_read_predicates(
        self,
        *predicates: str | Predicate,
        keys: KeySet | Callable[[], KeySet] | None = None,
        marked: bool = False,
        scanned: bool = False,
    ) -> None:
        """Record that the rows matching all predicates were read.

        :param keys: values of which each of these rows has one, as in a MERGE, or a function that gives them if they matter.
        :param marked: the transaction marks every row that matches in a deletion vector, or removes its file.
        :param scanned: removing one of these rows conflicts, although their files are not recorded.
        """
        predicate = self._conjunction(predicates)
        if predicate is not None:
            self._record(predicate, keys=keys, marked=marked, scanned=scanned)

    def read_whole_table(self, *, rows: bool = False, selected: bool = False) -> None:
        """Record that the transaction relies on the whole table: whatever others add or remove is a conflict.

        :param rows: it relies on the rows, in whatever files they are; a compaction is then no conflict, unless
            ``conflict_detection`` is ``delta``.
        :param selected: it relies on those rows only that recorded predicates select; at ``delta``, on all.
        """
        self.recorded.read_whole_table(rows=rows, selected=selected)

    def track_app_ids(self, *app_ids: str) -> None:
        """Record that the versions of application ids were looked up elsewhere, at the version that this transaction reads."""
        self.recorded.app_ids.update(dict.fromkeys(app_ids, LOOKED_UP))

    def track_app_ids_by(self, rule: Callable[[Mapping[str, int]], str | None]) -> None:
        """Record that the transaction relies on versions of application ids that it cannot name.

        :param rule: is given the versions that another commit sets, by application id, and says why it conflicts: a sentence
            without its full stop, ``None`` if it does not.
        """
        self.recorded.app_id_rules.append(rule)

    def txn_version(self, app_id: str, conflict: AppIdConflict = LOOKED_UP) -> int:
        """Return the last version that an application committed, or -1, and record the lookup.

        A concurrent commit of the same application is then a conflict, whatever its version.

        :param conflict: what such a conflict says.
        """
        self.recorded.app_ids[app_id] = conflict
        version = self.snapshot.transaction_version(app_id) if self.snapshot.version >= 0 else None
        return -1 if version is None else version

    @property
    def _table(self) -> str:
        return self.snapshot.log.uri

    def _filter_files(self, predicates: Sequence[str | Predicate], *, columns: Sequence[str] | None = None) -> pa.Table:
        if self.snapshot.version < 0:
            self.recorded.add_predicate(" AND ".join(str(getattr(p, "text", p)) for p in predicates) or EVERYTHING)
            return self._no_files(columns)
        predicate = self._conjunction(predicates)
        self._record(predicate)
        files = self.snapshot.files(predicate, columns)
        self.recorded.add_files(files)
        return files

    def _assert_partition_only(self, predicates: Sequence[str | Predicate]) -> None:
        predicate = self._conjunction(predicates) if self.snapshot.version >= 0 else None
        if predicate is not None and not predicate.partition_only:
            raise DeltaAssertionError(
                f"Only predicates on partition columns may select these files, not {predicate.text}", table=self._table
            )

    @staticmethod
    def _no_files(columns: Sequence[str] | None) -> pa.Table:
        return heavy.no_rows(heavy.projected(columns))

    def _conjunction(self, predicates: Sequence[str | Predicate]) -> Predicate | None:
        if not predicates:
            return None
        if len(predicates) == 1 and isinstance(predicates[0], heavy.Predicate):
            return predicates[0]
        texts = [predicate.text if isinstance(predicate, heavy.Predicate) else predicate for predicate in predicates]
        text = texts[0] if len(texts) == 1 else " AND ".join(f"({text})" for text in texts)
        snapshot = self.snapshot
        return heavy.Predicate.parse(
            text, snapshot.schema, snapshot.metadata.partition_columns, table=snapshot.log.uri, version=snapshot.version
        )

    def _record(
        self,
        predicate: Predicate | None,
        *,
        keys: KeySet | Callable[[], KeySet] | None = None,
        marked: bool = False,
        scanned: bool = False,
    ) -> None:
        """Record a read of the rows that a predicate selects; ``None`` selects all."""
        from airflow_delta.transaction.reads.row_condition import RowCondition

        if predicate is None:
            self.recorded.add_predicate(EVERYTHING)
            return
        key = (predicate.text, None if keys is None else id(keys), marked, scanned)
        rows = RowCondition(predicate, keys)
        part = predicate.partition_part
        self.recorded.add_predicate(predicate.text, part, key, rows=rows, marked=marked, scanned=scanned)


def _read_counted(read: Callable[..., pa.Table], columns: Sequence[str] | None) -> pa.Table:
    """Return files with a column ``num_records``, which needs more columns than are asked for."""
    wanted = heavy.projected(columns).names
    files = _with_num_records(read(columns=list(dict.fromkeys([*wanted, "stats", "deletion_vector"]))))
    return files.select([*wanted, "num_records"])


def _with_num_records(files: pa.Table) -> pa.Table:
    """Return the files with a column ``num_records``: the rows of each, minus those its deletion vector marks."""
    import pyarrow as pa

    from airflow_delta.log.arrow.arrays import array

    counts: list[int | None] = []
    for stats, vector in zip(files.column("stats").to_pylist(), files.column("deletion_vector").to_pylist(), strict=True):
        physical = num_records(stats)
        counts.append(None if physical is None else physical - (vector["cardinality"] if vector is not None else 0))
    return files.append_column("num_records", array(counts, pa.int64()))


def _files_for_limit(counts: Sequence[int | None], limit: int) -> int:
    """Return how many of the first files hold ``limit`` rows; a file of unknown size counts as empty."""
    rows = 0
    for position, count in enumerate(counts):
        if rows >= limit:
            return position
        rows += count or 0
    return len(counts)
