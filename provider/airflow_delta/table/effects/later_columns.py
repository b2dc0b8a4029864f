"""Which column of before a commit is which after it, and rows of before under the names of after.

A column is what has its physical name, at every depth (Delta protocol, "Column Mapping"): one that is renamed keeps its values.
Without column mapping after the commit, columns are known by name, whatever its case.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from airflow_delta.contract.delta_names import COLUMN_ID, COLUMN_MAPPING_MODE, PHYSICAL_NAME
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType, to_json
from airflow_delta.log.table_definition import TableDefinition

Pair = tuple[StructField | None, StructField | None]
"""A field before and after; ``None`` where it is not there."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Pairs the fields of before with those of after.

    :param by_name: one that is dropped is taken for a new one of its name, as it is to who reads the column by name.
    """

    was_mapped: bool
    is_mapped: bool
    by_name: bool

    @classmethod
    def of(cls, before: TableDefinition, after: TableDefinition, *, by_name: bool) -> Pairing:
        return cls(before.column_mapping != "none", after.column_mapping != "none", by_name)

    def pairs(self, old: StructType, new: StructType) -> list[Pair]:
        """Return the fields of after in their order, each with what it was, and then those that are gone."""
        name_of = self.name_in_files if self.is_mapped else _folded
        known = {name_of(field): field for field in old}
        found = [(known.pop(field.physical_name if self.is_mapped else _folded(field), None), field) for field in new]
        left = {_folded(field): field for field in known.values()} if self.by_name else {}
        pairs: list[Pair] = [(left.pop(_folded(field), None) if was is None else was, field) for was, field in found]
        kept = {_folded(was) for was, _ in pairs if was is not None}
        return [*pairs, *((field, None) for field in known.values() if _folded(field) not in kept)]

    def is_another(self, was: StructField, field: StructField) -> bool:
        """Return whether a field only has the name of one of before, and none of its values.

        A column of another type counts as the same one: a write that replaces the schema writes all its values again.
        """
        renamed = self.is_mapped and self.name_in_files(was) != field.physical_name
        return renamed and was.data_type == field.data_type

    def name_in_files(self, was: StructField) -> str:
        """Return the name that a column of before has in files."""
        return was.physical_name if self.was_mapped else was.name


def with_columns_of(before: Metadata, after: Metadata) -> Metadata:
    """Return the metadata to read files of before a commit with exactly the columns of after it; new ones are null.

    Columns have their types of before. A column that takes the name of a dropped one has none of its values.
    """
    return _renamed(before, after, exactly=True)


def under_later_names(before: Metadata, after: Metadata) -> Metadata:
    """Return the metadata to read files of before a commit under the names of after it.

    Columns have their types of before; new ones are not there, and dropped ones are, unless another one has taken the name.
    """
    return _renamed(before, after, exactly=False)


def _renamed(before: Metadata, after: Metadata, *, exactly: bool) -> Metadata:
    old, new = TableDefinition.of(before), TableDefinition.of(after)
    if before.schema_string == after.schema_string and old.column_mapping == new.column_mapping:
        return before
    reading = _Reading(Pairing.of(old, new, by_name=not exactly), exactly)
    fields = reading.fields(old.schema, new.schema)
    partitions = {name.lower() for name in before.partition_columns}
    mode = old.column_mapping if old.column_mapping != "none" else "name"
    return msgspec.structs.replace(
        before,
        schema_string=to_json(StructType(tuple(field for _, field in fields))),
        partition_columns=[field.name for was, field in fields if was is not None and was.name.lower() in partitions],
        configuration={**before.configuration, COLUMN_MAPPING_MODE: mode},
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """The fields to read files of before a commit with.

    :param exactly: those of after it; otherwise those that were there.
    """

    pairing: Pairing
    exactly: bool

    def fields(self, old: StructType, new: StructType) -> Sequence[tuple[StructField | None, StructField]]:
        """Return the fields, each with what it was."""
        taken = {_folded(field) for field in new}
        found: list[tuple[StructField | None, StructField]] = []
        for was, field in self.pairing.pairs(old, new):
            if was is not None and field is not None:
                found.append((was, self._field(was, field)))
            elif field is not None and self.exactly:  # a name that no file has, and no id
                found.append((None, StructField(field.name, field.data_type, metadata={PHYSICAL_NAME: f"new-{uuid.uuid4()}"})))
            elif was is not None and not self.exactly and _folded(was) not in taken:
                found.append((was, self._field(was, was)))
        return found

    def _field(self, was: StructField, field: StructField) -> StructField:
        metadata = {**was.metadata, PHYSICAL_NAME: self.pairing.name_in_files(was)}
        if not self.pairing.was_mapped:
            metadata.pop(COLUMN_ID, None)
        return replace(field, data_type=self._type(was.data_type, field.data_type), metadata=metadata)

    def _type(self, old: DataType, new: DataType) -> DataType:
        match old, new:
            case StructType(), StructType():
                return StructType(tuple(field for _, field in self.fields(old, new)))
            case ArrayType(), ArrayType():
                return replace(old, element_type=self._type(old.element_type, new.element_type))
            case MapType(), MapType():
                key, value = self._type(old.key_type, new.key_type), self._type(old.value_type, new.value_type)
                return replace(old, key_type=key, value_type=value)
        return old  # without column mapping, its fields have the names that they have in files


def _folded(field: StructField) -> str:
    return field.name.lower()
