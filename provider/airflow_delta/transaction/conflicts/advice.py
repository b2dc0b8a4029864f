"""How to avoid a conflict the next time, as its error says: what would tell the transactions apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import ENABLE_DELETION_VECTORS, ENABLE_ROW_TRACKING

if TYPE_CHECKING:
    from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction


def keep_apart(current: CurrentTransaction, *, by_rows: bool = False, has_read_rows: bool = False) -> str:
    """Return how to avoid such a conflict.

    :param by_rows: a level beyond ``delta`` was tried already, and did not settle it.
    :param has_read_rows: it was ``rows``.
    """
    columns = ", ".join(current.partition_columns)
    if columns:
        how = (
            "transactions on disjoint partitions do not conflict. Use the partition columns "
            f"({columns}) in the predicates of overwrites, deletes and reads, and select no more partitions than needed; "
            f"{_QUEUE.format('partitions')}."
        )
    else:
        how = (
            f"the table is not partitioned, so only their rows distinguish transactions; {_QUEUE.format('rows')}. Or "
            "partition the table by what its writers keep apart."
        )
    if by_rows or not columns:
        how = f"{how} {_by_rows(current)}"
    if has_read_rows:
        return f"To avoid it: {how}"
    return f"To avoid it: {how} With conflict_detection='rows', only transactions that need the same rows conflict."


_QUEUE = (
    "let those that need the same {} run one after the other (max_active_runs=1 in a Dag; for tasks that are a transaction of "
    "their own also a pool with one slot), or start over by themselves (on_conflict='restart')"
)

_CONDITIONS = "comparisons of columns with literals (=, <, IN, IS NULL) tell rows apart, function calls do not"

_FEATURES = {
    ENABLE_DELETION_VECTORS: "deletion vectors ({}) leave other rows of a file alone",
    ENABLE_ROW_TRACKING: "row tracking ({}) finds rows again that a compaction moved",
}


def _by_rows(current: CurrentTransaction) -> str:
    """Return what tells rows apart: conditions, and the features that the table does not have yet."""
    configuration = current.metadata.configuration
    ways = [how.format(name) for name, how in _FEATURES.items() if configuration.get(name, "false").lower() != "true"]
    return f"For the rows: {'; '.join([_CONDITIONS, *ways])}."
