"""Files of before a commit, read under the columns of after it.

A column is what has its physical name, at every depth (Delta protocol, "Column Mapping"): one that is renamed keeps its values,
and one that takes the name of a dropped one has none of its values.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import msgspec

from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import column_mapping
from airflow_delta.log.schema.types import PHYSICAL_NAME, ArrayType, DataType, MapType, StructField, StructType, to_json
from airflow_delta.log.table_definition import TableDefinition

_MODE = "delta.columnMapping.mode"


def with_later_columns(before: Metadata, after: Metadata) -> Metadata:
    """Return the metadata that read files of before a commit with the names and the order of the columns of after it.

    Columns have their types of before; new ones are null.
    """
    old, new = TableDefinition.of(before), TableDefinition.of(after)
    pairing = _Pairing(was_mapped=old.column_mapping != "none", is_mapped=new.column_mapping != "none")
    partitions = {name.lower() for name in before.partition_columns}
    pairs = pairing.pairs(old.schema, new.schema)
    mode = old.column_mapping if old.column_mapping != "none" else "name"
    return msgspec.structs.replace(
        before,
        schema_string=to_json(pairing.struct(old.schema, new.schema)),
        partition_columns=[field.name for field, was in pairs if was is not None and was.name.lower() in partitions],
        configuration={**before.configuration, _MODE: mode},
    )


class _Pairing:
    """Which field of before a commit is which after it.

    Without column mapping after the commit, fields are known by name, whatever its case.
    """

    def __init__(self, *, was_mapped: bool, is_mapped: bool) -> None:
        self._was_mapped = was_mapped
        self._is_mapped = is_mapped

    def pairs(self, old: StructType, new: StructType) -> list[tuple[StructField, StructField | None]]:
        """Return the fields of after, each with what it was."""
        if not self._is_mapped:
            known = {field.name.lower(): field for field in old}
            return [(field, known.get(field.name.lower())) for field in new]
        known = {self._in_files(field): field for field in old}
        return [(field, known.get(field.physical_name)) for field in new]

    def struct(self, old: StructType, new: StructType) -> StructType:
        return StructType(tuple(self._field(field, was) for field, was in self.pairs(old, new)))

    def _field(self, field: StructField, was: StructField | None) -> StructField:
        if was is None:  # a name that no file has, and no id
            return StructField(field.name, field.data_type, metadata={PHYSICAL_NAME: f"new-{uuid.uuid4()}"})
        metadata = {**was.metadata, PHYSICAL_NAME: self._in_files(was)}
        if not self._was_mapped:
            metadata.pop(column_mapping.ID, None)
        return replace(field, data_type=self._type(was.data_type, field.data_type), metadata=metadata)

    def _in_files(self, was: StructField) -> str:
        return was.physical_name if self._was_mapped else was.name

    def _type(self, old: DataType, new: DataType) -> DataType:
        match old, new:
            case StructType(), StructType():
                return self.struct(old, new)
            case ArrayType(), ArrayType():
                return replace(old, element_type=self._type(old.element_type, new.element_type))
            case MapType(), MapType():
                key, value = self._type(old.key_type, new.key_type), self._type(old.value_type, new.value_type)
                return replace(old, key_type=key, value_type=value)
        return old  # without column mapping, its fields have the names that they have in files
