"""What a table has of a feature that is to be dropped, and how it goes (Delta's ``PreDowngradeTableFeatureCommand``).

First the table stops using the feature, so that no other writer adds to it; then what is there is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from airflow_delta.contract.delta_names import (
    CHECKPOINT_POLICY,
    CLUSTERING_DOMAIN,
    COLUMN_MAPPING_MODE,
    ENABLE_DELETION_VECTORS,
    ENABLE_IN_COMMIT_TIMESTAMPS,
    ENABLE_ROW_TRACKING,
    ENABLE_TYPE_WIDENING,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
    ROW_TRACKING_SUSPENDED,
    TYPE_CHANGES,
)
from airflow_delta.log.actions.actions import DeletionVectorDescriptor, DomainMetadata, Metadata, RemoveFile
from airflow_delta.log.actions.deletion_vectors import INLINE, vector_path
from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files
from airflow_delta.log.features import clustering, column_mapping
from airflow_delta.log.features.schema_checks import check_table_metadata
from airflow_delta.log.schema.types import ArrayType, DataType, DecimalType, MapType, StructType, to_json
from airflow_delta.log.schema.walk import dotted, transform_fields, walk_fields
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.definition.altered_table import column_document
from airflow_delta.table.files.partitions import url_encode
from airflow_delta.table.operations.drop_feature.steps import Step, Steps
from airflow_delta.table.operations.optimize.bins import RewriteSelection, bins_of
from airflow_delta.table.operations.optimize.collect import rewrite_metrics
from airflow_delta.table.operations.optimize.dropped_columns import files_with
from airflow_delta.table.operations.optimize.options import DEFAULT_FILE_SIZE, target_file_size
from airflow_delta.table.operations.row_tracking import MAX_FILES
from airflow_delta.table.stage.scan import candidate_files
from airflow_delta.transaction import Operation
from airflow_delta.transaction.prepare import in_commit_timestamps, row_tracking
from airflow_delta.transaction.prepare.feature_drop import obstacle

if TYPE_CHECKING:
    from airflow_delta.log import AddFile, Snapshot
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import OptimisticTransaction


def remove_traces(steps: Steps, feature: str) -> bool:
    """Make a table stop using a feature; return whether that took a commit.

    A run that was cut off is taken up: what is gone already is not looked for again.
    """
    remove = _REMOVERS.get(feature)
    return remove is not None and remove(steps)


# -- deletion vectors ----------------------------------------------------------------------------------------------------------


def _remove_vectors(steps: Steps) -> bool:
    found = obstacle({"deletionVectors"}, steps.snapshot()) is not None
    if found:
        steps.unset([ENABLE_DELETION_VECTORS])
        steps.commit(_without_empty_files)
        if any(file.deletion_vector is not None for file in steps.snapshot().add_files()):
            steps.rewrite(_files_with_vectors)
    steps.commit(lambda txn: _vector_tombstones(txn.snapshot, steps.clock()))
    return found


def _without_empty_files(txn: OptimisticTransaction) -> Step | None:
    """Remove the files whose rows are all deleted, which a rewrite turns into no file."""
    gone = [file for file in txn.snapshot.add_files() if file.deletion_vector is not None and live_records(file) == 0]
    if not gone:
        return None
    txn.track_files_read([file.path for file in gone])
    removes = [file.remove(txn.clock(), data_change=False) for file in gone]
    return Step(Operation("REORG", {"predicate": [], "applyPurge": True}, rewrite_metrics([], removes)), removes)


def _files_with_vectors(view: TransactionView) -> RewriteSelection:
    files = candidate_files(view, None)
    marked = [file for file in files if file.deletion_vector is not None]
    return _selection(view, "REORG", {"predicate": [], "applyPurge": True}, marked, num_considered=len(files))


def _vector_tombstones(snapshot: Snapshot, now: int) -> Step | None:
    """Return tombstones for the files of deletion vectors that earlier versions need.

    A client that does not know the feature deletes a file that nothing names: the tombstone of a data file names its vector in a
    field that such a client does not read.
    """
    tombstones = snapshot.tombstones()
    store = snapshot.log.store
    plain: set[str] = set()
    wanted: dict[str, None] = {}
    vectors = tombstones.column("deletion_vector").to_pylist()
    for path, vector in zip(tombstones.column("path").to_pylist(), vectors, strict=True):
        if vector is None:
            plain.add(path)
        elif vector["storage_type"] != INLINE:
            wanted[url_encode(vector_path(store, DeletionVectorDescriptor(**vector)))] = None
    missing = [path for path in wanted if path not in plain]
    if not missing:
        return None
    removes = [RemoveFile(path=path, deletion_timestamp=now, data_change=False) for path in missing]
    return Step(Operation("Deletion Vector Tombstones"), removes)


# -- column mapping ------------------------------------------------------------------------------------------------------------


def end_column_mapping(steps: Steps, *, unset: bool = False) -> bool:
    """Rewrite all files with the names of the schema, and end column mapping in the same commit (RemoveColumnMappingCommand).

    :param unset: remove the property ``delta.columnMapping.mode`` instead of setting it to ``none``.
    :return: whether the table had column mapping.
    """
    if obstacle({"columnMapping"}, steps.snapshot()) is None:
        return False

    def without_files(txn: OptimisticTransaction) -> Step | None:
        if txn.snapshot.files(columns=["path"]).num_rows:
            return None
        metadata, domains = _unmapped(txn.snapshot, unset=unset)
        txn.adopt_changes(metadata, txn.protocol, domains)
        txn.filter_files()
        txn.read_whole_table()
        return Step(Operation("REMOVE COLUMN MAPPING"))

    def select(view: TransactionView) -> RewriteSelection:
        metadata, domains = _unmapped(view.snapshot, unset=unset)
        files = candidate_files(view, None)
        return _selection(view, "REMOVE COLUMN MAPPING", {}, files, metadata=metadata, domains=domains)

    if not steps.commit(without_files):
        steps.rewrite(select)
    return True


def _unmapped(snapshot: Snapshot, *, unset: bool) -> tuple[Metadata, tuple[DomainMetadata, ...]]:
    old = snapshot.metadata
    configuration = {key: value for key, value in old.configuration.items() if key != COLUMN_MAPPING_MODE}
    if not unset:
        configuration[COLUMN_MAPPING_MODE] = "none"
    wanted = msgspec.structs.replace(old, configuration=configuration)
    metadata = column_mapping.without_mapping(wanted)
    check_table_metadata(metadata, old, table=snapshot.log.uri, version=snapshot.version)
    clustered = clustering.clustering_columns(snapshot.domain_metadata)
    if not clustered:
        return metadata, ()
    columns = [list(path) for path in clustering.logical_columns(snapshot.schema, clustered)]
    text = msgspec.json.encode({"clusteringColumns": columns, "domainName": CLUSTERING_DOMAIN}).decode()
    return metadata, (DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=text, removed=False),)


# -- type widening -------------------------------------------------------------------------------------------------------------


def _remove_type_changes(steps: Steps) -> bool:
    if obstacle({"typeWidening"}, steps.snapshot()) is None:
        return False
    steps.unset([ENABLE_TYPE_WIDENING])
    if TYPE_CHANGES in steps.snapshot().metadata.schema_string and steps.snapshot().files(columns=["path"]).num_rows:
        steps.rewrite(_files_with_other_types)
    schema = steps.snapshot().schema
    changed = [column_document(dotted(path), field) for path, field in walk_fields(schema) if TYPE_CHANGES in field.metadata]
    steps.change_metadata(_without_type_changes, Operation("DROP FEATURE", {"columns": changed}))
    return True


def _without_type_changes(metadata: Metadata) -> Metadata | None:
    if TYPE_CHANGES not in metadata.schema_string:
        return None
    schema = transform_fields(TableDefinition.of(metadata).schema, lambda _path, field: field.without_metadata(TYPE_CHANGES))
    return msgspec.structs.replace(metadata, schema_string=to_json(schema))


def _files_with_other_types(view: TransactionView) -> RewriteSelection:
    files = candidate_files(view, None)
    mapped = view.target.column_mapping != "none"
    fields = {(field.physical_name if mapped else field.name).lower(): field.data_type for field in view.schema.fields}

    def has_other(schema: pa.Schema) -> bool:
        found = [schema.field(i) for i in range(len(schema))]
        return any(
            _is_other(field.type, fields[field.name.lower()], mapped=mapped) for field in found if field.name.lower() in fields
        )

    chosen = files_with(view.log, files, has_other)
    return _selection(view, "REORG", {"predicate": [], "applyPurge": True}, chosen, num_considered=len(files))


_ARROW: Mapping[str, Callable[[pa.DataType], bool]] = {
    "byte": types.is_int8,
    "short": types.is_int16,
    "integer": types.is_int32,
    "long": types.is_int64,
    "float": types.is_float32,
    "double": types.is_float64,
    "timestamp_ntz": types.is_timestamp,
}


def _is_other(stored: pa.DataType, wanted: DataType, *, mapped: bool) -> bool:
    """Return whether a file has a narrower type than the table, at any depth."""
    match wanted:
        case StructType() if types.is_struct(stored):
            fields = {(field.physical_name if mapped else field.name).lower(): field.data_type for field in wanted.fields}
            own = [stored.field(i) for i in range(stored.num_fields)]
            return any(_is_other(f.type, fields[f.name.lower()], mapped=mapped) for f in own if f.name.lower() in fields)
        case ArrayType() if types.is_list(stored) or types.is_large_list(stored):
            return _is_other(stored.value_type, wanted.element_type, mapped=mapped)
        case MapType() if types.is_map(stored):
            return _is_other(stored.key_type, wanted.key_type, mapped=mapped) or _is_other(
                stored.item_type, wanted.value_type, mapped=mapped
            )
        case DecimalType():
            return not types.is_decimal(stored) or (stored.precision, stored.scale) != (wanted.precision, wanted.scale)
    test = _ARROW.get(wanted.name)
    return test is not None and not test(stored)


# -- features of the log -------------------------------------------------------------------------------------------------------


def _end_v2_checkpoints(steps: Steps) -> bool:
    if obstacle({"v2Checkpoint"}, steps.snapshot()) is None:
        return False
    return steps.set({CHECKPOINT_POLICY: "classic"})


def _end_timestamps(steps: Steps) -> bool:
    keys = (IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP, IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION)

    def prepare(txn: OptimisticTransaction) -> Step | None:
        known = txn.metadata.configuration
        gone = [key for key in keys if key in known]
        on = {ENABLE_IN_COMMIT_TIMESTAMPS: "false"} if in_commit_timestamps.uses_in_commit_timestamps(txn.metadata) else {}
        if not gone and not on:
            return None
        left = {key: value for key, value in known.items() if key not in gone}
        txn.adopt_changes(msgspec.structs.replace(txn.metadata, configuration={**left, **on}), txn.protocol)
        return Step(Operation.unset_table_properties([*gone, *on], if_exists=True))

    return steps.commit(prepare)


def _remove_domains(steps: Steps) -> bool:
    def prepare(txn: OptimisticTransaction) -> Step | None:
        domains = [msgspec.structs.replace(domain, removed=True) for domain in txn.snapshot.domain_metadata.values()]
        if not domains:
            return None
        return Step(Operation("DOMAIN METADATA CLEANUP", {"domainMetadataRemovedCount": str(len(domains))}), domains)

    return steps.commit(prepare)


def _remove_row_ids(steps: Steps) -> bool:
    """Suspend row tracking, then commit the files again without ids (``RowTrackingUnBackfillCommand``)."""
    if obstacle({row_tracking.FEATURE}, steps.snapshot()) is None:
        return False
    steps.set({ENABLE_ROW_TRACKING: "false", ROW_TRACKING_SUSPENDED: "true"})
    batches = 0

    def prepare(txn: OptimisticTransaction) -> Step | None:
        files = txn.snapshot.files(columns=FILE_COLUMNS)
        tracked = pc.or_(pc.is_valid(files["base_row_id"]), pc.is_valid(files["default_row_commit_version"]))
        adds = to_add_files(files.filter(tracked).slice(0, MAX_FILES))
        if not adds:
            return None
        plain = [
            msgspec.structs.replace(add, data_change=False, base_row_id=None, default_row_commit_version=None) for add in adds
        ]
        txn.track_files_read([add.path for add in adds])
        return Step(Operation(row_tracking.UNBACKFILL, {"batchId": str(batches)}), plain)

    while steps.commit(prepare):
        batches += 1
    return True


_REMOVERS: Mapping[str, Callable[[Steps], bool]] = {
    "deletionVectors": _remove_vectors,
    "columnMapping": lambda steps: end_column_mapping(steps, unset=True),
    "typeWidening": _remove_type_changes,
    "typeWidening-preview": _remove_type_changes,
    "v2Checkpoint": _end_v2_checkpoints,
    "inCommitTimestamp": _end_timestamps,
    "domainMetadata": _remove_domains,
    "rowTracking": _remove_row_ids,
}


def _selection(
    view: TransactionView, operation: str, parameters: Mapping[str, Any], files: Sequence[AddFile], **more: Any
) -> RewriteSelection:
    max_size = target_file_size(view.target) or DEFAULT_FILE_SIZE
    return RewriteSelection(
        operation=operation,
        parameters=parameters,
        predicate=None,
        bins=bins_of(files, max_size, single=True),
        max_file_size=max_size,
        **{"num_considered": len(files), **more},
    )
