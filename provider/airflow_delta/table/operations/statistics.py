"""COMPUTE STATS: statistics of the table's files, from their footers (Delta's ``StatisticsCollection.recompute``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from airflow_delta.contract.payloads import CommitResult
from airflow_delta.exceptions import (
    DeltaConcurrentModificationException,
    DeltaTableNotFoundException,
    PredicateException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.features.stats_columns import indexed_leaves
from airflow_delta.log.schema.types import ArrayType, Leaf, MapType, StructType
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from airflow_delta.table.files.footers import table_footers
from airflow_delta.table.state.commit_result import result_of_nothing, result_of_transaction
from airflow_delta.transaction import Operation, OptimisticTransaction

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.features.properties import TableProperties
    from airflow_delta.transaction import CommitPolicy, PostCommitHook

logger = logging.getLogger(__name__)

_UNBOUNDED = frozenset({"boolean", "binary", "variant", "void"})


# -- of one file --------------------------------------------------------------------------------------------------------------


def collect_statistics(
    footer: pq.FileMetaData, schema: StructType, properties: TableProperties, *, file: str, tight_bounds: bool | None = None
) -> str:
    """Return the statistics of a file as JSON text, also of columns that the table got after the file was written.

    :param schema: columns that are stored in files: without partition columns.
    :param file: path of the file.
    :param tight_bounds: ``None`` for a table without deletion vectors; ``False`` for a file that has one: its statistics are
        those of all rows in it, deleted or not.
    """
    text = stats_from_footer(footer, schema, properties, tight_bounds=bool(tight_bounds), file=file)
    stats = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if tight_bounds is False:
        stats["tightBounds"] = msgspec.Raw(b"false")
    absent = _absent_columns(footer, schema, properties)
    if not absent and tight_bounds is not False:
        return text
    if absent:
        nulls: dict[str, Any] = msgspec.json.decode(stats["nullCount"])
        for leaf in absent:
            target = nulls
            for name in leaf.physical_path[:-1]:
                target = target.setdefault(name, {})
            target[leaf.physical_path[-1]] = footer.num_rows
        stats["nullCount"] = msgspec.Raw(msgspec.json.encode(nulls))
    return msgspec.json.encode(stats).decode()


def _absent_columns(footer: pq.FileMetaData, schema: StructType, properties: TableProperties) -> list[Leaf]:
    """Return the columns with statistics that the file does not have: readers take them as null.

    Where files know columns by id, names tell nothing.
    """
    if properties.column_mapping_mode == "id":
        return []
    paths = [f"{footer.schema.column(i).path.lower()}." for i in range(footer.num_columns)]
    leaves = indexed_leaves(schema, (), properties)
    return [leaf for leaf in leaves if not any(p.startswith(f"{'.'.join(leaf.physical_path).lower()}.") for p in paths)]


def is_complete(stats: str | None, leaves: Sequence[Leaf]) -> bool:
    """Return whether statistics of a file are complete.

    :param leaves: columns that statistics are kept of.
    """
    parsed = _decoded(stats)
    records = parsed.get("numRecords")
    if not isinstance(records, int):
        return False
    for leaf in leaves:
        nulls = _member(parsed, "nullCount", leaf.physical_path)
        if nulls is None:
            return False
        if nulls == records or isinstance(leaf.data_type, ArrayType | MapType) or leaf.data_type.name in _UNBOUNDED:
            continue
        if any(_member(parsed, bound, leaf.physical_path) is None for bound in ("minValues", "maxValues")):
            return False
    return True


def completed(old: str | None, new: str) -> str:
    """Return the old statistics, completed with values that only the new ones have."""
    try:
        known = msgspec.json.decode(old or "{}", type=dict[str, msgspec.Raw])
        added = msgspec.json.decode(new, type=dict[str, msgspec.Raw])
        merged = _merged(known, added)
    except msgspec.DecodeError:
        return new
    return msgspec.json.encode(merged).decode()


def _merged(old: Mapping[str, msgspec.Raw], new: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    result: dict[str, Any] = dict(old)
    for key, value in new.items():
        if key not in result or bytes(result[key]) == b"null":
            result[key] = value
        elif bytes(value)[:1] == b"{" and bytes(result[key])[:1] == b"{":
            result[key] = _merged(*(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]) for raw in (result[key], value)))
    return result


def _decoded(stats: str | None) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(stats or "{}")
    except msgspec.DecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _member(parsed: Mapping[str, Any], kind: str, path: tuple[str, ...]) -> Any:
    value: Any = parsed.get(kind)
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


# -- of a table ---------------------------------------------------------------------------------------------------------------


def compute_statistics(
    log: DeltaLog,
    *,
    predicate: str | None = None,
    only_missing: bool = False,
    max_restarts: int = 3,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
) -> CommitResult:
    """Recompute the statistics of the table's files and commit those that changed.

    No rows are read: the footers of the files tell. The commit changes no data and runs at SnapshotIsolation, so it does
    not conflict with appends. It has no ``txn`` action, which would raise it to the table's isolation level; running it again is
    harmless.

    :param predicate: only files of partitions for which it holds.
    :param only_missing: only fill in missing statistics; complete files are not opened.
    :param max_restarts: how often to start over when another commit removed one of the files.
    :returns: the commit; with ``attempts=0`` and the version that was read when nothing had changed.
    :raises PredicateException: if the predicate names columns other than partition columns.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises StagedFileException: if a file is gone, or is not a Parquet file.
    :raises DeltaConcurrentModificationException: if another commit conflicts, and no restart is left.
    """
    restarts = 0
    while True:
        snapshot = log.update()
        if snapshot.version < 0:
            raise log.error(DeltaTableNotFoundException, f"There is no Delta table at {log.uri}.")
        txn = OptimisticTransaction(log, snapshot, policy=policy)
        for hook in hooks:
            txn.register_post_commit_hook(hook)
        adds = recomputed(txn, predicate, only_missing=only_missing)
        operation = Operation.compute_stats([predicate if predicate is not None else "true"])
        if not adds:
            return result_of_nothing(txn)
        try:
            txn.commit(adds, operation, tags=tags, user_metadata=user_metadata)
        except DeltaConcurrentModificationException as conflict:
            if restarts >= max_restarts:
                raise
            restarts += 1
            logger.info("Computing statistics of %s again (%s of %s): %s", log.uri, restarts, max_restarts, conflict.message)
            continue
        return result_of_transaction(txn, operation.name, adds)


def recomputed(txn: OptimisticTransaction, predicate: str | None, *, only_missing: bool = False) -> list[AddFile]:
    """Return the files whose statistics change, with the new ones."""
    snapshot = txn.snapshot
    files = to_add_files(txn.filter_files(*_partition_predicate(snapshot, predicate), columns=FILE_COLUMNS))
    return with_new_statistics(snapshot, files, only_missing=only_missing)


def with_new_statistics(snapshot: Snapshot, files: Sequence[AddFile], *, only_missing: bool = False) -> list[AddFile]:
    """Return those of the files whose statistics change, with the new ones.

    :param only_missing: only fill in missing statistics; complete files are not opened.
    """
    table = snapshot.definition
    properties = table.properties
    schema = table.schema.without(table.partition_columns)
    leaves = indexed_leaves(schema, (), properties)
    vectors = "deletionVectors" in table.features
    if only_missing:
        files = [file for file in files if not is_complete(file.stats, leaves)]
    changed: list[AddFile] = []
    for file, footer in table_footers(snapshot.log.store, files, "Its statistics cannot be computed"):
        tight = (file.deletion_vector is None) if vectors else None
        stats = collect_statistics(footer, schema, properties, file=unquote(file.path), tight_bounds=tight)
        if only_missing:
            stats = completed(file.stats, stats)
        if _decoded(stats) != _decoded(file.stats):
            changed.append(msgspec.structs.replace(file, data_change=False, stats=stats))
    return changed


def _partition_predicate(snapshot: Snapshot, text: str | None) -> tuple[Any, ...]:
    if text is None:
        return ()
    predicate = Predicate.parse(
        text, snapshot.schema, snapshot.metadata.partition_columns, table=snapshot.log.uri, version=snapshot.version
    )
    if not predicate.partition_only:
        raise snapshot.error(
            PredicateException,
            f"{text!r} is not on the partition columns ({', '.join(snapshot.metadata.partition_columns)}) of table "
            f"{snapshot.log.uri} alone (DELTA_NON_PARTITION_COLUMN_REFERENCE): whole files get new statistics.",
        )
    return (predicate,)
