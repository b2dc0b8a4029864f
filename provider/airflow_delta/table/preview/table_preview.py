"""The table as the commit of an open transaction would leave it, as a Delta table in the transaction's own directory.

Its log is a checkpoint of the newest version, or of the one that the transaction reads if it conflicts with later ones, streamed
from the table's own, and one commit: the one that would be published. Data files stay where they are.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import NO_TASK, PREVIEW_DIRECTORY, is_later, new_attempt, preview_directory
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import CommitInfo, encode_actions
from airflow_delta.log.checkpoint.part_files import PartFiles
from airflow_delta.log.checkpoint.prefetch import prefetched
from airflow_delta.log.checkpoint.rows import state_rows
from airflow_delta.log.checkpoint_write.source import CheckpointSource
from airflow_delta.log.statistics.row_counts import live_records, total
from airflow_delta.log.storage.file_names import checkpoint_file, commit_file
from airflow_delta.table.commit.planned_commit import PlannedCommit, planned_commit
from airflow_delta.table.preview.spelling import Spelling, guarded, owned
from airflow_delta.transaction.prepare.commit_info import ENGINE_INFO
from airflow_delta.transaction.prepare.in_commit_timestamps import first, uses_in_commit_timestamps

if TYPE_CHECKING:
    from airflow_delta.log.actions.reconciliation import TailFiles
    from airflow_delta.log.checkpoint.reader import CheckpointReader
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A preview that has been written.

    :param path: its location, for readers.
    :param version: its only version that shows what is staged; the one that the commit gets if nobody commits in between.
    :param base_version: version of the table that the commit would come after; -1: none; ``None`` if it is committed.
    :param num_files: files that it names.
    :param num_added_files: those that the commit adds.
    :param num_added_records: rows of these; ``None`` if statistics lack the number. So are those that it removes.
    :param changes: of a table of changed rows, their number by ``_change_type``.
    """

    path: str
    version: int
    base_version: int | None
    num_files: int
    num_added_files: int
    num_removed_files: int
    num_added_records: int | None
    num_removed_records: int | None
    changes: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for XCom."""
        return {
            "path": self.path,
            "version": self.version,
            "baseVersion": self.base_version,
            "numFiles": self.num_files,
            "numAddedFiles": self.num_added_files,
            "numRemovedFiles": self.num_removed_files,
            "numAddedRecords": self.num_added_records,
            "numRemovedRecords": self.num_removed_records,
            "changes": self.changes,
        }


def preview_table(
    log: DeltaLog,
    handle: TransactionHandle,
    staged: Sequence[StagedWrite | Mapping[str, Any]],
    *,
    table_uri: str | None = None,
    task: str = NO_TASK,
    attempt: str | None = None,
) -> Preview:
    """Write the table as the commit of some stages would leave it, replacing what earlier attempts of the task wrote.

    Time grows with the number of files of the table; memory hardly does, since they are streamed.

    :param staged: results of the stages, in any order.
    :param table_uri: URI of the table for readers of the preview, if it differs from that of this process (``s3a://`` for Spark).
        Not URL-encoded.
    :param task: key of the task, from :func:`~airflow_delta.contract.staging_directory.stage_key`: each has a preview of its own.
    :param attempt: of the task, from :func:`~airflow_delta.contract.staging_directory.new_attempt`; default: another first one.

    Raises as :func:`~airflow_delta.table.commit.planned_commit.planned_commit` and
    :meth:`~airflow_delta.log.snapshot.Snapshot.check_readable` do.
    """
    commit = planned_commit(log, handle, staged)
    directory = new_directory(log, handle, PREVIEW_DIRECTORY, task, attempt)
    spelling, table_id = Spelling.of(log.store, table_uri), preview_id(directory)
    version = commit.version + 1
    # First what nobody can read alone: a reader never finds half a preview.
    actions = spelling.actions(commit.actions, table_id)
    log.store.put(f"{directory}/{commit_file(version)}", encode_actions([_commit_info(commit), *actions]))
    files = 0
    if commit.version >= 0:
        writer = _Checkpoint(commit.snapshot, spelling, table_id)
        files = writer.write(f"{directory}/{checkpoint_file(commit.version)}")
    added, removed = commit.adds, commit.removes
    return Preview(
        path=location(log, directory, table_uri),
        version=version,
        base_version=commit.version,
        num_files=files + len(added) - len(removed),
        num_added_files=len(added),
        num_removed_files=len(removed),
        num_added_records=total(live_records(file) for file in added),
        num_removed_records=total(live_records(file) for file in removed),
    )


def new_directory(log: DeltaLog, handle: TransactionHandle, kind: str, task: str, attempt: str | None) -> str:
    """Return the directory for a preview, after those of earlier attempts of the task are deleted.

    A later attempt's stays: a worker that was given up for dead may go on beside its successor.
    """
    attempt = attempt or new_attempt()
    directory = preview_directory(handle.transaction_id, kind, task, attempt)
    attempts = directory.rpartition("/")[0]
    for other in log.store.list_directories(attempts):
        if not is_later(other, attempt):
            log.store.delete_tree(f"{attempts}/{other}")
    return directory


def location(log: DeltaLog, directory: str, table_uri: str | None) -> str:
    """Return the location of a directory of the table as readers of a preview spell it."""
    return f"{(table_uri or log.uri).rstrip('/')}/{directory}"


def preview_id(directory: str) -> str:
    """Return the table id of the preview in a directory: always the same, and not that of another table."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, directory))


def _commit_info(commit: PlannedCommit) -> CommitInfo:
    now = int(time.time() * 1000)
    stamped = uses_in_commit_timestamps(commit.metadata)
    return CommitInfo(
        in_commit_timestamp=first(now, commit.snapshot.timestamp) if stamped else None,
        timestamp=now,
        operation=commit.operation.name,
        operation_parameters=commit.operation.encoded_parameters(),
        engine_info=ENGINE_INFO,
        txn_id=commit.txn_id,
    )


class _Checkpoint:
    """The version that the commit would come after, as the first version of the preview."""

    def __init__(self, snapshot: Snapshot, spelling: Spelling, table_id: str) -> None:
        self._snapshot = snapshot
        self._spelling = spelling
        self._table_id = table_id

    def write(self, path: str) -> int:
        """Write it, and return its number of files."""
        return self._snapshot.read_with_checkpoint(lambda reader, tail: self._write(path, reader, tail))

    def _write(self, path: str, reader: CheckpointReader | None, tail: TailFiles) -> int:
        snapshot, store = self._snapshot, self._snapshot.log.store
        source = CheckpointSource(snapshot, reader, tail)
        files = 0
        with closing(PartFiles(source.schema.classic, None, store.scratch_file)) as parts:
            for rows in prefetched(source.adds(in_order=False)):
                files += len(rows)
                parts.write("add", self._spelling.rows(rows))
            metadata, domains = owned(snapshot.metadata, self._table_id), snapshot.domain_metadata.values()
            for kind, rows in state_rows(guarded(snapshot.protocol), metadata, (), domains):
                parts.write(kind, rows)
            (file,) = parts.finish()
            store.put_file(path, file)
        return files
