"""Pairs of rows that have the same keys, and how many rows have them, by Arrow's own hash join (Acero)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyarrow import _acero as acero  # its public name brings pyarrow.dataset, and with it pandas: 0.2 s
except ImportError:
    from pyarrow import acero


def pairs_with(left: pa.Table, right: pa.Table, keys: Sequence[str], output: tuple[str, str]) -> pa.Table:
    """Return a row for each pair of rows whose keys are equal; null equals nothing.

    :param keys: columns of both tables, of the same types.
    :param output: the column of each table to return.
    """
    sources = [acero.Declaration("table_source", acero.TableSourceNodeOptions(table)) for table in (left, right)]
    options: Any = acero.HashJoinNodeOptions(
        "inner", left_keys=list(keys), right_keys=list(keys), left_output=[output[0]], right_output=[output[1]]
    )
    return acero.Declaration("hashjoin", options, inputs=sources).to_table(use_threads=True)


def rows_by_key(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return each combination of keys of which none is null, once, and as ``count`` how many rows have it."""
    kept = table.select(list(keys))
    for name in keys:
        kept = kept.filter(pc.is_valid(kept.column(name)))
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(kept))
    options: Any = acero.AggregateNodeOptions([([], "hash_count_all", None, "count")], keys=list(keys))
    return acero.Declaration("aggregate", options, inputs=[source]).to_table(use_threads=True)
