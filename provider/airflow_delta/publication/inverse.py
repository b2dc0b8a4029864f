"""The inverse of a table's commit: remove what it added, add what it removed, as RESTORE does, if that takes back all of it.

Files that a stage of the transaction only rearranged go back as such: readers of changes have not seen them come.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.tags import STATE_TAG
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, AddFile, RemoveFile
from airflow_delta.log.actions.decode import DecodedCommit, decode_commits
from airflow_delta.log.actions.deletion_vectors import vector_path
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.storage.table_paths import exists
from airflow_delta.publication.records import PUBLISHED, STATE_NAMES
from airflow_delta.publication.states import state_entry
from airflow_delta.transaction.conflicts.metadata import identity_only

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.log.delta_log import DeltaLog


@dataclass(frozen=True, kw_only=True, slots=True)
class Inverse:
    """What takes a commit back on the version that was looked at.

    :param refused: why it cannot be taken back; ``None``: it can.
    :param version: of the commit; ``None``: the log no longer holds it.
    :param dirty_reads: later commits that may have been built on its rows: version and operation.
    """

    refused: str | None = None
    version: int | None = None
    actions: Sequence[Action] = ()
    dirty_reads: Sequence[dict[str, Any]] = field(default=())


def find_inverse(log: DeltaLog, snapshot: Snapshot, publication: str, *, since: int) -> Inverse:
    """Return what takes a publication's commit back on a version of the table.

    :param since: the oldest version that the commit may have.
    """
    commit = state_entry(log, publication, PUBLISHED, since=since)
    if commit is None:
        return Inverse(refused="the log no longer holds its commit")
    later = decode_commits(log.read_commit_range(range(commit.version + 1, snapshot.version + 1)), table=log.uri)
    before = log.snapshot_at(commit.version - 1)
    dirty = [_dirty_read(log, other) for other in later if _may_have_read(other)]
    why = _changed_table(before, commit, later) or _read_by_publication(later)
    if why is None and commit.adds and snapshot.properties.append_only:
        why = "the table is append-only"
    if why is not None:
        return Inverse(refused=why, version=commit.version, dirty_reads=dirty)
    now = int(time.time() * 1000)
    removes, why = _removes(snapshot, commit.adds, now)
    adds: list[AddFile] = []
    if why is None:
        adds, why = _adds(log, snapshot, before, commit)
    if why is not None:
        return Inverse(refused=why, version=commit.version, dirty_reads=dirty)
    return Inverse(version=commit.version, actions=[*adds, *removes], dirty_reads=dirty)


def _changed_table(before: Snapshot, commit: DecodedCommit, later: Sequence[DecodedCommit]) -> str | None:
    if commit.protocol:
        return "it changed the protocol of the table"
    metadata: Metadata = before.metadata
    for other in (commit, *later):
        for new in other.metadata:
            if new != metadata and not identity_only(metadata, new):
                who = "it" if other is commit else f"version {other.version}"
                return f"{who} changed columns or properties of the table"
            metadata = new
        if other is not commit and other.protocol:
            return f"version {other.version} changed the protocol of the table"
    return None


def _read_by_publication(later: Sequence[DecodedCommit]) -> str | None:
    """Publications read rows of cooperating ones only as committed: what one has read must not be taken back."""
    for other in later:
        info = other.commit_info or {}
        if _state_of(other) == STATE_NAMES[PUBLISHED] and info.get("isBlindAppend") is not True:
            return f"a later publication (version {other.version}) was built on its rows"
    return None


def _state_of(commit: DecodedCommit) -> str | None:
    return ((commit.commit_info or {}).get("tags") or {}).get(STATE_TAG)


def _may_have_read(commit: DecodedCommit) -> bool:
    is_state = _state_of(commit) is not None and not (commit.adds or commit.removes)
    return not is_state and (commit.commit_info or {}).get("isBlindAppend") is not True


def _dirty_read(log: DeltaLog, commit: DecodedCommit) -> dict[str, Any]:
    return {"table": log.uri, "version": commit.version, "operation": str((commit.commit_info or {}).get("operation") or "")}


def _key(file: AddFile | RemoveFile) -> tuple[str, str | None]:
    return canonical_path(file.path), None if file.deletion_vector is None else file.deletion_vector.unique_id


def _live(snapshot: Snapshot, files: Sequence[AddFile | RemoveFile]) -> dict[str, AddFile]:
    """Return the live files with the paths of these, in any spelling, by canonical path."""
    paths = {path for file in files for path in (file.path, canonical_path(file.path))}
    return {canonical_path(file.path): file for file in snapshot.files_at(paths).values()} if paths else {}


def _removes(snapshot: Snapshot, adds: Sequence[AddFile], now: int) -> tuple[list[RemoveFile], str | None]:
    live = _live(snapshot, adds)
    for add in adds:
        found = live.get(canonical_path(add.path))
        if found is None or _key(found) != _key(add):
            return [], f"another commit has removed or changed its file {add.path}"
    return [live[canonical_path(add.path)].remove(now, data_change=add.data_change) for add in adds], None


def _adds(log: DeltaLog, snapshot: Snapshot, before: Snapshot, commit: DecodedCommit) -> tuple[list[AddFile], str | None]:
    known = _live(before, commit.removes)
    own = {_key(add) for add in commit.adds}
    adds = []
    for remove in commit.removes:
        file = known.get(canonical_path(remove.path))
        if file is None:
            continue  # it was not live: the commit removed what was not there
        adds.append(msgspec.structs.replace(file, data_change=remove.data_change))
    for file in _live(snapshot, adds).values():
        if _key(file) not in own:
            return [], f"another commit has added the file {file.path} again"
    for add in adds:
        if not exists(log.store, add.path, encoded=True):
            return [], f"the file {add.path}, which it removed, has been deleted"
        vector = add.deletion_vector
        is_file = vector is not None and vector.storage_type != "i"
        if vector is not None and is_file and not exists(log.store, vector_path(log.store, vector), encoded=False):
            return [], f"the deletion vector of {add.path} has been deleted"
    return adds, None
