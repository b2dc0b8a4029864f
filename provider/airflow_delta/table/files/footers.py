"""Schema and null counts of Parquet files, from their footers.

The footers of files of the table, wherever they lie, and whether they have the rows that the log counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import TableRules, Type, fields_by_name, nullable, same_type, type_name
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    RowCountMismatchException,
    SchemaMismatchException,
    StagedFileException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.data_files.footers import footers_progress, leaf_paths, read_footers
from airflow_delta.log.features.column_mapping import physical_schema
from airflow_delta.log.features.schema_merge import merge_schema, write_casts
from airflow_delta.log.schema.types import StructType, to_json, type_to_json
from airflow_delta.log.statistics.statistics import num_records
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.factory import sibling
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.parquet_schema import schema_of_footer

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore


def readable_schema(footer: pq.FileMetaData, path: str, *, table: str) -> StructType:
    """Return the schema of a Parquet file as Spark reads it.

    :raises DeltaAnalysisException: if a column has a type that Spark cannot read, or Delta not store; names file and column.
    """
    try:
        return schema_of_footer(footer)
    except DeltaAnalysisException as error:
        raise DeltaAnalysisException(f"{path} of {table} cannot be part of a table: {error.message}", table=table) from error


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


def bounds_of_column(footer: pq.FileMetaData, name: str) -> tuple[int, int] | None:
    """Return the lowest and highest value of a top-level integer column, ``None`` if the footer lacks them."""
    index = next((i for i, path in enumerate(leaf_paths(footer)) if path == (name,)), None)
    if index is None:
        return None
    low: list[int] = []
    high: list[int] = []
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        low.append(int(statistics.min_raw))
        high.append(int(statistics.max_raw))
    return (min(low), max(high)) if low else None


def footer_null_counts(footer: pq.FileMetaData, names: Sequence[str], variants: Collection[str] = ()) -> dict[str, int]:
    """Return the number of nulls in top-level columns: -1 for a column that the file lacks or has no count for.

    :param variants: the names of those that are variants, which are groups in a file; other groups are not counted.
    """
    counts: dict[str, int] = {}
    leaves: dict[str, list[int]] = {}
    paths = leaf_paths(footer)
    for index, path in enumerate(paths):
        leaves.setdefault(path[0].lower(), []).append(index)
    for name in names:
        indexes = leaves.get(name.lower())
        if indexes is None:
            counts[name] = -1
        elif len(indexes) == 1 and len(paths[indexes[0]]) == 1:
            counts[name] = _nulls_of_leaf(footer, indexes[0])
        elif name in variants:  # each has metadata, unless it is null
            metadata = next((i for i in indexes if paths[i][1:] == ("metadata",)), None)
            counts[name] = -1 if metadata is None else _nulls_of_leaf(footer, metadata)
    return counts


def _nulls_of_leaf(footer: pq.FileMetaData, index: int) -> int:
    if footer.schema.column(index).max_definition_level == 0:
        return 0
    total = 0
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_null_count:
            return -1
        total += statistics.null_count
    return total


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


CONCURRENCY = 16  # footers that are read at a time
FILES_AT_ONCE = 4096  # files whose footers are in memory at a time

_AUTHORITY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]+)/(.*)", re.DOTALL)


def check_row_counts(store: LogStore, files: Sequence[AddFile], *, operation: str, version: int) -> None:
    """Check that files have as many rows as the log says, before they are replaced by other files or get a deletion vector.

    ``numRecords`` is a claim of whoever wrote the file. If it is too small, a file whose rows are only partly selected would
    look as if all of them were. Files without ``numRecords`` claim nothing, and are not opened.

    :param files: the files that are rewritten.
    :raises RowCountMismatchException: if a file has another number of rows.
    :raises StagedFileException: if a file is gone, or is not a Parquet file.
    """
    counted = [file for file in files if num_records(file.stats) is not None]
    for file, footer in table_footers(store, counted, f"{operation} cannot tell how many rows it has"):
        claimed = num_records(file.stats)
        if footer.num_rows != claimed:
            raise store.error(
                RowCountMismatchException,
                f"{file.path} of table {store.root} version {version} has {footer.num_rows} rows by its Parquet footer, and "
                f"{claimed} by the log (numRecords), so {operation} might lose rows. Nothing was committed. Put the statistics "
                "right with DeltaComputeStatisticsOperator (all, not only_missing), and run it again.",
                version=version,
            )


def table_footers(store: LogStore, files: Sequence[AddFile], problem: str) -> Iterator[tuple[AddFile, pq.FileMetaData]]:
    """Yield files of the table with their footers; those of a shallow clone lie outside of the table.

    :param problem: what fails without a footer, for the error.
    :raises StagedFileException: if a file is gone, or is not a Parquet file.
    """
    with footers_progress(store, len(files)) as progress:
        for start in range(0, len(files), FILES_AT_ONCE):
            groups: dict[str | None, list[tuple[AddFile, FileStatus]]] = {}
            for file in files[start : start + FILES_AT_ONCE]:
                elsewhere, status = _status(store, file)
                groups.setdefault(elsewhere, []).append((file, status))
            for root, group in groups.items():
                there = store if root is None else sibling(store, root)
                try:
                    footers = read_footers(there, [status for _file, status in group], CONCURRENCY, progress)
                except StagedFileException as error:
                    raise store.error(
                        StagedFileException,
                        f"{error.message.removesuffix(' Run the stage that wrote it again.')} {problem} (table {store.root}); "
                        "restore the file, or the table to a version without it.",
                    ) from error
                yield from ((file, footer) for (file, _status_), footer in zip(group, footers, strict=True))


def _status(store: LogStore, file: AddFile) -> tuple[str | None, FileStatus]:
    """Return the root below which a file lies, ``None`` for that of the table, and its status there."""
    path = canonical_path(file.path)
    if match := _AUTHORITY.fullmatch(path):
        root, path = f"{match[1]}://{match[2]}", match[3]
    elif path.startswith(("/", "file:/")):
        bucket = _AUTHORITY.match(f"{store.root}/")
        root = "/" if bucket is None or path.startswith("file:") else f"{bucket[1]}://{bucket[2]}"
        path = path.removeprefix("file:").lstrip("/")
    else:
        return None, FileStatus(unquote(path), file.size, file.modification_time)
    return root, FileStatus(unquote(path), file.size, file.modification_time)
