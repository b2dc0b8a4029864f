"""Every path in a staged write is the stage's own or a file of the table: XCom is not trusted.

Its own are the files of its attempt. Beside these it may remove, or mark rows of, live files of the version that the transaction
reads and files of the stages that it was planned on top of, each with exactly the deletion vector that it has there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import attempt_directory, is_marked, stage_key, transaction_directory
from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from airflow_delta.log.actions.deletion_vectors import INLINE, vector_path
from airflow_delta.table.stage.load import StageActions, not_staged

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.storage.base import LogStore

_Key = tuple[str, str | None]


def check_paths(
    handle: TransactionHandle, stages: Sequence[StageActions], store: LogStore, snapshot: Callable[[], Snapshot]
) -> None:
    """Check the paths of staged writes; only the files that they name are looked up in the table.

    :param snapshot: returns the version that the transaction reads.
    :raises StagingException: if a path is neither the stage's own nor a file of the table.
    """
    keys = {stage.write.stage for stage in stages}
    unknown: list[tuple[StageActions, RemoveFile]] = []
    known: dict[int, dict[str, AddFile]] = {}
    for stage in stages:
        if stage.write.stage != stage_key(stage.write.task_id, stage.write.map_index):
            raise not_staged(handle, stage.write, f"{stage.write.stage} is not the key of task {stage.write.task_id}")
        staged, gone = _staged_before(stage, stages)
        files = known[id(stage)] = {}
        for remove in stage.removes:
            file = staged.get(remove.path)
            if file is not None:
                _check_vector(handle, stage.write, remove, file)
                files[remove.path] = file
            elif _key(remove) in gone:
                what = f"{remove.path} was already removed by a stage that this one was planned on top of"
                raise not_staged(handle, stage.write, what)
            else:
                unknown.append((stage, remove))
    if unknown:
        paths = {remove.path for _, remove in unknown}
        live = snapshot().files_at(paths) if handle.read_version >= 0 else {}
        for stage, remove in unknown:
            file = live.get(remove.path)
            if file is None:
                what = f"{remove.path} is not a file of version {handle.read_version} of the table"
                raise not_staged(handle, stage.write, f"{what}, nor of a stage that this one was planned on top of")
            _check_vector(handle, stage.write, remove, file)
            known[id(stage)][remove.path] = file
    for stage in stages:
        _check_new_files(store, handle, stage, known[id(stage)], keys - {stage.write.stage})


def _staged_before(stage: StageActions, stages: Sequence[StageActions]) -> tuple[dict[str, AddFile], set[_Key]]:
    """Return the files of the stages that one was planned on top of, and what they removed."""
    staged: dict[str, AddFile] = {}
    gone: set[_Key] = set()
    if not stage.write.after:
        return staged, gone
    for other in stages:
        if f"{other.write.stage}/{other.write.attempt}" in stage.write.after:
            gone |= {_key(remove) for remove in other.removes}
            for remove in other.removes:
                staged.pop(remove.path, None)
            staged.update((add.path, add) for add in other.adds)
    return staged, gone


def _check_new_files(
    store: LogStore, handle: TransactionHandle, stage: StageActions, files: dict[str, AddFile], others: Collection[str]
) -> None:
    """Check the files that a stage adds.

    :param files: files of the table, or of earlier stages, that it removes, by path.
    :param others: keys of the other stages.
    """
    write = stage.write
    root = f"{transaction_directory(handle.transaction_id)}/"
    attempt = f"{attempt_directory(handle.transaction_id, write.stage, write.attempt)}/"
    # Finished files may lie anywhere below the staging path, except in the directory of another stage or attempt.
    data = root if write.operation == "WRITE" and write.mode != "rewrite" else attempt

    def check(path: str, directory: str) -> None:
        parts = path.split("/")
        foreign = parts[2:3] == [write.stage] and any(map(is_marked, parts[3:4])) and not path.startswith(attempt)
        if not path.startswith(directory) or ".." in parts or parts[2] in others or foreign:
            raise not_staged(handle, write, f"{path} is not under its staging path {directory}")

    for add in stage.adds:
        file, vector = files.get(add.path), add.deletion_vector
        if file is None:
            check(unquote(add.path), data)
        elif (file.partition_values, file.size) != (add.partition_values, add.size):
            raise not_staged(handle, write, f"{add.path} has another size or another partition than in the table")
        if vector is not None and (file is None or not _same(file.deletion_vector, vector)):
            check(_vector_path(store, handle, write, vector), attempt)
        elif vector is None and file is not None and file.deletion_vector is not None:
            raise not_staged(handle, write, f"{add.path} loses its deletion vector, which would bring deleted rows back")
    for change in stage.changes:
        check(unquote(change.path), attempt)


def _vector_path(store: LogStore, handle: TransactionHandle, write: StagedWrite, vector: DeletionVectorDescriptor) -> str:
    if vector.storage_type == INLINE:
        raise not_staged(handle, write, "it has a deletion vector that is not in a file")
    try:
        return vector_path(store, vector)
    except DeltaLogCorruptedException as error:
        raise not_staged(handle, write, error.message) from error


def _check_vector(handle: TransactionHandle, write: StagedWrite, remove: RemoveFile, file: AddFile) -> None:
    if not _same(remove.deletion_vector, file.deletion_vector):
        raise not_staged(handle, write, f"{remove.path} has another deletion vector in the table than the one it removes")


def _same(one: DeletionVectorDescriptor | None, other: DeletionVectorDescriptor | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.unique_id, one.size_in_bytes, one.cardinality) == (other.unique_id, other.size_in_bytes, other.cardinality)


def _key(action: AddFile | RemoveFile) -> _Key:
    return action.path, None if action.deletion_vector is None else action.deletion_vector.unique_id
