"""Column mapping: columns are identified by ids and physical names, and so renamed and dropped without rewriting files.

Data files, statistics and partition values use physical names; schema, predicates and ``Metadata.partition_columns`` use
logical ones (Delta protocol, "Column Mapping"; Delta's ``DeltaColumnMapping``).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from airflow_delta.contract.delta_names import COLUMN_ID, MAX_COLUMN_ID, NESTED_IDS, PARQUET_FIELD_ID, PHYSICAL_NAME
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType, parse_schema, to_json
from airflow_delta.log.schema.walk import Path, dotted, folded, transform_fields, walk_fields

MAPPING_KEYS = (COLUMN_ID, PHYSICAL_NAME, NESTED_IDS)


def mode(configuration: Mapping[str, str]) -> str:
    """Return the mode: ``none``, ``name`` or ``id``."""
    return TableProperties(configuration).column_mapping_mode


def physical_name(field: StructField) -> str:
    """Return the name of a field in data files, statistics and partition values."""
    return field.physical_name


def field_id(field: StructField) -> int | None:
    """Return the column mapping id of a field, ``None`` if it has none."""
    value = field.metadata.get(COLUMN_ID)
    return None if value is None else int(value)


def physical_schema(schema: StructType, mode: str) -> StructType:
    """Return the schema with physical names at every depth; the schema itself for mode ``none``."""
    if mode == "none":
        return schema
    return transform_fields(schema, lambda _path, field: replace(field, name=field.physical_name))


def physical_paths(schema: StructType) -> list[Path]:
    """Return the physical paths of all fields, parents before children."""
    return [path for path, _ in walk_fields(physical_schema(schema, "name"))]


def physical_partition_columns(metadata: Metadata) -> list[str]:
    """Return the physical names of the partition columns (the keys of ``partitionValues``), in partition order."""
    if not metadata.partition_columns or mode(metadata.configuration) == "none":
        return list(metadata.partition_columns)
    return [f.physical_name for f in parse_schema(metadata.schema_string).select(metadata.partition_columns)]


def with_highest_id(configuration: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return properties that count the ids of a schema as used, whatever becomes of its columns."""
    if mode(configuration) == "none":
        return configuration
    ids = [field_id(field) or 0 for _, field in walk_fields(schema)]
    return {**configuration, MAX_COLUMN_ID: str(max([TableProperties(configuration).get(MAX_COLUMN_ID), *ids]))}


def assign(
    new: Metadata,
    old: Metadata | None,
    *,
    overwrites_schema: bool = False,
    creates_table: bool = False,
    brings_files: bool = False,
) -> Metadata:
    """Return the new metadata with the ids, physical names and ``maxColumnId`` that its mode requires.

    A new table gets random physical names; when mapping is enabled on an existing table, the physical names are those used in its
    files. Existing ids and physical names are kept, and an id is never reused, not even that of a dropped column.

    :param old: metadata of the existing table; ``None`` for a new table.
    :param overwrites_schema: columns of the same name and type keep their id and physical name, even if the new schema does not
        have them.
    :param creates_table: the table is replaced by a new one, with its own mode and new ids.
    :param brings_files: all files are replaced as well, by files written under this metadata (RESTORE, CLONE), so the mode may
        change to any other.
    """
    wanted = mode(new.configuration)
    present = "none" if old is None else mode(old.configuration)
    changes_mode = old is not None and wanted != present and not creates_table
    if changes_mode and old is not None and not brings_files:
        _check_mode_change(present, wanted, new, old)
    if wanted == "none":
        return _without_mapping(new, old, removed=changes_mode)
    return _with_mapping(new, old, changes_mode=changes_mode, overwrites_schema=overwrites_schema)


def without_mapping(metadata: Metadata) -> Metadata:
    """Return the metadata of a table whose files have all been written again with the names of the schema."""
    return _without_mapping(metadata, None, removed=True)


def check_mapping(metadata: Metadata) -> None:
    """Check that every field has a unique id and physical name, and that no id is above ``maxColumnId``.

    :raises DeltaAnalysisException: if not (Delta's ``checkColumnIdAndPhysicalNameAssignments``).
    """
    wanted = mode(metadata.configuration)
    if wanted == "none":
        return
    schema = parse_schema(metadata.schema_string)
    ids: dict[int, str] = {}
    for path, field in walk_fields(schema):
        identity = field_id(field)
        if identity is None:
            raise DeltaAnalysisException(
                f"Column {dotted(path)} has no id, which column mapping mode {wanted!r} requires "
                "(DELTA_COLUMN_MAPPING_MISSING_ID). Set the metadata through a transaction's update_metadata, which assigns ids."
            )
        if PHYSICAL_NAME not in field.metadata:
            raise DeltaAnalysisException(
                f"Column {dotted(path)} has no physical name, which column mapping mode {wanted!r} requires "
                "(DELTA_COLUMN_MAPPING_MISSING_PHYSICAL_NAME). Set the metadata through a transaction's update_metadata."
            )
        if identity in ids:
            raise DeltaAnalysisException(
                f"Columns {ids[identity]} and {dotted(path)} both have the id {identity} "
                "(DELTA_COLUMN_MAPPING_DUPLICATED_ID). Remove the id from the new one."
            )
        ids[identity] = dotted(path)
    names: dict[str, str] = {}
    for path, field in walk_fields(physical_schema(schema, wanted)):
        if dotted(path) in names:
            raise DeltaAnalysisException(
                f"Columns {names[dotted(path)]} and {ids[field_id(field) or 0]} both have the physical name {dotted(path)} "
                "(DELTA_COLUMN_MAPPING_DUPLICATED_PHYSICAL_NAME). Remove it from the new one."
            )
        names[dotted(path)] = ids[field_id(field) or 0]
    if MAX_COLUMN_ID not in metadata.configuration:
        raise DeltaAnalysisException(
            f"The table property {MAX_COLUMN_ID} is not set, but column mapping requires it "
            "(DELTA_COLUMN_MAPPING_MAX_COLUMN_ID_NOT_SET)."
        )
    known = TableProperties(metadata.configuration).get(MAX_COLUMN_ID)
    if known < max(ids, default=0):
        raise DeltaAnalysisException(
            f"The table property {MAX_COLUMN_ID} is {known}, below the highest column id {max(ids)} "
            "(DELTA_COLUMN_MAPPING_MAX_COLUMN_ID_NOT_SET_CORRECTLY)."
        )


def drops_or_renames(new: Metadata, old: Metadata) -> bool:
    """Return whether a column of the old schema is missing or renamed in the new one."""
    after = _by_physical_path(new)
    return any(after.get(physical) != path for physical, path in _by_physical_path(old).items())


def has_mapping(schema: StructType) -> bool:
    """Return whether any field has column mapping metadata."""
    return any(key in field.metadata for _, field in walk_fields(schema) for key in MAPPING_KEYS)


def _without_keys(schema: StructType) -> StructType:
    return transform_fields(schema, lambda _path, field: field.without_metadata(*MAPPING_KEYS, PARQUET_FIELD_ID))


def _without_mapping(new: Metadata, old: Metadata | None, *, removed: bool) -> Metadata:
    schema = parse_schema(new.schema_string)
    configuration = new.configuration
    if removed:
        configuration = {k: v for k, v in configuration.items() if k != MAX_COLUMN_ID}
    elif not has_mapping(schema) or (old is not None and has_mapping(parse_schema(old.schema_string))):
        return new  # Delta keeps what an older writer left in the schema
    return msgspec.structs.replace(new, schema_string=to_json(_without_keys(schema)), configuration=configuration)


def _with_mapping(new: Metadata, old: Metadata | None, *, changes_mode: bool, overwrites_schema: bool) -> Metadata:
    schema = parse_schema(new.schema_string)
    existing = _by_folded_path(old)
    used = [TableProperties(m.configuration).get(MAX_COLUMN_ID) for m in (new, old) if m is not None]
    highest = max([*used, *(field_id(f) or 0 for _, f in walk_fields(schema))])

    def complete(path: Path, field: StructField) -> StructField:
        nonlocal highest
        if COLUMN_ID in field.metadata and PHYSICAL_NAME in field.metadata:
            return field
        before = existing.get(folded(path))
        reused = before if overwrites_schema and before is not None and _same_kind(before.data_type, field.data_type) else None
        metadata = dict(field.metadata)
        if COLUMN_ID not in metadata:
            known = None if reused is None else field_id(reused)
            if known is None:
                highest += 1
                known = highest
            metadata[COLUMN_ID] = known
        if PHYSICAL_NAME not in metadata:
            if changes_mode and existing:
                if before is None:
                    raise DeltaAnalysisException(
                        f"Column {dotted(path)} is new, but columns must not change in the commit that enables column mapping "
                        "(DELTA_UNSUPPORTED_COLUMN_MAPPING_SCHEMA_CHANGE). Set delta.columnMapping.mode first, then add columns."
                    )
                metadata[PHYSICAL_NAME] = before.name  # existing files use this name
            elif reused is not None and PHYSICAL_NAME in reused.metadata:
                metadata[PHYSICAL_NAME] = reused.physical_name
            else:
                metadata[PHYSICAL_NAME] = f"col-{uuid.uuid4()}"
        return replace(field, metadata=metadata)

    completed = transform_fields(schema, complete)
    configuration = {**new.configuration, MAX_COLUMN_ID: str(highest)}
    if completed == schema and configuration == new.configuration:
        return new
    return msgspec.structs.replace(new, schema_string=to_json(completed), configuration=configuration)


def _check_mode_change(present: str, wanted: str, new: Metadata, old: Metadata) -> None:
    if present == "none":
        if wanted == "name":
            if has_mapping(parse_schema(old.schema_string)):
                raise DeltaAnalysisException(
                    "Column mapping cannot be enabled: the schema still has ids or physical names of an earlier mapping "
                    "(DELTA_ENABLING_COLUMN_MAPPING_DISALLOWED_WHEN_COLUMN_MAPPING_METADATA_ALREADY_EXISTS). Make a new table "
                    "with column mapping and copy the rows."
                )
            return
        raise _mode_change(present, wanted, "An existing table can only be changed to mode 'name'.")
    if wanted != "none":
        raise _mode_change(present, wanted, "The mode of a table with column mapping can only be changed to 'none'.")
    schema = parse_schema(old.schema_string)
    renamed = [dotted(path) for path, field in walk_fields(schema) if field.physical_name != field.name]
    dropped = TableProperties(old.configuration).get(MAX_COLUMN_ID) > sum(1 for _ in walk_fields(schema))
    if renamed or dropped or _paths(new) != _paths(old):
        raise _mode_change(
            present,
            wanted,
            "The data files of this table use other column names than its schema, so removing column mapping must rewrite "
            "them, in a commit of its own. Run DeltaRemoveColumnMappingOperator, outside of a transaction.",
        )


def _mode_change(present: str, wanted: str, way_out: str) -> DeltaAnalysisException:
    return DeltaAnalysisException(
        f"Changing the column mapping mode from {present!r} to {wanted!r} is not supported "
        f"(DELTA_UNSUPPORTED_COLUMN_MAPPING_MODE_CHANGE). {way_out}"
    )


def _by_folded_path(metadata: Metadata | None) -> dict[Path, StructField]:
    if metadata is None:
        return {}
    return {folded(path): field for path, field in walk_fields(parse_schema(metadata.schema_string))}


def _by_physical_path(metadata: Metadata) -> dict[Path, Path]:
    schema = parse_schema(metadata.schema_string)
    return dict(zip(physical_paths(schema), [path for path, _ in walk_fields(schema)], strict=True))


def _paths(metadata: Metadata) -> set[Path]:
    return {path for path, _ in walk_fields(parse_schema(metadata.schema_string))}


def _same_kind(before: DataType, now: DataType) -> bool:
    """Return whether a column keeps its id: if its type is the same, ignoring fields of structs, which have their own ids."""
    match before, now:
        case StructType(), StructType():
            return True
        case ArrayType(), ArrayType():
            return _same_kind(before.element_type, now.element_type)
        case MapType(), MapType():
            return _same_kind(before.key_type, now.key_type) and _same_kind(before.value_type, now.value_type)
    return before == now
