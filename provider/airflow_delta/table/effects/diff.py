"""What the commit of a transaction would do to the rows of its table, and what a published commit did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.actions.decode import decode_commits
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.changes.find import ChangedFiles, add_rewritten, change_files
from airflow_delta.table.effects.difference import difference
from airflow_delta.table.effects.merge_keys import merge_keys
from airflow_delta.table.effects.schema_changes import SchemaChange, schema_changes
from airflow_delta.table.effects.sides import all_columns, sides
from airflow_delta.table.read.read_table import snapshot_of

if TYPE_CHECKING:
    from airflow_delta.log.actions.decode import DecodedCommit
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.effects.read_limits import ReadLimits


ROWS_COMPARED = 1_000_000
"""Rows of the files that come, and of those that go, that are compared by default."""

SAMPLE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """What a commit does to rows.

    :param version: version of the commit; ``None`` if it is not published.
    :param read_version: version that it is compared with; -1: there is no table.
    :param keys: columns that identify a row.
    :param exact: whether rows were compared or need not be. If not, ``added`` and ``removed`` are all rows of the files that come
        and go, unchanged ones included: upper bounds.
    :param added: number of rows; ``None`` if statistics lack it.
    :param changed: number of rows whose keys stay; ``None`` if unknown, or without keys: their old state counts as removed, their
        new one as added.
    :param schema_changes: how the columns change; empty for a new table, or if the log no longer shows it.
    :param unread: columns with variants, which only Spark reads: rows have been left without them, and are not compared.
    """

    table: str
    version: int | None
    read_version: int
    keys: tuple[str, ...]
    exact: bool
    added: int | None
    removed: int | None
    changed: int | None = None
    added_rows: list[dict[str, Any]] = field(default_factory=list)
    removed_rows: list[dict[str, Any]] = field(default_factory=list)
    changed_rows: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    schema_changes: list[SchemaChange] = field(default_factory=list)
    unread: tuple[str, ...] = ()


def staged_diff(table: AuditedTable, *, keys: Sequence[str] = (), sample: int = SAMPLE, limit: int = ROWS_COMPARED) -> TableDiff:
    """Return what the commit of some stages would do to the newest version, or, after a conflict, to the one that was read.

    :param table: the stages, checked and put together as the commit does.
    :param keys: columns that identify a row.
    :param sample: number of rows of each kind to return.
    :param limit: rows of the files that come, and of those that go, that may be compared.
    """
    log, version = table.log, table.version
    files = ChangedFiles(version, 0)
    add_rewritten(log, files, table.added, (file.as_add() for file in table.removed.values()))
    before = table.snapshot.metadata if version >= 0 else None
    target = table.target
    after = before
    if target.is_known:
        after = target.metadata
    found = _diff(log, files, (before, after), (version, None), keys, sample, limit)
    return replace(found, schema_changes=schema_changes(before, after))


def published_diff(
    log: DeltaLog,
    version: int | None = None,
    *,
    keys: Sequence[str] | None = (),
    sample: int = SAMPLE,
    limit: int = ROWS_COMPARED,
    bounds: ReadLimits | None = None,
) -> TableDiff:
    """Return what a published commit did to the version before it.

    Its change data files tell, if it has some; a commit that only rearranged rows (OPTIMIZE) did nothing to them.

    :param version: version of the commit; default: the latest.
    :param keys: ``None``: those that the condition of a MERGE names.
    :param bounds: beyond them no rows are compared; the sample is then of the smallest files, or empty. With bounds, schemas are
        not compared.

    The other parameters and errors are those of :func:`staged_diff`.
    """
    snapshot = snapshot_of(log, version)
    commit = _commit(log, snapshot.version)
    if bounds is not None:
        bounds.check(log, commit)
    files = change_files(log, commit, 0)
    snapshot.check_readable()
    before, after = None, snapshot.metadata
    if files.deletes or files.inserted_rows or files.deleted_rows:
        # The log may begin with this version.
        before = log.snapshot_at(snapshot.version - 1).metadata if commit.metadata else after
    if keys is None:
        keys = merge_keys(commit, TableDefinition.of(after).schema.names)
    found = _diff(log, files, (before, after), (snapshot.version - 1, snapshot.version), keys, sample, limit, bounds)
    if not commit.metadata or bounds is not None:
        return found
    return replace(found, schema_changes=schema_changes(before or _metadata_before(log, snapshot.version), after))


def given_keys(log: DeltaLog, version: int | None, given: Sequence[str]) -> list[str]:
    """Return the names of columns, of which one text may hold several with commas between them.

    :param version: as for :func:`published_diff`, whose errors it raises.
    """
    if not any("," in each for each in given):
        return list(given)
    columns = {field.name for field in snapshot_of(log, version).schema.fields}
    split = [[each] if each in columns else [name.strip() for name in each.split(",") if name.strip()] for each in given]
    return [name for names in split for name in names]


def _metadata_before(log: DeltaLog, version: int) -> Metadata | None:
    """Return the metadata of the version before one; ``None`` if there is none, or the log no longer has it."""
    try:
        return log.snapshot_at(version - 1).metadata if version else None
    except VersionNotFoundException:
        return None


def _commit(log: DeltaLog, version: int) -> DecodedCommit:
    try:
        (commit,) = decode_commits(log.read_commit_range(range(version, version + 1)), table=log.uri)
    except VersionsNotContiguousException as error:
        raise log.error(
            VersionNotFoundException,
            f"The commit of version {version} is no longer in the log of table {log.uri}: it was cleaned up. Choose a later "
            "version, and raise delta.logRetentionDuration to keep commits for longer.",
            latest=log.snapshot.version,
            version=version,
        ) from error
    return commit


def _diff(
    log: DeltaLog,
    files: ChangedFiles,
    metadata: tuple[Metadata | None, Metadata | None],
    versions: tuple[int, int | None],
    keys: Sequence[str],
    sample: int,
    limit: int,
    bounds: ReadLimits | None = None,
) -> TableDiff:
    read_version, version = versions
    before, after = sides(log, files, *metadata, (read_version, read_version if version is None else version))
    columns = all_columns(before, after)
    spelled = {name.lower(): name for name in reversed(columns)}
    keys = [spelled.get(key.lower(), key) for key in keys]
    _check(log, columns, keys, sample, limit)
    found = difference(before, after, keys=keys, sample=sample, limit=limit, bounds=bounds)
    return TableDiff(
        table=log.uri,
        version=version,
        read_version=read_version,
        keys=tuple(keys),
        exact=found.exact,
        added=found.added,
        removed=found.removed,
        changed=found.changed,
        added_rows=found.added_rows,
        removed_rows=found.removed_rows,
        changed_rows=found.changed_rows,
        unread=tuple(dict.fromkeys([*after.unread, *before.unread])),
    )


def _check(log: DeltaLog, columns: Sequence[str], keys: Sequence[str], sample: int, limit: int) -> None:
    if unknown := [key for key in keys if key not in columns]:
        raise log.error(
            DeltaIllegalArgumentException,
            f"The key {', '.join(map(repr, unknown))} is not a column of table {log.uri}. The columns are {', '.join(columns)}.",
        )
    for name, number in (("sample", sample), ("limit", limit)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise log.error(
                DeltaIllegalArgumentException,
                f"{name} of a diff of table {log.uri} must be a whole number, 0 or more, got {number!r}.",
            )
