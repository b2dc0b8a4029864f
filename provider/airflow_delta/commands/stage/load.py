"""The staged writes that a commit was handed, checked against the transaction, each other and storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from airflow_delta.commands.files.partitions import common_directory
from airflow_delta.commands.stage.staged_paths import not_staged
from airflow_delta.exceptions import (
    ForeignTransactionException,
    ManifestException,
    MissingStageException,
    StageConflictException,
    StagedFileException,
)
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import vector_path
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.manifest import check_manifest
from airflow_delta.staging.paths import MANIFEST_NAME, attempt_directory, transaction_directory

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.storage.base import LogStore


class _Line(msgspec.Struct):
    add: AddFile | None = None
    remove: RemoveFile | None = None
    cdc: AddCDCFile | None = None


_decoder = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class StageActions:
    """A staged write with its actions."""

    write: StagedWrite
    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemoveFile] = field(default_factory=list)
    changes: list[AddCDCFile] = field(default_factory=list)


def parse_staged(
    handle: TransactionHandle, staged: Sequence[StagedWrite | Mapping[str, Any]], expected: Mapping[str, int] | int | None
) -> list[StagedWrite]:
    """Return the staged writes, checked to be of this transaction, complete, and one for each stage.

    :raises ContractVersionException: a payload was written under another contract number.
    :raises ForeignTransactionException: a staged write belongs to another execution of start.
    :raises MissingStageException: a stage did not report.
    :raises StageConflictException: a stage reported twice.
    """
    writes = [write if isinstance(write, StagedWrite) else StagedWrite.from_dict(write) for write in staged]
    for write in writes:
        if write.transaction_id != handle.transaction_id:
            raise ForeignTransactionException(
                f"Stage {write.stage} staged for transaction {write.transaction_id}, this is transaction "
                f"{handle.transaction_id} on table "
                f"{handle.table} (read version {handle.read_version}): start was run again after the stage. Clear the stage.",
                table=handle.table,
                version=handle.read_version,
            )
    twice = [key for key, count in Counter((w.task_id, w.map_index) for w in writes).items() if count > 1]
    if twice:
        raise StageConflictException(
            f"Stage {_names(twice)} of transaction {handle.transaction_id} on table {handle.table} reported more than "
            "once. Pass "
            "each stage's output to the commit once.",
            table=handle.table,
        )
    _check_expected(handle, writes, expected)
    return writes


def _check_expected(handle: TransactionHandle, writes: Sequence[StagedWrite], expected: Mapping[str, int] | int | None) -> None:
    reported = Counter(write.task_id for write in writes)
    if isinstance(expected, int):
        missing = f"{len(writes)} of {expected} stages reported" if len(writes) != expected else ""
    else:
        wrong = {task: count for task, count in (expected or {}).items() if reported[task] != count}
        missing = ", ".join(f"{task}: {reported[task]} of {count}" for task, count in sorted(wrong.items()))
    if missing:
        raise MissingStageException(
            f"Not every stage of transaction {handle.transaction_id} on table {handle.table} reported ({missing}). Nothing is "
            "committed. Clear the missing stages and the commit.",
            table=handle.table,
            version=handle.read_version,
        )


def load_actions(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> list[StageActions]:
    """Return the actions of staged writes, from the payload or its manifest.

    :raises ManifestException: a manifest is missing, truncated or altered.
    :raises StagingException: an action is none, or is not what its stage counted.
    """
    loaded = []
    for write in writes:
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
                "it lists {} added, {} removed and {} change data files, and counts {}, {} and {}".format(*found, *counted),
            )
        loaded.append(stage)
    _check_no_conflict(handle, loaded)
    return loaded


def _lines(log: DeltaLog, handle: TransactionHandle, write: StagedWrite) -> list[_Line]:
    try:
        if write.manifest is None:
            return msgspec.convert(list(write.actions), list[_Line])
        own = f"{attempt_directory(handle.transaction_id, write.stage, write.attempt)}/{MANIFEST_NAME}"
        if write.manifest.path != own:
            raise ManifestException(
                f"The manifest {write.manifest.path} of stage {write.stage} of table {log.uri} is not that of its attempt "
                f"({own}). Nothing is committed. Clear the stage.",
                table=log.uri,
            )
        try:
            data = log.store.read(write.manifest.path)
        except FileNotFoundError:
            data = None
        return [_decoder.decode(line) for line in check_manifest(write.manifest, data, table=log.uri)]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise not_staged(handle, write, f"an action is malformed ({error})") from error


def _check_no_conflict(handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Refuse a file that two stages add, or that two stages rewrite."""
    for what, kind in (("staged", "adds"), ("rewritten", "removes"), ("staged", "changes")):
        owners: dict[tuple[str, str | None], str] = {}
        for stage in stages:
            for action in getattr(stage, kind):
                vector = None if isinstance(action, AddCDCFile) else action.deletion_vector
                key = action.path, None if vector is None else vector.unique_id
                other = owners.setdefault(key, stage.write.stage)
                if other != stage.write.stage:
                    raise StageConflictException(
                        f"{action.path} of table {handle.table} is {what} by two stages of transaction "
                        f"{handle.transaction_id}, {other} "
                        f"and {stage.write.stage}. Make their predicates or paths disjoint, or use one stage.",
                        table=handle.table,
                        version=handle.read_version,
                    )


def check_files(store: LogStore, handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Check that every listed file is there, and has the listed size.

    Where it is was checked by :func:`airflow_delta.commands.stage.staged_paths.check_paths`. Lists the directories of the
    attempts: as many calls as stages, however large the table is.

    :raises StagedFileException: a file is gone or has another size.
    """
    root = f"{transaction_directory(handle.transaction_id)}/"
    sizes: dict[str, tuple[int | None, StagedWrite]] = {}
    for stage in stages:
        marked = {remove.path for remove in stage.removes}
        for add in stage.adds:
            if add.deletion_vector is not None and (path := vector_path(store, add.deletion_vector)).startswith(root):
                sizes[path] = None, stage.write
            if add.path not in marked:  # else it is a file of the table, or of an earlier stage, with other rows deleted
                sizes[unquote(add.path)] = add.size, stage.write
    sizes |= {unquote(change.path): (change.size, stage.write) for stage in stages for change in stage.changes}
    # staged/<transaction>/<stage>/<attempt>
    for directory, paths in common_directory(list(sizes), 4).items():
        found = {status.path: status for status in store.list_recursive(directory)}
        for path in paths:
            size, write = sizes[path]
            status = found.get(path)
            if status is None or status.is_link or (size is not None and status.size != size):
                state = "is gone" if status is None else f"has {status.size} bytes, {size} were staged"
                if status is not None and status.is_link:
                    state = "is a symbolic link"
                raise StagedFileException(
                    f"The staged file {path} of table {handle.table} {state} (stage {write.stage}, attempt "
                    f"{write.attempt}). Nothing is "
                    "committed. Clear the stage.",
                    table=handle.table,
                    version=handle.read_version,
                )


def _names(keys: Sequence[tuple[str, int]]) -> str:
    return ", ".join(task if index < 0 else f"{task}[{index}]" for task, index in keys)
