"""The rows that a table has got since a position: for a stage that adds them to another one, each once.

Delta's rules of a streaming source (``DeltaSource``): data files that commits added. A commit that also removed rows is refused
unless the author has it skipped, and the range must be complete: commits that have left the log, and files that VACUUM has
deleted, are refused, not left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.contract.payloads import SourcePosition
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    VersionNotFoundException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log import heavy
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.features.protocol import check_can_read
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.log.storage.place import store_place
from airflow_delta.table.changes.find import commits_between
from airflow_delta.table.changes.schema import check_readable
from airflow_delta.table.files.partitions import common_directory, is_elsewhere
from airflow_delta.table.positions.position import check_no_replacement
from airflow_delta.table.positions.rows import pinned_range, position_before
from airflow_delta.table.read.read_table import Rows, check_limit, limited, parse_where, worker_rows
from airflow_delta.table.stage.scan import scan_files

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import ScanPlan
    from airflow_delta.log import AddFile, Snapshot
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.log.actions.decode import DecodedCommit
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.table.stage.view import TransactionView

LATEST = "latest"
"""``starting_version`` of a consumer that begins with what is committed after its first run."""

_HEADS = 32
"""Files that are looked up one by one; more are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRowsOptions:
    """Which rows are new, and what to do about commits that did more than add rows.

    :param consumer: who reads: each consumer has a position of its own in each source.
    :param starting_version: where a consumer without a position begins: ``None`` with all rows of the source as it is now, a
        version with the rows that it and later commits added, ``latest`` with those of commits after this run.
    :param ending_version: do not read on from here, such as at the last version before a change of the schema.
    :param ignore_deletes: pass over commits that only removed rows.
    :param skip_change_commits: pass over every commit that removed or changed rows, with the rows that it added.
    :param assume_new: a consumer without a position has read nothing, even if the table may have forgotten it, or the source
        was another table before.
    """

    consumer: str
    starting_version: int | str | None = None
    ending_version: int | None = None
    ignore_deletes: bool = False
    skip_change_commits: bool = False
    assume_new: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.consumer, str) or not self.consumer.strip() or self.consumer in ("None", "nan"):
            raise DeltaIllegalArgumentException(f"consumer must be a non-empty string, got {self.consumer!r}.")
        for name in ("starting_version", "ending_version"):
            value = getattr(self, name)
            if value is None or (name == "starting_version" and value == LATEST):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                words = f", {LATEST!r} or None" if name == "starting_version" else " or None"
                raise DeltaIllegalArgumentException(f"{name} must be a version (0 or more){words}, got {value!r}.")


@dataclass(frozen=True, slots=True)
class NewRows:
    """The new rows of a source: the data files that hold them.

    :ivar position: what the commit of these rows records.
    :ivar read: the version whose schema they are read with.
    """

    log: DeltaLog
    position: SourcePosition
    read: Snapshot
    files: list[AddFile]


def find_new_rows(view: TransactionView, source: DeltaLog, options: NewRowsOptions) -> NewRows:
    """Return the rows of a source that the table does not have yet, in the range that the transaction reads.

    The range begins after the position at the version of the table that the transaction reads. Where it ends is decided once.

    :raises DeltaIllegalArgumentException: if the source is the table itself, or an option does not fit.
    :raises DeltaTableNotFoundException: if there is no source.
    :raises DeltaIllegalStateException: if the source is another table than before, or has lost versions that were read; or if
        the transaction would replace rows of an earlier run.
    :raises TransactionExpiredException: if it cannot be known whether there was a position.
    :raises VersionNotFoundException: if commits of the range have left the log of the source.
    :raises DeltaUnsupportedOperationException: if a commit of the range removed rows.
    :raises DeltaAnalysisException: if a change of the schema lies between files of the range and its end.
    :raises DeltaFileNotFoundException: if VACUUM has deleted a file of the range.
    """
    if store_place(source.store).key == store_place(view.log.store).key:
        raise view.handle.error(
            DeltaIllegalArgumentException,
            f"Table {source.uri} is the table of the transaction: what it adds would be new to itself each time. Read it with "
            "table(), or table.changes().",
        )
    check_no_replacement(view, f"versions of {source.uri}")
    latest = source.update()
    if latest.version < 0:
        raise source.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {source.uri}, so it has no new rows. Check the location, the connection, and that an "
            "earlier task has created it.",
        )
    latest.check_readable()
    position = pinned_range(view, _range(view, source, latest, options))
    if position.version > latest.version:
        raise _lost_versions(source, position.version, latest.version, position.consumer)
    read = latest if position.version == latest.version else source.snapshot_at(position.version)
    if read.metadata.id != position.table_id:
        raise source.error(
            DeltaIllegalStateException,
            f"Table {source.uri} had the id {read.metadata.id} at version {position.version}, and has {position.table_id} now: "
            "it "
            "was replaced by another table. Nothing was staged. Read it as another consumer.",
            version=position.version,
        )
    read.check_readable()
    if position.first is None:
        files = read.add_files(None)
    elif position.first > position.version:
        files = []
    else:
        files = _added(source, read, position, options)
    _check_not_vacuumed(source, latest, files, position)
    return NewRows(source, position, read, files)


def scan_new_rows(rows: NewRows, where: str | None = None, *, spark_table_uri: str | None = None) -> ScanPlan:
    """Plan a read of new rows for Spark.

    :param where: Spark SQL predicate; rows that do not satisfy it are passed over for good.
    """
    read = rows.read
    predicate = None
    if where is not None:
        predicate = heavy.Predicate.parse(
            where, read.schema, read.metadata.partition_columns, table=rows.log.uri, version=read.version
        )
    return scan_files(
        rows.log,
        _selected(rows, predicate),
        transaction_id=str(uuid.uuid4()),
        version=read.version,
        table=read.definition,
        predicate=predicate,
        spark_table_uri=spark_table_uri,
    )


def read_new_rows(
    rows: NewRows, where: str | None = None, *, columns: Sequence[str] | None = None, limit: int | None = None
) -> Rows:
    """Return new rows, read by the worker.

    Parameters and errors as for :func:`~airflow_delta.table.read.read_table.read_table`.
    """
    log, read = rows.log, rows.read
    predicate = None if where is None else parse_where(log, read.version, read.metadata, where)
    if limit is not None:
        counts = [live_records(file) for file in rows.files] if predicate is None else []
        check_limit(log, read.version, counts, limit, complete=predicate is None)
    files = _selected(rows, predicate)
    found = worker_rows(
        log, files, metadata=read.metadata, version=read.version, predicate=predicate, columns=columns, limit=limit
    )
    return limited(found, log, read.version, limit)


def _selected(rows: NewRows, predicate: Predicate | None) -> list[AddFile]:
    """Return the files that may have rows that a predicate selects."""
    return rows.files if predicate is None else heavy.FileFilter(predicate).filter_actions(rows.files)


# -- the range ----------------------------------------------------------------------------------------------------------------


def _range(view: TransactionView, source: DeltaLog, latest: Snapshot, options: NewRowsOptions) -> SourcePosition:
    """Return what the transaction would read if it began now."""
    metadata = latest.metadata
    end = latest.version if options.ending_version is None else min(options.ending_version, latest.version)
    given = SourcePosition(table=source.uri, table_id=metadata.id, consumer=options.consumer, version=end)
    before = position_before(view, given, metadata.created_time, assume_new=options.assume_new)
    if before > latest.version:
        raise _lost_versions(source, before, latest.version, options.consumer)
    if before >= 0:
        return replace(given, before=before, first=before + 1, version=max(before, end))
    start = options.starting_version
    if start is None:
        return given
    if start == LATEST:
        return replace(given, first=latest.version + 1, version=latest.version)
    first = int(start)
    if first > latest.version + 1 or first > end + 1:
        raise source.error(
            VersionNotFoundException,
            f"starting_version={first} of {options.consumer!r} is after the last version of {source.uri} to read ({end}). Give a "
            f"version that exists, or {LATEST!r}.",
            latest=latest.version,
            version=first,
        )
    return replace(given, first=first, version=end)


def _lost_versions(source: DeltaLog, known: int, latest: int, consumer: str) -> DeltaIllegalStateException:
    return source.error(
        DeltaIllegalStateException,
        f"Table {source.uri} is at version {latest}, but {consumer!r} has read it up to version {known}: its log has lost "
        "commits, or was restored from a copy. Nothing was staged. What is new is unknown; compare the tables, and read the "
        "source as another consumer.",
        version=latest,
    )


# -- files --------------------------------------------------------------------------------------------------------------------


def _added(source: DeltaLog, read: Snapshot, position: SourcePosition, options: NewRowsOptions) -> list[AddFile]:
    """Return the files that the commits of the range added."""
    first, last = position.first or 0, position.version
    found: dict[str, AddFile] = {}
    known: tuple[int, Metadata] | None = None  # since when, as far as the range says
    before_change: int | None = None  # a version whose files were written under metadata from before the range
    try:
        for commit in commits_between(source, first, last):
            for protocol in commit.protocol:
                check_can_read(protocol, source.uri, commit.version, provided=source.provided)
            for metadata in commit.metadata:
                if metadata.id != position.table_id:
                    raise _another_id(source, commit, metadata, position)
                known = commit.version, metadata
            adds = _new_files(source, commit, options)
            if adds and known is None:
                before_change = commit.version
            elif adds and known is not None:
                _check_schema(source, read, known[1], commit.version, position)
            found.update((canonical_path(add.path), add) for add in adds)
    except VersionNotFoundException as error:
        raise source.error(
            VersionNotFoundException,
            f"The rows that {options.consumer!r} has not read yet from {source.uri} came with versions {first} to {last}, and "
            "some "
            "of these commits are no longer in its log: they were cleaned up (delta.logRetentionDuration) before they were read. "
            "Nothing was staged. Compare the tables, and go on as another consumer, with starting_version=<the first version "
            "that "
            "the table lacks>, or without one to read all rows. Raise delta.logRetentionDuration above the time between two "
            "runs.",
            latest=source.snapshot.version,
            version=error.version,
        ) from error
    if before_change is not None and known is not None:
        _check_schema(source, read, source.snapshot_at(before_change).metadata, before_change, position)
    return list(found.values())


def _new_files(source: DeltaLog, commit: DecodedCommit, options: NewRowsOptions) -> list[AddFile]:
    """Return the files with new rows of a commit.

    :raises DeltaUnsupportedOperationException: if it also removed rows, and is not to be passed over.
    """
    adds = [add for add in commit.adds if add.data_change]
    removed = next((remove.path for remove in commit.removes if remove.data_change), None)
    operation = (commit.commit_info or {}).get("operation")
    # A RESTORE may only add files: rows that were deleted and come back are not new.
    if removed is None and not (operation == "RESTORE" and adds):
        return adds
    if options.skip_change_commits or (options.ignore_deletes and not adds):
        return []
    what = f"removed {removed}" if removed is not None else "brought back rows that had been deleted"
    name = "DELTA_SOURCE_TABLE_IGNORE_CHANGES" if adds else "DELTA_SOURCE_IGNORE_DELETE"
    allowed = "skip_change_commits=True" if adds else "ignore_deletes=True, or skip_change_commits=True,"
    raise source.error(
        DeltaUnsupportedOperationException,
        f"Version {commit.version} of {source.uri} ({operation or 'an unknown operation'}) {what}: it did more than add rows "
        f"({name}). Nothing was staged. {allowed} passes over such commits{', with the rows that they added' if adds else ''}. "
        "To "
        "follow changes, read the change data feed (read_changes).",
        version=commit.version,
    )


def _check_schema(source: DeltaLog, read: Snapshot, metadata: Metadata, version: int, position: SourcePosition) -> None:
    """Check that files of a version can be read with the schema at the end of the range."""
    try:
        check_readable(source.uri, read, metadata, version, (position.first or 0, position.version))
    except DeltaAnalysisException as error:
        raise source.error(
            DeltaAnalysisException,
            f"The schema of {source.uri} has changed between version {version}, whose rows {position.consumer!r} has not read "
            "yet, "
            f"and version {position.version}, in more than added columns (DELTA_SCHEMA_CHANGED_WITH_VERSION). Nothing was "
            "staged. "
            "Run once with ending_version=<the last version before the change>, then without it.",
            version=version,
        ) from error


def _another_id(
    source: DeltaLog, commit: DecodedCommit, metadata: Metadata, position: SourcePosition
) -> DeltaIllegalStateException:
    return source.error(
        DeltaIllegalStateException,
        f"Version {commit.version} of {source.uri} has the table id {metadata.id}, the latest has {position.table_id}: it was "
        "replaced by another table. Nothing was staged. Read it as another consumer.",
        version=commit.version,
    )


def _check_not_vacuumed(source: DeltaLog, latest: Snapshot, files: Iterable[AddFile], position: SourcePosition) -> None:
    """Check that files which are no longer in the table are still there; VACUUM keeps all others."""
    by_path = {file.path: file for file in files}
    live = latest.files_at(by_path) if by_path else {}
    removed = [unquote(path) for path in by_path if path not in live and not is_elsewhere(path)]
    if len(removed) <= _HEADS:
        gone = [path for path in removed if source.store.head(path) is None]
    else:
        there: set[str] = set()
        for directory in common_directory(removed, 1):
            there.update(status.path for status in source.store.list_recursive(directory))
        gone = [path for path in removed if path not in there and source.store.head(path) is None]
    if not gone:
        return
    raise source.error(
        DeltaFileNotFoundException,
        f"VACUUM has deleted {len(gone)} of {len(by_path)} data files of {source.uri} with rows that {position.consumer!r} has "
        "not "
        f"read yet, such as {gone[0]} (versions {position.first} to {position.version}). Nothing was staged. Their rows may be "
        "in "
        "other files by now (OPTIMIZE), or deleted: compare the tables, and go on as another consumer. Raise "
        "delta.deletedFileRetentionDuration above the time between two runs.",
        version=position.version,
    )
