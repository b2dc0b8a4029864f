"""Which types columns may change to without rewriting files (Delta's ``canChangeDataType``)."""

from __future__ import annotations

from dataclasses import replace

from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.features.schema_changes import dependents
from airflow_delta.log.features.type_widening import may_change_type
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructType
from airflow_delta.log.schema.walk import Path, dotted
from airflow_delta.table.definition.altered_table import AlteredTable


def check_no_dependents(table: AlteredTable, path: Path) -> None:
    """Check that no constraint or generated column refers to a column whose type is to change.

    :raises DeltaAnalysisException: if one refers to it.
    """
    for name, text, is_generated in dependents(table.metadata, path[0]):
        what, error = ("constraint", "DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE")
        if is_generated:
            what, error = ("generated column", "DELTA_GENERATED_COLUMNS_DEPENDENT_COLUMN_CHANGE")
        raise table.refuse(f"The type of {dotted(path)} cannot be changed: the {what} {name} refers to it, {text} ({error})")


def replaced_type(table: AlteredTable, old: DataType, new: DataType, path: Path) -> DataType:
    """Return the new type with the field metadata of the old one (Delta's ``changeDataType``).

    :param path: of the column; empty for the whole schema.
    :raises DeltaAnalysisException: if columns of the old type cannot become the new one.
    """
    match old, new:
        case StructType(), StructType():
            return _replaced_struct(table, old, new, path)
        case ArrayType(element, nulls), ArrayType(to, may_null):
            _check_nulls(table, path, nulls, may_null)
            return ArrayType(replaced_type(table, element, to, (*path, "element")), may_null)
        case MapType(key, value, nulls), MapType(to_key, to_value, may_null):
            _check_nulls(table, path, nulls, may_null)
            key = replaced_type(table, key, to_key, (*path, "key"))
            return MapType(key, replaced_type(table, value, to_value, (*path, "value")), may_null)
    if old == new:
        return old
    if not may_change_type(old, new):
        raise table.refuse(
            f"{dotted(path)} cannot change from {old} to {new} (DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP): its files would "
            "have to be rewritten. Overwrite the table with overwrite_schema"
        )
    if not TableProperties(table.metadata.configuration).get("enableTypeWidening"):
        raise table.refuse(
            f"{dotted(path)} can only change from {old} to {new} in a table with type widening "
            "(DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP). Set delta.enableTypeWidening first"
        )
    return new


def _replaced_struct(table: AlteredTable, old: StructType, new: StructType, path: Path) -> StructType:
    known = {field.name.lower() for field in new.fields}
    gone = [field.name for field in old.fields if field.name.lower() not in known]
    added = [field.name for field in new.fields if old.find(field.name) is None]
    if gone and added:
        raise table.refuse(
            f"Columns {', '.join(gone)} would be dropped and {', '.join(added)} added, which may be meant as a rename "
            "(DELTA_AMBIGUOUS_DATA_TYPE_CHANGE). Rename, drop and add columns in separate changes"
        )
    if gone:
        raise table.refuse(
            f"Columns {', '.join(dotted((*path, name)) for name in gone)} would be dropped, which REPLACE COLUMNS does not do "
            "(DELTA_UNSUPPORTED_ALTER_TABLE_REPLACE_COL_OP). Use DropColumns"
        )
    fields = []
    for field in new.fields:
        here = (*path, field.name)
        before = old.find(field.name)
        if before is None:
            if not field.nullable:
                raise table.refuse(f"The new column {dotted(here)} cannot be NOT NULL")
            fields.append(field)
            continue
        _check_nulls(table, here, before.nullable, field.nullable)
        data_type = replaced_type(table, before.data_type, field.data_type, here)
        if data_type != before.data_type and not isinstance(data_type, StructType | ArrayType | MapType):
            check_no_dependents(table, here)
        fields.append(replace(field, data_type=data_type, metadata={**before.metadata, **field.metadata}))
    return StructType(tuple(fields))


def _check_nulls(table: AlteredTable, path: Path, before: bool, after: bool) -> None:
    if before and not after:
        raise table.refuse(f"{dotted(path)} is nullable and cannot become NOT NULL here. Use ChangeColumn(nullable=False)")
