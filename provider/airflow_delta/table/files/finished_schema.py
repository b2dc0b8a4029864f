"""The schema of Parquet files that another job finished, as the columns of the table that they are staged into."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import Type, fields_by_name, nullable, same_type, type_name
from airflow_delta.contract.table_rules import TableRules
from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaMismatchException, StagedFileException
from airflow_delta.log.features.column_mapping import physical_schema
from airflow_delta.log.features.schema_merge import merge_schema, write_casts
from airflow_delta.log.schema.types import StructType, to_json, type_to_json
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.parquet_schema import readable_schema

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog


def check_each_column_once(schema: StructType, file: str) -> None:
    """Check that no column, and no field of a struct, occurs twice."""
    _check_spelling(type_to_json(schema), "", "", file, "")


def schema_of_files(
    log: DeltaLog,
    files: Sequence[tuple[FileStatus, pq.FileMetaData]],
    known: TableDefinition | None,
    partition_columns: Sequence[str],
) -> str:
    """Return the schema of Parquet files and their partition columns in Spark's JSON form; without files, that of the table.

    :param known: the table, whose columns the files have; ``None`` if they decide them.
    :raises DeltaAnalysisException: if a column has a type that Spark cannot read.
    :raises SchemaMismatchException: if two files disagree on the type of a column, or a column is spelled in another way.
    :raises StagedFileException: if there is no file to learn the schema from.
    """
    known = known if known is not None else TableDefinition()
    table = known.struct
    if not files:
        if known.schema_string is None:
            raise log.error(
                StagedFileException,
                f"There are no Parquet files to create table {log.uri} from. Have the job write at least one, or give "
                "the start task "
                "the schema.",
            )
        return known.schema_string
    partitions = {name.lower() for name in partition_columns}
    merged: dict[str, Json] = {}
    origin: dict[str, str] = {}
    for status, footer in files:
        schema: Any = type_to_json(readable_schema(footer, status.path, table=log.uri))
        _check_spelling(schema, table, "", status.path, f"table {log.uri}")
        for field in schema["fields"]:
            key = field["name"].lower()
            if key in partitions:
                continue
            same = merged.setdefault(key, field)
            origin.setdefault(key, status.path)
            one, first = ({"type": "struct", "fields": [f]} for f in (field, same))
            _check_spelling(one, first, "", status.path, origin[key])
            if not same_type(same["type"], field["type"]):
                raise log.error(
                    SchemaMismatchException,
                    f"The staged files of table {log.uri} disagree on column {field['name']}: expected "
                    f"{type_name(same['type'])} as in "
                    f"{origin[key]}, got {type_name(field['type'])} in {status.path}.",
                )
    fields = list(merged.values())
    known_fields = fields_by_name(table)
    for name in partition_columns:
        known_field = known_fields.get(name.lower())
        data_type = "string" if known_field is None else known_field["type"]
        fields.append({"name": name, "type": data_type, "nullable": True, "metadata": {}})
    return json.dumps(nullable({"type": "struct", "fields": fields}), separators=(",", ":"), ensure_ascii=False)


def mapped_schema_of_files(
    log: DeltaLog,
    table: TableDefinition,
    files: Sequence[tuple[FileStatus, pq.FileMetaData]],
    known: TableDefinition | None,
    partition_columns: Sequence[str],
    rules: TableRules,
) -> str:
    """Return the schema, under logical names, of Parquet files that have the physical names of a table with column mapping.

    :raises DeltaIllegalArgumentException: if the files cannot have been written with names and ids that the table knows.
    :raises SchemaMismatchException: if a file has a column that is not a physical name of the table.
    """
    if known is None or rules.column_mapping != "name":
        raise log.error(
            DeltaIllegalArgumentException,
            f"Finished files cannot be staged into table {log.uri} version {table.version}: with column mapping mode "
            f"{rules.column_mapping!r}, columns get names and ids before files are written. Stage the rows with "
            "@task.delta_stage or DeltaStageSparkSubmitOperator, which use them.",
            version=table.version,
        )
    logical = known.schema
    physical = physical_schema(logical, rules.column_mapping)
    partitions = [field.physical_name for field in logical.select(partition_columns)]
    stored = schema_of_files(log, files, TableDefinition.of_rows(to_json(physical)), partitions)
    found = TableDefinition.of_rows(stored).schema
    merge_schema(physical, found, merge=False, table=log.uri, version=table.version)
    if casts := write_casts(physical, found):
        listed = "; ".join(f"column {cast.column}: expected {cast.table_type}, got {cast.data_type}" for cast in casts)
        raise log.error(
            SchemaMismatchException,
            f"The staged files do not have the types of table {log.uri} version {table.version}: {listed}. "
            "Have the job cast them.",
            version=table.version,
        )
    return to_json(StructType(tuple(f for f in logical.fields if found.find(f.physical_name) is not None)))


def _check_spelling(data: Type, known: Type, path: str, file: str, where: str) -> None:
    """Check that no name differs from a known one only in case: not every reader finds ``Id`` in a file with ``id``.

    :raises SchemaMismatchException: if one does, or the file has two such columns.
    """
    if isinstance(data, str):
        return
    same_kind = not isinstance(known, str) and known["type"] == data["type"]
    if data["type"] != "struct":
        for part, name in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
            if part in data:
                _check_spelling(data[part], known[part] if same_kind else "", f"{path}[{name}]", file, where)
        return
    seen: dict[str, str] = {}
    theirs = {} if isinstance(known, str) or not same_kind else fields_by_name(known)
    for field in data["fields"]:
        name, prefix = field["name"], f"{path}." if path else ""
        if (other := seen.get(name.lower())) is not None:
            twice = f"column {prefix}{name} twice"
            differ = f"columns {prefix}{other} and {prefix}{name}, which only differ in case"
            raise SchemaMismatchException(f"{file} has the {twice if other == name else differ}.")
        seen[name.lower()] = name
        same = theirs.get(name.lower())
        if same is not None and same["name"] != name:
            raise SchemaMismatchException(
                f"{file} has a column {prefix}{name}, which {where} calls {prefix}{same['name']}: case-sensitive readers would "
                f"read nulls. Have the job write {prefix}{same['name']}."
            )
        _check_spelling(field["type"], "" if same is None else same["type"], f"{prefix}{name}", file, where)
