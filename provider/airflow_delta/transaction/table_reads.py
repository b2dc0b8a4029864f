"""The reading half of a transaction: every look at the table is answered at its version, and recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_delta.log.actions import AddFile
from airflow_delta.transaction.read_tracking import ReadSet

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.predicates import Predicate
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

    def filter_files(self, *predicates: str | Predicate) -> pa.Table:
        """Return the files that may hold rows for which all predicates hold, and record them as read.

        What others add to the partitions that the predicates select is then a conflict. A predicate with no conjunct on
        partition columns alone selects every partition; no predicate reads the whole table.

        :returns: the table of :meth:`airflow_delta.log.Snapshot.files`.
        :raises PredicateException: a predicate does not parse or names an unknown column.
        """
        if self.read_version < 0:
            self.reads.add_predicate(" AND ".join(str(getattr(p, "text", p)) for p in predicates) or "true")
            return self._no_files()
        predicate = self._conjunction(predicates)
        if predicate is None:
            self.reads.add_predicate("true")
        else:
            self._record(predicate)
        files = self.snapshot.files(predicate)
        self.reads.add_files(files)
        return files

    def filter_files_for_partitions(self, new_files: Iterable[AddFile]) -> pa.Table:
        """Return the files in the partitions of ``new_files``, as a dynamic partition overwrite replaces them.

        Records the partitions as read, not the files: another overwrite of the same files fails on removing them twice.
        """
        from airflow_delta.transaction.partition_sets import PartitionSet

        if self.read_version < 0:
            self.reads.add_predicate("the partitions of the new files")
            return self._no_files()
        partitions = PartitionSet.of((file.partition_values for file in new_files), self.snapshot.partition_schema)
        self.reads.add_predicate(partitions.text, partitions, partitions.text)
        return partitions.select(self.snapshot.files())

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
    def _no_files() -> pa.Table:
        from airflow_delta.log.files_columns import FILE_SCHEMA

        return FILE_SCHEMA.empty_table()

    def _conjunction(self, predicates: Sequence[str | Predicate]) -> Predicate | None:
        if not predicates:
            return None
        from airflow_delta.log.predicates import Predicate

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
