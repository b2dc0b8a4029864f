"""Options of OPTIMIZE and REORG: what they refuse, and the file size of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.byte_sizes import bytes_of
from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException
from airflow_delta.log.features.stats_columns import indexed_leaves, parse_column_list
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.schema.types import DecimalType, StructType
from airflow_delta.log.schema.walk import dotted, folded

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.table_definition import TableDefinition
    from airflow_delta.table.stage.view import TransactionView

DEFAULT_FILE_SIZE = 1 << 30
"""Bytes: smaller files are compacted into files of up to that size (``optimize.minFileSize``, ``maxFileSize``)."""

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
    size = bytes_of(text)
    if size is None:
        raise table.error(
            DeltaIllegalArgumentException,
            f"delta.targetFileSize of table {table.table} is {text!r}, expected bytes or a size such as 128mb. Correct "
            "it, or give max_file_size.",
        )
    return size


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
