"""Which files OPTIMIZE and REORG rewrite, and which ones together (Delta's ``OptimizeExecutor`` and its strategies).

Options of OPTIMIZE and REORG: what they refuse, and the file size of a table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import pyarrow.types as types

from airflow_delta.contract.files import partition_texts_of
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.data_files.footers import read_footers
from airflow_delta.log.features.clustering import indexed_leaves, parse_column_list
from airflow_delta.log.schema.types import ArrayType, DecimalType, MapType, StructType, dotted, folded, known_names
from airflow_delta.log.statistics.statistics import num_records
from airflow_delta.log.storage.base import FileStatus

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.actions.actions import DomainMetadata, Metadata
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import DataType
    from airflow_delta.log.table_definition import TableDefinition
    from airflow_delta.table.stage.view import TransactionView


DEFAULT_FILE_SIZE = 1 << 30
"""Bytes: smaller files are compacted into files of up to that size (``optimize.minFileSize``, ``maxFileSize``)."""

MAX_DELETED_ROWS_RATIO = 0.05
"""Fraction of deleted rows above which a file of any size is rewritten (``optimize.maxDeletedRowsRatio``)."""

T = TypeVar("T")
_LOCAL = re.compile(r"^file:/+")

Bin = tuple[AddFile, ...]
"""Files of one partition that are rewritten together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewriteSelection:
    """What an OPTIMIZE or a REORG is to rewrite.

    :param operation: ``OPTIMIZE`` or ``REORG``.
    :param parameters: as ``commitInfo`` records them.
    :param predicate: text of the predicate on partition columns, ``None`` for the whole table.
    :param bins: the files.
    :param max_file_size: bytes; the size to write.
    :param z_order_by: paths of the columns, for bins that are whole partitions.
    :param cluster_by: paths of the columns, for bins that become cubes of a clustered table.
    :param num_considered: files that the predicate selects.
    :param metadata: of the table after the rewrite, which is one commit then; ``None``: as it is.
    :param domains: metadata domains to commit with it.
    """

    operation: str
    parameters: Mapping[str, object]
    predicate: str | None
    bins: tuple[Bin, ...]
    max_file_size: int
    z_order_by: tuple[tuple[str, ...], ...] = ()
    cluster_by: tuple[tuple[str, ...], ...] = ()
    num_considered: int = 0
    metadata: Metadata | None = None
    domains: tuple[DomainMetadata, ...] = ()

    def num_outputs(self, files: Bin) -> int:
        """Return how many files a bin becomes."""
        ordered = self.z_order_by or self.cluster_by
        return max(1, sum(file.size for file in files) // self.max_file_size) if ordered else 1


def needs_compaction(file: AddFile, min_file_size: int, max_deleted_rows_ratio: float) -> bool:
    """Return whether a file is small or has too many deleted rows."""
    if file.size < min_file_size:
        return True
    if file.deletion_vector is None:
        return False
    rows = num_records(file.stats)
    # Unknown without statistics; the rewritten file will have them.
    return rows is None or (rows > 0 and file.deletion_vector.cardinality / rows > max_deleted_rows_ratio)


def has_deleted_rows(file: AddFile) -> bool:
    """Return whether a deletion vector marks rows of a file."""
    return file.deletion_vector is not None and file.deletion_vector.cardinality > 0


def values_in_new_files(view: TransactionView, values: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Return a file's partition values under the names that the files which replace it have for the columns."""
    before, after = view.definition, view.target
    if before.column_mapping == after.column_mapping:
        return values
    fields = before.schema.select(before.partition_columns).fields
    return {field.name: values.get(field.physical_name) for field in fields}


def bins_of(files: Sequence[AddFile], max_size: int | None, *, single: bool = False) -> tuple[Bin, ...]:
    """Return the files in bins of one partition each, filled from the smallest file up.

    :param max_size: bytes of a bin; ``None``: one bin per partition.
    :param single: keep bins of a single file.
    """
    partitions: dict[tuple[tuple[str, str | None], ...], list[AddFile]] = defaultdict(list)
    for file in files:
        partitions[tuple(sorted(partition_texts_of(file.partition_values).items()))].append(file)
    bins: list[Bin] = []
    for members in partitions.values():
        bins += [tuple(members)] if max_size is None else pack(sorted(members, key=file_size), file_size, max_size)
    return tuple(members for members in bins if single or len(members) > 1)


def batches_of(bins: Sequence[Bin], batch_size: int | None) -> list[tuple[Bin, ...]]:
    """Return the bins in batches that are committed one after the other.

    :param batch_size: bytes of input per batch; ``None``: one batch. A larger bin is its own batch.
    """

    def size(files: Bin) -> int:
        return sum(file.size for file in files)

    return [tuple(bins)] if batch_size is None else pack(sorted(bins, key=size), size, batch_size)


def pack(items: Sequence[T], size: Callable[[T], int], limit: int) -> list[tuple[T, ...]]:
    """Return the items in order, in groups that stay within the limit."""
    groups: list[list[T]] = []
    total = 0
    for item in items:
        if not groups or total + size(item) > limit:
            groups.append([])
            total = 0
        groups[-1].append(item)
        total += size(item)
    return [tuple(group) for group in groups]


def file_size(file: AddFile) -> int:
    """Return the bytes of a file, for :func:`pack`."""
    return file.size


# -- columns that the table no longer has -------------------------------------------------------------------------------------


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


_ORDERED = frozenset(
    {"byte", "short", "integer", "long", "float", "double", "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz"}
)


def partition_predicate(view: TransactionView, where: str | None, operation: str) -> Predicate | None:
    """Return the predicate, which may only name partition columns because files are rewritten whole.

    :raises DeltaAnalysisException: if it names other columns.
    """
    if where is None:
        return None
    predicate, table = view.predicate(where), view.target
    if not predicate.partition_only:
        columns = ", ".join(table.partition_columns) or "none"
        raise table.error(
            DeltaAnalysisException,
            f"The predicate of {operation} ({where}) may only name partition columns of table {table.table} version "
            f"{table.version} ({columns}). Leave out other columns, or the predicate.",
        )
    return predicate


def target_file_size(table: TableDefinition) -> int | None:
    """Return the property ``delta.targetFileSize`` in bytes: a number, or one with a unit such as ``128mb``.

    :raises DeltaIllegalArgumentException: if it is neither.
    """
    text = table.configuration.get("delta.targetFileSize")
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,19})\s*+([kmgt]?)i?b?", text.strip().lower(), re.ASCII)
    if match is None or int(match[1]) < 1:
        raise table.error(
            DeltaIllegalArgumentException,
            f"delta.targetFileSize of table {table.table} is {text!r}, expected bytes or a size such as 128mb. Correct "
            "it, or give max_file_size.",
        )
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]


def z_order_columns(view: TransactionView, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the columns to order by, as the schema spells them."""
    table, schema = view.target, view.schema
    indexed = {folded(leaf.path) for leaf in indexed_leaves(schema, table.partition_columns, table.properties)}

    def refuse(why: str) -> DeltaAnalysisException:
        return table.error(DeltaAnalysisException, f"ZORDER BY of table {table.table} version {table.version}: {why}")

    paths = []
    for path in (path for name in names for path in parse_column_list(name)):
        spelled: list[str] = []
        at: Any = schema
        for name in path:
            field = at.find(name) if isinstance(at, StructType) else None
            if field is None:
                known = known_names(name, at.names if isinstance(at, StructType) else [])
                raise refuse(f"there is no column {dotted(path)} (DELTA_ZORDERING_COLUMN_DOES_NOT_EXIST). {known}.")
            spelled.append(field.name)
            at = field.data_type
        if folded((spelled[0],)) in {folded((column,)) for column in table.partition_columns}:
            raise refuse(
                f"{dotted(path)} is a partition column, which already separates files (DELTA_ZORDERING_ON_PARTITION_COLUMN)."
            )
        if not isinstance(at, DecimalType) and at.name not in _ORDERED:
            raise refuse(f"column {dotted(path)} is of type {at}, which has no bounds to skip files by.")
        if folded(path) not in indexed:
            raise refuse(
                f"column {dotted(path)} has no statistics, so readers could not skip files by it "
                "(DELTA_ZORDERING_ON_COLUMN_WITHOUT_STATS). Collect them: delta.dataSkippingStatsColumns or "
                "delta.dataSkippingNumIndexedCols."
            )
        paths.append(tuple(spelled))
    return tuple(dict.fromkeys(paths))
