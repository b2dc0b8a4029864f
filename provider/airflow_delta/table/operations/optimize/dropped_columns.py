"""Files that still hold columns, or fields, which their table no longer has: the footers tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.types as types

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.data_files.footers import read_footers
from airflow_delta.log.schema.types import ArrayType, MapType, StructType
from airflow_delta.log.storage.base import FileStatus

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.schema.types import DataType

_LOCAL = lazy_pattern(r"^file:/+")


def files_with_dropped_columns(
    log: DeltaLog, files: Sequence[AddFile], schema: StructType, *, mapped: bool, known: Sequence[str] = ()
) -> set[str]:
    """Return the paths of files whose footers have columns, or fields, that the table does not have.

    :param schema: the table's.
    :param mapped: files have physical names.
    :param known: other columns that files may have: those of row ids.
    """
    allowed = {name.lower() for name in known}

    def has_dropped(stored: pa.Schema) -> bool:
        extra = [stored.field(i) for i in range(len(stored)) if stored.field(i).name.lower() not in allowed]
        return _has_more(extra, schema, mapped=mapped)

    return {file.path for file in files_with(log, files, has_dropped)}


def files_with(log: DeltaLog, files: Sequence[AddFile], test: Callable[[pa.Schema], bool]) -> list[AddFile]:
    """Return the files whose schemas, in their footers, pass a test."""
    statuses = [
        FileStatus(path=_LOCAL.sub("/", unquote(file.path)), size=file.size, modification_time=file.modification_time)
        for file in files
    ]
    footers = read_footers(log.store, statuses, 16)
    return [file for file, footer in zip(files, footers, strict=True) if test(footer.schema.to_arrow_schema())]


def _has_more(fields: Sequence[pa.Field], schema: StructType, *, mapped: bool) -> bool:
    names = {(field.physical_name if mapped else field.name).lower(): field.data_type for field in schema.fields}
    return any(
        field.name.lower() not in names or _differs(field.type, names[field.name.lower()], mapped=mapped) for field in fields
    )


def _differs(stored: pa.DataType, data_type: DataType, *, mapped: bool) -> bool:
    if isinstance(data_type, StructType) and types.is_struct(stored):
        return _has_more([stored.field(i) for i in range(stored.num_fields)], data_type, mapped=mapped)
    if isinstance(data_type, ArrayType) and (types.is_list(stored) or types.is_large_list(stored)):
        return _differs(stored.value_type, data_type.element_type, mapped=mapped)
    if isinstance(data_type, MapType) and types.is_map(stored):
        return _differs(stored.key_type, data_type.key_type, mapped=mapped) or _differs(
            stored.item_type, data_type.value_type, mapped=mapped
        )
    return False
