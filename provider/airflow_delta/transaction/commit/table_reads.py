"""The reading half of a transaction: every look at the table is answered at its version, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.exceptions import DeltaAssertionError, DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.transaction.reads.read_set import ReadSet

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.snapshot import Snapshot


class TableReads:
    """Reads of one table at one version.

    :ivar reads: what has been read so far.
    """

    def __init__(self, log: DeltaLog, snapshot: Snapshot) -> None:
        self.log = log
        self.snapshot = snapshot
        self.reads = ReadSet()

    @property
    def read_version(self) -> int:
        """Version that the transaction reads; -1 when the table does not exist."""
        return self.snapshot.version

    # -- what has been read ----------------------------------------------------------------------------------------------------

    @property
    def read_predicates(self) -> tuple[str, ...]:
        """The predicates that were read with, as texts; ``true`` is the whole table."""
        return tuple(dict.fromkeys(predicate.text for predicate in self.reads.predicates.values()))

    @property
    def read_files(self) -> frozenset[str]:
        """Paths of the files that were read. Inside they stay columns; this makes an object of each."""
        return self.reads.paths()

    @property
    def read_the_whole_table(self) -> bool:
        """Whether the transaction relies on the whole table."""
        return self.reads.whole_table

    @property
    def read_app_ids(self) -> frozenset[str]:
        """Application ids whose version was looked up (Delta's ``readTxn``)."""
        return frozenset(self.reads.app_ids)

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def filter_files(
        self,
        *predicates: str | Predicate,
        keep_num_records: bool = False,
        new_files: Iterable[AddFile] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the files that may hold rows for which all predicates hold, and record them as read.

        What others add to the partitions that the predicates select is then a conflict. A predicate with no conjunct on
        partition columns alone selects every partition; no predicate reads the whole table.

        :param keep_num_records: add a column ``num_records``: rows of the file, without those that its deletion vector marks;
            null where its statistics do not tell.
        :param new_files: instead of predicates: see :meth:`filter_files_for_partitions`.
        :param columns: as for :meth:`airflow_delta.log.Snapshot.files`; ``path`` must be among them.
        :returns: the table of :meth:`airflow_delta.log.Snapshot.files`.
        :raises PredicateException: a predicate does not parse or names an unknown column.
        :raises DeltaIllegalArgumentException: both predicates and new files are given.
        """
        if new_files is not None:
            if predicates:
                raise DeltaIllegalArgumentException("filter_files takes predicates or new files, not both", table=self.log.uri)
            read: Callable[..., pa.Table] = partial(self.filter_files_for_partitions, new_files)
        else:
            read = partial(self._filter_files, predicates)
        return _read_counted(read, columns) if keep_num_records else read(columns=columns)

    def files_for_scan(self, *predicates: str | Predicate, limit: int | None = None) -> pa.Table:
        """Return the files that a scan must open, and record them as read; see :meth:`filter_files`.

        :param limit: rows that the scan needs: no more files are returned, and recorded, than can hold them. Only with predicates
            on partition columns, as every row of the files must count.
        :raises DeltaAssertionError: a limit is given with a predicate on other columns.
        """
        if limit is None:
            return self.filter_files(*predicates)
        self._assert_partition_only(predicates)
        if self.read_version < 0:
            return self._filter_files(predicates)
        predicate = self._conjunction(predicates)
        files = _read_counted(partial(self.snapshot.files, predicate), None)
        if predicate is not None and not predicate.selects_partitions(map(dict, files.column("partition_values").to_pylist())):
            return self._filter_files(predicates)  # of some files, the time zone of the reader tells whether their rows count
        files = files.slice(0, files_for_limit(files.column("num_records").to_pylist(), limit)).drop_columns(["num_records"])
        if predicate is None:
            self.reads.add_predicate("true")
        else:
            self._record(predicate)
        self.reads.add_files(files)
        return files

    def files_with_stats_for_scan(self, *partition_predicates: str | Predicate) -> pa.Table:
        """Return the files of some partitions, their statistics among the columns, and record them as read.

        :raises DeltaAssertionError: a predicate is on other than partition columns.
        """
        self._assert_partition_only(partition_predicates)
        from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS

        return self._filter_files(partition_predicates, columns=FILE_COLUMNS)

    def _filter_files(self, predicates: Sequence[str | Predicate], *, columns: Sequence[str] | None = None) -> pa.Table:
        if self.read_version < 0:
            self.reads.add_predicate(" AND ".join(str(getattr(p, "text", p)) for p in predicates) or "true")
            return self._no_files(columns)
        predicate = self._conjunction(predicates)
        if predicate is None:
            self.reads.add_predicate("true")
        else:
            self._record(predicate)
        files = self.snapshot.files(predicate, columns)
        self.reads.add_files(files)
        return files

    def _assert_partition_only(self, predicates: Sequence[str | Predicate]) -> None:
        predicate = self._conjunction(predicates) if self.read_version >= 0 else None
        if predicate is not None and not predicate.partition_only:
            raise DeltaAssertionError(
                f"Only predicates on partition columns may select these files, not {predicate.text}", table=self.log.uri
            )

    def filter_files_for_partitions(self, new_files: Iterable[AddFile], *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the files in the partitions of ``new_files``, as a dynamic partition overwrite replaces them.

        Records the partitions as read, not the files: another overwrite of the same files fails on removing them twice.

        :param columns: as for :meth:`airflow_delta.log.Snapshot.files`; ``partition_values`` must be among them.
        """
        from airflow_delta.transaction.reads.partition_sets import PartitionSet

        if self.read_version < 0:
            self.reads.add_predicate("the partitions of the new files")
            return self._no_files(columns)
        partitions = PartitionSet.of((file.partition_values for file in new_files), self.snapshot.partition_schema)
        self.reads.add_predicate(partitions.text, partitions, partitions.members)
        return partitions.select(self.snapshot.files(columns=columns), replace=True)

    def track_files_read(self, paths: Iterable[str]) -> None:
        """Record files as read, by path as the log has it."""
        self.reads.add_paths(paths)

    def track_read_predicates(self, *predicates: str | Predicate) -> None:
        """Record that the rows for which all predicates hold were read."""
        predicate = self._conjunction(predicates)
        if predicate is not None:
            self._record(predicate)

    def read_whole_table(self) -> None:
        """Record that the transaction relies on the whole table: whatever others add or remove is a conflict."""
        self.reads.read_whole_table()

    def track_app_ids(self, *app_ids: str) -> None:
        """Record that the versions of application ids were looked up elsewhere, at the version that this transaction reads."""
        self.reads.app_ids.update(app_ids)

    def txn_version(self, app_id: str) -> int:
        """Return the last version that an application committed, -1 for none, and record that it was looked up.

        A concurrent commit of the same application is then a conflict, whatever its version.
        """
        self.reads.app_ids.add(app_id)
        version = self.snapshot.transaction_version(app_id) if self.read_version >= 0 else None
        return -1 if version is None else version

    @staticmethod
    def _no_files(columns: Sequence[str] | None) -> pa.Table:
        from airflow_delta.log.checkpoint.file_columns import projected

        return projected(columns).empty_table()

    def _conjunction(self, predicates: Sequence[str | Predicate]) -> Predicate | None:
        if not predicates:
            return None
        from airflow_delta.log.expressions.predicate import Predicate

        if len(predicates) == 1 and isinstance(predicates[0], Predicate):
            return predicates[0]
        texts = [predicate.text if isinstance(predicate, Predicate) else predicate for predicate in predicates]
        text = texts[0] if len(texts) == 1 else " AND ".join(f"({text})" for text in texts)
        return Predicate.parse(text, self.snapshot.schema, self.snapshot.metadata.partition_columns)

    def _record(self, predicate: Predicate) -> None:
        part = predicate.partition_part
        if part is None:
            self.reads.add_predicate(predicate.text)
        else:
            self.reads.add_predicate(predicate.text, part, part.text)


def _read_counted(read: Callable[..., pa.Table], columns: Sequence[str] | None) -> pa.Table:
    """Return files with a column ``num_records``, which needs more columns than are asked for."""
    from airflow_delta.log.checkpoint.file_columns import projected

    wanted = projected(columns).names
    files = with_num_records(read(columns=list(dict.fromkeys([*wanted, "stats", "deletion_vector"]))))
    return files.select([*wanted, "num_records"])


def with_num_records(files: pa.Table) -> pa.Table:
    """Return the files with a column ``num_records``: rows of each, without those that its deletion vector marks."""
    import pyarrow as pa

    from airflow_delta.log.arrow.arrays import array

    counts: list[int | None] = []
    for stats, vector in zip(files.column("stats").to_pylist(), files.column("deletion_vector").to_pylist(), strict=True):
        try:
            physical = msgspec.json.decode(stats or "{}", type=_Records).num_records
        except msgspec.DecodeError:
            physical = None
        counts.append(None if physical is None else physical - (vector["cardinality"] if vector is not None else 0))
    return files.append_column("num_records", array(counts, pa.int64()))


def files_for_limit(num_records: Sequence[int | None], limit: int) -> int:
    """Return how many of the first files hold ``limit`` rows; a file that does not tell counts as none."""
    rows = 0
    for position, count in enumerate(num_records):
        if rows >= limit:
            return position
        rows += count or 0
    return len(num_records)


class _Records(msgspec.Struct, rename="camel"):
    num_records: int | None = None
