"""Renaming and dropping columns of a table with column mapping, which changes metadata only (Delta's ALTER TABLE)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from airflow_delta.contract.delta_names import DATA_SKIPPING_STATS_COLUMNS
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log import heavy
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.constraints import check_constraints
from airflow_delta.log.features.generated_columns import generated_columns
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType, parse_schema, to_json
from airflow_delta.log.schema.walk import Path, dotted, folded, transform_fields


def rename_column(metadata: Metadata, path: Sequence[str], new_name: str) -> Metadata:
    """Return the metadata with a column renamed; it keeps its id and physical name.

    :param path: names from the top; ``element``, ``key`` and ``value`` are the parts of lists and maps.
    """
    known = parse_schema(metadata.schema_string)
    found = _checked(metadata, known, path, "renamed", "DELTA_UNSUPPORTED_RENAME_COLUMN")

    def rename(here: Path, field: StructField) -> StructField:
        return replace(field, name=new_name) if here == found else field

    schema = transform_fields(known, rename)
    renamed = (*found[:-1], new_name)
    partition_columns = [new_name if (name,) == found else name for name in metadata.partition_columns]
    return msgspec.structs.replace(
        metadata,
        schema_string=to_json(schema),
        partition_columns=partition_columns,
        configuration=_listed(metadata.configuration, found, renamed),
    )


def drop_column(metadata: Metadata, path: Sequence[str]) -> Metadata:
    """Return the metadata without a column; see :func:`without_columns`."""
    return without_columns(metadata, [path])


def without_columns(metadata: Metadata, paths: Iterable[Sequence[str]]) -> Metadata:
    """Return the metadata without some columns; their ids are never reused.

    :param paths: each as for :func:`rename_column`.
    :raises DeltaAnalysisException: if a column does not exist, the table has no column mapping, the column partitions the table
        or is the only one of its struct, or an expression refers to it.
    """
    schema: DataType = parse_schema(metadata.schema_string)
    configuration: Mapping[str, str] = metadata.configuration
    for path in paths:
        found = _checked(metadata, schema, path, "dropped", "DELTA_UNSUPPORTED_DROP_COLUMN")
        if len(found) == 1 and found[0] in metadata.partition_columns:
            raise DeltaAnalysisException(
                f"Column {dotted(found)} is a partition column and cannot be dropped (DELTA_UNSUPPORTED_DROP_PARTITION_COLUMN)."
            )
        schema = _without(schema, found)
        configuration = _listed(configuration, found, None)
    if not isinstance(schema, StructType):
        raise DeltaAnalysisException("A table without columns has none to drop")
    return msgspec.structs.replace(metadata, schema_string=to_json(schema), configuration=dict(configuration))


def dependents(metadata: Metadata, column: str, schema: StructType | None = None) -> Iterator[tuple[str, str, bool]]:
    """Yield name and expression of the constraints and generated columns that refer to a top-level column.

    The third value is ``True`` for a generated column.

    :param schema: instead of the schema of the metadata.
    :raises DeltaAnalysisException: if an expression does not parse, so that it might refer to the column.
    """
    generated = generated_columns(parse_schema(metadata.schema_string) if schema is None else schema)
    for expressions, is_generated in ((check_constraints(metadata), False), (generated, True)):
        for name, text in expressions.items():
            try:
                paths = list(heavy.references(tree_of(text)))
            except SqlSyntaxError as error:
                raise DeltaAnalysisException(
                    f"Column {column} cannot be changed: {name} may refer to it, since its expression {text} does not parse "
                    f"({error}). Use Delta Spark to change the column."
                ) from error
            if any(path[0].lower() == column.lower() for path in paths):
                yield name, text, is_generated


def _checked(metadata: Metadata, schema: DataType, path: Sequence[str], what: str, error_class: str) -> Path:
    """Return the path as the schema spells it."""
    if column_mapping.mode(metadata.configuration) == "none":
        raise DeltaAnalysisException(
            f"Column {dotted(tuple(path))} can only be {what} in a table with column mapping, since data files use its name "
            f"({error_class}). Set delta.columnMapping.mode to 'name' first."
        )
    found = _spelled(schema, tuple(path))
    if found is None or not isinstance(schema, StructType):
        known = known_names(dotted(tuple(path)), schema.names if isinstance(schema, StructType) else ())
        raise DeltaAnalysisException(f"There is no column {dotted(tuple(path))} (DELTA_COLUMN_NOT_FOUND_IN_SCHEMA). {known}.")
    for name, text, is_generated in dependents(metadata, found[0], schema):
        if is_generated:
            raise DeltaAnalysisException(
                f"Column {dotted(found)} cannot be {what}: the generated column {name} refers to it, {text} "
                "(DELTA_GENERATED_COLUMNS_DEPENDENT_COLUMN_CHANGE)."
            )
        raise DeltaAnalysisException(
            f"Column {dotted(found)} cannot be {what}: the constraint {name} refers to it, {text} "
            "(DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE). Drop the constraint first."
        )
    return found


def _spelled(data_type: DataType, path: Path) -> Path | None:
    if not path:
        return ()
    inner: DataType | None = None
    name = path[0]
    match data_type, name.lower():
        case StructType(), _:
            field = data_type.find(name)
            inner, name = (None, name) if field is None else (field.data_type, field.name)
        case ArrayType(), "element":
            inner = data_type.element_type
        case MapType(), "key":
            inner = data_type.key_type
        case MapType(), "value":
            inner = data_type.value_type
    rest = None if inner is None else _spelled(inner, path[1:])
    return None if rest is None else (name, *rest)


def _without(data_type: DataType, path: Path) -> DataType:
    match data_type:
        case StructType(fields) if len(path) == 1:
            if len(fields) == 1:
                raise DeltaAnalysisException(
                    f"Column {path[0]} is the only one of its struct and cannot be dropped (DELTA_UNSUPPORTED_DROP_COLUMN). "
                    "Drop the struct."
                )
            return StructType(tuple(field for field in fields if field.name != path[0]))
        case StructType(fields):
            return StructType(
                tuple(
                    replace(field, data_type=_without(field.data_type, path[1:])) if field.name == path[0] else field
                    for field in fields
                )
            )
        case ArrayType(element, contains_null):
            return ArrayType(_without(element, path[1:]), contains_null)
        case MapType(key, value, contains_null) if path[0] == "key":
            return MapType(_without(key, path[1:]), value, contains_null)
        case MapType(key, value, contains_null):
            return MapType(key, _without(value, path[1:]), contains_null)
    return data_type


def _listed(configuration: Mapping[str, str], old: Path, new: Path | None) -> dict[str, str]:
    """Return the properties with a column renamed in, or removed from, the list of columns with statistics."""
    text = configuration.get(DATA_SKIPPING_STATS_COLUMNS)
    if text is None:
        return dict(configuration)
    kept: list[Path] = []
    for path in heavy.parse_column_list(text):
        if folded(path[: len(old)]) != folded(old):
            kept.append(path)
        elif new is not None:
            kept.append((*new, *path[len(old) :]))
    return {**configuration, DATA_SKIPPING_STATS_COLUMNS: ",".join(dotted(path) for path in kept)}
