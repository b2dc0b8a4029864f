"""The schema of a directory of Parquet files: the columns of all files, and those that the directories are named after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_delta.contract.sql_types import parse_sql_type
from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.log.schema.partition_values import is_partition_type
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType, nullable_schema, parse_type
from airflow_delta.log.table_definition import TableDefinition

# Parquet stores them the same way, so a file with the narrower type can be read as the wider one (Delta's SchemaMergingUtils).
_STORED_ALIKE = ("byte", "short", "integer")


class MergedSchema:
    """The schema of several files: all their columns, each with the type that all files agree on.

    Names are compared ignoring case; the first spelling is kept.

    :param table: location of the files, for errors.
    """

    def __init__(self, table: str) -> None:
        self.schema = StructType()
        self._table = table
        self._seen: set[StructType] = set()
        self._origin: dict[tuple[str, ...], str] = {}

    def add(self, schema: StructType, file: str) -> None:
        """Add the columns of a file."""
        if schema in self._seen:
            return
        self.schema = self._struct(self.schema, schema, (), file)
        self._seen.add(schema)

    def _struct(self, known: StructType, new: StructType, path: tuple[str, ...], file: str) -> StructType:
        fields = list(known.fields)
        positions = {f.name.lower(): i for i, f in enumerate(fields)}
        for field in new.fields:
            folded = field.name.lower()
            here = (*path, folded)
            if folded not in positions:
                positions[folded] = len(fields)
                fields.append(field)
                self._note(field.data_type, here, file)
                continue
            same = fields[positions[folded]]
            fields[positions[folded]] = replace(same, data_type=self._merge(same.data_type, field.data_type, here, file))
        return StructType(tuple(fields))

    def _note(self, data_type: DataType, path: tuple[str, ...], file: str) -> None:
        """Note which file a column, with everything inside, comes from."""
        self._origin[path] = file
        match data_type:
            case StructType(fields):
                for field in fields:
                    self._note(field.data_type, (*path, field.name.lower()), file)
            case ArrayType(element, _):
                self._note(element, path, file)
            case MapType(key, value, _):
                self._note(key, path, file)
                self._note(value, path, file)

    def _merge(self, known: DataType, new: DataType, path: tuple[str, ...], file: str) -> DataType:
        if known == new:
            return known
        match known, new:
            case StructType(), StructType():
                return self._struct(known, new, path, file)
            case ArrayType(), ArrayType():
                return ArrayType(self._merge(known.element_type, new.element_type, path, file))
            case MapType(), MapType():
                key = self._merge(known.key_type, new.key_type, path, file)
                return MapType(key, self._merge(known.value_type, new.value_type, path, file))
        if known.name in _STORED_ALIKE and new.name in _STORED_ALIKE:
            if _STORED_ALIKE.index(new.name) > _STORED_ALIKE.index(known.name):
                self._origin[path] = file
                return new
            return known
        raise SchemaMismatchException(
            f"The Parquet files of {self._table} disagree on column {'.'.join(path)}: it is {known} in {self._origin[path]} and "
            f"{new} in {file} (DELTA_FAILED_TO_MERGE_FIELDS). Rewrite one of them, or move it out of the directory.",
            table=self._table,
        )


def parse_partition_schema(given: str | Mapping[str, str] | None) -> StructType:
    """Return the partition columns, given as SQL (``p STRING, q DATE``), a schema in JSON form, or types by name.

    :raises DeltaAnalysisException: if the value is none of these, or a type cannot partition a table.
    """
    if not given:
        return StructType()
    if isinstance(given, Mapping):
        schema = StructType(tuple(StructField(name, parse_type(parse_sql_type(kind))) for name, kind in given.items()))
    elif given.lstrip().startswith("{"):
        schema = TableDefinition.of_rows(given).schema
    else:
        parsed = parse_type(parse_sql_type(f"STRUCT<{given}>"))
        schema = parsed if isinstance(parsed, StructType) else StructType()
    for field in schema.fields:
        if not is_partition_type(field.data_type):
            raise DeltaAnalysisException(
                f"Column {field.name} of type {field.data_type} cannot partition a table (DELTA_INVALID_PARTITION_COLUMN_TYPE)."
            )
    return nullable_schema(schema)


def with_partition_columns(data: StructType, partitions: StructType) -> StructType:
    """Return the schema of a table: partition columns that files also hold keep their place, the others come last."""
    fields = [partitions.find(f.name) or f for f in data.fields]
    stored = {f.name.lower() for f in data.fields}
    return StructType((*fields, *(f for f in partitions.fields if f.name.lower() not in stored)))
