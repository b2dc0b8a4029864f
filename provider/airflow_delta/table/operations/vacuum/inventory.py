"""VACUUM USING INVENTORY: the files to look at come from a list, made by the store itself for instance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as types

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.table_paths import relative_key
from airflow_delta.table.read.read_table import Rows

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

_COLUMNS = {"path": types.is_string, "length": types.is_int64, "isDir": types.is_boolean, "modificationTime": types.is_int64}
_ABSOLUTE = lazy_pattern(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


def files_in_inventory(log: DeltaLog, inventory: pa.Table | Rows) -> list[FileStatus]:
    """Return the files of a table that an inventory lists; what lies elsewhere, and directories, are left out.

    :param inventory: rows of ``path`` (string: an absolute path or URI, not URL-encoded), ``length`` (long), ``isDir`` (boolean)
        and ``modificationTime`` (long: milliseconds since the epoch).
    :raises DeltaAnalysisException: if it has other columns, or a row is not of that kind.
    """
    kinds = {field.name: field.type for field in inventory.schema}
    if kinds.keys() != _COLUMNS.keys() or not all(test(kinds[name]) for name, test in _COLUMNS.items()):
        raise log.error(
            DeltaAnalysisException,
            f"The inventory for VACUUM of table {log.uri} has the columns "
            f"{', '.join(f'{name} {kind}' for name, kind in kinds.items())}, expected path string, length long, isDir boolean, "
            "modificationTime long (DELTA_INVALID_INVENTORY_SCHEMA).",
        )
    batches = inventory.to_batches() if isinstance(inventory, pa.Table) else inventory
    return list(_files(log, batches))


def _files(log: DeltaLog, batches: Iterable[pa.RecordBatch]) -> Iterator[FileStatus]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in _COLUMNS)
        for path, length, is_directory, time in zip(*columns, strict=True):
            if path is None or length is None or is_directory is None or time is None or not _ABSOLUTE.match(path):
                raise log.error(
                    DeltaAnalysisException,
                    f"The inventory for VACUUM of table {log.uri} has the row {(path, length, is_directory, time)}; it needs an "
                    "absolute path or URI, and a value in each column.",
                )
            key = None if is_directory else relative_key(log.store, path)
            if key:
                yield FileStatus(key, length, time)
