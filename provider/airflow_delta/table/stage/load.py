"""The staged writes that a task was handed, checked against the transaction, each other and storage.

Stages that build on each other: each sees the table as the earlier stages of its transaction leave it.

A stage that is planned ``after`` others reads what they staged as if it were committed. What it removes of that never reaches
the log: the commit publishes the net effect of all stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from airflow_delta.contract.files import KEYS_NAME, MANIFEST_NAME, attempt_directory, transaction_directory, verify_manifest
from airflow_delta.contract.payloads import KeyRead, ManifestRef, StagedWrite, TransactionHandle, read_version_name
from airflow_delta.exceptions import (
    ForeignTransactionException,
    ManifestException,
    MissingStageException,
    PredicateException,
    StageConflictException,
    StagedFileException,
    StagingException,
)
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import vector_path
from airflow_delta.log.features import column_mapping
from airflow_delta.table.definition.apply_changes import altered_definition, with_written_identities
from airflow_delta.table.definition.create import as_defined, replaces_columns, schema_with, written
from airflow_delta.table.files.partitions import common_directory

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import StructType
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.log.table_definition import TableDefinition


_LISTED = 20
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


def parse_staged(handle: TransactionHandle, staged: Sequence[StagedWrite | Mapping[str, Any]]) -> list[StagedWrite]:
    """Return the staged writes, one per stage, all of this transaction.

    :raises ContractVersionException: if a payload was written under another contract number.
    :raises ForeignTransactionException: if a staged write belongs to another execution of start.
    :raises StageConflictException: if a stage reported twice.
    """
    writes = [write if isinstance(write, StagedWrite) else StagedWrite.from_dict(write) for write in staged]
    for write in writes:
        if write.transaction_id != handle.transaction_id:
            raise handle.error(
                ForeignTransactionException,
                f"Stage {write.stage} staged for transaction {write.transaction_id}, this is transaction "
                f"{handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}): start ran again "
                "after the stage. Clear the start task with everything downstream.",
            )
    twice = [key for key, count in Counter((w.task_id, w.map_index) for w in writes).items() if count > 1]
    if twice:
        raise handle.error(
            StageConflictException,
            f"Stage {', '.join(_name(*key) for key in twice)} of transaction {handle.transaction_id} on table {handle.table} "
            "reported more than once. Pass each stage's output to the commit once.",
        )
    return writes


Expected = Mapping[tuple[str, int], str | None]
"""The stages that must report, by task id and map index (-1: not mapped), each with the state of its task instance."""


def check_reported(handle: TransactionHandle, writes: Sequence[StagedWrite], expected: Expected) -> None:
    """Check that every expected stage has reported.

    The position in a mapped result is not the map index: stages are distinguished by the identity in each report.

    :raises MissingStageException: if an expected stage did not report, or none did.
    """
    reported = {(write.task_id, write.map_index) for write in writes}
    missing = [f"{_name(*key)} ({state or 'not run'})" for key, state in sorted(expected.items()) if key not in reported]
    if not missing and writes:
        return
    which = f"{len(missing)} of {len(expected)} stages have not" if missing else "No stage has"
    listed = f": {', '.join(missing[:_LISTED])}{', ...' if len(missing) > _LISTED else ''}" if missing else ""
    skipped = any(expected[key] == "skipped" for key in expected if key not in reported)
    way_out = (
        "To publish without stages that were skipped, set allow_skipped=True on the commit. Otherwise see" if skipped else "See"
    )
    raise handle.error(
        MissingStageException,
        f"{which} reported to transaction {handle.transaction_id} on table {handle.table}{listed}. Nothing is committed. "
        f"{way_out} why they did not, then clear the start task with everything downstream: once the abort task has run, this "
        "transaction cannot be continued.",
    )


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


def _name(task_id: str, map_index: int) -> str:
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


def stage_id(write: StagedWrite) -> str:
    """Return what ``StagedWrite.after`` calls a stage."""
    return f"{write.stage}/{write.attempt}"


def in_order(handle: TransactionHandle, stages: Sequence[StageActions]) -> list[StageActions]:
    """Return the stages, each after those that it was planned on top of, otherwise in the given order.

    :raises StageConflictException: if a stage builds on one that is not given, or on another attempt of one.
    """
    known = {stage_id(stage.write) for stage in stages}
    for stage in stages:
        missing = sorted(set(stage.write.after) - known)
        if missing:
            raise handle.error(
                StageConflictException,
                f"Stage {stage.write.stage} of transaction {handle.transaction_id} on table {handle.table} was planned on top of "
                f"{', '.join(missing)}, which is not among the staged writes. Pass them as well; if such a stage has run again "
                f"since, clear {stage.write.stage}.",
            )
    ordered: list[StageActions] = []
    placed: set[str] = set()
    waiting = list(stages)
    while waiting:
        ready = [stage for stage in waiting if placed.issuperset(stage.write.after)]
        if not ready:
            names = ", ".join(stage.write.stage for stage in waiting)
            raise handle.error(StageConflictException, f"The stages {names} were planned on top of each other")
        ordered += ready
        placed.update(stage_id(stage.write) for stage in ready)
        waiting = [stage for stage in waiting if stage_id(stage.write) not in placed]
    return ordered


def definition_after(table: TableDefinition, after: Sequence[StageActions], *, seed: str) -> TableDefinition:
    """Return what the table is as earlier stages leave it.

    :param table: what it is at the version that the transaction reads.
    :param seed: id of the transaction, which names new columns.
    """
    changes_before = 0
    writes = [stage.write for stage in after]
    for at, write in enumerate(writes):
        if write.changes:
            table = altered_definition(table, write, changes_before, seed=seed)
            changes_before += len(write.changes)
        elif write.definition:
            table = as_defined(table, write.definition)
        elif not table.is_known or replaces_columns(write, writes[:at]):
            table = _with_columns(table, written(write).schema, write.partition_columns)
        elif write.merge_schema or write.overwrite_schema:
            table = _with_columns(table, schema_with(table, table.schema, write), table.partition_columns)
        if write.identity_high_water_marks:
            table = replace(table, schema_string=with_written_identities(table.metadata, write).schema_string)
    return table


def _with_columns(table: TableDefinition, schema: StructType, partition_columns: Sequence[str]) -> TableDefinition:
    configuration = column_mapping.with_highest_id(table.configuration, schema)
    return replace(table.with_schema(schema, partition_columns), configuration=configuration)


def predicate_of(table: TableDefinition, write: StagedWrite, text: str) -> Predicate:
    """Return a predicate of a staged write; it may name columns that this stage or an earlier one adds.

    :param table: that the stage was planned on.
    :raises PredicateException: if neither the table nor the staged write has the columns.
    """
    from airflow_delta.log.expressions.predicate import Predicate

    if table.is_known:
        try:
            partition_columns = table.partition_columns or (write.partition_columns if table.version < 0 else ())
            return Predicate.parse(text, table.schema, partition_columns)
        except PredicateException:
            if table.schema_string == write.schema_string:
                raise
    return Predicate.parse(text, written(write).schema, write.partition_columns)
