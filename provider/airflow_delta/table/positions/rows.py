"""New rows of another table: how far they were read, and the range that a transaction reads.

The position is the last version of the source whose rows the table has (:class:`SourcePosition`). The first attempt of any stage
pins the range. Which files hold the rows is found in :mod:`airflow_delta.table.changes.new_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import SourcePosition
from airflow_delta.contract.sealed import sealed, unsealed
from airflow_delta.exceptions import (
    ContractVersionException,
    DeltaIllegalStateException,
    StageConflictException,
    StagingException,
)
from airflow_delta.table.positions.pin import Pin, pin_path
from airflow_delta.table.positions.position import check_not_cloned, last_position, moved_by_others

if TYPE_CHECKING:
    from airflow_delta.table.stage.view import TransactionView

READ_BY_OTHERS = moved_by_others(
    "added new rows of the same source and consumer ({app_ids}), which this transaction has read, too", "reads"
)


def position_before(view: TransactionView, source: SourcePosition, source_created: int | None, *, assume_new: bool) -> int:
    """Return the last version of the source whose rows the table has; -1 if it has none.

    :param source: the source and its consumer.
    :param source_created: when the source was created, in milliseconds: no position is older. ``None``: unknown.
    :param assume_new: the author says that a consumer without a position has read nothing.
    :raises TransactionExpiredException: if a position may have expired from the table.
    :raises DeltaIllegalStateException: if the consumer has read another table at this location, or this table elsewhere; or if
        the table is a clone that does not say what was read.
    """
    words = {
        "what": f"{source.consumer!r} has read new rows of {source.table}",
        "beginning": "starting_version=<the first version that it lacks>",
    }
    found = last_position(view, source.app_id, lambda: source_created or 0, assume_new=assume_new, **words)
    if found is not None:
        return found
    if view.handle.read_version >= 0 and not assume_new:
        if (why := read_elsewhere(source, view.snapshot.transactions)) is not None:
            raise view.handle.error(
                DeltaIllegalStateException,
                f"{why}. Nothing was staged for table {view.log.uri}. If none of the source's rows are in it, run once with "
                "assume_new=True, or read the source as another consumer.",
            )
        check_not_cloned(view, **words)
    return -1


def read_elsewhere(source: SourcePosition, versions: Mapping[str, int]) -> str | None:
    """Return why the rows of a source may be in the table already: it became another table, or has moved.

    :param versions: that the table has, or that another commit sets, by application id.
    """
    prefix = source.prefix(source.consumer)
    for app_id, version in versions.items():
        if version < 0 or not app_id.startswith(prefix):  # reset when the clone was replaced
            continue
        location, _, table_id = app_id[len(prefix) :].partition("/")
        is_here = location == source.location(source.table)
        if is_here and table_id != source.table_id:
            return (
                f"The table at {source.table} is another one than {source.consumer!r} has read: its id is {source.table_id}, "
                f"not {table_id}, read up to version {version} (DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE)"
            )
        if table_id == source.table_id and not is_here:
            return (
                f"{source.consumer!r} has read the table with the id {table_id} up to version {version}, but at another location "
                f"than {source.table}: the source has moved, or one of the two is a copy"
            )
    return None


def pinned_range(view: TransactionView, source: SourcePosition) -> SourcePosition:
    """Pin a range for all stages of the transaction, unless one is pinned already; return the pinned one."""
    pin = _pin(view, source)
    if pin.place(sealed(source).encode()):
        return source
    what = f"The range of {source.table} that transaction {view.handle.transaction_id} reads"
    return pin.read(what, lambda found: found.app_id == source.app_id)


def range_path(transaction_id: str, source: SourcePosition) -> str:
    """Return the path of the file that pins the range of a source."""
    return pin_path(transaction_id, "new-rows", source.app_id)


def _pin(view: TransactionView, source: SourcePosition) -> Pin[SourcePosition]:
    return Pin(view.log, view.handle, range_path(view.handle.transaction_id, source), _decoded)


def _decoded(data: bytes) -> SourcePosition | None:
    try:
        return SourcePosition.from_dict(unsealed(data.decode(), "The range"))
    except ContractVersionException:
        raise
    except (StagingException, ValueError):
        return None


def reported_ranges(view: TransactionView) -> list[SourcePosition]:
    """Return the ranges that the stages have read, one for each source and consumer.

    :raises StageConflictException: if two stages have read different ranges of one source, or one source at two locations.
    :raises StagingException: if a range is not the pinned one.
    """
    found: dict[str, SourcePosition] = {}
    for stage in view.stages:
        for source in stage.write.sources:
            if found.setdefault(source.app_id, source) != source:
                raise view.handle.error(
                    StageConflictException,
                    f"Stages of transaction {view.handle.transaction_id} on table {view.log.uri} have read different versions of "
                    f"{source.table} as {source.consumer!r}. Nothing is committed. Clear the start task with everything "
                    "downstream.",
                )
    versions = {app_id: version for source in found.values() for app_id, version in source.versions.items()}
    for source in found.values():
        if (why := read_elsewhere(source, versions)) is not None:
            raise view.handle.error(
                StageConflictException,
                f"Two stages of transaction {view.handle.transaction_id} on table {view.log.uri} do not go together. {why}. "
                "Their rows might be in the table twice, and nothing is committed. Read it once, or as another consumer.",
            )
        _pin(view, source).confirmed(f"read {source.table} up to version {source.version}", source.__eq__)
    return list(found.values())
