"""Which files OPTIMIZE and REORG rewrite, and which ones together (Delta's ``OptimizeExecutor`` and its strategies)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.statistics.row_counts import num_records

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import DomainMetadata, Metadata
    from airflow_delta.table.stage.view import TransactionView


MAX_DELETED_ROWS_RATIO = 0.05
"""Fraction of deleted rows above which a file of any size is rewritten (``optimize.maxDeletedRowsRatio``)."""

T = TypeVar("T")

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
