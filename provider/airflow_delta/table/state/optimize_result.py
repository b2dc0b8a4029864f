"""What an OPTIMIZE or a REORG outside of a transaction did, as it travels in XCom."""

from __future__ import annotations

from dataclasses import field

from airflow_delta.contract.payloads import CONTRACT, CommitResult, Payload
from airflow_delta.light_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizeResult(Payload):
    """What an OPTIMIZE or a REORG did.

    :param version: version of the last commit, ``None`` if there was nothing to rewrite.
    :param commits: one for each batch.
    :param metrics: Delta's ``operationMetrics`` over all commits; sizes in bytes.
    :param num_bins: groups of files that were rewritten together.
    :param num_dropped_bins: those that were not committed, because others had compacted or changed their files.
    :param num_considered: files that the predicate selects.
    :param num_skipped: those that are left as they are.
    """

    contract: int = CONTRACT
    table: str
    operation: str
    read_version: int
    version: int | None = None
    commits: tuple[CommitResult, ...] = ()
    metrics: dict[str, int] = field(default_factory=dict)
    num_partitions: int = 0
    num_bins: int = 0
    num_dropped_bins: int = 0
    num_batches: int = 0
    num_considered: int = 0
    num_skipped: int = 0
