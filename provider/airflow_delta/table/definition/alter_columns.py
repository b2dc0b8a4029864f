"""ALTER TABLE of columns: ADD, CHANGE, RENAME, DROP and REPLACE COLUMNS (Delta's ``alterDeltaTableCommands``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.changes import AddColumns, ChangeColumn, Column, DropColumns, RenameColumn, ReplaceColumns
from airflow_delta.contract.char_lengths import DECLARED
from airflow_delta.contract.delta_names import PHYSICAL_NAME
from airflow_delta.contract.sql_types import parse_column_path, parse_sql_type
from airflow_delta.log.features.column_mapping import mode
from airflow_delta.log.features.constraints import CURRENT_DEFAULT, has_char_varchar, may_change_length
from airflow_delta.log.features.schema_changes import rename_column, without_columns
from airflow_delta.log.schema.types import STRING, ArrayType, DataType, MapType, StructField, StructType, parse_type, to_json
from airflow_delta.log.schema.walk import Path, dotted, folded, transform_fields, walk_fields
from airflow_delta.table.definition.altered_table import AlteredTable, column_document
from airflow_delta.table.definition.column_paths import edited, in_container, is_not_null, missing_column, position_of, struct_at
from airflow_delta.table.definition.type_changes import check_no_dependents, replaced_type
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Metadata


def add_columns(table: AlteredTable, change: AddColumns) -> AlteredTable:
    """Add columns at any depth; existing rows have null in them."""
    schema, documents = table.schema, []
    at_the_end: dict[Path, list[tuple[Column, StructField]]] = {}
    for column in change.columns:
        path = parse_column_path(column.name)
        new = _new_field(table, column, path)
        if not new.nullable or any(not field.nullable for _, field in walk_fields(new.data_type)):
            raise table.refuse(
                f"Column {column.name} cannot be added as NOT NULL: existing rows have no value for it "
                "(DELTA_OPERATION_NOT_ALLOWED: NOT NULL in ALTER TABLE ADD COLUMNS). Add it, fill it, then set it NOT NULL"
            )
        document: dict[str, Any] = {"column": column_document(column.name, new)}
        if column.position is not None:
            document["position"] = column.position
        documents.append(document)

        if column.position is None:  # all of a struct at once
            at_the_end.setdefault(path[:-1], []).append((column, new))
            continue
        schema = _with_appended(table, schema, at_the_end)
        at_the_end = {}

        def insert(struct: StructType, new: StructField = new, column: Column = column) -> StructType:
            _refuse_known(table, struct, [(column, new)])
            at = position_of(table, struct.fields, column.position or "")
            return StructType((*struct.fields[:at], new, *struct.fields[at:]))

        schema = edited(table, schema, path[:-1], insert)
    schema = _with_appended(table, schema, at_the_end)
    metadata = _with_schema(table, schema, new_names=True)
    return table.with_metadata(metadata, Operation.add_columns(documents))


def _with_appended(
    table: AlteredTable, schema: StructType, columns: Mapping[Path, Sequence[tuple[Column, StructField]]]
) -> StructType:
    """Return the schema with columns at the end of structs, by the struct's path."""
    for path, added in columns.items():

        def append(struct: StructType, added: Sequence[tuple[Column, StructField]] = added) -> StructType:
            _refuse_known(table, struct, added)
            return StructType((*struct.fields, *(new for _, new in added)))

        schema = edited(table, schema, path, append)
    return schema


def _refuse_known(table: AlteredTable, struct: StructType, added: Sequence[tuple[Column, StructField]]) -> None:
    known = {field.name.lower() for field in struct.fields}
    for column, new in added:
        if new.name.lower() in known:
            raise table.refuse(f"Column {column.name} is already in the schema (FIELD_ALREADY_EXISTS)")
        known.add(new.name.lower())


def change_column(table: AlteredTable, change: ChangeColumn) -> AlteredTable:
    """Change type, comment, nullability, default value or position of a column."""
    path = parse_column_path(change.column)
    if change.nullable is False and in_container(table.schema, path):
        raise table.refuse(
            f"{change.column} is in a list or map, where no writer checks NOT NULL (DELTA_NESTED_NOT_NULL_CONSTRAINT)"
        )
    changed: list[StructField] = []

    def edit(struct: StructType) -> StructType:
        old = struct.find(path[-1])
        if old is None:
            raise missing_column(table, path)
        new = _changed(table, old, change, path)
        changed.append(new)
        rest = tuple(field for field in struct.fields if field is not old)
        at = struct.fields.index(old) if change.position is None else position_of(table, rest, change.position)
        return StructType((*rest[:at], new, *rest[at:]))

    if path[-1].lower() in ("element", "key", "value") and struct_at(table.schema, path[:-1]) is None:
        schema = _edited_part(table, change, path, changed)
    else:
        schema = edited(table, table.schema, path[:-1], edit)
    metadata = _with_schema(table, schema)
    operation = Operation.change_column(column_document(change.column, changed[0]), change.position)
    altered = table.with_metadata(metadata, operation)
    if change.nullable is False and not is_not_null(table.schema, path):
        altered = replace(altered, not_null=(*altered.not_null, path), reads_table=True)
    elif change.nullable:  # rows of later stages may hold nulls: setting it again needs another look at them
        altered = replace(altered, not_null=tuple(known for known in altered.not_null if folded(known) != folded(path)))
    return altered


def rename(table: AlteredTable, change: RenameColumn) -> AlteredTable:
    """Rename a column; files keep its physical name."""
    path = parse_column_path(change.column)
    if any(folded(checked[: len(path)]) == folded(path) for checked in table.not_null):
        raise table.refuse(f"{change.column} cannot be renamed in the transaction that sets it NOT NULL. Rename it first")
    metadata = rename_column(table.metadata, path, change.new_name)
    operation = Operation.rename_column(change.column, dotted((*path[:-1], change.new_name)))
    return table.with_metadata(metadata, operation)


def drop_columns(table: AlteredTable, change: DropColumns) -> AlteredTable:
    """Drop columns; files keep their values, which are no longer read."""
    dropped, paths = [], []
    known = {folded(path) for path, _ in walk_fields(table.schema)}
    for column in change.columns:
        path = parse_column_path(column)
        if change.if_exists and folded(path) not in known:
            continue
        paths.append(path)
        dropped.append(column)
    return table.with_metadata(without_columns(table.metadata, paths), Operation.drop_columns(dropped))


def replace_columns(table: AlteredTable, change: ReplaceColumns) -> AlteredTable:
    """Replace the columns: reorder, widen or comment existing ones, and add new ones."""
    given = [_new_field(table, column, parse_column_path(column.name)) for column in change.columns]
    schema = replaced_type(table, table.schema, StructType(tuple(given)), ())
    if not isinstance(schema, StructType):
        raise table.refuse("REPLACE COLUMNS needs columns")
    operation = Operation.replace_columns([column_document(dotted((field.name,)), field) for field in given])
    return table.with_metadata(_with_schema(table, schema, new_names=True), operation)


# -- parts ----------------------------------------------------------------------------------------------------------------------


def _new_field(table: AlteredTable, column: Column, path: Path) -> StructField:
    given = column.data_type
    data_type = parse_type(parse_sql_type(given) if isinstance(given, str) else given)
    metadata = dict(column.metadata)
    given_keys = {key for known in (metadata, *(f.metadata for _, f in walk_fields(data_type))) for key in known}
    if own := sorted(key for key in given_keys if key.lower().startswith(("delta.", "parquet.field."))):
        raise table.refuse(
            f"The metadata of column {column.name} hold {', '.join(own)}, which only Delta itself sets: with the "
            "physical name of another column it would show the values of that one. Remove it"
        )
    if column.comment is not None:
        metadata["comment"] = column.comment
    return StructField(path[-1], data_type, column.nullable, metadata)


def _edited_part(table: AlteredTable, change: ChangeColumn, path: Path, changed: list[StructField]) -> StructType:
    """Return the schema with the type of a list's elements, or of a map's keys or values, widened."""
    if change != ChangeColumn(change.column, change.data_type):
        raise table.refuse(f"Only the type of {change.column} can be changed")
    container, part = path[:-1], path[-1].lower()

    def edit(struct: StructType) -> StructType:
        old = struct.find(container[-1])
        if old is None:
            raise missing_column(table, path)
        return StructType(tuple(replace(f, data_type=widen(f.data_type)) if f is old else f for f in struct.fields))

    def widen(data_type: DataType) -> DataType:
        match data_type, part:
            case ArrayType(element, nulls), "element":
                return ArrayType(to(element, nulls), nulls)
            case MapType(key, value, nulls), "key":
                return MapType(to(key, False), value, nulls)
            case MapType(key, value, nulls), "value":
                return MapType(key, to(value, nulls), nulls)
        raise missing_column(table, path)

    def to(old: DataType, nullable: bool) -> DataType:
        field = _changed(table, StructField(path[-1], old, nullable), change, path)
        changed.append(field)
        return field.data_type

    return edited(table, table.schema, container[:-1], edit)


def _changed(table: AlteredTable, old: StructField, change: ChangeColumn, path: Path) -> StructField:
    metadata = dict(old.metadata)
    if change.comment is not None:
        metadata["comment"] = change.comment
    if change.default is not None:
        if len(path) > 1:
            raise table.refuse(f"Only top-level columns have default values, {change.column} is a field of one")
        metadata[CURRENT_DEFAULT] = change.default
    if change.drop_default:
        metadata.pop(CURRENT_DEFAULT, None)
    data_type = old.data_type
    if change.data_type is not None:
        given = change.data_type
        wanted = parse_type(parse_sql_type(given) if isinstance(given, str) else given)
        if old.data_type == STRING and len(path) == 1:
            wanted = _with_length(table, metadata, wanted, path)
        data_type = replaced_type(table, old.data_type, wanted, path)
        if data_type != old.data_type:
            check_no_dependents(table, path)
    return StructField(old.name, data_type, old.nullable if change.nullable is None else change.nullable, metadata)


def _with_length(table: AlteredTable, metadata: dict[str, Any], wanted: DataType, path: Path) -> DataType:
    """Return the type to store: string for a ``char(n)`` or ``varchar(n)``, whose length goes into the metadata of the column.

    :raises DeltaAnalysisException: if texts of the column may be too long for it.
    """
    if wanted != STRING and not has_char_varchar(wanted):
        return wanted
    declared, length = str(metadata.pop(DECLARED, STRING)).strip().lower(), str(wanted)
    if not may_change_length(declared, length):
        raise table.refuse(
            f"{dotted(path)} cannot change from {declared} to {length} (NOT_SUPPORTED_CHANGE_COLUMN): values that it holds "
            "may not fit. Overwrite the table with overwrite_schema"
        )
    if wanted != STRING:
        metadata[DECLARED] = length
    return STRING


def _with_schema(table: AlteredTable, schema: StructType, *, new_names: bool = False) -> Metadata:
    """Return the metadata with another schema.

    :param new_names: give fields without a physical name a reproducible one.
    """
    if new_names and mode(table.metadata.configuration) != "none":

        def named(path: Path, field: StructField) -> StructField:
            if PHYSICAL_NAME in field.metadata:
                return field
            return replace(field, metadata={**field.metadata, PHYSICAL_NAME: table.physical_name(path)})

        schema = transform_fields(schema, named)
    return msgspec.structs.replace(table.metadata, schema_string=to_json(schema))


COLUMN_CHANGES: Mapping[type, Callable[[AlteredTable, Any], AlteredTable]] = {
    AddColumns: add_columns,
    ChangeColumn: change_column,
    RenameColumn: rename,
    DropColumns: drop_columns,
    ReplaceColumns: replace_columns,
}
