"""Options of OPTIMIZE and REORG: what they refuse, and the file size of a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
)
from airflow_delta.staging.contract import TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.commands.stage.view import TransactionView
    from airflow_delta.log.expressions.predicate import Predicate

_ORDERED = frozenset(
    {"byte", "short", "integer", "long", "float", "double", "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz"}
)


def partition_predicate(view: TransactionView, where: str | None, operation: str) -> Predicate | None:
    """Return the predicate, which may only name partition columns because files are rewritten whole.

    :raises DeltaAnalysisException: if it names other columns.
    """
    if where is None:
        return None
    predicate, handle = view.predicate(where), view.target
    if not predicate.partition_only:
        columns = ", ".join(handle.partition_columns) or "none"
        raise DeltaAnalysisException(
            f"The predicate of {operation} ({where}) may only name partition columns of table {handle.table} version "
            f"{handle.read_version} ({columns}). Leave out other columns, or the predicate.",
            table=handle.table,
            version=handle.read_version,
        )
    return predicate


def refuse_clustered(view: TransactionView, *, what: str | None) -> None:
    """Refuse to rearrange a clustered table against its clustering.

    :param what: an option that no clustered table takes, even without clustering columns.
    :raises DeltaUnsupportedOperationException: if the table is clustered.
    """
    handle = view.handle
    if "clustering" not in handle.features or handle.read_version < 0:
        return
    from airflow_delta.log.features.clustering import clustering_columns
    from airflow_delta.log.schema.walk import dotted

    columns = clustering_columns(view.snapshot.domain_metadata)
    if columns or what is not None:
        names = ", ".join(map(dotted, columns)) or "no columns"
        way_out = (
            "Run OPTIMIZE with Delta Spark, which follows the clustering, or remove it first: ALTER TABLE ... CLUSTER BY NONE."
            if columns
            else f"Leave {what} out."
        )
        raise DeltaUnsupportedOperationException(
            f"Table {handle.table} version {handle.read_version} is clustered by {names}; this provider does not cluster, and "
            f"reordering the rows would undo it. {way_out}",
            table=handle.table,
            version=handle.read_version,
        )


def target_file_size(handle: TransactionHandle) -> int | None:
    """Return the property ``delta.targetFileSize`` in bytes: a number, or one with a unit such as ``128mb``.

    :raises DeltaIllegalArgumentException: if it is neither.
    """
    text = handle.configuration.get("delta.targetFileSize")
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,19})\s*+([kmgt]?)i?b?", text.strip().lower(), re.ASCII)
    if match is None or int(match[1]) < 1:
        raise DeltaIllegalArgumentException(
            f"delta.targetFileSize of table {handle.table} is {text!r}, expected bytes or a size such as 128mb. Correct "
            "it, or give max_file_size.",
            table=handle.table,
        )
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]


def z_order_columns(view: TransactionView, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the columns to order by, as the schema spells them."""
    from airflow_delta.log.features.indexed_columns import indexed_leaves, parse_column_list
    from airflow_delta.log.features.properties import TableProperties
    from airflow_delta.log.schema.suggestions import known_names
    from airflow_delta.log.schema.types import DecimalType, StructType
    from airflow_delta.log.schema.walk import dotted, folded

    handle, schema = view.target, view.schema
    indexed = {
        folded(leaf.path)
        for leaf in indexed_leaves(schema, handle.partition_columns, TableProperties(dict(handle.configuration)))
    }

    def refuse(why: str) -> DeltaAnalysisException:
        return DeltaAnalysisException(
            f"ZORDER BY of table {handle.table} version {handle.read_version}: {why}",
            table=handle.table,
            version=handle.read_version,
        )

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
        if folded((spelled[0],)) in {folded((column,)) for column in handle.partition_columns}:
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
