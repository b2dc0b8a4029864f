"""The actions of staged writes, checked against each other and storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from airflow_delta.contract.manifest import verify_manifest
from airflow_delta.contract.payloads import KeyRead, ManifestRef, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import KEYS_NAME, MANIFEST_NAME, attempt_directory, transaction_directory
from airflow_delta.exceptions import ManifestException, StageConflictException, StagedFileException, StagingException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import vector_path
from airflow_delta.table.files.partitions import common_directory

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore


_LISTED_SINGLY = 4
"""Number of directories to list one by one, which spares what failed attempts left beside them; of more, all in one listing."""


class _Line(msgspec.Struct):
    add: AddFile | None = None
    remove: RemoveFile | None = None
    cdc: AddCDCFile | None = None


_decoder = msgspec.json.Decoder(_Line)
_row_decoder = msgspec.json.Decoder(list[Any])


@dataclass(slots=True)
class StageActions:
    """A staged write with its actions."""

    write: StagedWrite
    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemoveFile] = field(default_factory=list)
    changes: list[AddCDCFile] = field(default_factory=list)


def not_staged(handle: TransactionHandle, write: StagedWrite, what: str) -> StagingException:
    """Return the error of a staged write that no stage would leave."""
    return handle.error(
        StagingException,
        f"The staged write of {write.stage} (attempt {write.attempt}) for table {handle.table} is broken: {what}. Nothing is "
        "committed. Clear the start task with everything downstream.",
    )


def load_actions(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> list[StageActions]:
    """Return the actions of staged writes, from the payload or its manifest.

    :raises ManifestException: if a manifest is missing, truncated or altered.
    :raises StagingException: if an action is malformed, or the counts do not match.
    """
    loaded = []
    for write in writes:
        if write.already_committed:
            raise not_staged(handle, write, "it says that the transaction is committed, but the log does not hold it")
        stage = StageActions(write)
        for line in _lines(log, handle, write):
            if sum(action is not None for action in (line.add, line.remove, line.cdc)) != 1:
                raise not_staged(handle, write, "an action is not one of add, remove and cdc")
            if line.add is not None:
                stage.adds.append(line.add)
            elif line.remove is not None:
                stage.removes.append(line.remove)
            elif line.cdc is not None:
                stage.changes.append(line.cdc)
        found = (len(stage.adds), len(stage.removes), len(stage.changes))
        counted = (write.num_files, write.num_removed_files, write.num_change_files)
        if found != counted:
            raise not_staged(
                handle,
                write,
                "it lists {} added, {} removed and {} change data files, but counts {}, {} and {}".format(*found, *counted),
            )
        loaded.append(stage)
    _check_no_conflict(handle, loaded)
    return loaded


def _lines(log: DeltaLog, handle: TransactionHandle, write: StagedWrite) -> list[_Line]:
    try:
        if write.manifest is None:
            return msgspec.convert(list(write.actions), list[_Line])
        data = _own_file(log, handle, write, write.manifest, MANIFEST_NAME, "manifest")
        return [_decoder.decode(line) for line in verify_manifest(write.manifest, data, table=log.uri)]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise not_staged(handle, write, f"an action is malformed ({error})") from error


def load_key_rows(log: DeltaLog, handle: TransactionHandle, write: StagedWrite, key: KeyRead) -> list[list[Any]] | None:
    """Return the values that a stage looked for, from the payload or its file; ``None`` if they were too many to list.

    :param key: one of ``write.reads.keys``.
    :raises ManifestException: if the file is missing, truncated or altered.
    :raises StagingException: if the values do not fit the columns in number, or one is neither an integer nor text nor a boolean.
    """
    rows: Any = key.rows
    if key.file is not None:
        data = _own_file(log, handle, write, key.file, KEYS_NAME, "key file")
        lines = verify_manifest(key.file, data, table=log.uri, what="key file", lines_are="rows")
        try:
            rows = [_row_decoder.decode(line) for line in lines]
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise not_staged(handle, write, f"a row of key values is malformed ({error})") from error
    given = [key.null_safe, key.low, key.high, key.nulls, *(rows or ())]
    for values in given:
        if not isinstance(values, list | tuple) or len(values) != len(key.columns):
            raise not_staged(handle, write, f"{values!r} has not a value for each of {', '.join(key.columns)}")
        if not all(value is None or isinstance(value, int | str) for value in values):
            raise not_staged(handle, write, f"{values!r} has values that no key column can have")
    return None if rows is None else [list(row) for row in rows]


def _own_file(
    log: DeltaLog, handle: TransactionHandle, write: StagedWrite, ref: ManifestRef, name: str, what: str
) -> bytes | None:
    """Return the content of a file of the attempt, ``None`` if it is missing.

    :raises ManifestException: if it is the file of another one.
    """
    own = f"{attempt_directory(handle.transaction_id, write.stage, write.attempt)}/{name}"
    if ref.path != own:
        raise log.error(
            ManifestException,
            f"The {what} {ref.path} of stage {write.stage} of table {log.uri} is not that of its attempt "
            f"({own}). Nothing is committed. Clear the start task with everything downstream.",
        )
    try:
        return log.store.read(ref.path)
    except FileNotFoundError:
        return None


def _check_no_conflict(handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Refuse a file that two stages add or rewrite."""
    for what, kind in (("staged", "adds"), ("rewritten", "removes"), ("staged", "changes")):
        owners: dict[tuple[str, str | None], str] = {}
        for stage in stages:
            for action in getattr(stage, kind):
                vector = None if isinstance(action, AddCDCFile) else action.deletion_vector
                key = action.path, None if vector is None else vector.unique_id
                other = owners.setdefault(key, stage.write.stage)
                if other != stage.write.stage:
                    raise handle.error(
                        StageConflictException,
                        f"{action.path} of table {handle.table} is {what} by two stages of transaction "
                        f"{handle.transaction_id}, {other} and "
                        f"{stage.write.stage}. Make their predicates or paths disjoint, or use one stage.",
                    )


def check_staged_files(store: LogStore, handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Check that every listed file exists with the listed size.

    Its location was checked by :func:`airflow_delta.table.stage.staged_paths.check_paths`. Lists what the transaction staged,
    however many directories that is in and however large the table is.

    :raises StagedFileException: if a file is gone or has another size.
    """
    root = f"{transaction_directory(handle.transaction_id)}/"
    sizes: dict[str, tuple[int | None, StagedWrite]] = {}
    for stage in stages:
        marked = {remove.path for remove in stage.removes}
        for add in stage.adds:
            if add.deletion_vector is not None and (path := vector_path(store, add.deletion_vector)).startswith(root):
                sizes[path] = None, stage.write
            if add.path not in marked:  # otherwise a known file with more rows deleted
                sizes[unquote(add.path)] = add.size, stage.write
    sizes |= {unquote(change.path): (change.size, stage.write) for stage in stages for change in stage.changes}
    directories = common_directory(list(sizes), 4)  # staged/<transaction>/<stage>/<attempt>, or any of finished files
    if len(directories) > _LISTED_SINGLY:
        directories = common_directory(list(sizes), 2)
    for directory, paths in directories.items():
        found = {status.path: status for status in store.list_recursive(directory) if status.path in sizes}
        for path in paths:
            size, write = sizes[path]
            status = found.get(path)
            if status is None and store.local_root is None:  # not by one stale listing: a refusal is for good
                status = store.head(path)
            if status is None or status.is_link or (size is not None and status.size != size):
                state = "is gone" if status is None else f"has {status.size} bytes, {size} were staged"
                if status is not None and status.is_link:
                    state = "is a symbolic link"
                raise handle.error(
                    StagedFileException,
                    f"The staged file {path} of table {handle.table} {state} (stage {write.stage}, attempt "
                    f"{write.attempt}). Nothing is committed. Clear the start task with everything downstream.",
                )
