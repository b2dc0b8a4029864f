"""Row ids and row commit versions of the files of a commit (protocol, "Row Tracking"; Delta's ``RowId``).

A writer of a table whose protocol lists ``rowTracking`` gives every new file a range of row ids, whether or not the table
property enables them. The ranges start above a high-water mark, which the table keeps in a metadata domain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from airflow_delta.contract.delta_names import ENABLE_ROW_TRACKING, ROW_TRACKING_DOMAIN, ROW_TRACKING_SUSPENDED
from airflow_delta.exceptions import (
    DeltaIllegalStateException,
    DeltaLogCorruptedException,
    RowIdAssignmentWithoutStatsException,
)
from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata, Protocol, RemoveFile
from airflow_delta.log.statistics.row_counts import num_records

FEATURE = "rowTracking"
NO_HIGH_WATER_MARK = -1
"""High-water mark of a table that has assigned no row id."""
BACKFILL = "ROW TRACKING BACKFILL"
UNBACKFILL = "ROW TRACKING UNBACKFILL"
ENABLEMENT_ONLY_TAG = "rowTrackingEnablementOnly"


class _Mark(msgspec.Struct, rename="camel"):
    row_id_high_water_mark: int


_marks = msgspec.json.Decoder(_Mark)


def is_supported(protocol: Protocol) -> bool:
    """Tell whether files must get row ids."""
    return FEATURE in (protocol.writer_features or ())


def has_row_tracking(metadata: Metadata) -> bool:
    """Tell whether readers may rely on row ids."""
    return metadata.configuration.get(ENABLE_ROW_TRACKING, "false").lower() == "true"


def is_suspended(metadata: Metadata) -> bool:
    """Tell whether files must not get row ids even though the protocol lists the feature: it is being dropped."""
    return metadata.configuration.get(ROW_TRACKING_SUSPENDED, "false").lower() == "true"


def mark_of(domain: DomainMetadata, *, table: str) -> int:
    """Return the high-water mark that a domain action sets.

    :raises DeltaLogCorruptedException: if it does not parse.
    """
    try:
        return _marks.decode(domain.configuration).row_id_high_water_mark
    except msgspec.DecodeError as error:
        raise DeltaLogCorruptedException(
            f"The row id high-water mark of table {table} does not parse ({domain.configuration!r}: {error}), so no row ids can "
            "be assigned. Nothing was written. Restore the commit or checkpoint that holds it from a backup.",
            table=table,
        ) from error


def mark_action(mark: int) -> DomainMetadata:
    """Return the action that sets the high-water mark."""
    return DomainMetadata(domain=ROW_TRACKING_DOMAIN, configuration=f'{{"rowIdHighWaterMark":{mark}}}', removed=False)


def prepare(
    actions: Sequence[Action],
    *,
    protocol: Protocol,
    metadata: Metadata,
    snapshot_high_water_mark: int,
    commit_version: int,
    table: str = "",
    restored_high_water_mark: int = NO_HIGH_WATER_MARK,
) -> list[Action]:
    """Return the actions with row ids and row commit versions for all files without them, and the new high-water mark last.

    Ids that files bring along stay. They may be of a time before the mark began again, which then moves past them.

    :param snapshot_high_water_mark: of the version that was read; -1 for none.
    :param restored_high_water_mark: of the version that the commit brings back; -1 for none.
    :param commit_version: version that the commit tries first.
    :raises DeltaIllegalStateException: if the caller sets the high-water mark.
    """
    if not is_supported(protocol):
        return list(actions)
    if any(isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN for action in actions):
        raise DeltaIllegalStateException(
            f"Only the engine sets the row id high-water mark (metadata domain {ROW_TRACKING_DOMAIN}) of table {table}. "
            "Remove it from the actions.",
            table=table,
        )
    if is_suspended(metadata):
        return [_stripped(action) if isinstance(action, AddFile) else action for action in actions]
    past = _last_row_id(actions, max(snapshot_high_water_mark, restored_high_water_mark), table)
    assigned, mark = _assigned(actions, NO_HIGH_WATER_MARK, past, NO_HIGH_WATER_MARK, commit_version, table, only_missing=True)
    return assigned if mark == snapshot_high_water_mark else [*assigned, mark_action(mark)]


def rebase_row_ids(
    actions: Sequence[Action],
    *,
    protocol: Protocol,
    metadata: Metadata,
    read_high_water_mark: int,
    read_version: int,
    winning_high_water_mark: int,
    commit_version: int,
    table: str = "",
    files_of_others: Collection[str] = (),
) -> list[Action]:
    """Return prepared actions as a commit at ``commit_version`` must have them, after others have assigned row ids.

    Ids above the mark that was read are this commit's own and are reassigned; ids of files that were already in the table stay.
    The mark is always written, before all other actions (Delta's ``reassignOverlappingRowIds``).

    :param winning_high_water_mark: after the last winning commit.
    :param files_of_others: paths of files that keep the ids and versions which winning commits gave them.
    """
    if not is_supported(protocol) or is_suspended(metadata):
        return list(actions)
    own = [action for action in actions if not (isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN)]
    assigned, mark = _assigned(
        own, read_high_water_mark, winning_high_water_mark, read_version, commit_version, table, kept=files_of_others
    )
    return [mark_action(mark), *assigned]


def _assigned(
    actions: Sequence[Action],
    read_mark: int,
    mark: int,
    read_version: int,
    commit_version: int,
    table: str,
    *,
    only_missing: bool = False,
    kept: Collection[str] = (),
) -> tuple[list[Action], int]:
    """Assign ids above ``mark``; return the actions and the last id."""
    result: list[Action] = []
    for action in actions:
        if isinstance(action, AddFile):
            base, version = action.base_row_id, action.default_row_commit_version
            stays = only_missing or action.path in kept
            if base is None or (not stays and base > read_mark):
                base, mark = mark + 1, mark + _num_records(action, table)
            if version is None or (not stays and version > read_version):
                version = commit_version
            if base != action.base_row_id or version != action.default_row_commit_version:
                action = msgspec.structs.replace(action, base_row_id=base, default_row_commit_version=version)
        result.append(action)
    return result, mark


def _last_row_id(actions: Sequence[Action], mark: int, table: str) -> int:
    """Return the last of the row ids that files bring along, or the mark if that is higher."""
    last = mark
    for action in actions:
        if isinstance(action, AddFile) and action.base_row_id is not None:
            records = num_records(action.stats)
            if records is None and action.base_row_id > mark:
                records = _num_records(action, table)
            last = max(last, action.base_row_id + (records or 0) - 1)
    return last


def _num_records(file: AddFile, table: str) -> int:
    """Return the physical number of rows, deleted ones included."""
    records = num_records(file.stats)
    if records is None:
        raise RowIdAssignmentWithoutStatsException(
            f"No row ids can be assigned to the file {file.path} of table {table}: its statistics do not say how many rows it "
            "has (numRecords). Collect statistics for every file of a table with row tracking.",
            table=table,
        )
    return records


def _stripped(file: AddFile) -> AddFile:
    if file.base_row_id is None and file.default_row_commit_version is None:
        return file
    return msgspec.structs.replace(file, base_row_id=None, default_row_commit_version=None)


# -- the two operations that rewrite what the log says about every file --------------------------------------------------------


def without_touched(actions: Sequence[Action], touched: Collection[str], *, table: str) -> list[Action]:
    """Return a backfill without the files that a winning commit added or removed: they have ids, or are gone.

    :raises DeltaIllegalStateException: if the backfill holds anything but files and the high-water mark.
    """
    for action in actions:
        if not isinstance(action, AddFile) and not (isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN):
            raise DeltaIllegalStateException(
                f"A {BACKFILL} of table {table} may only hold files and the row id high-water mark, not {type(action).__name__}. "
                "Commit that on its own.",
                table=table,
            )
    return [action for action in actions if not (isinstance(action, AddFile) and action.path in touched)]


def with_backfilled(actions: Sequence[Action], backfilled: Mapping[str, AddFile]) -> list[Action]:
    """Return the actions with the row ids that a winning backfill assigned to the same files."""
    result: list[Action] = []
    for action in actions:
        if isinstance(action, AddFile | RemoveFile) and action.path in backfilled:
            known = backfilled[action.path]
            action = msgspec.structs.replace(
                action, base_row_id=known.base_row_id, default_row_commit_version=known.default_row_commit_version
            )
        result.append(action)
    return result


def unbackfilled(actions: Sequence[Action], added: Sequence[AddFile], touched: Collection[str]) -> list[Action]:
    """Return an unbackfill after a winning commit: files that it touched are left alone, ids that it assigned are removed."""
    kept = [action for action in actions if not (isinstance(action, AddFile) and action.path in touched)]
    cleaned = [
        msgspec.structs.replace(file, data_change=False, base_row_id=None, default_row_commit_version=None)
        for file in added
        if file.base_row_id is not None or file.default_row_commit_version is not None
    ]
    return [*kept, *cleaned]
